/* test_sup_log.c - what a log line looks like, and that a full stderr costs a line
 * and nothing else. stderr is replaced by a pipe for each case. */
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>
#include <jansson.h>

#include "sup_log.h"
#include "sup_text.h"

static int real_stderr, end_fd;

static int pipe_up(void **state)
{
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) != 0)
        return -1;
    real_stderr = dup(STDERR_FILENO);
    dup2(fds[1], STDERR_FILENO);
    close(fds[1]);
    end_fd = fds[0];
    fcntl(end_fd, F_SETFL, O_NONBLOCK);
    sup_log_init(SUP_INFO);
    return 0;
}

static int pipe_down(void **state)
{
    dup2(real_stderr, STDERR_FILENO);
    close(real_stderr);
    if (end_fd >= 0)
        close(end_fd);
    return 0;
}

/* The next line as JSON (checked to be one whole line), or NULL. */
static json_t *line(void)
{
    static char b[70000];
    ssize_t n = read(end_fd, b, sizeof(b) - 1);
    json_error_t e;
    json_t *j;

    if (n <= 0)
        return NULL;
    b[n] = '\0';
    assert_int_equal(b[n - 1], '\n');
    assert_ptr_equal(strchr(b, '\n'), b + n - 1);
    j = json_loadb(b, (size_t)n, JSON_REJECT_DUPLICATES, &e);
    if (!j)
        fail_msg("no JSON: %s in %s", e.text, b);
    return j;
}

static ssize_t line_skip(void)
{
    char b[4096];

    return read(end_fd, b, sizeof(b));
}

static void a_line_has_time_level_event_and_pairs(void **state)
{
    json_t *j;
    struct tm tm = {0};
    time_t now = time(NULL), got;

    SUP_LOG(SUP_WARN, "worker_died", SUP_S("model", "a/b"), SUP_I("pid", -5), SUP_F("s", 0.25),
            SUP_B("retry", true), SUP_S("none", NULL), SUP_F("nan", NAN));
    j = line();
    assert_non_null(j);
    assert_string_equal(json_string_value(json_object_get(j, "level")), "warn");
    assert_string_equal(json_string_value(json_object_get(j, "event")), "worker_died");
    assert_string_equal(json_string_value(json_object_get(j, "model")), "a/b");
    assert_int_equal(json_integer_value(json_object_get(j, "pid")), -5);
    assert_true(json_real_value(json_object_get(j, "s")) == 0.25);
    assert_true(json_is_true(json_object_get(j, "retry")));
    assert_true(json_is_null(json_object_get(j, "none")));
    assert_true(json_is_null(json_object_get(j, "nan")));
    const char *ts = json_string_value(json_object_get(j, "ts"));
    assert_int_equal(strlen(ts), strlen("2026-01-02T03:04:05.678Z"));
    const char *rest = strptime(ts, "%Y-%m-%dT%H:%M:%S", &tm); /* the C library's calendar */
    assert_non_null(rest);
    assert_int_equal(rest[0], '.');
    assert_int_equal(rest[4], 'Z');
    got = timegm(&tm);
    assert_true(got >= now && got <= now + 60);
    json_decref(j);
}

static void lines_below_the_level_are_not_written(void **state)
{
    json_t *j;

    SUP_LOG(SUP_DEBUG, "quiet", SUP_I("x", 1));
    assert_null(line());
    sup_log_init(SUP_DEBUG);
    SUP_LOG(SUP_DEBUG, "loud", SUP_I("x", 1));
    j = line();
    assert_non_null(j);
    json_decref(j);
    sup_log_init(SUP_ERROR);
    SUP_LOG(SUP_WARN, "quiet", SUP_I("x", 1));
    assert_null(line());
}

