/* Text to the ids of an encoder: length limit, cutting, prompts by task type. */
#include "mdl_test.h"

static struct be_ctx *be;

static struct mdl *with_prompts(char *dir, const char *prompts, const char *dflt)
{
    struct mdl_opts o = small_opts(BE_F32);

    tdir_new(dir, BERT_DIR);
    tdir_set(dir, "config_sentence_transformers.json", "prompts", prompts);
    tdir_set(dir, "config_sentence_transformers.json", "default_prompt_name", dflt);
    return open_model(dir, be, &o);
}

static void same_as(struct mdl *m, const char *text, const char *task, const char *whole)
{
    struct mdl_ids a = {0}, b = {0};
    struct mdl_tok_flags f = {.add_special = true};
    bool cut = true;

    need_ok(mdl_embed_tokens(m, text, strlen(text), task, false, &cut, &a, err));
    need_ok(mdl_tok_encode(mdl_tok_get(m), whole, strlen(whole), &f, &b, err));
    assert_false(cut);
    if (a.n != b.n || memcmp(a.ids, b.ids, a.n * sizeof(*a.ids)) != 0)
        fail_msg("task '%s' is not the text '%s'", task ? task : "(none)", whole);
    mdl_ids_deinit(&a);
    mdl_ids_deinit(&b);
}

static void prompts_by_task_type(void **s)
{
    char dir[256];
    struct mdl *m = with_prompts(dir,
                                 "{\"query\": \"query: \", \"Document\": \"title: none | text: \","
                                 " \"STS\": \"same: \", \"empty\": \"\"}",
                                 "\"STS\"");
    struct mdl_ids ids = {0};
    struct rc_err e;
    bool cut;

    assert_string_equal(mdl_info_get(m)->default_prompt, "STS");
    same_as(m, "the ferry", NULL, "same: the ferry");
    same_as(m, "the ferry", "", "same: the ferry");
    same_as(m, "the ferry", "query", "query: the ferry");
    same_as(m, "the ferry", "RETRIEVAL_QUERY", "query: the ferry");
    same_as(m, "the ferry", "RETRIEVAL_DOCUMENT", "title: none | text: the ferry");
    same_as(m, "the ferry", "SEMANTIC_SIMILARITY", "same: the ferry");
    same_as(m, "the ferry", "empty", "the ferry");
    assert_int_equal(mdl_embed_tokens(m, "x", 1, "CLUSTERING", false, &cut, &ids, &e), RC_INVALID);
    assert_non_null(strstr(e.msg, "CLUSTERING"));
    assert_int_equal(mdl_embed_tokens(m, "x", 1, "query ", false, &cut, &ids, &e), RC_INVALID);
    assert_int_equal(ids.n, 0);
    mdl_close(&m);
    tdir_rm(dir);
}

static void a_model_without_prompts_says_so(void **s)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m = open_model(BERT_DIR, be, &o);
    struct mdl_ids ids = {0};
    struct rc_err e;
    bool cut;

    same_as(m, "the ferry", NULL, "the ferry");
    assert_int_equal(mdl_embed_tokens(m, "x", 1, "CLUSTERING", false, &cut, &ids, &e), RC_INVALID);
    assert_non_null(strstr(e.msg, "no task prompts"));
    assert_string_equal(mdl_info_get(m)->default_prompt, "");
    mdl_close(&m);
}

/* Around the limit of 64 tokens, specials included. */
static void the_length_limit(void **s)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m = open_model(BERT_DIR, be, &o);
    struct mdl_ids full = {0}, got = {0};
    char text[4 * 400];
    size_t words, limit = mdl_info_get(m)->max_input_tokens;

    for (words = 55; words < 70; words++) {
        struct mdl_tok_flags f = {.add_special = true};
        struct rc_err e = RC_ERR_INIT;
        bool cut = false;
        size_t i, n;

        for (i = 0; i < words; i++)
            memcpy(text + 2 * i, "a ", 2);
        n = 2 * words;
        full.n = got.n = 0;
        need_ok(mdl_tok_encode(mdl_tok_get(m), text, n, &f, &full, err));
        assert_int_equal(full.n, words + 2);
        if (full.n <= limit) {
            need_ok(mdl_embed_tokens(m, text, n, NULL, false, &cut, &got, err));
            assert_int_equal(got.n, full.n);
        } else {
            assert_int_equal(mdl_embed_tokens(m, text, n, NULL, false, &cut, &got, &e),
                             RC_TOO_LARGE);
            assert_int_equal(e.n, full.n);
            assert_int_equal(e.limit, limit);
            assert_int_equal(got.n, 0);
        }
        got.n = 0;
        need_ok(mdl_embed_tokens(m, text, n, NULL, true, &cut, &got, err));
        assert_int_equal(cut, full.n > limit);
        assert_int_equal(got.n, full.n > limit ? limit : full.n);
        assert_int_equal(got.ids[0], full.ids[0]);
        assert_int_equal(got.ids[got.n - 1], full.ids[full.n - 1]); /* [SEP] stays */
        assert_memory_equal(got.ids, full.ids, (got.n - 1) * sizeof(*got.ids));
    }
    mdl_ids_deinit(&full);
    mdl_ids_deinit(&got);
    mdl_close(&m);
}

static void ids_are_appended_and_failures_leave_them(void **s)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m = open_model(BERT_DIR, be, &o);
    struct mdl_ids ids = {0};
    struct rc_err e;
    bool cut;
    size_t n;

    need_ok(mdl_embed_tokens(m, "one", 3, NULL, true, &cut, &ids, err));
    n = ids.n;
    assert_int_equal(mdl_embed_tokens(m, "\xC3(", 2, NULL, true, &cut, &ids, &e), RC_INVALID);
    assert_int_equal(ids.n, n);
    need_ok(mdl_embed_tokens(m, "one", 3, NULL, true, &cut, &ids, err));
    assert_int_equal(ids.n, 2 * n);
    assert_memory_equal(ids.ids, ids.ids + n, n * sizeof(*ids.ids));
    need_ok(mdl_embed_tokens(m, NULL, 0, NULL, true, &cut, &ids, err)); /* empty: [CLS] [SEP] */
    assert_int_equal(ids.n, 2 * n + 2);
    mdl_ids_deinit(&ids);
    mdl_close(&m);
}

/* A user's "[SEP]" is text, not a separator. */
static void typed_specials_are_text(void **s)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m = open_model(BERT_DIR, be, &o);
    struct mdl_ids ids = {0};
    size_t i, special = 0;
    bool cut;

    need_ok(mdl_embed_tokens(m, "a [SEP] b [CLS]", 15, NULL, true, &cut, &ids, err));
    for (i = 0; i < ids.n; i++)
        special += ids.ids[i] == ids.ids[0] || ids.ids[i] == ids.ids[ids.n - 1];
    assert_int_equal(special, 2);
    mdl_ids_deinit(&ids);
    mdl_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_by_task_type),
        cmocka_unit_test(a_model_without_prompts_says_so),
        cmocka_unit_test(the_length_limit),
        cmocka_unit_test(ids_are_appended_and_failures_leave_them),
        cmocka_unit_test(typed_specials_are_text),
    };
    int rc;

    need_dir(BERT_DIR);
    be = test_ctx(1);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    be_ctx_free(&be);
    return rc;
}
