/* test_ipc.c - frames on real socketpairs, honest and hostile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <fcntl.h>
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ipc.h"

static int open_fds(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");

    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

struct fix {
    int fd[2];
    int fds_before;
};

static int setup(void **s)
{
    static struct fix f;

    f.fds_before = open_fds();
    assert_int_equal(ipc_pair(f.fd, NULL), RC_OK);
    for (int i = 0; i < 2; i++)
        fcntl(f.fd[i], F_SETFL, O_NONBLOCK);
    *s = &f;
    return 0;
}

/* Every test ends with as many descriptors as it began: nothing leaks, also when a
 * hostile frame was refused. */
static int teardown(void **s)
{
    struct fix *f = *s;

    for (int i = 0; i < 2; i++)
        if (f->fd[i] >= 0)
            close(f->fd[i]);
    return open_fds() == f->fds_before ? 0 : -1;
}

static Ipc__Frame *frame_in(int fd, enum rc want)
{
    ProtobufCMessage *m = NULL;
    struct rc_err e = RC_ERR_INIT;
    enum rc rc = ipc_recv(fd, &ipc__frame__descriptor, &m, NULL, NULL, &e);

    if (rc != want)
        print_message("ipc_recv: %s: %s\n", rc_name(rc), e.msg);
    assert_int_equal(rc, want);
    return (Ipc__Frame *)m;
}

static void echo_frame(Ipc__Frame *f, Ipc__Echo *e, uint64_t task, uint8_t *data, size_t n)
{
    ipc__frame__init(f);
    ipc__echo__init(e);
    f->task = task;
    f->body_case = IPC__FRAME__BODY_ECHO;
    f->echo = e;
    e->data.data = data;
    e->data.len = n;
}

static void bodies_of_every_size_arrive_whole(void **s)
{
    static const size_t sizes[] = {
        0,       1,      8191, 8192, 8193, IPC_INLINE_MAX - 20, IPC_INLINE_MAX, IPC_INLINE_MAX + 1,
        1000003, 9 << 20};
    struct fix *f = *s;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint8_t *data = malloc(sizes[i] + 1);
        Ipc__Frame out, *in;
        Ipc__Echo e;

        for (size_t k = 0; k < sizes[i]; k++)
            data[k] = (uint8_t)(k * 31 + i);
        echo_frame(&out, &e, 42 + i, data, sizes[i]);
        assert_int_equal(ipc_send(f->fd[0], &out.base, NULL, 0, NULL), RC_OK);
        in = frame_in(f->fd[1], RC_OK);
        assert_int_equal(in->task, 42 + i);
        assert_int_equal(in->body_case, IPC__FRAME__BODY_ECHO);
        assert_int_equal(in->echo->data.len, sizes[i]);
        if (sizes[i])
            assert_memory_equal(in->echo->data.data, data, sizes[i]);
        protobuf_c_message_free_unpacked(&in->base, NULL);
        /* the same through the door for packed bodies */
        size_t n = ipc__frame__get_packed_size(&out);
        uint8_t *packed = malloc(n);
        ipc__frame__pack(&out, packed);
        assert_int_equal(ipc_send_packed(f->fd[0], packed, n, NULL, 0, NULL), RC_OK);
        in = frame_in(f->fd[1], RC_OK);
        assert_int_equal(in->echo->data.len, sizes[i]);
        protobuf_c_message_free_unpacked(&in->base, NULL);
        free(packed);
        free(data);
    }
}

static void a_full_channel_says_again_and_loses_nothing(void **s)
{
    struct fix *f = *s;
    uint8_t data[3000] = {0};
    Ipc__Frame out;
    Ipc__Echo e;
    int sent = 0, got = 0;
    enum rc rc;

    echo_frame(&out, &e, 0, data, sizeof(data));
    for (;;) {
        out.task = (uint64_t)sent;
        rc = ipc_send(f->fd[0], &out.base, NULL, 0, NULL);
        if (rc != RC_OK)
            break;
        sent++;
        assert_true(sent < 100000);
    }
    assert_int_equal(rc, RC_AGAIN);
    assert_true(sent > 10);
    for (; got < sent; got++) {
        Ipc__Frame *in = frame_in(f->fd[1], RC_OK);
        assert_int_equal(in->task, got);
        protobuf_c_message_free_unpacked(&in->base, NULL);
    }
    frame_in(f->fd[1], RC_AGAIN);
}

