/* test_sup_api_routes.c - the route table and docs/openapi.yaml are the same list, and
 * every field of every table, every error code, is in the document.
 *
 * The document is read by its indentation: below "paths:", a path has two spaces and
 * a method four.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sup_api_fake.h"
#include "sup_http_gate.h"

static char *doc;

static int setup(void **state)
{
    FILE *f = fopen(TEST_SOURCE "/docs/openapi.yaml", "rb");
    size_t n;

    assert_non_null(f);
    doc = calloc(1, 1 << 20);
    assert_non_null(doc);
    n = fread(doc, 1, (1 << 20) - 1, f);
    fclose(f);
    assert_true(n > 1000);
    return 0;
}

static int teardown(void **state)
{
    free(doc);
    return 0;
}

/* Calls fn for each (path, method) of the document; returns how many there are. */
static unsigned each_operation(bool (*fn)(const char *method, const char *path, void *user),
                               void *user, bool *hit)
{
    char *copy = strdup(doc), *save = NULL, path[128] = "";
    bool in_paths = false;
    unsigned n = 0;

    for (char *l = strtok_r(copy, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
        size_t len = strlen(l);

        if (l[0] != ' ' && l[0] != '#')
            in_paths = strcmp(l, "paths:") == 0;
        if (!in_paths || len < 4 || l[len - 1] != ':')
            continue;
        if (strncmp(l, "  /", 3) == 0) {
            snprintf(path, sizeof(path), "%.*s", (int)(len - 3), l + 2);
        } else if (strncmp(l, "    ", 4) == 0 && l[4] != ' ') {
            char method[16];

            snprintf(method, sizeof(method), "%.*s", (int)(len - 5), l + 4);
            n++;
            if (fn(method, path, user))
                *hit = true;
        }
    }
    free(copy);
    return n;
}

/* "/v1/models/{id}" in the document is "/v1/models/" and a star in the table. */
static bool same_path(const char *in_doc, const char *in_table)
{
    const char *brace = strchr(in_doc, '{');

    if (!brace)
        return strcmp(in_doc, in_table) == 0;
    return strncmp(in_doc, in_table, (size_t)(brace - in_doc)) == 0 &&
           strcmp(in_table + (brace - in_doc), "*") == 0 && strcmp(brace, "{id}") == 0;
}

static bool is_route(const char *method, const char *path, void *user)
{
    const struct sup_route *r = user;

    return strcasecmp(method, r->method) == 0 && same_path(path, r->path);
}

static bool is_in_table(const char *method, const char *path, void *user)
{
    for (const struct sup_route *r = sup_api_routes; r->method; r++)
        if (is_route(method, path, (void *)(uintptr_t)r))
            return true;
    print_error("%s %s is in the document and not in the table\n", method, path);
    *(bool *)user = false;
    return false;
}

static void test_every_route_is_documented(void **state)
{
    unsigned n = 0;

    for (const struct sup_route *r = sup_api_routes; r->method; r++, n++) {
        bool hit = false;

        each_operation(is_route, (void *)(uintptr_t)r, &hit);
        if (!hit)
            fail_msg("%s %s is not in docs/openapi.yaml", r->method, r->path);
        assert_non_null(r->fn);
        assert_non_null(r->route);
    }
    assert_true(n >= 20);
}

static void test_every_documented_route_exists(void **state)
{
    bool all = true, hit = false;
    unsigned n_table = 0, n_doc;

    for (const struct sup_route *r = sup_api_routes; r->method; r++)
        n_table++;
    n_doc = each_operation(is_in_table, &all, &hit);
    assert_true(all);
    assert_int_equal(n_doc, n_table);
}

static void test_every_field_is_documented(void **state)
{
    static const struct sup_call_ops *const all[] = {
        &sup_chat_ops,       &sup_completions_ops, &sup_embed_ops,  &sup_tokenize_ops,
        &sup_detokenize_ops, &sup_decisions_ops,   &sup_rerank_ops, &sup_rerank_results_ops,
        &sup_rerank_tei_ops, &sup_extract_ops,     &sup_chunk_ops,  &sup_recognize_ops,
        &sup_classify_ops};
    unsigned n = 0;

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        for (size_t k = 0; k < all[i]->n_fields; k++, n++) {
            const char *name = all[i]->fields[k].name;

            if (!strstr(doc, name))
                fail_msg("field %s is not in docs/openapi.yaml", name);
        }
    }
    assert_true(n > 60);
}

static void test_every_code_is_documented(void **state)
{
    char line[64];

    for (int c = 0; c < SUP_E_COUNT; c++) {
        snprintf(line, sizeof(line), "        - %s\n", sup_code_word((enum sup_code)c));
        if (!strstr(doc, line))
            fail_msg("code %s is not in docs/openapi.yaml", sup_code_word((enum sup_code)c));
    }
    for (int f = SUP_F_NONE + 1; f < SUP_FAULT_COUNT; f++) {
        snprintf(line, sizeof(line), "        - %s\n", sup_fault_rows[f].code);
        if (!strstr(doc, line))
            fail_msg("code %s is not in docs/openapi.yaml", sup_fault_rows[f].code);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_route_is_documented),
        cmocka_unit_test(test_every_documented_route_exists),
        cmocka_unit_test(test_every_field_is_documented),
        cmocka_unit_test(test_every_code_is_documented),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
