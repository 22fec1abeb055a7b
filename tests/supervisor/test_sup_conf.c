/* test_sup_conf.c - precedence, each kind, each refusal of the option engine. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "sup_conf.h"

#define N(a) (sizeof(a) / sizeof((a)[0]))

/* A config file that lives for one test. */
static const char *file_with(const char *text)
{
    static char path[64];
    int fd;

    snprintf(path, sizeof(path), "/tmp/inferd-conf-XXXXXX");
    fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    return path;
}

/* Any of the sources may be NULL. flags: words ended by NULL. */
static enum rc load(struct sup_conf *c, const char *json, char *const *env, char *const *flags,
                    int *used, struct rc_err *err)
{
    const char *path = json ? file_with(json) : NULL;
    int n = 0;
    enum rc rc;

    while (flags && flags[n])
        n++;
    rc = sup_conf_load(c, path, env, n, flags, used, err);
    if (path)
        unlink(path);
    return rc;
}

static void defaults_come_from_the_table(void **state)
{
    struct sup_conf c;
    struct rc_err err = RC_ERR_INIT;

    assert_int_equal(load(&c, NULL, NULL, NULL, NULL, &err), RC_OK);
    assert_string_equal(c.host, "127.0.0.1");
    assert_int_equal(c.port, 8090);
    assert_true(c.access_log);
    assert_false(c.allow_insecure_public_bind);
    assert_null(c.preload);
    assert_string_equal(c.sandbox, "strict");
    for (int i = 0; i < SUP_OPT_COUNT; i++)
        assert_string_equal(sup_conf_origin(&c, (enum sup_option)i), "default");
    sup_conf_deinit(&c);
    assert_null(c.host);
    sup_conf_deinit(&c); /* a zeroed one is fine */
}

static void every_kind_from_every_source(void **state)
{
    struct sup_conf c;
    struct rc_err err = RC_ERR_INIT;
    char *env[] = {"PATH=/bin",
                   "INFERD_MAX_SEQS=3",
                   "INFERD_PRELOAD=a,b/c",
                   "INFERD_ACCESS_LOG=off",
                   "INFERD_BACKEND=cpu",
                   NULL};
    char *flags[] = {"--models-dir", "/m", "--kv-dtype=f32", "--no-access-log", "--port=0", NULL};

    assert_int_equal(load(&c,
                          "{\"unix_socket\": \"/run/x\", \"threads\": 7, \"preload\": [\"q\"],"
                          "\"allow_insecure_public_bind\": true, \"log_level\": \"debug\"}",
                          env, flags, NULL, &err),
                     RC_OK);
    assert_string_equal(c.unix_socket, "/run/x");
    assert_int_equal(c.threads, 7);
    assert_true(c.allow_insecure_public_bind);
    assert_string_equal(c.log_level, "debug");
    assert_int_equal(c.max_seqs, 3);
    assert_string_equal(c.preload[0], "a");
    assert_string_equal(c.preload[1], "b/c");
    assert_null(c.preload[2]);
    assert_false(c.access_log);
    assert_string_equal(c.models_dir, "/m");
    assert_string_equal(c.kv_dtype, "f32");
    assert_int_equal(c.port, 0);
    assert_string_equal(sup_conf_origin(&c, SUP_OPT_threads), "file");
    assert_string_equal(sup_conf_origin(&c, SUP_OPT_preload), "environment");
    assert_string_equal(sup_conf_origin(&c, SUP_OPT_access_log), "flag");
    assert_string_equal(sup_conf_name(SUP_OPT_access_log), "access_log");
    sup_conf_deinit(&c);
}

static void what_only_a_gpu_can_do_is_refused_for_the_processor(void **state)
{
    static const struct {
        const char *json, *what;
    } table[] = {
        {"{\"kv_dtype\":\"q8_0\"}", "kv_dtype"},
        {"{\"jit\":\"guarded\"}", "jit"},
        {"{\"compute\":\"f16\"}", "compute"},
        {"{\"device\":1}", "device"},
    };
    struct rc_err err = RC_ERR_INIT;
    char *none[] = {NULL}, *cuda[] = {"INFERD_BACKEND=cuda", NULL};
    struct sup_conf c;

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        assert_int_equal(load(&c, table[i].json, none, none, NULL, &err), RC_INVALID);
        assert_string_equal(err.what, table[i].what);
        assert_non_null(strstr(err.msg, "backend cuda"));
        assert_int_equal(load(&c, table[i].json, cuda, none, NULL, &err), RC_OK);
        assert_string_equal(c.backend, "cuda");
        sup_conf_deinit(&c);
    }
}

