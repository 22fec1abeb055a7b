/* test_sup_fetch_sandbox.c - what the fetcher can still do, and what it cannot, each in a child of
 * its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <curl/curl.h>
#include <cmocka.h>

#include "sup_fetch_sandbox.h"

static char dir[256], other[300];
static int dir_fd;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static int set_up(void **state)
{
    (void)state;
    snprintf(dir, sizeof(dir), "%s/fsbx-XXXXXX", TEST_BUILD);
    if (!mkdtemp(dir))
        return -1;
    snprintf(other, sizeof(other), "%s-other", dir);
    if (mkdir(other, 0755) != 0)
        return -1;
    dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return dir_fd < 0 ? -1 : 0;
}

static int tear_down(void **state)
{
    char cmd[700];

    (void)state;
    close(dir_fd);
    snprintf(cmd, sizeof(cmd), "rm -rf '%s' '%s'", dir, other);
    return system(cmd);
}

enum who { OFFLINE, ONLINE, KEEPER };

/* Runs fn in a sandboxed child: its status, or minus the signal. */
static int child(int (*fn)(void), enum who who)
{
    pid_t pid = fork();
    int status;

    assert_true(pid >= 0);
    if (pid == 0) {
        struct rc_err err = RC_ERR_INIT;

        if ((who == KEEPER
                 ? sup_fetch_sandbox_keeper("strict", dir_fd, NULL, &err)
                 : sup_fetch_sandbox("strict", who == ONLINE ? SUP_FETCH_PULL : SUP_FETCH_COPY,
                                     dir_fd, NULL, NULL, &err)) != RC_OK) {
            fprintf(stderr, "%s\n", err.msg);
            _exit(99);
        }
        _exit(fn());
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static int writes_in_its_folder(void)
{
    int fd;

    if (mkdirat(dir_fd, "sub", 0755) != 0)
        return 1;
    fd = openat(dir_fd, "sub/x.part", O_RDWR | O_CREAT, 0644);
    if (fd < 0 || write(fd, "x", 1) != 1 || ftruncate(fd, 0) != 0)
        return 2;
    return renameat(dir_fd, "sub/x.part", dir_fd, "sub/x") == 0 ? 0 : 3;
}

static int writes_elsewhere(void)
{
    char path[400];

    snprintf(path, sizeof(path), "%s/x", other);
    if (open(path, O_WRONLY | O_CREAT, 0644) >= 0)
        return 1;
    return renameat(dir_fd, "sub/x", AT_FDCWD, path) != 0 ? 0 : 2;
}

static int reads_elsewhere(void)
{
    return open("/etc/passwd", O_RDONLY) < 0 && open("/proc/self/environ", O_RDONLY) < 0 &&
                   openat(dir_fd, "..", O_RDONLY | O_DIRECTORY) < 0
               ? 0
               : 1;
}

static int makes_a_link(void)
{
    return symlinkat("/etc/passwd", dir_fd, "link") != 0 &&
                   linkat(dir_fd, "sub/x", dir_fd, "hard", 0) != 0
               ? 0
               : 1;
}

static int starts_a_program(void)
{
    char *argv[] = {(char *)(uintptr_t) "/bin/true", NULL};

    execv(argv[0], argv);
    return 7;
}

static int forks(void)
{
    return fork() < 0 ? 0 : 1;
}

static int listens(void)
{
    int s = socket(AF_INET, SOCK_STREAM, 0);

    listen(s, 1);
    return 7;
}

static int other_sockets(void)
{
    return socket(AF_UNIX, SOCK_STREAM, 0) < 0 && socket(AF_PACKET, SOCK_RAW, 0) < 0 ? 0 : 1;
}

static int tcp(void)
{
    return socket(AF_INET, SOCK_STREAM, 0) >= 0 ? 0 : 1;
}

static int no_tcp(void)
{
    return socket(AF_INET, SOCK_STREAM, 0) < 0 ? 0 : 1;
}

static void *nothing(void *p)
{
    return p;
}

static int looks_names_up_in_a_thread(void)
{
    struct addrinfo *a = NULL;
    pthread_t t;

    if (pthread_create(&t, NULL, nothing, NULL) != 0 || pthread_join(t, NULL) != 0)
        return 1;
    return getaddrinfo("localhost", NULL, NULL, &a) == 0 ? 0 : 2;
}

/* As pulls do: curl resolves in a thread, and says so when it cannot start one. */
static int curl_looks_names_up(void)
{
    CURL *e = curl_easy_init();
    CURLM *m = curl_multi_init();
    char why[CURL_ERROR_SIZE] = "";
    int running = 1, left;
    CURLcode code = CURLE_OK;
    CURLMsg *msg;

    curl_easy_setopt(e, CURLOPT_URL, "https://nobody.invalid/");
    curl_easy_setopt(e, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(e, CURLOPT_TIMEOUT, 20L);
    curl_multi_add_handle(m, e);
    while (running && curl_multi_perform(m, &running) == CURLM_OK) {
        while ((msg = curl_multi_info_read(m, &left)))
            code = msg->data.result;
        if (running)
            (void)curl_multi_poll(m, NULL, 0, 100, NULL);
    }
    if (code == CURLE_COULDNT_RESOLVE_HOST && strstr(why, "thread") == NULL)
        return 0;
    fprintf(stderr, "curl: %d %s\n", (int)code, why);
    return 1;
}

static int renames_between_folders(void)
{
    return mkdirat(dir_fd, "to", 0755) == 0 && renameat(dir_fd, "sub/x", dir_fd, "to/x") == 0 &&
                   unlinkat(dir_fd, "sub", AT_REMOVEDIR) == 0
               ? 0
               : 1;
}

/* A child of the keeper narrows itself further and still looks names up. */
static int starts_a_child(void)
{
    pid_t pid = fork();
    int status = 0;

    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);

        if (null < 0 ||
            sup_fetch_sandbox("strict", SUP_FETCH_PULL, dir_fd, NULL, NULL, NULL) != RC_OK)
            _exit(1);
        _exit(looks_names_up_in_a_thread() == 0 && writes_elsewhere() == 0 ? 0 : 2);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status)
                                                                           : 9;
}

static void rows(void **state)
{
    static const struct {
        const char *says;
        int (*fn)(void);
        enum who who;
        bool enforced_under_sanitizers;
        int want;
    } t[] = {
        {"writes in its folder", writes_in_its_folder, ONLINE, true, 0},
        {"writes nowhere else", writes_elsewhere, ONLINE, true, 0},
        {"reads nothing else", reads_elsewhere, ONLINE, true, 0},
        {"makes no links", makes_a_link, ONLINE, true, 0},
        {"starts no program", starts_a_program, ONLINE, true, -SIGSYS},
        {"makes no process", forks, ONLINE, false, 0},
        {"listens nowhere", listens, ONLINE, true, -SIGSYS},
        {"has no other sockets", other_sockets, ONLINE, false, 0},
        {"connects", tcp, ONLINE, true, 0},
        {"does not connect without network", no_tcp, OFFLINE, false, 0},
        {"keeper: writes nowhere else", writes_elsewhere, KEEPER, true, 0},
        {"keeper: reads nothing else", reads_elsewhere, KEEPER, true, 0},
        {"keeper: starts no program", starts_a_program, KEEPER, true, -SIGSYS},
        {"keeper: listens nowhere", listens, KEEPER, true, -SIGSYS},
        {"keeper: starts a child", starts_a_child, KEEPER, true, 0},
        {"keeper: renames between folders", renames_between_folders, KEEPER, true, 0},
        {"curl looks names up", curl_looks_names_up, ONLINE, true, 0},
        {"looks names up", looks_names_up_in_a_thread, ONLINE, true, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        int got;

        if (SANITIZED && !t[i].enforced_under_sanitizers)
            continue;
        if ((got = child(t[i].fn, t[i].who)) != t[i].want)
            fail_msg("%s: %d, expected %d", t[i].says, got, t[i].want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(rows, set_up, tear_down)};

    curl_global_init(CURL_GLOBAL_DEFAULT);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