static void a_dead_peer_is_closed_after_its_last_words(void **s)
{
    struct fix *f = *s;
    Ipc__Frame out, *in;
    Ipc__Echo e;

    echo_frame(&out, &e, 9, NULL, 0);
    /* the peer dies with a frame of ours unread and one of its own on the way */
    assert_int_equal(ipc_send(f->fd[0], &out.base, NULL, 0, NULL), RC_OK);
    assert_int_equal(ipc_send(f->fd[1], &out.base, NULL, 0, NULL), RC_OK);
    close(f->fd[1]);
    f->fd[1] = -1;
    in = frame_in(f->fd[0], RC_OK);
    assert_int_equal(in->task, 9);
    protobuf_c_message_free_unpacked(&in->base, NULL);
    frame_in(f->fd[0], RC_CLOSED);
    assert_int_equal(ipc_send(f->fd[0], &out.base, NULL, 0, NULL), RC_CLOSED);
}

/* This process may hold `more` descriptors beyond those it has; returns what it might before. */
static rlim_t fds_left(unsigned more)
{
    int next = dup(0);
    struct rlimit r;
    rlim_t old;

    assert_true(next >= 0);
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &r), 0);
    old = r.rlim_cur;
    r.rlim_cur = (rlim_t)next + more;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &r), 0);
    return old;
}

static void fds_again(rlim_t old)
{
    struct rlimit r;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &r), 0);
    r.rlim_cur = old;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &r), 0);
}

static void without_room_for_descriptors_frames_come_without_or_are_lost(void **s)
{
    struct fix *f = *s;
    size_t n = IPC_INLINE_MAX + 10, n_got = 9;
    int got[IPC_FDS_MAX], pair[2] = {f->fd[0], f->fd[1]};
    uint8_t *data = calloc(1, n);
    struct rc_err e = RC_ERR_INIT;
    ProtobufCMessage *m = NULL;
    Ipc__Frame big, small;
    Ipc__Echo a, b;
    rlim_t old;

    echo_frame(&big, &a, 1, data, n);
    echo_frame(&small, &b, 2, (uint8_t *)"hi", 2);
    old = fds_left(0);
    assert_int_equal(ipc_send(f->fd[0], &big.base, NULL, 0, &e), RC_NOMEM); /* no memfd */
    fds_again(old);
    for (unsigned room = 0; room < 2; room++) { /* for none, for one of two */
        assert_int_equal(ipc_send(f->fd[0], &small.base, pair, 2, NULL), RC_OK);
        old = fds_left(room);
        assert_int_equal(ipc_recv(f->fd[1], &ipc__frame__descriptor, &m, got, &n_got, NULL), RC_OK);
        assert_int_equal(n_got, 0);
        assert_int_equal(((Ipc__Frame *)m)->task, 2);
        protobuf_c_message_free_unpacked(m, NULL);
        fds_again(old);
    }
    assert_int_equal(ipc_send(f->fd[0], &big.base, NULL, 0, &e), RC_OK);
    old = fds_left(0);
    assert_int_equal(ipc_recv(f->fd[1], &ipc__frame__descriptor, &m, NULL, NULL, &e), RC_NOMEM);
    fds_again(old);
    /* nothing was left open, and the channel goes on */
    assert_int_equal(ipc_send(f->fd[0], &big.base, pair, 2, NULL), RC_OK);
    assert_int_equal(ipc_recv(f->fd[1], &ipc__frame__descriptor, &m, got, &n_got, NULL), RC_OK);
    assert_int_equal(n_got, 2);
    protobuf_c_message_free_unpacked(m, NULL);
    close(got[0]);
    close(got[1]);
    free(data);
}