static void flag_beats_environment_beats_file_beats_default(void **state)
{
    struct sup_conf c;
    struct rc_err err = RC_ERR_INIT;
    char *env[] = {"INFERD_PORT=2", "INFERD_MAX_SEQS=2", NULL};
    char *flags[] = {"--port", "3", NULL};

    assert_int_equal(load(&c, "{\"port\":1,\"max_seqs\":1,\"kv_mb\":1}", env, flags, NULL, &err),
                     RC_OK);
    assert_int_equal(c.port, 3);
    assert_int_equal(c.max_seqs, 2);
    assert_int_equal(c.kv_mb, 1);
    assert_int_equal(c.workspace_mb, 512);
    sup_conf_deinit(&c);
}

static void lists_replace_weaker_sources_and_flags_add_up(void **state)
{
    struct sup_conf c;
    struct rc_err err = RC_ERR_INIT;
    char *env[] = {"INFERD_PRELOAD=e", NULL};
    char *flags[] = {"--preload", "x,y", "--preload=z", NULL};

    assert_int_equal(load(&c, "{\"preload\":[\"f\",\"g\"]}", env, flags, NULL, &err), RC_OK);
    assert_string_equal(c.preload[0], "x,y"); /* only the environment splits */
    assert_string_equal(c.preload[1], "z");
    assert_null(c.preload[2]);
    sup_conf_deinit(&c);

    env[0] = "INFERD_PRELOAD=";
    assert_int_equal(load(&c, "{\"preload\":[\"f\"]}", env, NULL, NULL, &err), RC_OK);
    assert_true(!c.preload || !c.preload[0]);
    sup_conf_deinit(&c);
}

static void flags_end_at_the_first_other_word(void **state)
{
    struct sup_conf c;
    struct rc_err err = RC_ERR_INIT;
    int used = -1;
    char *flags[] = {"--port", "1", "--access-log", "word", "--port", "2", NULL};
    char *dashes[] = {"--max_seqs=4", "--", "--port", NULL};

    assert_int_equal(load(&c, NULL, NULL, flags, &used, &err), RC_OK);
    assert_int_equal(used, 3);
    assert_int_equal(c.port, 1);
    sup_conf_deinit(&c);
    assert_int_equal(load(&c, NULL, NULL, dashes, &used, &err), RC_OK);
    assert_int_equal(used, 2);
    assert_int_equal(c.max_seqs, 4);
    sup_conf_deinit(&c);
}

