/* ipc.c - one protobuf message, one SEQPACKET datagram, one system call.
 *
 * Small bodies ride in the datagram; larger ones are packed straight into a
 * memfd, sealed, and passed beside an empty datagram. Never logs, never keeps
 * state, never trusts a length: header, seals, size and the memory that unpacking
 * takes are all checked here, so that callers only judge meaning.
 *
 * Always true: on failure no descriptor that came in stays open and nothing was
 * sent; a received descriptor is close-on-exec before user code sees it.
 * A process that limits RLIMIT_FSIZE below a body's size cannot send memfds.
 * Tests: tests/proto/test_ipc.c, tests/fuzz/fuzz_ipc.c
 */
#include "ipc.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#define TMPFS_FS_MAGIC 0x01021994 /* linux/magic.h; memfds that are not hugetlb */
#define SMALL_PACK 8192           /* packed on the stack; larger ones on the heap */
#define SNDBUF_BYTES (1 << 20)    /* asked for; the kernel caps it at wmem_max */
#define NEED_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)
#define FDS_ALL (IPC_FDS_MAX + 1) /* the memfd and what the caller passes */

union cmsg_buf {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int) * FDS_ALL)];
};

/* ------------------------------------------------------------------ header */

static void put_le(uint8_t *p, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static uint64_t get_le(const uint8_t *p, int n)
{
    uint64_t v = 0;

    for (int i = 0; i < n; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static void head_write(uint8_t *p, uint32_t flags, uint64_t body_bytes)
{
    put_le(p, IPC_MAGIC, 4);
    put_le(p + 4, flags, 4);
    put_le(p + 8, body_bytes, 8);
}

enum rc ipc_pair(int fds[2], struct rc_err *err)
{
    int pair[2], want = SNDBUF_BYTES;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return rc_fail(err, RC_IO, "socketpair: %s", strerror(errno));
    /* Too small a buffer shows as RC_IO (EMSGSIZE) on the first large frame; the
     * default of 208 KiB already holds one, so a refusal here is no failure. */
    for (int i = 0; i < 2; i++)
        (void)setsockopt(pair[i], SOL_SOCKET, SO_SNDBUF, &want, sizeof(want));
    fds[0] = pair[0];
    fds[1] = pair[1];
    return RC_OK;
}

/* -------------------------------------------------------------------- send */

static enum rc send_datagram(int fd, struct iovec *iov, size_t n_iov, const int *fds, size_t n_fds,
                             struct rc_err *err)
{
    union cmsg_buf cb;
    struct msghdr mh = {.msg_iov = iov, .msg_iovlen = n_iov};
    ssize_t r;

    if (n_fds > 0) {
        struct cmsghdr *c;

        memset(&cb, 0, sizeof(cb));
        mh.msg_control = cb.bytes;
        mh.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
        c = CMSG_FIRSTHDR(&mh);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
    }
    do
        r = sendmsg(fd, &mh, MSG_NOSIGNAL);
    while (r < 0 && errno == EINTR);
    if (r >= 0)
        return RC_OK;
    if (errno == EAGAIN || errno == EWOULDBLOCK)
        return rc_fail(err, RC_AGAIN, "the channel is full");
    if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN)
        return rc_fail(err, RC_CLOSED, "the peer closed the channel");
    if (errno == ENOBUFS || errno == ENOMEM)
        return rc_fail(err, RC_NOMEM, "no kernel memory to send a frame");
    return rc_fail(err, RC_IO, "sendmsg: %s", strerror(errno));
}

/* What fills a memfd: a message packed in place, or bytes already packed. */
struct body {
    const ProtobufCMessage *msg;
    const void *bytes;
    size_t n;
};

static void body_write(const struct body *b, void *to)
{
    if (b->msg)
        protobuf_c_message_pack(b->msg, to);
    else if (b->n > 0)
        memcpy(to, b->bytes, b->n);
}

static enum rc memfd_make(int *out, const struct body *b, struct rc_err *err)
{
    enum rc rc = RC_OK;
    void *map;
    int fd = memfd_create("inferd-frame", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return rc_fail(err,
                       errno == ENOMEM || errno == EMFILE || errno == ENFILE ? RC_NOMEM : RC_IO,
                       "memfd_create: %s", strerror(errno));
    if (ftruncate(fd, (off_t)b->n) != 0) {
        rc = rc_fail(err, RC_NOMEM, "a frame of %zu bytes: %s", b->n, strerror(errno));
        goto out;
    }
    map = mmap(NULL, b->n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        rc = rc_fail(err, RC_NOMEM, "mapping a frame of %zu bytes: %s", b->n, strerror(errno));
        goto out;
    }
    body_write(b, map);
    munmap(map, b->n); /* F_SEAL_WRITE is refused while a writable mapping lives */
    if (fcntl(fd, F_ADD_SEALS, NEED_SEALS | F_SEAL_SEAL) != 0)
        rc = rc_fail(err, RC_IO, "sealing a frame: %s", strerror(errno));
out:
    if (rc == RC_OK)
        *out = fd;
    else
        close(fd);
    return rc;
}

static enum rc send_big(int fd, const struct body *b, const int *fds, size_t n_fds,
                        struct rc_err *err)
{
    uint8_t head[IPC_HEAD_BYTES];
    struct iovec iov = {head, sizeof(head)};
    int all[FDS_ALL];
    enum rc rc;

    if (b->n > IPC_BODY_MAX) {
        rc = rc_fail(err, RC_TOO_LARGE, "a frame of %zu bytes, at most %llu are allowed", b->n,
                     (unsigned long long)IPC_BODY_MAX);
        if (err) {
            err->n = b->n;
            err->limit = IPC_BODY_MAX;
        }
        return rc;
    }
    if ((rc = memfd_make(&all[0], b, err)) != RC_OK)
        return rc;
    if (n_fds > 0)
        memcpy(all + 1, fds, sizeof(int) * n_fds);
    head_write(head, IPC_F_MEMFD | (n_fds ? IPC_F_FDS : 0), b->n);
    rc = send_datagram(fd, &iov, 1, all, n_fds + 1, err);
    close(all[0]);
    return rc;
}

enum rc ipc_send_packed(int fd, const void *bytes, size_t n_bytes, const int *fds, size_t n_fds,
                        struct rc_err *err)
{
    uint8_t head[IPC_HEAD_BYTES];
    struct iovec iov[2] = {{head, sizeof(head)}, {(void *)bytes, n_bytes}};
    struct body b = {NULL, bytes, n_bytes};

    if (n_fds > IPC_FDS_MAX)
        return rc_fail(err, RC_INVALID, "%zu descriptors in one frame, at most %d", n_fds,
                       IPC_FDS_MAX);
    if (n_bytes > IPC_INLINE_MAX)
        return send_big(fd, &b, fds, n_fds, err);
    head_write(head, n_fds ? IPC_F_FDS : 0, n_bytes);
    return send_datagram(fd, iov, n_bytes ? 2 : 1, fds, n_fds, err);
}

enum rc ipc_send(int fd, const ProtobufCMessage *msg, const int *fds, size_t n_fds,
                 struct rc_err *err)
{
    uint8_t small[IPC_HEAD_BYTES + SMALL_PACK], *buf = small;
    size_t n = protobuf_c_message_get_packed_size(msg);
    struct body b = {msg, NULL, n};
    struct iovec iov;
    enum rc rc;

    if (n_fds > IPC_FDS_MAX)
        return rc_fail(err, RC_INVALID, "%zu descriptors in one frame, at most %d", n_fds,
                       IPC_FDS_MAX);
    if (n > IPC_INLINE_MAX)
        return send_big(fd, &b, fds, n_fds, err);
    if (n > SMALL_PACK && !(buf = malloc(IPC_HEAD_BYTES + n)))
        return rc_fail(err, RC_NOMEM, "no memory for a frame of %zu bytes", n);
    head_write(buf, n_fds ? IPC_F_FDS : 0, n);
    body_write(&b, buf + IPC_HEAD_BYTES);
    iov = (struct iovec){buf, IPC_HEAD_BYTES + n};
    rc = send_datagram(fd, &iov, 1, fds, n_fds, err);
    if (buf != small)
        free(buf);
    return rc;
}

/* ------------------------------------------------------------------ unpack */

/* Two bytes on the wire can name an empty sub-message of a hundred bytes in
 * memory: a hostile peer would turn a 256 MiB frame into tens of GiB. Honest
 * frames stay far below 32 times their size. */
static size_t unpack_budget(size_t n)
{
    size_t steep = (4u << 20) + 32 * n, flat = (512u << 20) + 2 * n;

    return steep < flat ? steep : flat;
}

struct budget {
    size_t left;
    bool over;
};

static void *budget_alloc(void *data, size_t n)
{
    struct budget *b = data;
    size_t real;
    void *p;

    if (n > b->left) {
        b->over = true;
        return NULL;
    }
    if (!(p = malloc(n ? n : 1)))
        return NULL;
    real = malloc_usable_size(p);
    b->left -= real < b->left ? real : b->left;
    return p;
}

static void budget_free(void *data, void *p)
{
    struct budget *b = data;

    if (p)
        b->left += malloc_usable_size(p);
    free(p);
}

static enum rc unpack(const ProtobufCMessageDescriptor *desc, size_t n, const uint8_t *bytes,
                      ProtobufCMessage **out, struct rc_err *err)
{
    struct budget b = {unpack_budget(n), false};
    ProtobufCAllocator alloc = {budget_alloc, budget_free, &b};
    ProtobufCMessage *m = protobuf_c_message_unpack(desc, &alloc, n, bytes);

    if (m) {
        *out = m;
        return RC_OK;
    }
    if (b.over)
        return rc_fail(err, RC_TOO_LARGE, "a %s of %zu bytes takes too much memory", desc->name, n);
    return rc_fail(err, RC_FORMAT, "%zu bytes are not a %s", n, desc->name);
}

static enum rc parse_memfd(int memfd, uint64_t body, const ProtobufCMessageDescriptor *desc,
                           ProtobufCMessage **out, struct rc_err *err)
{
    struct stat st;
    struct statfs fs;
    int seals;
    enum rc rc;
    void *map;

    if (body > IPC_BODY_MAX)
        return rc_fail(err, RC_TOO_LARGE, "a frame of %llu bytes, at most %llu are allowed",
                       (unsigned long long)body, (unsigned long long)IPC_BODY_MAX);
    if (body == 0)
        return rc_fail(err, RC_FORMAT, "an empty body in a descriptor");
    /* Seals first: nothing about the size holds before they do. Only plain tmpfs
     * memory may be mapped: huge pages could run out under our feet. */
    seals = fcntl(memfd, F_GET_SEALS);
    if (seals < 0 || (seals & NEED_SEALS) != NEED_SEALS)
        return rc_fail(err, RC_FORMAT, "a frame's descriptor is not sealed");
    if (fstatfs(memfd, &fs) != 0 || (unsigned long)fs.f_type != TMPFS_FS_MAGIC ||
        fstat(memfd, &st) != 0 || !S_ISREG(st.st_mode))
        return rc_fail(err, RC_FORMAT, "a frame's descriptor is no plain memory file");
    if (st.st_size < 0 || (uint64_t)st.st_size != body)
        return rc_fail(err, RC_FORMAT,
                       "a frame's descriptor holds %lld bytes, its header says %llu",
                       (long long)st.st_size, (unsigned long long)body);
    map = mmap(NULL, body, PROT_READ, MAP_PRIVATE, memfd, 0);
    if (map == MAP_FAILED)
        return rc_fail(err, RC_NOMEM, "mapping a frame of %llu bytes: %s", (unsigned long long)body,
                       strerror(errno));
    rc = unpack(desc, body, map, out, err);
    munmap(map, body);
    return rc;
}

enum rc ipc_parse(const void *datagram, size_t n_bytes, int memfd,
                  const ProtobufCMessageDescriptor *desc, ProtobufCMessage **out,
                  struct rc_err *err)
{
    const uint8_t *p = datagram;
    uint64_t magic, flags, body;

    if (n_bytes < IPC_HEAD_BYTES)
        return rc_fail(err, RC_FORMAT, "a datagram of %zu bytes is shorter than a header", n_bytes);
    magic = get_le(p, 4);
    flags = get_le(p + 4, 4);
    body = get_le(p + 8, 8);
    if (magic != IPC_MAGIC)
        return rc_fail(err, RC_FORMAT, "frame magic 0x%08llx, expected 0x%08x",
                       (unsigned long long)magic, IPC_MAGIC);
    if (flags & ~(uint64_t)(IPC_F_MEMFD | IPC_F_FDS))
        return rc_fail(err, RC_FORMAT, "unknown frame flags 0x%llx", (unsigned long long)flags);
    n_bytes -= IPC_HEAD_BYTES;
    if (flags & IPC_F_MEMFD) {
        if (memfd < 0 || n_bytes != 0)
            return rc_fail(err, RC_FORMAT, "a frame with its body in a descriptor has %s",
                           memfd < 0 ? "no descriptor" : "an inline body too");
        return parse_memfd(memfd, body, desc, out, err);
    }
    if (memfd >= 0)
        return rc_fail(err, RC_FORMAT, "an inline frame with a descriptor");
    if (body != n_bytes || n_bytes > IPC_INLINE_MAX)
        return rc_fail(err, RC_FORMAT, "%zu bytes of body, the header says %llu", n_bytes,
                       (unsigned long long)body);
    return unpack(desc, n_bytes, p + IPC_HEAD_BYTES, out, err);
}

/* ----------------------------------------------------------------- receive */

static size_t take_fds(struct msghdr *mh, int out[FDS_ALL])
{
    size_t n_out = 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(mh); c; c = CMSG_NXTHDR(mh, c)) {
        size_t n;

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
            if (n_out < FDS_ALL)
                out[n_out++] = fd;
            else
                close(fd);
        }
    }
    return n_out;
}

static enum rc read_datagram(int fd, struct msghdr *mh, ssize_t *out_n, struct rc_err *err)
{
    ssize_t r;

    /* ECONNRESET once means "the peer died with unread frames of ours"; what it
     * wrote before is still queued, so ask again. */
    for (int resets = 0;;) {
        r = recvmsg(fd, mh, MSG_CMSG_CLOEXEC);
        if (r >= 0 || (errno != EINTR && errno != ECONNRESET))
            break;
        if (errno == ECONNRESET && ++resets > 2)
            break;
    }
    if (r > 0) {
        *out_n = r;
        return RC_OK;
    }
    if (r == 0 || errno == ECONNRESET)
        return rc_fail(err, RC_CLOSED, "the peer closed the channel");
    if (errno == EAGAIN || errno == EWOULDBLOCK)
        return rc_fail(err, RC_AGAIN, "no frame yet");
    if (errno == ENOMEM || errno == ENOBUFS)
        return rc_fail(err, RC_NOMEM, "no kernel memory to receive a frame");
    return rc_fail(err, RC_IO, "recvmsg: %s", strerror(errno));
}

/* A frame whose descriptors this process had no room for. */
static enum rc without_fds(const uint8_t *p, size_t n, uint64_t flags,
                           const ProtobufCMessageDescriptor *desc, ProtobufCMessage **out,
                           struct rc_err *err)
{
    if (flags != IPC_F_FDS)
        return rc_fail(err, RC_NOMEM, "no descriptor is left to receive a frame");
    return ipc_parse(p, n, -1, desc, out, err);
}

enum rc ipc_recv(int fd, const ProtobufCMessageDescriptor *desc, ProtobufCMessage **out,
                 int *out_fds, size_t *out_n_fds, struct rc_err *err)
{
    uint8_t buf[IPC_HEAD_BYTES + IPC_INLINE_MAX];
    union cmsg_buf cb;
    struct iovec iov = {buf, sizeof(buf)};
    struct msghdr mh = {.msg_iov = &iov,
                        .msg_iovlen = 1,
                        .msg_control = cb.bytes,
                        .msg_controllen = sizeof(cb.bytes)};
    int fds[FDS_ALL], memfd = -1;
    size_t n_fds, first = 0;
    uint64_t flags;
    ssize_t n = 0;
    enum rc rc;

    if ((rc = read_datagram(fd, &mh, &n, err)) != RC_OK)
        return rc;
    n_fds = take_fds(&mh, fds);
    flags = n >= IPC_HEAD_BYTES ? get_le(buf + 4, 4) : 0;
    if ((mh.msg_flags & MSG_CTRUNC) && !(mh.msg_flags & MSG_TRUNC) && n_fds < FDS_ALL) {
        /* there was room for their numbers: this process may not hold more descriptors */
        rc = without_fds(buf, (size_t)n, flags, desc, out, err);
        first = n_fds; /* what did arrive is closed */
        goto out;
    }
    if (mh.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
        rc = rc_fail(err, RC_FORMAT, "a datagram over the limit of %zu bytes or %d descriptors",
                     sizeof(buf), FDS_ALL);
        goto out;
    }
    if ((flags & IPC_F_MEMFD) && n_fds > 0)
        memfd = fds[first++];
    if ((n_fds - first > 0) != ((flags & IPC_F_FDS) != 0) ||
        (n_fds - first > 0 && (!out_fds || !out_n_fds)) || n_fds - first > IPC_FDS_MAX) {
        rc = rc_fail(err, RC_FORMAT, "%zu unexpected descriptors in a frame", n_fds - first);
        goto out;
    }
    rc = ipc_parse(buf, (size_t)n, memfd, desc, out, err);
out:
    explicit_bzero(buf, (size_t)n); /* it may hold a key or a secret, and children inherit stacks */
    for (size_t i = 0; i < n_fds; i++) {
        if (rc != RC_OK || i < first)
            close(fds[i]);
        else
            out_fds[i - first] = fds[i];
    }
    if (rc == RC_OK && out_n_fds)
        *out_n_fds = n_fds - first;
    return rc;
}

/* -------------------------------------------------------------------- text */

/* Length of the well-formed character at s, 0 when there is none. */
static size_t utf8_char(const uint8_t *s, size_t n)
{
    uint8_t lo = 0x80, hi = 0xBF;
    size_t need;

    if (s[0] < 0x80)
        return 1;
    if (s[0] < 0xC2 || s[0] > 0xF4)
        return 0;
    need = s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    if (need > n)
        return 0;
    if (s[0] == 0xE0)
        lo = 0xA0; /* overlong */
    else if (s[0] == 0xED)
        hi = 0x9F; /* surrogates */
    else if (s[0] == 0xF0)
        lo = 0x90; /* overlong */
    else if (s[0] == 0xF4)
        hi = 0x8F; /* above U+10FFFF */
    if (s[1] < lo || s[1] > hi)
        return 0;
    for (size_t i = 2; i < need; i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    return need;
}

bool ipc_utf8_valid(const void *s, size_t n_bytes)
{
    const uint8_t *p = s;

    for (size_t i = 0; i < n_bytes;) {
        size_t n;
        uint64_t w;

        while (n_bytes - i >= 8 && (memcpy(&w, p + i, 8), !(w & 0x8080808080808080ull)))
            i += 8;
        if (i == n_bytes)
            break;
        if (!(n = utf8_char(p + i, n_bytes - i)))
            return false;
        i += n;
    }
    return true;
}

/* Copies what is text and fits; '?' for each byte that is not (NUL included). */
static void copy_text(char *to, size_t cap, const uint8_t *s, size_t n)
{
    size_t o = 0;

    for (size_t i = 0; i < n;) {
        size_t c = s[i] ? utf8_char(s + i, n - i) : 0;

        if (o + (c ? c : 1) >= cap)
            break;
        if (c)
            memcpy(to + o, s + i, c);
        else
            to[o] = '?';
        o += c ? c : 1;
        i += c ? c : 1;
    }
    to[o] = '\0';
}

const char *ipc_stage(const char *word)
{
    static const char *const stages[] = {
        IPC_STAGE_PARSE,     IPC_STAGE_FETCH,     IPC_STAGE_IMAGE,     IPC_STAGE_SOUND,
        IPC_STAGE_TEXT_RUN,  IPC_STAGE_IMAGE_RUN, IPC_STAGE_SOUND_RUN, "model_admission",
        "inference",
    };

    for (size_t i = 0; i < sizeof(stages) / sizeof(stages[0]); i++)
        if (strcmp(stages[i], word) == 0)
            return stages[i];
    return NULL;
}

void ipc_error_from(Ipc__Error *out, const struct rc_err *err)
{
    ipc__error__init(out);
    out->code = (uint32_t)err->code;
    out->message.data = (uint8_t *)err->msg;
    out->message.len = strlen(err->msg);
    out->what = (char *)err->what;
    out->n = err->n;
    out->limit = err->limit;
    out->item = err->item;
    out->stage = (char *)(err->stage ? err->stage : "");
}

void ipc_error_to(struct rc_err *out, const Ipc__Error *in)
{
    *out = RC_ERR_INIT;
    out->code = rc_from_wire(in->code);
    if (out->code == RC_OK)
        out->code = RC_INTERNAL;
    out->n = in->n;
    out->limit = in->limit;
    out->item = in->item < 0 ? -1 : in->item;
    out->stage = ipc_stage(in->stage ? in->stage : "");
    copy_text(out->msg, sizeof(out->msg), in->message.data, in->message.len);
    if (in->what)
        copy_text(out->what, sizeof(out->what), (const uint8_t *)in->what, strlen(in->what));
    if (!out->msg[0])
        copy_text(out->msg, sizeof(out->msg), (const uint8_t *)rc_text(out->code),
                  strlen(rc_text(out->code)));
}
