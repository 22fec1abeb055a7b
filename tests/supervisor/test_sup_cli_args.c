/* test_sup_cli_args.c - command lines, lines of stdin, near names. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "sup_cli.h"
#include "sup_common.h"
#include "sup_near.h"
#include "sup_serve_args.h"

enum { O_JSON, O_NAME, O_COUNT, O_SHARE };

static const struct sup_opt opts[] = {
    {"json", SUP_O_FLAG, NULL, "", 0, 0},
    {"name", SUP_O_TEXT, "TEXT", "", 0, 0, 'n'},
    {"count", SUP_O_NUM, "N", "", 1, 1000},
    {"share", SUP_O_REAL, "X", "", 0, 2},
    {0},
};
static const struct sup_cmd cmd = {
    .name = "try", .usage = "[A] [B]", .opts = opts, .min_pos = 0, .max_pos = 2};

static enum rc parse(struct sup_args *a, const char *const *words, bool *help, struct rc_err *err)
{
    int n = 0;

    while (words[n])
        n++;
    return sup_args_parse(a, &cmd, n, (char **)(uintptr_t)words, help, err);
}
#define W(...) ((const char *const[]){__VA_ARGS__, NULL})

static void values_are_found(void **state)
{
    struct sup_args a;
    struct rc_err err = RC_ERR_INIT;
    bool help;

    assert_int_equal(parse(&a, W("x", "--json", "--name", "-v", "--count=7", "--share", "0.5", "y"),
                           &help, &err),
                     RC_OK);
    assert_false(help);
    assert_true(a.v[O_JSON].set);
    assert_string_equal(a.v[O_NAME].text, "-v");
    assert_true(a.v[O_COUNT].num == 7);
    assert_true(a.v[O_SHARE].num == 0.5);
    assert_int_equal(a.n_pos, 2);
    assert_string_equal(a.pos[1], "y");
    sup_args_deinit(&a);
    assert_int_equal(parse(&a, W("--name=1", "x", "--json", "--name", "2", "y"), &help, &err),
                     RC_OK);
    assert_string_equal(a.v[O_NAME].text, "2");
    assert_int_equal(a.n_given, 4); /* in order; a flag has no value */
    assert_true(a.given[0].opt == O_NAME && a.given[1].opt == -1 && a.given[2].opt == O_NAME);
    assert_string_equal(a.given[0].text, "1");
    assert_string_equal(a.given[1].text, "x");
    assert_string_equal(a.given[3].text, "y");
    sup_args_deinit(&a);
    assert_int_equal(parse(&a, W("-n", "-v", "x"), &help, &err),
                     RC_OK); /* one letter is a name too */
    assert_string_equal(a.v[O_NAME].text, "-v");
    assert_int_equal(a.n_pos, 1);
    sup_args_deinit(&a);
    assert_int_equal(parse(&a, W("-n"), &help, &err), RC_INVALID);
    assert_non_null(strstr(err.msg, "'--name' needs a value"));
    sup_args_deinit(&a);
    assert_int_equal(parse(&a, W("-nv"), &help, &err), RC_INVALID);
    sup_args_deinit(&a);
    assert_int_equal(parse(&a, W("--", "--json", "-h"), &help, &err), RC_OK);
    assert_int_equal(a.n_pos, 2);
    assert_false(a.v[O_JSON].set || help);
    sup_args_deinit(&a);
    assert_int_equal(parse(&a, W("x", "-h", "--nonsense"), &help, &err), RC_OK);
    assert_true(help);
    sup_args_deinit(&a);
    assert_int_equal(parse(&a, W("-"), &help, &err), RC_OK); /* a word like any other */
    assert_int_equal(a.n_pos, 1);
    sup_args_deinit(&a);
}