/* Each row: the source that is wrong and what the message must say. */
static void refusals_name_source_key_value_and_expectation(void **state)
{
    static const struct {
        const char *why, *json, *env, *flag[2], *says[4], *what;
    } rows[] = {
        {"unknown key with a near one",
         "{\"prot\":1}",
         0,
         {0},
         {"key 'prot'", "did you mean 'port'", "config file '/tmp/"},
         "prot"},
        {"unknown key far from all",
         "{\"zzzzzzzzzz\":1}",
         0,
         {0},
         {"'zzzzzzzzzz'", "help config"},
         "zzzzzzzzzz"},
        {"flag spelling in the file", "{\"max-seqs\":1}", 0, {0}, {"did you mean 'max_seqs'"}, 0},
        {"duplicate key", "{\"port\":1,\"port\":2}", 0, {0}, {"duplicate", "line 1"}, 0},
        {"broken JSON", "{\"port\":1,\n}", 0, {0}, {"line 2", "config file"}, 0},
        {"no object", "[1]", 0, {0}, {"expected one JSON object"}, 0},
        {"empty file", "", 0, {0}, {"config file"}, 0},
        {"text for a number",
         "{\"port\":\"80\"}",
         0,
         {0},
         {"'port'", "\"80\"", "from 0 to 65535"},
         "port"},
        {"fraction for a number", "{\"port\":1.5}", 0, {0}, {"1.5", "whole number"}, "port"},
        {"negative number", "{\"port\":-1}", 0, {0}, {"-1", "from 0 to 65535"}, "port"},
        {"number over its range", "{\"port\":65536}", 0, {0}, {"65536", "from 0"}, "port"},
        {"number under its range", "{\"max_seqs\":0}", 0, {0}, {"value '0'", "from 1"}, "max_seqs"},
        {"number for a text", "{\"models_dir\":5}", 0, {0}, {"value '5'", "text"}, "models_dir"},
        {"null", "{\"models_dir\":null}", 0, {0}, {"'null'", "expected"}, "models_dir"},
        {"NUL in a text", "{\"models_dir\":\"a\\u0000b\"}", 0, {0}, {"u0000"}, 0},
        {"line end in a text",
         "{\"models_dir\":\"a\\nb\"}",
         0,
         {0},
         {"control characters"},
         "models_dir"},
        {"text for a bool", "{\"access_log\":\"true\"}", 0, {0}, {"true or false"}, "access_log"},
        {"word not listed",
         "{\"sandbox\":\"lax\"}",
         0,
         {0},
         {"'lax'", "one of strict|permissive|off"},
         "sandbox"},
        {"part of a word", "{\"sandbox\":\"strict|off\"}", 0, {0}, {"one of strict"}, "sandbox"},
        {"text for a list", "{\"preload\":\"a\"}", 0, {0}, {"a list"}, "preload"},
        {"number in a list", "{\"preload\":[\"a\",1]}", 0, {0}, {"a list"}, "preload"},
        {"empty text in a list", "{\"preload\":[\"\"]}", 0, {0}, {"non-empty"}, "preload"},
        {"unknown variable",
         0,
         "INFERD_PROT=1",
         {0},
         {"variable INFERD_PROT", "did you mean 'INFERD_PORT'"},
         0},
        {"lower case variable", 0, "INFERD_port=1", {0}, {"did you mean 'INFERD_PORT'"}, 0},
        {"variable out of range",
         0,
         "INFERD_PORT=65536",
         {0},
         {"variable INFERD_PORT", "'65536'", "from 0 to 65535"},
         "port"},
        {"variable that overflows",
         0,
         "INFERD_KV_MB=18446744073709551617",
         {0},
         {"18446744073709551617", "whole number"},
         "kv_mb"},
        {"variable with a blank", 0, "INFERD_PORT= 1", {0}, {"whole number"}, "port"},
        {"empty number", 0, "INFERD_PORT=", {0}, {"value ''"}, "port"},
        {"hexadecimal", 0, "INFERD_PORT=0x10", {0}, {"whole number"}, "port"},
        {"not a truth value", 0, "INFERD_ACCESS_LOG=maybe", {0}, {"true or false"}, "access_log"},
        {"comma at the end", 0, "INFERD_PRELOAD=a,", {0}, {"non-empty"}, "preload"},
        {"comma inside", 0, "INFERD_PRELOAD=a,,b", {0}, {"non-empty"}, "preload"},
        {"unknown flag", 0, 0, {"--prot=1"}, {"flag --prot", "did you mean '--port'"}, 0},
        {"flag far from all", 0, 0, {"--qqqqqqqqqqqq"}, {"no such option"}, 0},
        {"flag without its value", 0, 0, {"--port"}, {"--port needs a value", "65535"}, "port"},
        {"bad flag value", 0, 0, {"--port", "x"}, {"flag --port", "'x'", "65535"}, "port"},
        {"bad truth flag", 0, 0, {"--access-log=x"}, {"true or false"}, "access_log"},
        {"--no- of a number", 0, 0, {"--no-port"}, {"--no-port", "turned off"}, "port"},
        {"--no- with a value", 0, 0, {"--no-access-log=1"}, {"takes no value"}, "access_log"},
        {"public address",
         0,
         0,
         {"--host=0.0.0.0"},
         {"'0.0.0.0'", "other machines", "--allow-insecure-public-bind"},
         "host"},
        {"public v6 address", 0, 0, {"--host=::"}, {"--allow-insecure-public-bind"}, "host"},
        {"public address, keys optional",
         0,
         "INFERD_VAULT_DIR=/v",
         {"--host=0.0.0.0", "--require-auth=off"},
         {"no API key is asked for"},
         "host"},
        {"keys asked for, none known",
         0,
         0,
         {"--require-auth=on"},
         {"vault_dir is empty", "inferd keys create"},
         "require_auth"},
        {"host name", 0, 0, {"--host=example.org"}, {"'example.org'", "IPv4 or IPv6"}, "host"},
        {"empty host", 0, 0, {"--host="}, {"host"}, "host"},
        {"empty models dir",
         0,
         0,
         {"--models-dir="},
         {"models_dir", "path of a folder"},
         "models_dir"},
    };

    for (size_t i = 0; i < N(rows); i++) {
        struct sup_conf c, before;
        struct rc_err err = RC_ERR_INIT;
        char *env[] = {(char *)rows[i].env, NULL};
        char *flags[] = {(char *)rows[i].flag[0], (char *)rows[i].flag[1], NULL};

        memset(&c, 0xAB, sizeof(c));
        before = c;
        enum rc rc = load(&c, rows[i].json, env, flags, NULL, &err);
        if (rc != RC_INVALID)
            fail_msg("%s: rc %s, message '%s'", rows[i].why, rc_name(rc), err.msg);
        for (int k = 0; k < 4 && rows[i].says[k]; k++)
            if (!strstr(err.msg, rows[i].says[k]))
                fail_msg("%s: '%s' is not in '%s'", rows[i].why, rows[i].says[k], err.msg);
        if (rows[i].what)
            assert_string_equal(err.what, rows[i].what);
        if (memcmp(&c, &before, sizeof(c)) != 0)
            fail_msg("%s: a failed load wrote its output", rows[i].why);
    }
}

