/* test_sup_keys.c - keys: made, recognized, rotated; the file read as strictly as a stranger's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <sodium.h>

#include "sup_grant.h"
#include "sup_keys.h"

static struct sup_key blank(const char *tenant)
{
    return (struct sup_key){.tenant = strdup(tenant), .name = strdup("a name"), .weight = 3};
}

static void add(struct sup_keys *all, const char *tenant, char text[SUP_KEY_TEXT])
{
    struct sup_key k = blank(tenant);
    struct rc_err err = RC_ERR_INIT;

    if (sup_keys_add(all, &k, text, &err) != RC_OK)
        fail_msg("%s", err.msg);
}

static enum rc check(const struct sup_keys *all, const char *text, uint64_t now, uint64_t *until)
{
    const struct sup_key *k = NULL;
    enum rc rc = sup_keys_check(all, text, strlen(text), now, &k, until);

    assert_true((rc == RC_OK) == (k != NULL));
    return rc;
}

static void a_made_key_is_known_and_no_other(void **state)
{
    struct sup_keys all = {0};
    char text[3][SUP_KEY_TEXT], wrong[SUP_KEY_TEXT];
    uint64_t until = 1;

    (void)state;
    assert_int_equal(sup_keys_check(&all, "x", 1, 0, &(const struct sup_key *){NULL}, &until),
                     RC_NOT_FOUND);
    for (int i = 0; i < 3; i++)
        add(&all, "acme", text[i]);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(check(&all, text[i], 5, &until), RC_OK);
        assert_int_equal(until, 0);
    }
    assert_true(strcmp(all.key[0].id, all.key[1].id) < 0 &&
                strcmp(all.key[1].id, all.key[2].id) < 0);
    /* every letter counts, and so does the length */
    for (size_t i = 0; i < strlen(text[0]); i++) {
        memcpy(wrong, text[0], sizeof(wrong));
        wrong[i] = wrong[i] == 'x' ? 'y' : 'x';
        assert_int_equal(check(&all, wrong, 5, &until), RC_NOT_FOUND);
    }
    snprintf(wrong, sizeof(wrong), "%.58s", text[0]);
    assert_int_equal(check(&all, wrong, 5, &until), RC_NOT_FOUND);
    assert_int_equal(check(&all, "", 5, &until), RC_NOT_FOUND);
    assert_int_equal(check(&all, "inf_", 5, &until), RC_NOT_FOUND);
    sup_keys_deinit(&all);
}

static void a_secret_has_256_bits_and_is_kept_nowhere(void **state)
{
    struct sup_keys all = {0};
    char text[SUP_KEY_TEXT];
    uint8_t secret[40];
    struct sup_json o = {0};
    size_t n = 0;

    (void)state;
    add(&all, "acme", text);
    assert_int_equal(sodium_base642bin(secret, sizeof(secret), text + 17, strlen(text + 17), NULL,
                                       &n, NULL, sodium_base64_VARIANT_URLSAFE_NO_PADDING),
                     0);
    assert_int_equal(n, 32);
    sup_keys_print(&all, &o);
    assert_null(memmem(o.p, o.n, text + 17, 20));
    assert_null(memmem(&all.key[0], sizeof(all.key[0]), text + 17, 20));
    sup_json_reset(&o);
    sup_key_json(&all.key[0], 0, &o);
    assert_null(memmem(o.p, o.n, "hash", 4));
    assert_null(memmem(o.p, o.n, "salt", 4));
    sup_json_deinit(&o);
    sup_keys_deinit(&all);
}

static void when_a_key_ends(void **state)
{
    struct sup_keys all = {0};
    char first[SUP_KEY_TEXT], second[SUP_KEY_TEXT], third[SUP_KEY_TEXT];
    uint64_t until = 0;

    (void)state;
    add(&all, "acme", first);
    all.key[0].expires_s = 1000;
    assert_int_equal(check(&all, first, 999, &until), RC_OK);
    assert_int_equal(until, 1000);
    assert_int_equal(check(&all, first, 1000, &until), RC_DEADLINE);
    sup_key_rotate(&all.key[0], 100, 50, second);
    assert_int_equal(check(&all, first, 149, &until), RC_OK);
    assert_int_equal(until, 150); /* the old secret's end, not the key's */
    assert_int_equal(check(&all, second, 149, &until), RC_OK);
    assert_int_equal(until, 1000);
    assert_int_equal(check(&all, first, 150, &until), RC_DEADLINE);
    sup_key_rotate(&all.key[0], 200, 0, third);
    assert_int_equal(check(&all, second, 200, &until), RC_NOT_FOUND);
    assert_int_equal(check(&all, first, 120, &until), RC_NOT_FOUND);
    all.key[0].revoked_s = 300;
    assert_int_equal(check(&all, third, 200, &until), RC_NOT_FOUND);
    assert_string_equal(sup_key_state(&all.key[0], 0), "revoked");
    sup_keys_deinit(&all);
}

