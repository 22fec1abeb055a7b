/* test_sup_link.c - the front's side of the fetcher, against one that is played here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#include "fetch.pb-c.h"
#include "ipc.h"
#include "sup_link.h"
#include "sup_walls.h"

static struct {
    uv_loop_t loop;
    struct sup_link *link;
    int far, n_done, n_progress, n_lost;
    enum rc code;
    char msg[128], type[64];
    size_t n_data;
    char data[16];
} T;

static void on_lost(void *user)
{
    T.n_lost++;
}

static void on_done(void *user, struct sup_link_done *d)
{
    T.n_done++;
    T.code = d->code;
    snprintf(T.msg, sizeof(T.msg), "%.127s", d->err.msg);
    snprintf(T.type, sizeof(T.type), "%s", d->type ? d->type : "");
    T.n_data = d->n_data;
    if (d->data)
        memcpy(T.data, d->data, d->n_data < sizeof(T.data) ? d->n_data : sizeof(T.data));
    sup_link_unmap(d->data, d->n_data);
}

static void on_progress(void *user, const struct sup_link_progress *p)
{
    assert_string_equal(p->stage, "fetching");
    assert_int_equal(p->done_bytes, 7);
    T.n_progress++;
}

static const struct sup_link_cb cb = {on_progress, on_done, NULL};

static int set_up(void **state)
{
    int fds[2];

    memset(&T, 0, sizeof(T));
    if (uv_loop_init(&T.loop) != 0 || ipc_pair(fds, NULL) != RC_OK)
        return -1;
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    fcntl(fds[1], F_SETFL, O_NONBLOCK);
    T.far = fds[1];
    return sup_link_new(&T.link, &T.loop, fds[0], NULL, on_lost, NULL, NULL) == RC_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    sup_link_stop(T.link);
    uv_run(&T.loop, UV_RUN_DEFAULT);
    sup_link_free(&T.link);
    uv_loop_close(&T.loop);
    close(T.far);
    return 0;
}

static void turn(void)
{
    uv_run(&T.loop, UV_RUN_NOWAIT);
}

/* What the front said last; 0 = nothing. */
static uint64_t heard(Ipc__Fetch__BodyCase want)
{
    ProtobufCMessage *raw = NULL;
    uint64_t req;

    if (ipc_recv(T.far, &ipc__fetch__descriptor, &raw, NULL, NULL, NULL) != RC_OK)
        return 0;
    assert_int_equal(((Ipc__Fetch *)raw)->body_case, want);
    req = ((Ipc__Fetch *)raw)->req;
    protobuf_c_message_free_unpacked(raw, NULL);
    return req;
}