static void files_that_cannot_be_read(void **state)
{
    struct sup_conf c;
    struct rc_err err = RC_ERR_INIT;
    size_t n = (1 << 20) + 2;
    char *big = malloc(n + 1);

    assert_int_equal(sup_conf_load(&c, "/nonexistent/x.json", NULL, 0, NULL, NULL, &err),
                     RC_NOT_FOUND);
    assert_non_null(strstr(err.msg, "/nonexistent/x.json"));
    assert_int_equal(sup_conf_load(&c, "/tmp", NULL, 0, NULL, NULL, &err), RC_IO);
    assert_non_null(big);
    memset(big, ' ', n);
    big[n] = '\0';
    assert_int_equal(load(&c, big, NULL, NULL, NULL, &err), RC_TOO_LARGE);
    free(big);
}

static void limits_of_texts_and_lists(void **state)
{
    struct sup_conf c;
    struct rc_err err = RC_ERR_INIT;
    char flag[5000] = "--models-dir=", path[] = "--unix-socket="
                                                "/123456789/123456789/123456789/123456789/123456789"
                                                "/123456789/123456789/123456789/123456789/123456789"
                                                "/123456";
    char *flags[] = {flag, NULL}, *sock[] = {path, NULL}, *many[] = {NULL, NULL};
    char list[2100] = "INFERD_PRELOAD=";
    size_t n = strlen(flag);

    memset(flag + n, 'a', 4096);
    assert_int_equal(load(&c, NULL, NULL, flags, NULL, &err), RC_OK);
    sup_conf_deinit(&c);
    flag[n + 4096] = 'a';
    assert_int_equal(load(&c, NULL, NULL, flags, NULL, &err), RC_INVALID);

    assert_int_equal(load(&c, NULL, NULL, sock, NULL, &err), RC_OK); /* 107 bytes fit */
    sup_conf_deinit(&c);
    sock[0] = strcat(strcpy(flag, path), "7");
    assert_int_equal(load(&c, NULL, NULL, sock, NULL, &err), RC_INVALID);
    assert_non_null(strstr(err.msg, "at most 107"));

    for (int i = 0; i < 1000; i++)
        strcat(list, i ? ",a" : "a");
    many[0] = list;
    assert_int_equal(load(&c, NULL, many, NULL, NULL, &err), RC_OK);
    sup_conf_deinit(&c);
    strcat(list, ",a");
    assert_int_equal(load(&c, NULL, many, NULL, NULL, &err), RC_INVALID);
}

static void names_outside_the_table_that_are_allowed(void **state)
{
    struct sup_conf c;
    struct rc_err err = RC_ERR_INIT;
    char *env[] = {"INFERD_SERVER=x", "INFERD_CONFIG=y", "INFERD_TEST_WEIGHTS=z",
                   "INFERDX=1",       "INFERD_NOEQUALS", NULL};

    assert_int_equal(load(&c, NULL, env, NULL, NULL, &err), RC_OK);
    sup_conf_deinit(&c);
}

static void loopback_is_recognised(void **state)
{
    static const char *const yes[] = {"127.0.0.1", "127.8.9.1", "::1", "localhost",
                                      "::ffff:127.0.0.1"};
    static const char *const no[] = {"0.0.0.0",         "10.0.0.1", "::", "128.0.0.1",
                                     "::ffff:10.0.0.1", "127.1",    "",   "localhost."};

    for (size_t i = 0; i < N(yes); i++)
        assert_true(sup_conf_is_loopback(yes[i]));
    for (size_t i = 0; i < N(no); i++)
        assert_false(sup_conf_is_loopback(no[i]));
}

