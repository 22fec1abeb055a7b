/* test_sup_cli_client.c - addresses, error bodies, the list of models. No network. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "sup_client.h"

static void servers_are_checked(void **state)
{
    static const char *const good[] = {"http://127.0.0.1:8090",   "http://localhost",
                                       "https://box.example:443", "http://[::1]:8090",
                                       "unix:/run/inferd.sock",   "http://127.0.0.1:8090/"};
    static const char *const bad[] = {"",
                                      "127.0.0.1:8090",
                                      "ftp://x",
                                      "http://",
                                      "http:///",
                                      "unix:",
                                      "http://user:pw@host",
                                      "http://host/path",
                                      "http://host//",
                                      "http://host?x=1",
                                      "http://ho st",
                                      "http://host\r\nX: y",
                                      "file:///etc/passwd"};
    char longer[200] = "unix:";

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        struct sup_client *c = NULL;
        struct rc_err err = RC_ERR_INIT;

        if (sup_client_new(&c, good[i], &err) != RC_OK)
            fail_msg("'%s' was refused: %s", good[i], err.msg);
        sup_client_free(&c);
        assert_null(c);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct sup_client *c = NULL;
        struct rc_err err = RC_ERR_INIT;

        if (sup_client_new(&c, bad[i], &err) != RC_INVALID || c)
            fail_msg("'%s' was taken", bad[i]);
        assert_non_null(strstr(err.msg, "expected"));
    }
    memset(longer + 5, 'a', 108);
    struct sup_client *c = NULL;
    assert_int_equal(sup_client_new(&c, longer, NULL), RC_INVALID);
    longer[5 + 107] = '\0';
    assert_int_equal(sup_client_new(&c, longer, NULL), RC_OK);
    sup_client_free(&c);
}

static void nobody_there_says_what_to_run(void **state)
{
    struct sup_client *c = NULL;
    struct rc_err err = RC_ERR_INIT;
    json_t *out = NULL;

    assert_int_equal(sup_client_new(&c, "unix:/nonexistent/inferd.sock", &err), RC_OK);
    assert_int_equal(sup_client_call(c, "/healthz", NULL, 1000, &out, &err), RC_CLOSED);
    assert_null(out);
    assert_non_null(strstr(err.msg, "no server answers at unix:/nonexistent/inferd.sock"));
    assert_non_null(strstr(err.msg, "inferd serve --models-dir"));
    assert_false(sup_client_probe(c, "/healthz", NULL));
    sup_client_free(&c);
}

static void both_forms_of_error_bodies(void **state)
{
    static const struct {
        const char *body;
        bool is;
        const char *msg, *what;
        uint64_t n, limit;
    } rows[] = {
        {"{\"error\":{\"message\":\"no\",\"code\":\"X\",\"n_tokens\":9,\"limit\":8}}", true, "no",
         "X", 9, 8},
        {"{\"error\":\"X\",\"message\":\"no\",\"n_tokens\":9,\"limit\":8}", true, "no", "X", 9, 8},
        {"{\"error\":\"X\"}", true, "X", "X", 0, 0},
        {"{\"error\":{}}", true, "unknown error", "", 0, 0},
        {"{\"error\":null}", false, "", "", 0, 0},
        {"{}", false, "", "", 0, 0},
        {"[]", false, "", "", 0, 0},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *j = json_loads(rows[i].body, 0, NULL);
        struct rc_err err = RC_ERR_INIT;

        assert_non_null(j);
        assert_int_equal(sup_client_error_body(j, &err), rows[i].is);
        if (rows[i].is) {
            assert_string_equal(err.msg, rows[i].msg);
            assert_string_equal(err.what, rows[i].what);
            assert_int_equal(err.n, rows[i].n);
            assert_int_equal(err.limit, rows[i].limit);
        }
        json_decref(j);
    }
}

static void parse(struct sup_listing *l, const char *body)
{
    json_t *j = json_loads(body, 0, NULL);
    struct rc_err err = RC_ERR_INIT;

    assert_non_null(j);
    assert_int_equal(sup_listing_parse(l, j, &err), RC_OK);
    json_decref(j);
}

#define LIST                                                                              \
    "{\"data\":[{\"id\":\"gemma-3-270m.gguf\",\"state\":\"ready\",\"family\":\"gemma3\"," \
    "\"capabilities\":[\"chat\",\"completions\"],\"ctx_tokens\":2048,\"bytes\":5},"       \
    "{\"id\":\"all-MiniLM-L6-v2\",\"state\":\"absent\",\"family\":\"bert\","              \
    "\"capabilities\":[\"embeddings\"],\"embed_dim\":384,\"last_error\":\"x\"}%s]}"

static void the_list_is_read(void **state)
{
    struct sup_listing l = {0};
    char body[1000];

    snprintf(body, sizeof(body), LIST, ",{},7,{\"id\":5,\"ctx_tokens\":-3,\"bytes\":\"x\"}");
    parse(&l, body);
    assert_int_equal(l.n, 5);
    assert_true(l.m[0].can_generate && !l.m[0].can_embed && l.m[0].known);
    assert_int_equal(l.m[0].ctx_tokens, 2048);
    assert_true(l.m[1].can_embed && !l.m[1].can_generate);
    assert_int_equal(l.m[1].embed_dim, 384);
    assert_string_equal(l.m[1].error, "x");
    for (size_t i = 2; i < 5; i++) { /* nonsense is unknown, not a crash */
        assert_string_equal(l.m[i].id, "");
        assert_int_equal(l.m[i].ctx_tokens, 0);
        assert_false(l.m[i].known);
    }
    sup_listing_deinit(&l);
    json_t *j = json_loads("{\"data\":{}}", 0, NULL);
    assert_int_equal(sup_listing_parse(&l, j, NULL), RC_FORMAT);
    json_decref(j);
}