static void what_is_written_is_read_back(void **state)
{
    struct sup_keys all = {0}, again = {0};
    struct sup_json a = {0}, b = {0};
    char text[SUP_KEY_TEXT], rotated[SUP_KEY_TEXT];
    struct rc_err err = RC_ERR_INIT;
    struct sup_key k = blank("t.1-x_Y");
    uint64_t until;

    (void)state;
    k.models = calloc(2, sizeof(*k.models));
    k.models[0] = strdup("a/b \"c\"");
    k.models[1] = strdup("minil*");
    k.n_models = 2;
    k.endpoints = SUP_SCOPE_EMBED | SUP_SCOPE_WATCH;
    k.admin = true;
    k.requests_per_minute = 1;
    k.tokens_per_minute = 2;
    k.concurrency = 3;
    k.tokens_per_day = SUP_KEY_LIMIT_MAX;
    k.cache_percent = 100;
    assert_int_equal(sup_keys_add(&all, &k, text, &err), RC_OK);
    add(&all, "acme", rotated);
    sup_key_rotate(&all.key[strcmp(all.key[0].tenant, "acme") ? 1 : 0], 10, 20, rotated);
    sup_keys_print(&all, &a);
    if (sup_keys_parse(&again, a.p, a.n, &err) != RC_OK)
        fail_msg("%s", err.msg);
    sup_keys_print(&again, &b);
    assert_int_equal(a.n, b.n);
    assert_memory_equal(a.p, b.p, a.n);
    assert_int_equal(check(&again, rotated, 0, &until), RC_OK);
    sup_json_deinit(&a);
    sup_json_deinit(&b);
    sup_keys_deinit(&all);
    sup_keys_deinit(&again);
}

#define ONE                                                                                   \
    "\"id\":\"abcdefghjkmn\",\"tenant\":\"a\",\"name\":\"\",\"weight\":1,\"admin\":false,"    \
    "\"models\":[],\"endpoints\":[],\"created\":1,\"expires\":0,\"revoked\":0,\"rotated\":0," \
    "\"old_until\":0,\"requests_per_minute\":0,\"tokens_per_minute\":0,\"concurrency\":0,"    \
    "\"tokens_per_day\":0,\"cache_percent\":0,"                                               \
    "\"salt\":\"00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\","          \
    "\"hash\":\"00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\""
#define ALL(keys) "{\"version\":1,\"keys\":[" keys "]}"

