/* test_wrk_bench.c - the bench's words, its arithmetic, and what its sections write when the
 * engine serves a scripted model. No time is judged.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>

#include "worker/fake_mdl.h"
#include "ipc.h"
#include "wrk_bench_impl.h"

/* ---------------------------------------------------------------------- words */

static void lists_of_sections(void **state)
{
    static const struct {
        const char *why, *list;
        unsigned want; /* 0 = refused */
    } rows[] = {
        {"one", "prompt", WRK_BENCH_PROMPT},
        {"two", "decode,batch", WRK_BENCH_DECODE | WRK_BENCH_BATCH},
        {"all", "prompt,decode,batch,prefix,spec,embed", WRK_BENCH_ALL},
        {"twice the same", "spec,spec", WRK_BENCH_SPECULATION},
        {"none", "", 0},
        {"an empty one", "prompt,,batch", 0},
        {"a comma at the end", "prompt,", 0},
        {"a beginning of one", "pro", 0},
        {"one and more", "prompts", 0},
        {"a blank", "prompt, batch", 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct rc_err err = RC_ERR_INIT;
        unsigned got = 77;
        enum rc rc = wrk_bench_only(rows[i].list, &got, &err);

        if (rc != (rows[i].want != 0 ? RC_OK : RC_INVALID))
            fail_msg("%s: %s", rows[i].why, err.msg);
        assert_int_equal(got, rows[i].want != 0 ? rows[i].want : 77);
        if (rc != RC_OK)
            assert_non_null(
                strstr(err.msg, "expected prompt, decode, batch, prefix, spec or embed"));
    }
}

static void command_lines(void **state)
{
    static const struct {
        const char *why, *argv[4], *says; /* says NULL = taken */
    } rows[] = {
        {"a path alone", {"m.gguf"}, NULL},
        {"both spellings", {"--runs=3", "m.gguf", "--gen", "7"}, NULL},
        {"a device's word", {"m.gguf", "--backend=cuda"}, NULL},
        {"no path", {"--runs=3"}, "needs the path of a model"},
        {"a number that is none", {"m.gguf", "--runs=x"}, "--runs 'x', expected 1 to 100"},
        {"a sign", {"m.gguf", "--runs=-1"}, "--runs '-1', expected 1 to 100"},
        {"too small", {"m.gguf", "--context=15"}, "--context '15', expected 16 to 1048576"},
        {"too large", {"m.gguf", "--seqs=257"}, "--seqs '257', expected 1 to 256"},
        {"larger than any number",
         {"m.gguf", "--prompt=99999999999999999999"},
         "expected 1 to 1048576"},
        {"a value that is missing", {"m.gguf", "--gen"}, "--gen needs a value"},
        {"a section nobody knows", {"m.gguf", "--only=speed"}, "'speed' is no section"},
        {"a word nobody knows", {"m.gguf", "--fast=1"}, "unknown argument '--fast=1'"},
        {"two paths", {"a.gguf", "b.gguf"}, "unknown argument 'b.gguf'"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char *argv[6] = {(char *)(uintptr_t) "inferd-worker", (char *)(uintptr_t) "--bench"};
        struct wrk_bench_opts o = {0};
        struct rc_err err = RC_ERR_INIT;
        int argc = 2;

        for (int k = 0; k < 4 && rows[i].argv[k] != NULL; k++)
            argv[argc++] = (char *)(uintptr_t)rows[i].argv[k];
        if (wrk_bench_parse(&o, argc, argv, &err) != (rows[i].says ? RC_INVALID : RC_OK))
            fail_msg("%s: %s", rows[i].why, err.msg);
        if (rows[i].says != NULL && strstr(err.msg, rows[i].says) == NULL)
            fail_msg("%s: '%s' lacks '%s'", rows[i].why, err.msg, rows[i].says);
        if (rows[i].says == NULL)
            assert_int_equal(o.sections, WRK_BENCH_ALL);
    }
}

/* ----------------------------------------------------------------- arithmetic */

static void medians_and_spreads(void **state)
{
    static const struct {
        const char *why;
        double v[5];
        uint32_t n;
        double median, spread;
    } rows[] = {
        {"none", {0}, 0, 0, 0},
        {"one", {4}, 1, 4, 0},
        {"an odd number, out of order", {9, 1, 5}, 3, 5, 8.0 / 5},
        {"an even number: between the two in the middle", {4, 1, 2, 8}, 4, 3, 7.0 / 3},
        {"all the same", {2, 2, 2, 2, 2}, 5, 2, 0},
        {"a median of nothing", {0, 0, 1}, 3, 0, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct wrk_bench_runs r = {.n = 0};

        for (uint32_t k = 0; k < rows[i].n; k++)
            wrk_bench_add(&r, rows[i].v[k]);
        if (fabs(wrk_bench_median(&r) - rows[i].median) > 1e-12 ||
            fabs(wrk_bench_spread(&r) - rows[i].spread) > 1e-12)
            fail_msg("%s: median %g, spread %g", rows[i].why, wrk_bench_median(&r),
                     wrk_bench_spread(&r));
    }
}

static void runs_keep_their_order_and_have_an_end(void **state)
{
    struct wrk_bench_runs r = {.n = 0};
    json_t *o = json_object();

    (void)state;
    for (uint32_t i = 0; i < WRK_BENCH_RUNS + 5; i++)
        wrk_bench_add(&r, 1000.0 - i);
    assert_int_equal(r.n, WRK_BENCH_RUNS);
    wrk_bench_put(o, "x", &r);
    assert_int_equal(json_object_size(o), 3);
    assert_true(json_real_value(json_object_get(o, "x")) == 950.5);
    assert_true(json_real_value(json_object_get(o, "x_spread")) == 99 / 950.5);
    assert_true(json_real_value(json_array_get(json_object_get(o, "x_runs"), 0)) == 1000);
    assert_true(json_real_value(json_array_get(json_object_get(o, "x_runs"), 99)) == 901);
    json_decref(o);
}

/* ------------------------------------------------------------------- sections */

struct rig {
    struct wrk_bench b;
    int fds[2];
};

static struct rig *rig_new(uint32_t ctx, uint32_t kv_pages, struct mdl **drafter)
{
    struct rig *r = calloc(1, sizeof(*r));
    struct mdl *m = fake_new(ctx, 32, 256);

    m->max_out = wrk_spec_rows(32);
    m->geo.cls[0].n_pages = m->geo.cls[1].n_pages = kv_pages;
    r->b.model = (struct wrk_loaded){
        .mdl = m, .max_seqs = 32, .batch_tokens = 256, .spec_most = WRK_SPEC_DEFAULT};
    if (drafter != NULL) {
        r->b.model.drafter = *drafter = fake_new(ctx, 32, 256);
        (*drafter)->target = m;
    }
    r->b.out = json_object();
    r->b.o.sections = WRK_BENCH_ALL;
    r->b.o.runs = 2;
    assert_int_equal(ipc_pair(r->fds, NULL), RC_OK);
    return r;
}

static void rig_fit(struct rig *r)
{
    struct rc_err err = RC_ERR_INIT;

    if (wrk_bench_fit(&r->b, &err) != RC_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(wrk_bench_front_init(&r->b.front, r->fds, &r->b.model, NULL), RC_OK);
}

static void rig_free(struct rig *r)
{
    wrk_bench_deinit(&r->b);
    free(r->b.model.mdl);
    free(r->b.model.drafter);
    close(r->fds[0]);
    close(r->fds[1]);
    free(r);
}

static void run(struct rig *r, enum rc (*section)(struct wrk_bench *, struct rc_err *))
{
    struct rc_err err = RC_ERR_INIT;

    if (section(&r->b, &err) != RC_OK)
        fail_msg("%s", err.msg);
}

static double number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);

    if (!json_is_number(v))
        fail_msg("'%s' is no number", key);
    return json_number_value(v);
}

/* A figure: median within its runs, of which there are n. */
static void is_figure(const json_t *o, const char *key, size_t n)
{
    char name[64];
    const json_t *runs, *v;
    size_t i, above = 0;

    snprintf(name, sizeof(name), "%s_runs", key);
    runs = json_object_get(o, name);
    assert_int_equal(json_array_size(runs), n);
    json_array_foreach(runs, i, v)
    {
        assert_true(json_number_value(v) > 0 && isfinite(json_number_value(v)));
        above += json_number_value(v) >= number(o, key);
    }
    assert_true(above >= n / 2);
    snprintf(name, sizeof(name), "%s_spread", key);
    assert_true(number(o, name) >= 0);
}

static void prompts_and_decoding(void **state)
{
    struct rig *r = rig_new(512, FAKE_PAGES, NULL);

    (void)state;
    r->b.o.prompt = 100;
    r->b.o.gen = 20;
    r->b.o.seqs = 3;
    r->b.o.context = 80;
    rig_fit(r);
    run(r, wrk_bench_prompt);
    assert_int_equal(r->b.model.mdl->n_filled, 0); /* what is timed is computed */
    run(r, wrk_bench_decode);
    /* once each, all but 16 rows: then the prompt cache has them */
    assert_int_equal(r->b.model.mdl->n_filled, 3 * (80 - 16));
    assert_true(number(r->b.out, "prompt_tokens") == 100);
    is_figure(r->b.out, "prefill_tok_s", 2);
    is_figure(r->b.out, "ttft_ms", 2);
    assert_true(number(r->b.out, "seqs") == 3 && number(r->b.out, "gen_tokens") == 20 &&
                number(r->b.out, "context_tokens") == 80);
    is_figure(r->b.out, "decode_tok_s", 2);
    is_figure(r->b.out, "decode_step_cpu_ms", 2);
    /* two layers' tokens of four bytes, behind 80 and half of the 20 */
    assert_true(number(r->b.out, "kv_read_bytes") == 3 * 2 * 4 * (80 + 9 + 1));
    rig_free(r);
}

/* Many passes' worth of it, and an answer that is none of the real prompt. */
static void a_deep_cache_is_made_up_and_not_computed(void **state)
{
    struct rig *r = rig_new(2048, FAKE_PAGES, NULL);
    uint32_t rows;

    (void)state;
    r->b.o.context = 2000;
    r->b.o.gen = 20;
    rig_fit(r);
    run(r, wrk_bench_decode);
    rows = r->b.model.mdl->n_rows;
    assert_int_equal(r->b.model.mdl->n_filled, 2000 - 16);
    /* learnt, then asked three times: 16 rows or a page each, and their answers */
    assert_in_range(rows, 4 * 16, 4 * 2 * 16 + 4 * 21);
    assert_true(number(r->b.out, "context_tokens") == 2000);
    is_figure(r->b.out, "decode_tok_s", 2);
    run(r, wrk_bench_batch);
    assert_int_equal(r->b.model.mdl->n_filled, 2000 - 16); /* that section's engine computes */
    assert_true(r->b.model.mdl->n_rows > rows + 2000);
    rig_free(r);
}

static void as_many_together_as_the_pages_hold(void **state)
{
    struct rig *r = rig_new(512, 40, NULL); /* of 16 tokens: 640 */
    const json_t *rows, *v;
    size_t i;

    (void)state;
    r->b.o.gen = 20; /* and 64 between the first and the last to begin: 100 tokens each */
    rig_fit(r);
    run(r, wrk_bench_batch);
    rows = json_object_get(r->b.out, "batch");
    assert_int_equal(json_array_size(rows), 6);
    json_array_foreach(rows, i, v)
    {
        assert_true(number(v, "seqs") == (double)(1u << i));
        assert_int_equal(json_is_true(json_object_get(v, "fits")), i < 3); /* 4 * 7 pages */
        if (i < 3) {
            is_figure(v, "decode_tok_s", 2);
            assert_true(number(v, "scaling") > 0);
        } else {
            assert_non_null(strstr(json_string_value(json_object_get(v, "why")), "tokens need"));
            assert_null(json_object_get(v, "decode_tok_s"));
        }
    }
    rig_free(r);
}

static void a_known_beginning_is_found(void **state)
{
    struct rig *r = rig_new(2048, FAKE_PAGES, NULL);
    const json_t *p;

    (void)state;
    r->b.o.prefix = 1024;
    rig_fit(r);
    run(r, wrk_bench_prefix);
    p = json_object_get(r->b.out, "prefix");
    assert_true(number(p, "prefix_tokens") == 1024 && number(p, "prompt_tokens") == 1040);
    assert_true(number(p, "cached_tokens") == 1024);
    is_figure(p, "cold_ttft_ms", 2);
    is_figure(p, "hit_ttft_ms", 2);
    is_figure(p, "ratio", 2);
    rig_free(r);
}

static void a_context_without_room_for_a_prefix_is_told(void **state)
{
    struct rig *r = rig_new(70, FAKE_PAGES, NULL);

    (void)state;
    rig_fit(r);
    run(r, wrk_bench_prefix);
    assert_null(json_object_get(r->b.out, "prefix"));
    assert_non_null(strstr(
        json_string_value(json_object_get(json_object_get(r->b.out, "not_applicable"), "prefix")),
        "context of 70"));
    rig_free(r);
}

static void guesses_are_counted_and_change_nothing(void **state)
{
    struct mdl *drafter;
    struct rig *r = rig_new(512, FAKE_PAGES, &drafter);
    const json_t *rows, *v;
    double right = 0;
    size_t i;

    (void)state;
    r->b.o.gen = 60;
    rig_fit(r);
    run(r, wrk_bench_speculation);
    rows = json_object_get(r->b.out, "speculation");
    assert_int_equal(json_array_size(rows), 4); /* two texts, by the drafter and by looking up */
    json_array_foreach(rows, i, v)
    {
        double offered = number(v, "offered"), accepted = number(v, "accepted");

        assert_string_equal(json_string_value(json_object_get(v, "mode")),
                            i % 2 == 0 ? "mtp" : "lookup");
        assert_string_equal(json_string_value(json_object_get(v, "text")),
                            i < 2 ? "repeating" : "prose");
        is_figure(v, "plain_tok_s", 2);
        is_figure(v, "spec_tok_s", 2);
        assert_true(accepted >= 0 && accepted <= offered);
        assert_true(number(v, "acceptance") == (offered > 0 ? accepted / offered : 0));
        assert_true(number(v, "gain") > 0);
        assert_true(json_is_boolean(json_object_get(v, "rests")));
        assert_true(json_is_true(json_object_get(v, "same_tokens")));
        right += i == 0 ? accepted : 0;
    }
    assert_true(right > 0); /* that drafter is never wrong of a greedy answer */
    rig_free(r);
}

static void texts_in_one_request(void **state)
{
    struct rig *r = rig_new(128, FAKE_PAGES, NULL);
    const json_t *rows, *v;
    size_t i;

    (void)state;
    r->b.o.embed_batch = 5;
    r->b.o.embed_tokens = 9;
    rig_fit(r);
    run(r, wrk_bench_embed_all);
    assert_true(number(r->b.out, "embed_batch") == 5 && number(r->b.out, "embed_tokens") == 9);
    is_figure(r->b.out, "encode_seq_s", 2);
    is_figure(r->b.out, "encode_tok_s", 2);
    rows = json_object_get(r->b.out, "embed_scaling");
    assert_int_equal(json_array_size(rows), 6);
    json_array_foreach(rows, i, v)
    {
        assert_true(number(v, "texts") == (double)(1u << i));
        is_figure(v, "encode_seq_s", 2);
    }
    rig_free(r);
}

static void numbers_that_do_not_fit_the_model(void **state)
{
    static const struct {
        const char *why, *says;
        struct wrk_bench_opts o;
    } rows[] = {
        {"a prompt", "--prompt 300", {.prompt = 300}},
        {"a prompt without room for a token", "--prompt 256", {.prompt = 256}},
        {"an answer", "--gen 240", {.gen = 240}},
        {"a context", "--context 250", {.context = 250, .gen = 10}},
        {"a prefix", "--prefix 250", {.prefix = 250}},
        {"a text", "--embed-tokens 257", {.embed_tokens = 257}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct rig *r = rig_new(256, FAKE_PAGES, NULL);
        struct rc_err err = RC_ERR_INIT;

        r->b.o = rows[i].o;
        assert_int_equal(wrk_bench_fit(&r->b, &err), RC_INVALID);
        if (strstr(err.msg, rows[i].says) == NULL || strstr(err.msg, "25") == NULL)
            fail_msg("%s: '%s' lacks '%s'", rows[i].why, err.msg, rows[i].says);
        rig_free(r);
    }
}

/* Nobody gave a number: the smallest of models is measured all the same. */
static void defaults_fit_a_small_context(void **state)
{
    struct rig *r = rig_new(40, FAKE_PAGES, NULL);

    (void)state;
    rig_fit(r);
    run(r, wrk_bench_prompt);
    run(r, wrk_bench_decode);
    run(r, wrk_bench_batch);
    run(r, wrk_bench_speculation);
    assert_true(number(r->b.out, "prompt_tokens") == 39);
    is_figure(r->b.out, "decode_tok_s", 2);
    rig_free(r);
}

static bool at_once(void)
{
    return true;
}

static void an_interrupted_section_ends(void **state)
{
    struct rig *r = rig_new(256, FAKE_PAGES, NULL);
    struct rc_err err = RC_ERR_INIT;

    (void)state;
    rig_fit(r);
    r->b.front.stopped = at_once;
    assert_int_equal(wrk_bench_batch(&r->b, &err), RC_CANCELLED);
    rig_free(r);
}

static void a_failed_answer_is_told(void **state)
{
    struct rig *r = rig_new(256, FAKE_PAGES, NULL);
    struct rc_err err = RC_ERR_INIT;

    (void)state;
    rig_fit(r);
    r->b.model.mdl->fail_pass = true;
    assert_int_equal(wrk_bench_decode(&r->b, &err), RC_INTERNAL);
    assert_non_null(strstr(err.msg, "pass of"));
    r->b.model.mdl->fail_pass = false;
    r->b.model.mdl->fail_fill = true;
    r->b.o.context = 100;
    assert_int_equal(wrk_bench_decode(&r->b, &err), RC_INTERNAL);
    assert_non_null(strstr(err.msg, "84 rows to fill"));
    rig_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_of_sections),
        cmocka_unit_test(command_lines),
        cmocka_unit_test(medians_and_spreads),
        cmocka_unit_test(runs_keep_their_order_and_have_an_end),
        cmocka_unit_test(prompts_and_decoding),
        cmocka_unit_test(a_deep_cache_is_made_up_and_not_computed),
        cmocka_unit_test(as_many_together_as_the_pages_hold),
        cmocka_unit_test(a_known_beginning_is_found),
        cmocka_unit_test(a_context_without_room_for_a_prefix_is_told),
        cmocka_unit_test(guesses_are_counted_and_change_nothing),
        cmocka_unit_test(texts_in_one_request),
        cmocka_unit_test(numbers_that_do_not_fit_the_model),
        cmocka_unit_test(defaults_fit_a_small_context),
        cmocka_unit_test(an_interrupted_section_ends),
        cmocka_unit_test(a_failed_answer_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