static void the_model_a_person_means(void **state)
{
    static const struct {
        const char *name;
        bool embed;
        enum rc rc;
        const char *id, *says;
    } rows[] = {
        {"gemma-3-270m.gguf", false, RC_OK, "gemma-3-270m.gguf", NULL},
        {"gemma-3-270m", false, RC_OK, "gemma-3-270m.gguf", NULL},
        {"gemma", false, RC_OK, "gemma-3-270m.gguf", NULL},
        {NULL, false, RC_OK, "gemma-3-270m.gguf", NULL},
        {NULL, true, RC_OK, "all-MiniLM-L6-v2", NULL},
        {"all-MiniLM-L6-v2", false, RC_OK, "all-MiniLM-L6-v2", NULL}, /* the command says no */
        {"nope", false, RC_NOT_FOUND, NULL, "no model 'nope'; there are: gemma-3-270m.gguf, all-"},
        {"MiniLM", false, RC_NOT_FOUND, NULL, "no model 'MiniLM'"},
    };
    struct sup_listing l = {0};
    const struct sup_model *m;
    struct rc_err err = RC_ERR_INIT;
    char body[1000];

    snprintf(body, sizeof(body), LIST, "");
    parse(&l, body);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        m = NULL;
        if (sup_listing_pick(&l, rows[i].name, rows[i].embed, &m, &err) != rows[i].rc)
            fail_msg("row %zu: %s", i, err.msg);
        if (rows[i].id)
            assert_string_equal(m->id, rows[i].id);
        else
            assert_non_null(strstr(err.msg, rows[i].says));
    }
    sup_listing_deinit(&l);
    snprintf(body, sizeof(body), LIST, ",{\"id\":\"not/probed\",\"state\":\"absent\"}");
    parse(&l, body); /* a model nobody knows yet may be the one: ask */
    assert_int_equal(sup_listing_pick(&l, NULL, false, &m, &err), RC_CONFLICT);
    assert_non_null(strstr(err.msg, "gemma-3-270m.gguf, not/probed"));
    sup_listing_deinit(&l);
    snprintf(body, sizeof(body), LIST,
             ",{\"id\":\"broken\",\"state\":\"failed\",\"last_error\":\"no config\"}");
    parse(&l, body); /* one that cannot be probed is nobody's choice but by name */
    assert_int_equal(sup_listing_pick(&l, NULL, false, &m, &err), RC_OK);
    assert_string_equal(m->id, "gemma-3-270m.gguf");
    assert_int_equal(sup_listing_pick(&l, "broken", false, &m, &err), RC_OK);
    sup_listing_deinit(&l);
    parse(&l, "{\"data\":[]}");
    assert_int_equal(sup_listing_pick(&l, NULL, false, &m, &err), RC_NOT_FOUND);
    assert_non_null(strstr(err.msg, "no models"));
    sup_listing_deinit(&l);
}

static void many_candidates_do_not_overflow(void **state)
{
    struct sup_listing l = {0};
    const struct sup_model *m;
    struct rc_err err = RC_ERR_INIT;
    json_t *list = json_array(), *body = json_pack("{s:o}", "data", list);

    for (int i = 0; i < 200; i++) {
        char id[40];

        snprintf(id, sizeof(id), "owner/some-model-%d", i);
        json_array_append_new(list, json_pack("{s:s}", "id", id));
    }
    assert_int_equal(sup_listing_parse(&l, body, &err), RC_OK);
    json_decref(body);
    assert_int_equal(sup_listing_pick(&l, NULL, false, &m, &err), RC_CONFLICT);
    assert_non_null(strstr(err.msg, "owner/some-model-0, "));
    assert_true(strlen(err.msg) < 400);
    sup_listing_deinit(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(servers_are_checked),
        cmocka_unit_test(nobody_there_says_what_to_run),
        cmocka_unit_test(both_forms_of_error_bodies),
        cmocka_unit_test(the_list_is_read),
        cmocka_unit_test(the_model_a_person_means),
        cmocka_unit_test(many_candidates_do_not_overflow),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