static void no_address_needs_a_unix_socket(void **state)
{
    struct sup_conf c;
    struct rc_err err = RC_ERR_INIT;
    char *flags[] = {"--host=", "--unix-socket=/run/x", NULL};

    assert_int_equal(load(&c, NULL, NULL, flags, NULL, &err), RC_OK);
    assert_string_equal(c.host, "");
    sup_conf_deinit(&c);
    flags[1] = NULL;
    assert_int_equal(load(&c, NULL, NULL, flags, NULL, &err), RC_INVALID);
    assert_non_null(strstr(err.msg, "unless unix_socket is set"));
}

static void a_public_address_can_be_asked_for(void **state)
{
    struct sup_conf c;
    struct rc_err err = RC_ERR_INIT;
    char *flags[] = {"--host", "0.0.0.0", "--allow-insecure-public-bind", NULL};
    char *with_keys[] = {"--host", "0.0.0.0", "--vault-dir=/v", NULL};

    assert_int_equal(load(&c, NULL, NULL, flags, NULL, &err), RC_OK);
    sup_conf_deinit(&c);
    assert_int_equal(load(&c, NULL, NULL, with_keys, NULL, &err), RC_OK);
    assert_true(sup_conf_auth_required(&c));
    sup_conf_deinit(&c);
}

/* What a page shows of each row; a page is made by `print`. */
static char *printed(void (*print)(FILE *))
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);

    assert_non_null(f);
    print(f);
    fclose(f);
    return text;
}

static void help_and_json_name_every_option(void **state)
{
    struct sup_conf c;
    char *help = printed(sup_conf_help), *page = printed(sup_conf_markdown), *json;

    assert_int_equal(load(&c, NULL, NULL, NULL, NULL, NULL), RC_OK);
    json = sup_conf_json(&c);
    for (int i = 0; i < SUP_OPT_COUNT; i++) {
        char key[80], flag[80];

        snprintf(flag, sizeof(flag), "  --%s", sup_conf_name((enum sup_option)i));
        for (char *p = flag; *p; p++)
            *p = *p == '_' ? '-' : *p;
        assert_non_null(strstr(help, flag));
        snprintf(key, sizeof(key), "| `%s` |", sup_conf_name((enum sup_option)i));
        assert_non_null(strstr(page, key));
        snprintf(key, sizeof(key), "\"%s\":", sup_conf_name((enum sup_option)i));
        assert_non_null(strstr(json, key));
    }
    assert_non_null(strstr(json, "\"port\":8090"));
    assert_non_null(strstr(json, "\"preload\":[]"));
    for (const char *p = help; *p;) { /* lines fit a terminal */
        size_t n = strcspn(p, "\n");

        assert_true(n <= 79);
        p += n + (p[n] == '\n');
    }
    sup_conf_deinit(&c);
    free(help);
    free(page);
    free(json);
}

static void the_documentation_page_is_current(void **state)
{
    char *page = printed(sup_conf_markdown), *stored;
    FILE *f = fopen(TEST_SOURCE "/docs/configuration.md", "r");
    size_t n;

    if (!f)
        fail_msg("docs/configuration.md is missing: inferd help config --markdown > it");
    stored = calloc(1, 1 << 17);
    n = fread(stored, 1, (1 << 17) - 1, f);
    fclose(f);
    if (n != strlen(page) || memcmp(stored, page, n) != 0)
        fail_msg("docs/configuration.md is old: inferd help config --markdown > it");
    free(stored);
    free(page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_come_from_the_table),
        cmocka_unit_test(every_kind_from_every_source),
        cmocka_unit_test(what_only_a_gpu_can_do_is_refused_for_the_processor),
        cmocka_unit_test(flag_beats_environment_beats_file_beats_default),
        cmocka_unit_test(lists_replace_weaker_sources_and_flags_add_up),
        cmocka_unit_test(flags_end_at_the_first_other_word),
        cmocka_unit_test(refusals_name_source_key_value_and_expectation),
        cmocka_unit_test(files_that_cannot_be_read),
        cmocka_unit_test(limits_of_texts_and_lists),
        cmocka_unit_test(names_outside_the_table_that_are_allowed),
        cmocka_unit_test(loopback_is_recognised),
        cmocka_unit_test(no_address_needs_a_unix_socket),
        cmocka_unit_test(a_public_address_can_be_asked_for),
        cmocka_unit_test(help_and_json_name_every_option),
        cmocka_unit_test(the_documentation_page_is_current),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