static void values_cannot_break_a_line(void **state)
{
    static const struct {
        const char *in, *out;
    } rows[] = {
        {"plain", "plain"},
        {"a\"b\\c", "a\"b\\c"},
        {"l1\nl2\r\t\x1b[31m", "l1\nl2\r\t\x1b[31m"}, /* escaped on the wire, see below */
        {"\xff\xfe", "\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xc3\xa9\xc3", "\xc3\xa9\xEF\xBF\xBD"},                 /* cut character */
        {"\xed\xa0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"}, /* surrogate */
        {"\xc0\xaf", "\xEF\xBF\xBD\xEF\xBF\xBD"},                 /* overlong */
        {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
        {"\xf4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        SUP_LOG(SUP_INFO, "e", SUP_S("v", rows[i].in));
        json_t *j = line();
        assert_non_null(j);
        assert_string_equal(json_string_value(json_object_get(j, "v")), rows[i].out);
        json_decref(j);
    }
    SUP_LOG(SUP_INFO, "e", SUP_S("v", "\x1b[2J\x7f\xc2\x9b"));
    char b[512];
    ssize_t n = read(end_fd, b, sizeof(b));
    assert_true(n > 0);
    for (ssize_t i = 0; i < n - 1; i++)
        assert_true(b[i] >= 0x20 && b[i] < 0x7F); /* no escape reaches a terminal */
}

static void long_lines_are_cut_and_say_so(void **state)
{
    char *big = malloc(9001);
    json_t *j;

    assert_non_null(big);
    for (int i = 0; i < 9000; i += 3)
        memcpy(big + i, "\xE2\x82\xAC", 3); /* 2048 falls inside a character */
    big[9000] = '\0';
    SUP_LOG(SUP_INFO, "e", SUP_S("a", big), SUP_I("k", 1));
    j = line();
    assert_non_null(j);
    const char *a = json_string_value(json_object_get(j, "a"));
    assert_int_equal(strlen(a), 2046 + 3);
    assert_string_equal(a + 2046, "...");
    assert_int_equal(json_integer_value(json_object_get(j, "k")), 1);
    json_decref(j);
    SUP_LOG(SUP_INFO, "e", SUP_S("a", big), SUP_S("b", big), SUP_I("k", 1));
    j = line();
    assert_non_null(j);
    assert_true(json_is_true(json_object_get(j, "cut")));
    assert_non_null(json_object_get(j, "a"));
    assert_null(json_object_get(j, "b"));
    json_decref(j);
    memset(big, 1, 9000); /* six bytes each when escaped */
    SUP_LOG(SUP_INFO, "e", SUP_S("a", big));
    j = line();
    assert_non_null(j);
    assert_true(json_is_true(json_object_get(j, "cut")));
    json_decref(j);
    free(big);
}

static void a_full_pipe_drops_lines_and_counts_them(void **state)
{
    uint64_t before = sup_log_dropped();
    int n = 0;

    alarm(20); /* a blocking write would end the test here */
    while (sup_log_dropped() == before && n < 100000) {
        SUP_LOG(SUP_INFO, "fill", SUP_I("n", n));
        n++;
    }
    assert_true(n > 10 && n < 100000);
    SUP_LOG(SUP_INFO, "fill", SUP_I("n", n));
    assert_int_equal(sup_log_dropped(), before + 2);
    while (line_skip() > 0)
        ;
    SUP_LOG(SUP_INFO, "again", SUP_I("n", n));
    json_t *j = line();
    assert_non_null(j);
    json_decref(j);
    assert_int_equal(sup_log_dropped(), before + 2);
    alarm(0);
}

static void a_closed_pipe_drops_lines_without_a_signal(void **state)
{
    uint64_t before = sup_log_dropped();

    close(end_fd);
    end_fd = -1;
    SUP_LOG(SUP_INFO, "gone", SUP_I("n", 1)); /* SIGPIPE would end the test */
    assert_int_equal(sup_log_dropped(), before + 1);
}

static void level_words(void **state)
{
    assert_int_equal(sup_level_parse("debug"), SUP_DEBUG);
    assert_int_equal(sup_level_parse("error"), SUP_ERROR);
    assert_int_equal(sup_level_parse("nonsense"), SUP_INFO);
    assert_int_equal(sup_level_parse(NULL), SUP_INFO);
}

static void every_scalar_value_goes_round(void **state)
{
    char b[4];
    uint32_t back;
    bool ok;

    for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
        size_t n = sup_text_put(cp, b);
        size_t m = sup_text_next(b, n, &back, &ok);

        if (cp >= 0xD800 && cp <= 0xDFFF) {
            assert_false(ok);
            assert_int_equal(m, 1);
            continue;
        }
        assert_true(ok);
        assert_int_equal(back, cp);
        assert_int_equal(m, n);
        for (size_t k = 1; k < n; k++)
            assert_true(sup_text_is_partial(b, k));
        assert_false(sup_text_is_partial(b, n));
    }
}

#define T(f) cmocka_unit_test_setup_teardown(f, pipe_up, pipe_down)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_line_has_time_level_event_and_pairs),
        T(lines_below_the_level_are_not_written),
        T(values_cannot_break_a_line),
        T(long_lines_are_cut_and_say_so),
        T(a_full_pipe_drops_lines_and_counts_them),
        T(a_closed_pipe_drops_lines_without_a_signal),
        cmocka_unit_test(level_words),
        cmocka_unit_test(every_scalar_value_goes_round),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