static void what_a_file_may_not_hold(void **state)
{
    static const struct {
        const char *from, *to, *says; /* replaced in a good file */
    } rows[] = {
        {"\"weight\":1", "\"weight\":0", "weight"},
        {"\"weight\":1", "\"weight\":1001", "weight"},
        {"\"weight\":1", "\"weight\":4294967297", "weight"},
        {"\"weight\":1", "\"weight\":\"1\"", "weight"},
        {"\"tenant\":\"a\"", "\"tenant\":\"a b\"", "tenant"},
        {"\"tenant\":\"a\"", "\"tenant\":\"\"", "tenant"},
        {"\"tenant\":\"a\",", "", "tenant"},
        {"\"admin\":false", "\"admin\":0", "admin"},
        {"\"admin\":false", "\"admin\":null", "admin"},
        {"\"models\":[]", "\"models\":[\"a*b\"]", "models"},
        {"\"models\":[]", "\"models\":[\"\"]", "models"},
        {"\"models\":[]", "\"models\":[1]", "models"},
        {"\"models\":[]", "\"models\":{}", "models"},
        {"\"endpoints\":[]", "\"endpoints\":[\"fly\"]", "endpoints"},
        {"\"created\":1", "\"created\":-1", "created"},
        {"\"created\":1", "\"created\":1.5", "created"},
        {"\"cache_percent\":0", "\"cache_percent\":101", "cache_percent"},
        {"\"concurrency\":0", "\"concurrency\":1000000000001", "concurrency"},
        {"\"salt\":\"00", "\"salt\":\"zz", "salt"},
        {"\"salt\":\"00", "\"salt\":\"0", "salt"},
        {"\"hash\":\"00", "\"hash\":\"0000", "hash"},
        {"\"id\":\"abc", "\"id\":\"ABC", "id"},
        {"\"id\":\"abc", "\"id\":\"ab", "id"},
        {"\"name\":\"\"", "\"name\":\"\",\"more\":1", "does not know"},
        {"\"name\":\"\"", "\"name\":\"\",\"name\":\"\"", "line 1"},
        {"\"version\":1", "\"version\":2", "version"},
        {"\"keys\":[", "\"keys\":[7,", "id"},
        {"]}", "],\"x\":1}", "object"},
        {"]}", "", "line"},
    };
    static const char good[] = ALL("{" ONE "}");
    struct sup_keys k = {0};
    struct rc_err err = RC_ERR_INIT;

    (void)state;
    assert_int_equal(sup_keys_parse(&k, good, sizeof(good) - 1, &err), RC_OK);
    assert_int_equal(k.n, 1);
    sup_keys_deinit(&k);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *at = strstr(good, rows[i].from);
        char text[2000];

        assert_non_null(at);
        if (rows[i].from[0] == ']') /* the last one */
            at = good + sizeof(good) - 3;
        snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - good), good, rows[i].to,
                 at + strlen(rows[i].from));
        if (sup_keys_parse(&k, text, strlen(text), &err) != RC_FORMAT)
            fail_msg("row %zu was read", i);
        if (!strstr(err.msg, rows[i].says))
            fail_msg("row %zu: '%s' does not say '%s'", i, err.msg, rows[i].says);
        assert_null(k.key);
    }
    assert_int_equal(sup_keys_parse(&k, ALL("{" ONE "},{" ONE "}"),
                                    sizeof(ALL("{" ONE "},{" ONE "}")) - 1, &err),
                     RC_FORMAT);
    assert_non_null(strstr(err.msg, "twice"));
}

static void no_more_keys_than_the_limit(void **state)
{
    struct sup_keys all = {0};
    char text[SUP_KEY_TEXT];
    struct sup_key k;
    struct sup_json o = {0};
    struct sup_keys again = {0};
    uint64_t until;

    (void)state;
    for (unsigned i = 0; i < SUP_KEYS_MAX; i++)
        add(&all, "acme", text);
    k = blank("acme");
    assert_int_equal(sup_keys_add(&all, &k, (char[SUP_KEY_TEXT]){0}, NULL), RC_LIMIT);
    sup_key_deinit(&k);
    sup_keys_print(&all, &o);
    assert_true(o.n < SUP_KEYS_FILE_BYTES);
    assert_int_equal(sup_keys_parse(&again, o.p, o.n, NULL), RC_OK);
    assert_int_equal(check(&again, text, 0, &until), RC_OK);
    sup_json_deinit(&o);
    sup_keys_deinit(&again);
    sup_keys_deinit(&all);
}

static void a_grant_says_what_the_key_says(void **state)
{
    struct sup_keys all = {0};
    char text[SUP_KEY_TEXT];
    struct sup_grant *g = NULL;
    Ipc__Grant wire;

    (void)state;
    add(&all, "acme", text);
    all.key[0].endpoints = SUP_SCOPE_EMBED;
    all.key[0].tokens_per_day = 7;
    sup_key_grant(&all.key[0], 99, &wire);
    assert_int_equal(sup_grant_new(&g, &wire, NULL), RC_OK);
    assert_string_equal(g->tenant, "acme");
    assert_string_equal(g->key_id, all.key[0].id);
    assert_int_equal(g->weight, 3);
    assert_int_equal(g->expires_unix_s, 99);
    assert_int_equal(g->tokens_per_day, 7);
    assert_false(sup_grant_scope(g, SUP_SCOPE_GENERATE));
    sup_grant_unref(&g);
    sup_keys_deinit(&all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_made_key_is_known_and_no_other),
        cmocka_unit_test(a_secret_has_256_bits_and_is_kept_nowhere),
        cmocka_unit_test(when_a_key_ends),
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(what_a_file_may_not_hold),
        cmocka_unit_test(no_more_keys_than_the_limit),
        cmocka_unit_test(a_grant_says_what_the_key_says),
    };
    if (sodium_init() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