static void mistakes_are_named(void **state)
{
    static const struct {
        const char *words[4], *says;
    } rows[] = {
        {{"--jsn"}, "'--jsn'; did you mean '--json'?"},
        {{"--qqqqq"}, "unknown option '--qqqqq'"},
        {{"--qqqqq=secret"}, "'--qqqqq'"},
        {{"-j"}, "unknown option '-j'"},
        {{"--json=1"}, "'--json' takes no value"},
        {{"--name"}, "'--name' needs a value: --name TEXT"},
        {{"--count", "0"}, "value '0': expected a whole number from 1 to 1000"},
        {{"--count", "1001"}, "from 1 to 1000"},
        {{"--count", "1.5"}, "whole number"},
        {{"--count="}, "value ''"},
        {{"--count", "0x10"}, "value '0x10'"},
        {{"--count", "nan"}, "value 'nan'"},
        {{"--share", "1e999"}, "value '1e999'"},
        {{"--share", "2.01"}, "from 0 to 2"},
        {{"--share", " 1"}, "value ' 1'"},
        {{"a", "b", "c"}, "unexpected argument 'c'"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sup_args a;
        struct rc_err err = RC_ERR_INIT;
        bool help;

        if (parse(&a, rows[i].words, &help, &err) != RC_INVALID || !strstr(err.msg, rows[i].says))
            fail_msg("row %zu: '%s' is not in '%s'", i, rows[i].says, err.msg);
        sup_args_deinit(&a);
    }
}

static enum rc serve_args(struct sup_serve_args *s, struct sup_conf *c, bool doctor, char **envp,
                          const char *const *words, struct rc_err *err)
{
    struct sup_args a = {.envp = envp};

    a.argv = (char **)(uintptr_t)words;
    while (words[a.argc])
        a.argc++;
    return sup_serve_args_read(s, c, &a, doctor, err);
}

static void serve_takes_its_own_words_out(void **state)
{
    struct sup_serve_args s;
    struct sup_conf c;
    struct rc_err err = RC_ERR_INIT;
    char *env[] = {"INFERD_CONFIG=/nonexistent/env.json", "INFERD_MAX_SEQS=3", NULL};
    char *none[] = {NULL};

    assert_int_equal(serve_args(&s, &c, false, none, W("--port", "1", "--kv-mb=7"), &err), RC_OK);
    assert_int_equal(c.port, 1);
    assert_int_equal(c.kv_mb, 7);
    assert_null(s.config);
    sup_conf_deinit(&c);
    assert_int_equal(serve_args(&s, &c, false, env, W("--port", "1"), &err), RC_NOT_FOUND);
    assert_non_null(strstr(err.msg, "/nonexistent/env.json"));
    assert_int_equal(serve_args(&s, &c, false, env, W("--config=/nonexistent/flag.json"), &err),
                     RC_NOT_FOUND);
    assert_non_null(strstr(err.msg, "/nonexistent/flag.json"));
    assert_int_equal(serve_args(&s, &c, false, env, W("--config"), &err), RC_INVALID);
    assert_int_equal(serve_args(&s, &c, false, none, W("--port", "1", "extra"), &err), RC_INVALID);
    assert_non_null(strstr(err.msg, "'extra'"));
    assert_int_equal(serve_args(&s, &c, false, none, W("--json"), &err), RC_INVALID);
    assert_int_equal(
        serve_args(&s, &c, true, none, W("--json", "--server", "http://x", "--port=2"), &err),
        RC_OK);
    assert_true(s.json);
    assert_string_equal(s.server, "http://x");
    assert_int_equal(c.port, 2);
    sup_conf_deinit(&c);
    assert_int_equal(serve_args(&s, &c, false, none, W("--port", "bad", "--help"), &err), RC_OK);
    assert_true(s.help);
}

static void near_names(void **state)
{
    assert_int_equal(sup_near("port", 4, "port"), 0);
    assert_int_equal(sup_near("max-seqs", 8, "max_seqs"), 0);
    assert_int_equal(sup_near("PORT", 4, "port"), 0);
    assert_int_equal(sup_near("prot", 4, "port"), 2);
    assert_int_equal(sup_near("", 0, "port"), 4);
    assert_true(sup_near("a", 64, "port") == SIZE_MAX);
}

static void lines_come_whole(void **state)
{
    struct sup_lines r = {0};
    int fds[2], n = 0;
    char *line = NULL, *big = malloc(9000);

    assert_non_null(big);
    assert_int_equal(pipe(fds), 0);
    memset(big, 'x', 9000);
    assert_int_equal(write(fds[1], "one\r\n\ntwo\n", 10), 10);
    assert_int_equal(write(fds[1], big, 9000), 9000);
    assert_int_equal(write(fds[1], "\nlast", 5), 5);
    close(fds[1]);
    r.fd = fds[0];
    static const size_t want[] = {3, 0, 3, 9000, 4};
    while (sup_line_read(&r, &line) == 1) {
        assert_true(n < 5);
        assert_int_equal(strlen(line), want[n]);
        free(line);
        n++;
    }
    assert_int_equal(n, 5);
    close(fds[0]);
    free(big);
}

static void foreign_text_becomes_utf8(void **state)
{
    char *s = sup_valid_dup("a\xff\xc3\xa9", 4);

    assert_non_null(s);
    assert_string_equal(s, "a\xef\xbf\xbd\xc3\xa9");
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_found),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(serve_takes_its_own_words_out),
        cmocka_unit_test(near_names),
        cmocka_unit_test(lines_come_whole),
        cmocka_unit_test(foreign_text_becomes_utf8),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
