/* test_sup_grant.c - what a grant allows, and what the vault's word must look like. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "sup_grant.h"
#include "vault.pb-c.h"

static Ipc__Grant good(void)
{
    Ipc__Grant g = IPC__GRANT__INIT;

    g.tenant = "acme";
    g.key_id = "k1";
    g.weight = 3;
    return g;
}

static void a_grant_says_what_it_was_made_of(void **state)
{
    char *models[] = {"gemma-3-270m.gguf", "bge/*"};
    Ipc__Grant from = good();
    struct sup_grant *g = NULL, *other;

    (void)state;
    from.models = models;
    from.n_models = 2;
    from.endpoints = SUP_SCOPE_EMBED | SUP_SCOPE_RERANK;
    from.tokens_per_day = 1u << 20;
    assert_int_equal(sup_grant_new(&g, &from, NULL), RC_OK);
    assert_string_equal(g->tenant, "acme");
    assert_int_equal(g->weight, 3);
    assert_int_equal(g->tokens_per_day, 1u << 20);
    assert_true(sup_grant_model(g, "gemma-3-270m.gguf"));
    assert_false(sup_grant_model(g, "gemma-3-270m.ggu"));
    assert_false(sup_grant_model(g, "gemma-3-270m.gguf2"));
    assert_true(sup_grant_model(g, "bge/m3"));
    assert_false(sup_grant_model(g, "bge"));
    assert_true(sup_grant_scope(g, SUP_SCOPE_EMBED));
    assert_false(sup_grant_scope(g, SUP_SCOPE_GENERATE));
    other = sup_grant_ref(g);
    sup_grant_unref(&g);
    assert_null(g);
    assert_true(sup_grant_model(other, "bge/m3"));
    sup_grant_unref(&other);
    sup_grant_unref(&other); /* accepts NULL */
}

static void without_a_key_everything_is_allowed(void **state)
{
    struct sup_grant *g = NULL;

    (void)state;
    assert_int_equal(sup_grant_anonymous(&g, NULL), RC_OK);
    assert_string_equal(g->tenant, SUP_TENANT_ANONYMOUS);
    assert_string_equal(g->key_id, "");
    assert_true(g->admin);
    assert_true(sup_grant_model(g, "any"));
    assert_true(sup_grant_scope(g, SUP_SCOPE_WATCH));
    sup_grant_unref(&g);
}

static void a_malformed_grant_is_refused(void **state)
{
    char longest[SUP_TENANT_MAX + 2], *star[] = {"a*b"}, *empty[] = {""};
    char *many[SUP_GRANT_MODELS + 1];
    struct sup_grant *g = NULL;
    Ipc__Grant bad[8];

    (void)state;
    memset(longest, 'a', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    for (size_t i = 0; i < SUP_GRANT_MODELS + 1; i++)
        many[i] = "m";
    for (size_t i = 0; i < 8; i++)
        bad[i] = good();
    bad[0].tenant = longest;
    bad[1].tenant = "";
    bad[2].tenant = "two words";
    bad[3].weight = 0;
    bad[4].weight = 1001;
    bad[5].models = star;
    bad[5].n_models = 1;
    bad[6].models = empty;
    bad[6].n_models = 1;
    bad[7].models = many;
    bad[7].n_models = SUP_GRANT_MODELS + 1;
    for (size_t i = 0; i < 8; i++) {
        struct rc_err err = RC_ERR_INIT;

        assert_int_equal(sup_grant_new(&g, &bad[i], &err), RC_FORMAT);
        assert_null(g);
        assert_true(err.msg[0] != '\0');
    }
    longest[SUP_TENANT_MAX] = '\0'; /* the other side of the bound */
    bad[0].tenant = longest;
    bad[7].n_models = SUP_GRANT_MODELS;
    assert_int_equal(sup_grant_new(&g, &bad[0], NULL), RC_OK);
    sup_grant_unref(&g);
    assert_int_equal(sup_grant_new(&g, &bad[7], NULL), RC_OK);
    sup_grant_unref(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_grant_says_what_it_was_made_of),
        cmocka_unit_test(without_a_key_everything_is_allowed),
        cmocka_unit_test(a_malformed_grant_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