static void descriptors_travel_and_are_close_on_exec(void **s)
{
    static const size_t sizes[] = {10, IPC_INLINE_MAX + 10};
    struct fix *f = *s;

    for (int big = 0; big < 2; big++) {
        int p[2], got[IPC_FDS_MAX];
        size_t n_got = 0;
        ProtobufCMessage *m = NULL;
        uint8_t *data = calloc(1, sizes[big]);
        char c = 0;
        Ipc__Frame out;
        Ipc__Echo e;

        assert_int_equal(pipe(p), 0);
        echo_frame(&out, &e, 1, data, sizes[big]);
        assert_int_equal(ipc_send(f->fd[0], &out.base, p, 2, NULL), RC_OK);
        close(p[0]);
        close(p[1]);
        assert_int_equal(ipc_recv(f->fd[1], &ipc__frame__descriptor, &m, got, &n_got, NULL), RC_OK);
        assert_int_equal(n_got, 2);
        for (int i = 0; i < 2; i++)
            assert_true(fcntl(got[i], F_GETFD) & FD_CLOEXEC);
        assert_int_equal(write(got[1], "x", 1), 1);
        assert_int_equal(read(got[0], &c, 1), 1);
        assert_int_equal(c, 'x');
        close(got[0]);
        close(got[1]);
        protobuf_c_message_free_unpacked(m, NULL);

        /* a reader that wants none refuses the frame and closes them */
        assert_int_equal(ipc_send(f->fd[0], &out.base, f->fd, 2, NULL), RC_OK);
        frame_in(f->fd[1], RC_FORMAT);
        /* more than the limit is refused at the sender */
        int five[5] = {0, 0, 0, 0, 0};
        assert_int_equal(ipc_send(f->fd[0], &out.base, five, 5, NULL), RC_INVALID);
        free(data);
    }
}

/* ------------------------------------------------------------ hostile frames */

static void raw(int fd, const void *b, size_t n, const int *fds, size_t n_fds)
{
    char cb[CMSG_SPACE(sizeof(int) * 8)] = {0};
    struct iovec iov = {(void *)b, n};
    struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};

    if (n_fds) {
        struct cmsghdr *c;

        mh.msg_control = cb;
        mh.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
        c = CMSG_FIRSTHDR(&mh);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
    }
    assert_int_equal(sendmsg(fd, &mh, MSG_NOSIGNAL), (ssize_t)n);
}

static void head(uint8_t *p, uint32_t magic, uint32_t flags, uint64_t body)
{
    memcpy(p, &magic, 4); /* tests run on little-endian machines only */
    memcpy(p + 4, &flags, 4);
    memcpy(p + 8, &body, 8);
}