static int memory(const char *text, int seals)
{
    int fd = memfd_create("t", MFD_ALLOW_SEALING | MFD_CLOEXEC);

    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void answer(uint64_t req, enum rc code, const char *msg, uint64_t bytes, int fd)
{
    Ipc__FetchDone d = IPC__FETCH_DONE__INIT;
    Ipc__Fetch m = IPC__FETCH__INIT;

    d.code = (uint32_t)code;
    d.message.data = (uint8_t *)(uintptr_t)msg;
    d.message.len = strlen(msg);
    d.type = (char *)(uintptr_t) "image/png";
    d.bytes = bytes;
    m.req = req;
    m.body_case = IPC__FETCH__BODY_DONE;
    m.done = &d;
    assert_int_equal(ipc_send(T.far, &m.base, fd >= 0 ? &fd : NULL, fd >= 0, NULL), RC_OK);
    if (fd >= 0)
        close(fd);
    turn();
}

static uint64_t ask(void)
{
    uint64_t id = 0;

    assert_int_equal(sup_link_media(T.link, "https://a/b", 10, 1000, &cb, &id, NULL), RC_OK);
    assert_int_equal(heard(IPC__FETCH__BODY_MEDIA), id);
    return id;
}

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

static void a_file_comes(void **state)
{
    answer(ask(), RC_OK, "", 4, memory("abcd", SEALS));
    assert_int_equal(T.n_done, 1);
    assert_int_equal(T.code, RC_OK);
    assert_memory_equal(T.data, "abcd", 4);
    assert_int_equal(T.n_data, 4);
    assert_string_equal(T.type, "image/png");
    answer(ask(), RC_CONFLICT, "no", 0, -1);
    assert_int_equal(T.n_done, 2);
    assert_int_equal(T.code, RC_CONFLICT);
    assert_string_equal(T.msg, "no");
    assert_int_equal(T.n_lost, 0);
}

static void a_pull_tells_how_far_it_is(void **state)
{
    Ipc__FetchProgress p = IPC__FETCH_PROGRESS__INIT;
    Ipc__Fetch m = IPC__FETCH__INIT;
    uint64_t id = 0;

    assert_int_equal(sup_link_pull(T.link, "a/b", false, &cb, &id, NULL), RC_OK);
    assert_int_equal(heard(IPC__FETCH__BODY_PULL), id);
    p.stage = (char *)(uintptr_t) "fetching";
    p.done_bytes = 7;
    m.req = id;
    m.body_case = IPC__FETCH__BODY_PROGRESS;
    m.progress = &p;
    assert_int_equal(ipc_send(T.far, &m.base, NULL, 0, NULL), RC_OK);
    turn();
    assert_int_equal(T.n_progress, 1);
    answer(id, RC_OK, "", 100, -1); /* more than any file: it is none */
    assert_int_equal(T.code, RC_OK);
}

static void what_is_cancelled_calls_nobody(void **state)
{
    uint64_t id = ask();

    sup_link_cancel(T.link, id);
    assert_int_equal(heard(IPC__FETCH__BODY_CANCEL), id);
    answer(id, RC_OK, "", 4, memory("abcd", SEALS));
    sup_link_cancel(T.link, id);
    sup_link_cancel(T.link, 12345);
    assert_int_equal(heard(IPC__FETCH__BODY_CANCEL), 0);
    assert_int_equal(T.n_done, 0);
    assert_int_equal(T.n_lost, 0);
}

/* The walls of the fetcher (req 0) or of an errand's child. */
static void walls(uint64_t req, uint32_t pid, const char *held, const char *missing)
{
    Ipc__FetchWalls w = IPC__FETCH_WALLS__INIT;
    Ipc__Fetch m = IPC__FETCH__INIT;
    char *h[] = {(char *)(uintptr_t)held}, *n[] = {(char *)(uintptr_t)missing};

    w.pid = pid;
    w.held = h;
    w.n_held = 1;
    w.missing = n;
    w.n_missing = missing != NULL;
    m.req = req;
    m.body_case = IPC__FETCH__BODY_WALLS;
    m.walls = &w;
    assert_int_equal(ipc_send(T.far, &m.base, NULL, 0, NULL), RC_OK);
    turn();
}

static void write_down(void *user, const char *errand, const struct sup_walls_told *t)
{
    char *b = user;
    size_t n = strlen(b);

    snprintf(b + n, 200 - n, "%s %u %s %s;", errand ? errand : "-", (unsigned)t->pid,
             t->n_held ? t->held[0] : "", t->n_missing ? t->missing[0] : "");
}

static const char *processes(char b[200])
{
    b[0] = '\0';
    sup_link_each_process(T.link, write_down, b);
    return b;
}

static void who_stands_behind_which_walls(void **state)
{
    uint64_t media, pull, gone;
    char b[200];

    assert_string_equal(processes(b), "- 0  ;");
    walls(0, 5, "seccomp", "landlock");
    media = ask();
    assert_string_equal(processes(b), "- 5 seccomp landlock;"); /* its child has said nothing */
    walls(media, 6, "seccomp", NULL);
    assert_int_equal(sup_link_pull(T.link, "a/b", false, &cb, &pull, NULL), RC_OK);
    assert_int_equal(heard(IPC__FETCH__BODY_PULL), pull);
    walls(pull, 7, "rlimits", NULL);
    assert_string_equal(processes(b), "- 5 seccomp landlock;pull 7 rlimits ;media 6 seccomp ;");
    gone = ask();
    sup_link_cancel(T.link, gone);
    walls(gone, 8, "seccomp", NULL); /* under way when it was cancelled */
    answer(media, RC_CONFLICT, "no", 0, -1);
    assert_string_equal(processes(b), "- 5 seccomp landlock;pull 7 rlimits ;");
    sup_link_cancel(T.link, pull);
    assert_string_equal(processes(b), "- 5 seccomp landlock;");
    assert_int_equal(T.n_lost, 0);
}

static void lies_end_the_link(void **state)
{
    for (int row = 0; row < 10; row++) {
        uint64_t id;

        if (row)
            assert_int_equal(set_up(NULL), 0);
        id = ask();
        if (row == 0)
            answer(id, RC_OK, "", 4, memory("abcd", F_SEAL_SHRINK | F_SEAL_GROW));
        else if (row == 1)
            answer(id, RC_OK, "", 3, memory("abcd", SEALS));
        else if (row == 2)
            answer(id, RC_OK, "", 11, memory("abcdefghijk", SEALS)); /* more than asked for */
        else if (row == 3)
            answer(id, RC_OK, "", 4, -1);
        else if (row == 4)
            answer(id + 1, RC_OK, "", 4, memory("abcd", SEALS));
        else if (row == 5)
            walls(id, 6, "sec comp", NULL);
        else if (row == 6)
            walls(id, 0, "seccomp", NULL);
        else if (row == 7)
            walls(0, 5, "seccomp", NULL), walls(0, 5, "seccomp", NULL);
        else if (row == 8)
            walls(id + 1, 6, "seccomp", NULL);
        else
            close(T.far), turn();
        assert_int_equal(T.n_lost, 1);
        assert_int_equal(T.n_done, 1);
        assert_int_equal(T.code, RC_CRASHED);
        assert_int_equal(sup_link_media(T.link, "x", 1, 1, &cb, &id, NULL), RC_UNSUPPORTED);
        if (row < 9)
            tear_down(NULL);
    }
    T.far = -1;
}

static void without_a_fetcher_nothing_is_asked(void **state)
{
    struct rc_err err = RC_ERR_INIT;
    struct sup_link *none = NULL;
    uv_loop_t loop;
    uint64_t id;

    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(sup_link_new(&none, &loop, -1, NULL, NULL, NULL, NULL), RC_OK);
    assert_int_equal(sup_link_media(none, "x", 1, 1, &cb, &id, &err), RC_UNSUPPORTED);
    assert_int_equal(sup_link_pull(NULL, "x", false, &cb, &id, &err), RC_UNSUPPORTED);
    sup_link_cancel(none, 1);
    sup_link_stop(none);
    uv_run(&loop, UV_RUN_DEFAULT);
    sup_link_free(&none);
    assert_int_equal(uv_loop_close(&loop), 0);
}

static void too_many_are_refused(void **state)
{
    struct rc_err err = RC_ERR_INIT;
    enum rc rc = RC_OK;
    uint64_t id;
    int n = 0;

    while (rc == RC_OK && n <= SUP_LINK_ERRANDS)
        if ((rc = sup_link_media(T.link, "https://a/b", 1, 1, &cb, &id, &err)) == RC_OK)
            n++;
    assert_int_equal(rc, RC_BUSY); /* the channel or the list is full, whichever is first */
    assert_true(n > 0 && n <= SUP_LINK_ERRANDS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_file_comes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_pull_tells_how_far_it_is, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_cancelled_calls_nobody, set_up, tear_down),
        cmocka_unit_test_setup_teardown(who_stands_behind_which_walls, set_up, tear_down),
        cmocka_unit_test_setup_teardown(lies_end_the_link, set_up, tear_down),
        cmocka_unit_test_setup_teardown(too_many_are_refused, set_up, tear_down),
        cmocka_unit_test(without_a_fetcher_nothing_is_asked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