static int mem(size_t n, int seals)
{
    int fd = memfd_create("t", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)n), 0);
    if (seals)
        assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void lies_about_the_frame_are_refused(void **s)
{
    const int all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
    struct {
        const char *sentence;
        uint32_t magic, flags;
        uint64_t body;
        size_t inline_bytes, mem_bytes;
        int seals, n_fds;
        enum rc want;
    } rows[] = {
        {"wrong magic", 7, 0, 0, 0, 0, 0, 0, RC_FORMAT},
        {"unknown flag", IPC_MAGIC, 8, 0, 0, 0, 0, 0, RC_FORMAT},
        {"body longer than said", IPC_MAGIC, 0, 1, 2, 0, 0, 0, RC_FORMAT},
        {"body shorter than said", IPC_MAGIC, 0, 5, 2, 0, 0, 0, RC_FORMAT},
        {"absurd inline length", IPC_MAGIC, 0, UINT64_MAX, 2, 0, 0, 0, RC_FORMAT},
        {"memfd flag without one", IPC_MAGIC, IPC_F_MEMFD, 5, 0, 0, 0, 0, RC_FORMAT},
        {"memfd without the flag", IPC_MAGIC, 0, 0, 0, 8, all, 1, RC_FORMAT},
        {"fds flag without any", IPC_MAGIC, IPC_F_FDS, 0, 0, 0, 0, 0, RC_FORMAT},
        {"memfd not sealed", IPC_MAGIC, IPC_F_MEMFD, 8, 0, 8, 0, 1, RC_FORMAT},
        {"memfd may still shrink", IPC_MAGIC, IPC_F_MEMFD, 8, 0, 8, F_SEAL_GROW | F_SEAL_WRITE, 1,
         RC_FORMAT},
        {"memfd may be written", IPC_MAGIC, IPC_F_MEMFD, 8, 0, 8, F_SEAL_GROW | F_SEAL_SHRINK, 1,
         RC_FORMAT},
        {"memfd smaller than said", IPC_MAGIC, IPC_F_MEMFD, 9000, 0, 8, all, 1, RC_FORMAT},
        {"memfd larger than said", IPC_MAGIC, IPC_F_MEMFD, 8, 0, 9000, all, 1, RC_FORMAT},
        {"memfd of nothing", IPC_MAGIC, IPC_F_MEMFD, 0, 0, 0, all, 1, RC_FORMAT},
        {"body over the limit", IPC_MAGIC, IPC_F_MEMFD, IPC_BODY_MAX + 1, 0, 8, all, 1,
         RC_TOO_LARGE},
        {"memfd and inline body", IPC_MAGIC, IPC_F_MEMFD, 8, 8, 8, all, 1, RC_FORMAT},
        {"zero bytes are no Frame", IPC_MAGIC, IPC_F_MEMFD, 8, 0, 8, all, 1, RC_FORMAT},
        {"six descriptors", IPC_MAGIC, IPC_F_MEMFD, 8, 0, 8, all, 6, RC_FORMAT},
    };
    struct fix *f = *s;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint8_t b[64] = {0};
        int fds[6];

        head(b, rows[i].magic, rows[i].flags, rows[i].body);
        for (int k = 0; k < rows[i].n_fds; k++)
            fds[k] = mem(rows[i].mem_bytes, rows[i].seals);
        raw(f->fd[0], b, IPC_HEAD_BYTES + rows[i].inline_bytes, fds, (size_t)rows[i].n_fds);
        for (int k = 0; k < rows[i].n_fds; k++)
            close(fds[k]);
        print_message("%s\n", rows[i].sentence);
        frame_in(f->fd[1], rows[i].want);
    }
    raw(f->fd[0], "short", 5, NULL, 0);
    frame_in(f->fd[1], RC_FORMAT);
    uint8_t *big = calloc(1, IPC_INLINE_MAX + 100);
    raw(f->fd[0], big, IPC_INLINE_MAX + 17, NULL, 0);
    frame_in(f->fd[1], RC_FORMAT);
    free(big);
    /* a real file instead of memory */
    uint8_t b[IPC_HEAD_BYTES];
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    head(b, IPC_MAGIC, IPC_F_MEMFD, (uint64_t)lseek(fd, 0, SEEK_END));
    raw(f->fd[0], b, sizeof(b), &fd, 1);
    close(fd);
    frame_in(f->fd[1], RC_FORMAT);
}

static void unpacking_cannot_be_made_to_eat_memory(void **s)
{
    /* Vectors.errors, two bytes each: half a million empty ItemErrors */
    size_t n_inner = 40u << 20, n = 0;
    uint8_t *b = malloc(n_inner + 64);
    ProtobufCMessage *m = NULL;
    struct rc_err e = RC_ERR_INIT;

    (void)s;
    n = IPC_HEAD_BYTES;
    b[n++] = ((45 << 3 | 2) & 0x7F) | 0x80;
    b[n++] = (45 << 3 | 2) >> 7;
    for (size_t v = n_inner; v; v >>= 7)
        b[n++] = (uint8_t)((v & 0x7F) | (v > 0x7F ? 0x80 : 0));
    for (size_t i = 0; i < n_inner; i += 2) {
        b[n++] = 6 << 3 | 2;
        b[n++] = 0;
    }
    int fd = memfd_create("t", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(write(fd, b + IPC_HEAD_BYTES, n - IPC_HEAD_BYTES),
                     (ssize_t)(n - IPC_HEAD_BYTES));
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), 0);
    head(b, IPC_MAGIC, IPC_F_MEMFD, n - IPC_HEAD_BYTES);
    assert_int_equal(ipc_parse(b, IPC_HEAD_BYTES, fd, &ipc__frame__descriptor, &m, &e),
                     RC_TOO_LARGE);
    close(fd);
    free(b);
}

static void too_large_bodies_are_refused_before_memory_is_taken(void **s)
{
    struct fix *f = *s;
    struct rc_err e = RC_ERR_INIT;

    /* never read: the length alone decides */
    assert_int_equal(ipc_send_packed(f->fd[0], "x", IPC_BODY_MAX + 1, NULL, 0, &e), RC_TOO_LARGE);
    assert_true(e.n == IPC_BODY_MAX + 1 && e.limit == IPC_BODY_MAX);
}

static void errors_survive_the_wire(void **s)
{
    struct rc_err a = RC_ERR_INIT, b;
    Ipc__Error w;

    (void)s;
    rc_fail_what(&a, RC_TOO_LARGE, "input", "9 tokens, at most 8");
    a.n = 9;
    a.limit = 8;
    a.item = 4;
    a.stage = IPC_STAGE_FETCH;
    ipc_error_from(&w, &a);
    ipc_error_to(&b, &w);
    assert_int_equal(b.code, RC_TOO_LARGE);
    assert_string_equal(b.msg, a.msg);
    assert_string_equal(b.what, "input");
    assert_true(b.n == 9 && b.limit == 8 && b.item == 4);
    assert_string_equal(b.stage, "fetch");
    w.stage = (char *)"fetch\"";
    ipc_error_to(&b, &w);
    assert_null(b.stage);

    ipc__error__init(&w);
    w.code = 77777;
    w.item = -5;
    w.message.data = (uint8_t *)"a\xFF\0z";
    w.message.len = 4;
    w.what = (char *)"t\xC3";
    ipc_error_to(&b, &w);
    assert_int_equal(b.code, RC_INTERNAL);
    assert_int_equal(b.item, -1);
    assert_string_equal(b.msg, "a??z");
    assert_string_equal(b.what, "t?");
    w.code = RC_OK;
    w.message.len = 0;
    ipc_error_to(&b, &w);
    assert_int_equal(b.code, RC_INTERNAL);
    assert_string_equal(b.msg, rc_text(RC_INTERNAL));
    /* longer than the place for it, and cut inside a character */
    char big[1201];
    for (int i = 0; i < 1200; i += 3)
        memcpy(big + i, "\xE2\x82\xAC", 3);
    w.message.data = (uint8_t *)big;
    w.message.len = 1200;
    ipc_error_to(&b, &w);
    assert_true(strlen(b.msg) >= 500 && ipc_utf8_valid(b.msg, strlen(b.msg)));
}

static void utf8_is_judged_by_the_book(void **s)
{
    static const struct {
        const char *bytes;
        size_t n;
        bool ok;
    } rows[] = {
        {"", 0, true},
        {"plain ascii of some length", 26, true},
        {"a\0b", 3, true},
        {"\xC3\xA9", 2, true},
        {"\xE2\x82\xAC", 3, true},
        {"\xF0\x9F\x98\x80", 4, true},
        {"\xF4\x8F\xBF\xBF", 4, true},
        {"\xEF\xBF\xBD", 3, true},
        {"\xC3", 1, false},
        {"12345678\xC3", 9, false},
        {"\x80", 1, false},
        {"\xC0\x80", 2, false},
        {"\xC1\xBF", 2, false},
        {"\xE0\x9F\xBF", 3, false},
        {"\xED\xA0\x80", 3, false},
        {"\xF0\x8F\xBF\xBF", 4, false},
        {"\xF4\x90\x80\x80", 4, false},
        {"\xF5\x80\x80\x80", 4, false},
        {"\xFF", 1, false},
        {"\xE2\x28\xA1", 3, false},
        {"\xF0\x9F\x98", 3, false},
    };

    (void)s;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (ipc_utf8_valid(rows[i].bytes, rows[i].n) != rows[i].ok)
            fail_msg("row %zu", i);
    }
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(bodies_of_every_size_arrive_whole),
        T(a_full_channel_says_again_and_loses_nothing),
        T(a_dead_peer_is_closed_after_its_last_words),
        T(descriptors_travel_and_are_close_on_exec),
        T(without_room_for_descriptors_frames_come_without_or_are_lost),
        T(lies_about_the_frame_are_refused),
        T(unpacking_cannot_be_made_to_eat_memory),
        T(too_large_bodies_are_refused_before_memory_is_taken),
        T(errors_survive_the_wire),
        T(utf8_is_judged_by_the_book),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
