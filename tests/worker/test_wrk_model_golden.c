/* test_wrk_model_golden.c - the real worker, strict sandbox, golden models.
 *
 * Greedy ids of the Gemma 3 golden equal the reference's; answers alone and beside
 * seven others have the same bits, cold, from the prompt cache, after a restart, and with
 * tokens guessed ahead; so
 * have vectors; cancel, drain, probe and a missing model behave as docs/worker.md says.
 * INFERD_TEST_CONVERSATIONS=200 runs that many conversations instead of a few.
 */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "worker/proc.h"
#include "wrk_serve.h"

#define EXE TEST_BUILD "/inferd-worker"
#define GEMMA TEST_GOLDEN "/gemma3_text"
#define GEMMA4 TEST_GOLDEN "/gemma4_text"
#define GEMMA4_DRAFTED TEST_BUILD "/gemma4-drafted" /* with its drafter in assistant/ */
#define MINILM TEST_GOLDEN "/minilm"
#define N_GEN 32

static json_t *gemma_cases; /* array: ids, greedy, greedy_gap */

static struct proc start(const char *root, const Ipc__Budgets *b)
{
    struct proc p;
    Ipc__Frame *f;

    assert_true(proc_start(&p, EXE, "strict", root, false));
    assert_true(proc_hello(&p, b));
    assert_true(proc_send_empty(&p, 0, IPC__FRAME__BODY_LOAD));
    f = proc_want(&p, IPC__FRAME__BODY_LOADED);
    assert_non_null(f);
    assert_true(f->loaded->vocab_size > 0);
    ipc__frame__free_unpacked(f, NULL);
    return p;
}

struct answer {
    int32_t ids[N_GEN * 2];
    float lp[N_GEN * 2];
    uint32_t n, finish;
    bool done;
};

static void ask(struct proc *p, uint64_t task, const json_t *kase, uint32_t max_tokens, float temp)
{
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Generate g = IPC__GENERATE__INIT;
    Ipc__Sampling s = IPC__SAMPLING__INIT;
    const json_t *ids = json_object_get(kase, "ids");
    uint32_t tokens[512];

    for (g.n_prompt_tokens = 0; g.n_prompt_tokens < json_array_size(ids); g.n_prompt_tokens++)
        tokens[g.n_prompt_tokens] =
            (uint32_t)json_integer_value(json_array_get(ids, g.n_prompt_tokens));
    s.temperature = temp;
    s.seed = task;
    s.has_seed = true;
    g.sampling = &s;
    g.kind = 3;
    g.prompt_tokens = tokens;
    g.max_tokens = max_tokens;
    g.logprobs = true;
    g.ignore_eos = true;
    g.return_token_ids = true;
    g.stream = task % 2;
    f.task = task;
    f.body_case = IPC__FRAME__BODY_GENERATE;
    f.generate = &g;
    assert_true(proc_send(p, &f));
}

/* Reads until n tasks have ended; answers by task number. Returns the prompt tokens
 * that came from the prompt cache. */
static uint32_t n_right, n_wrong; /* guesses ahead in the answers collected */
static uint32_t collect(struct proc *p, struct answer *a, uint32_t n)
{
    uint32_t cached = 0;

    while (n > 0) {
        Ipc__Frame *f = proc_next(p);

        assert_non_null(f);
        if (f->body_case == IPC__FRAME__BODY_DELTA) {
            struct answer *x = &a[f->task];

            for (size_t i = 0; i < f->delta->n_probs; i++)
                x->lp[x->n + i] = f->delta->probs[i]->logprob;
            for (size_t i = 0; i < f->delta->n_tokens; i++)
                x->ids[x->n++] = (int32_t)f->delta->tokens[i];
            x->finish = f->delta->finish;
        } else if (f->body_case == IPC__FRAME__BODY_DONE) {
            a[f->task].done = true;
            cached += f->done->cached_tokens;
            n_right += f->done->accepted_drafts;
            n_wrong += f->done->rejected_drafts;
            n--;
        } else if (f->body_case == IPC__FRAME__BODY_ERROR) {
            fail_msg("task %d: %.*s", (int)f->task, (int)f->error->message.len,
                     (char *)f->error->message.data);
        }
        ipc__frame__free_unpacked(f, NULL);
    }
    return cached;
}

static void greedy_ids_equal_the_reference(void **state)
{
    struct proc p = start(GEMMA, NULL);

    (void)state;
    for (size_t c = 0; c < json_array_size(gemma_cases); c++) {
        const json_t *k = json_array_get(gemma_cases, c);
        const json_t *want = json_object_get(k, "greedy"), *gap = json_object_get(k, "greedy_gap");
        struct answer a[2] = {{{0}, {0}, 0, 0, false}};

        ask(&p, 1, k, (uint32_t)json_array_size(want), 0);
        collect(&p, a, 1);
        assert_int_equal(a[1].n, json_array_size(want));
        for (uint32_t i = 0; i < a[1].n; i++) {
            if (json_number_value(json_array_get(gap, i)) < 2e-3)
                break; /* the README's bound: here two tokens are as good as equal */
            if (a[1].ids[i] != json_integer_value(json_array_get(want, i)))
                fail_msg("%s: token %u is %d", json_string_value(json_object_get(k, "name")), i,
                         a[1].ids[i]);
        }
    }
    assert_true(proc_send_empty(&p, 0, IPC__FRAME__BODY_DRAIN));
    assert_int_equal(proc_wait(&p), 0);
}

static void beside_seven_others_as_alone(void **state)
{
    Ipc__Budgets b = IPC__BUDGETS__INIT;
    static struct answer alone[9], together[9];
    struct proc p;

    (void)state;
    b.max_seqs = 8;
    b.batch_tokens = 48;
    p = start(GEMMA, &b);
    for (uint32_t t = 1; t <= 8; t++) {
        ask(&p, t, json_array_get(gemma_cases, (t - 1) % json_array_size(gemma_cases)), N_GEN,
            t > 4 ? 0.8f : 0);
        collect(&p, alone, 1);
    }
    for (uint32_t t = 1; t <= 8; t++)
        ask(&p, t, json_array_get(gemma_cases, (t - 1) % json_array_size(gemma_cases)), N_GEN,
            t > 4 ? 0.8f : 0);
    collect(&p, together, 8);
    for (uint32_t t = 1; t <= 8; t++) {
        assert_int_equal(together[t].n, N_GEN);
        assert_memory_equal(alone[t].ids, together[t].ids, N_GEN * sizeof(int32_t));
        assert_memory_equal(alone[t].lp, together[t].lp, N_GEN * sizeof(float));
    }
    assert_int_equal(proc_end(&p), 0);
}

static void cancel_and_drain(void **state)
{
    struct proc p = start(GEMMA, NULL);
    static struct answer a[4];
    Ipc__Frame *f;

    (void)state;
    ask(&p, 1, json_array_get(gemma_cases, 0), 400, 0);
    f = proc_want(&p, IPC__FRAME__BODY_DELTA);
    assert_non_null(f);
    ipc__frame__free_unpacked(f, NULL);
    assert_true(proc_send_empty(&p, 1, IPC__FRAME__BODY_CANCEL));
    f = proc_want(&p, IPC__FRAME__BODY_ERROR);
    assert_non_null(f);
    assert_int_equal(f->task, 1);
    assert_int_equal(f->error->code, RC_CANCELLED);
    ipc__frame__free_unpacked(f, NULL);
    ask(&p, 2, json_array_get(gemma_cases, 0), N_GEN, 0);
    assert_true(proc_send_empty(&p, 0, IPC__FRAME__BODY_DRAIN));
    collect(&p, a, 1); /* what runs is finished */
    assert_true(a[2].done);
    assert_int_equal(proc_wait(&p), 0);

    p = start(GEMMA, NULL); /* and nothing new is taken */
    ask(&p, 1, json_array_get(gemma_cases, 0), N_GEN, 0);
    assert_true(proc_send_empty(&p, 0, IPC__FRAME__BODY_DRAIN));
    ask(&p, 2, json_array_get(gemma_cases, 0), 1, 0);
    assert_int_equal(WEXITSTATUS(proc_wait(&p)), WRK_EXIT_PROTOCOL);
}

/* ------------------------------------------------------------- conversations */

#define TALK_TOKENS 700
#define TURNS 3
struct talk {
    uint32_t ids[TALK_TOKENS], n; /* the prompt of the turn */
    uint32_t max_new, seed;
    float temperature;
    struct answer cold;
};

static uint32_t rnd;
static uint32_t below(uint32_t n)
{
    rnd = rnd * 1664525u + 1013904223u;
    return (rnd >> 8) % n;
}

static void say(struct proc *p, uint64_t task, const struct talk *t, bool cached)
{
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Generate g = IPC__GENERATE__INIT;
    Ipc__Sampling s = IPC__SAMPLING__INIT;
    uint8_t ns[32] = {1};

    s.temperature = t->temperature;
    s.seed = t->seed;
    s.has_seed = true;
    g.sampling = &s;
    g.kind = 3;
    g.prompt_tokens = (uint32_t *)t->ids;
    g.n_prompt_tokens = t->n;
    g.max_tokens = t->max_new;
    g.logprobs = g.ignore_eos = g.return_token_ids = true;
    g.cache_ns.data = ns;
    g.cache_ns.len = cached ? sizeof(ns) : 0;
    f.task = task;
    f.body_case = IPC__FRAME__BODY_GENERATE;
    f.generate = &g;
    assert_true(proc_send(p, &f));
}

/* A turn of n conversations at once; each must be what it was when computed cold. */
static uint32_t turn(struct proc *p, struct talk *t, uint32_t n, bool cached)
{
    static struct answer a[9];
    uint32_t hits = 0;

    memset(a, 0, sizeof(a));
    for (uint32_t i = 0; i < n; i++)
        say(p, i + 1, &t[i], cached);
    hits = collect(p, a, n);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(a[i + 1].n, t[i].max_new);
        assert_memory_equal(a[i + 1].ids, t[i].cold.ids, a[i + 1].n * sizeof(int32_t));
        assert_memory_equal(a[i + 1].lp, t[i].cold.lp, a[i + 1].n * sizeof(float));
    }
    return hits;
}

/* Prompts of this round's turn: a few beginnings that many share, then their own; later
 * turns go on after the answer of the one before. */
static void next_prompts(struct talk *t, uint32_t n, uint32_t round, uint32_t k)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t own = 1 + below(120);

        if (k == 0) {
            uint32_t stem = below(3), len = 30 + 70 * stem;

            t[i] = (struct talk){.seed = round * 8 + i, .temperature = below(2) ? 0.8f : 0};
            for (; t[i].n < len; t[i].n++)
                t[i].ids[t[i].n] = 4 + (stem * 31 + t[i].n * t[i].n) % 690;
        } else {
            for (uint32_t j = 0; j < t[i].cold.n; j++)
                t[i].ids[t[i].n++] = (uint32_t)t[i].cold.ids[j];
        }
        for (; own > 0 && t[i].n < TALK_TOKENS - N_GEN * 2; own--)
            t[i].ids[t[i].n++] = 4 + below(690);
        t[i].max_new = 1 + below(N_GEN);
    }
}

/* speculation: how the warm and the restarted worker guess ahead. */
static void conversations(const char *model, uint32_t speculation)
{
    const char *want = getenv("INFERD_TEST_CONVERSATIONS");
    uint32_t rounds = want != NULL ? ((uint32_t)atoi(want) + 7) / 8 : 1, hits = 0;
    Ipc__Budgets b = IPC__BUDGETS__INIT;
    static struct talk t[8];
    struct proc cold, warm, again;

    rnd = 20261130;
    b.max_seqs = 1;
    b.speculation = 1;
    cold = start(model, &b); /* one by one, each prompt in one pass, a token a pass */
    b.speculation = speculation;
    b.max_seqs = 8;
    b.batch_tokens = 48; /* chunks end anywhere; the window is 8 */
    b.cache_min_tokens = 32;
    b.kv_bytes = 6u << 20; /* pages are evicted */
    b.cache_bytes = 4u << 20;
    for (uint32_t r = 0; r < rounds; r++) {
        if (r % 8 == 0) {
            if (r > 0)
                assert_int_equal(proc_end(&warm), 0);
            warm = start(model, &b);
        }
        again = start(model, &b);
        for (uint32_t k = 0; k < TURNS; k++) {
            next_prompts(t, 8, r, k);
            for (uint32_t i = 0; i < 8; i++) {
                struct answer a[2] = {{{0}, {0}, 0, 0, false}};

                say(&cold, 1, &t[i], false);
                assert_int_equal(collect(&cold, a, 1), 0);
                t[i].cold = a[1];
            }
            hits += turn(&warm, t, 8, true);      /* beside seven others, from the cache */
            hits += turn(&warm, t, 8, true);      /* once more: nearly all is known */
            hits += turn(&again, &t[0], 1, true); /* another worker, alone */
            turn(&warm, t, 8, false);             /* and not from it */
        }
        assert_int_equal(proc_end(&again), 0);
    }
    assert_true(hits > rounds * 8 * TURNS * 64);
    assert_int_equal(proc_end(&warm), 0);
    assert_int_equal(proc_end(&cold), 0);
}

static void conversations_cached_batched_and_restarted_as_cold(void **state)
{
    (void)state;
    n_right = n_wrong = 0;
    conversations(GEMMA, 2);
    assert_true(n_right + n_wrong > 0);
    n_right = n_wrong = 0;
    /* layers that share keys, two head sizes, a drafter. A worker stops guessing when its clock
     * says that it does not pay, a new one begins with guesses again: as often as gives enough of
     * them */
    for (int i = 0; i < 8 && n_right + n_wrong <= 100; i++)
        conversations(GEMMA4_DRAFTED, 3);
    assert_true(n_right + n_wrong > 100);
}

/* 64 tokens guessed k at a time, at any temperature, and an end that comes by itself. */
static void guessed_ahead_as_plain(void **state)
{
    static struct answer want[4], got[4];
    static struct talk t[3];
    Ipc__Budgets b = IPC__BUDGETS__INIT;

    (void)state;
    rnd = 7;
    next_prompts(t, 3, 0, 0);
    for (uint32_t i = 0; i < 3; i++) {
        t[i].temperature = i == 2 ? 0.9f : 0;
        t[i].max_new = N_GEN * 2;
    }
    for (uint32_t k = 0; k <= 8; k = k == 0 ? 1 : 2 * k) {
        struct proc p;

        b.speculation = k == 0 ? 1 : 3;
        b.speculation_tokens = k;
        p = start(GEMMA4_DRAFTED, &b);
        memset(got, 0, sizeof(got));
        n_right = n_wrong = 0;
        for (uint32_t i = 0; i < 3; i++) { /* one after the other: trials end, passes are many */
            say(&p, i + 1, &t[i], false);
            collect(&p, got, 1);
        }
        assert_int_equal(proc_end(&p), 0);
        if (k == 0)
            memcpy(want, got, sizeof(want));
        assert_int_equal(n_right + n_wrong > 0, k > 0);
        for (uint32_t i = 1; i <= 3; i++) {
            assert_int_equal(got[i].n, N_GEN * 2);
            assert_memory_equal(got[i].ids, want[i].ids, sizeof(got[i].ids));
            assert_memory_equal(got[i].lp, want[i].lp, sizeof(got[i].lp));
        }
    }
}

/* What asks for a drafter that is not there is refused, with the folder's name. */
static void a_missing_drafter_is_named(void **state)
{
    Ipc__Budgets b = IPC__BUDGETS__INIT;
    struct proc p;
    Ipc__Frame *f;

    (void)state;
    b.speculation = 3;
    assert_true(proc_start(&p, EXE, "strict", GEMMA4, false));
    assert_true(proc_hello(&p, &b));
    assert_true(proc_send_empty(&p, 0, IPC__FRAME__BODY_LOAD));
    f = proc_want(&p, IPC__FRAME__BODY_ERROR);
    assert_non_null(f);
    assert_int_equal(f->error->code, RC_NOT_FOUND);
    assert_non_null(strstr((char *)f->error->message.data, "assistant"));
    ipc__frame__free_unpacked(f, NULL);
    assert_int_equal(proc_wait(&p), 0);
}

/* Vectors of n texts in one request; out [n, 384] at most. */
static uint32_t embed(struct proc *p, const char *const *text, uint32_t n, float *out)
{
    Ipc__Frame f = IPC__FRAME__INIT, *r;
    Ipc__Embed m = IPC__EMBED__INIT;
    Ipc__EmbedInput in[16], *ptr[16];
    uint32_t dim;

    for (uint32_t i = 0; i < n; i++) {
        ipc__embed_input__init(&in[i]);
        in[i].text.data = (uint8_t *)text[i];
        in[i].text.len = strlen(text[i]);
        ptr[i] = &in[i];
    }
    m.inputs = ptr;
    m.n_inputs = n;
    f.task = 5;
    f.body_case = IPC__FRAME__BODY_EMBED;
    f.embed = &m;
    assert_true(proc_send(p, &f));
    r = proc_want(p, IPC__FRAME__BODY_VECTORS);
    assert_non_null(r);
    assert_int_equal(r->vectors->n, n);
    dim = r->vectors->dim;
    assert_int_equal(r->vectors->data.len, n * dim * sizeof(float));
    memcpy(out, r->vectors->data.data, r->vectors->data.len);
    ipc__frame__free_unpacked(r, NULL);
    return dim;
}

static void vectors_in_a_batch_equal_those_alone(void **state)
{
    static const char *const text[] = {"a",
                                       "harbour lights at night",
                                       "one two three four five",
                                       "",
                                       "the same again",
                                       "the same again",
                                       "and a rather longer sentence that goes on for a while"};
    static float all[16 * 1024], one[1024];
    struct proc p = start(MINILM, NULL);
    const uint32_t n = sizeof(text) / sizeof(text[0]);
    uint32_t dim = embed(&p, text, n, all);

    (void)state;
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(embed(&p, &text[i], 1, one), dim);
        assert_memory_equal(one, all + (size_t)i * dim, dim * sizeof(float));
    }
    assert_int_equal(proc_end(&p), 0);
}

static void a_probe_tells_and_loads_nothing(void **state)
{
    struct proc p;
    Ipc__Frame f = IPC__FRAME__INIT, *r;
    Ipc__Load l = IPC__LOAD__INIT;

    (void)state;
    assert_true(proc_start(&p, EXE, "strict", MINILM, false));
    assert_true(proc_hello(&p, NULL));
    l.probe_only = true;
    f.body_case = IPC__FRAME__BODY_LOAD;
    f.load = &l;
    assert_true(proc_send(&p, &f));
    r = proc_want(&p, IPC__FRAME__BODY_LOADED);
    assert_non_null(r);
    assert_true(r->loaded->probe_only);
    assert_true(r->loaded->can_embed);
    assert_false(r->loaded->can_generate);
    ipc__frame__free_unpacked(r, NULL);
    assert_int_equal(proc_end(&p), 0);
}

static void what_is_no_model_is_told_and_ends_well(void **state)
{
    struct proc p;
    Ipc__Frame *r;

    (void)state;
    assert_true(proc_start(&p, EXE, "strict", TEST_SOURCE "/proto", false));
    assert_true(proc_hello(&p, NULL));
    assert_true(proc_send_empty(&p, 0, IPC__FRAME__BODY_LOAD));
    r = proc_want(&p, IPC__FRAME__BODY_ERROR);
    assert_non_null(r);
    assert_int_equal(r->task, 0);
    assert_int_equal(r->error->code, RC_NOT_FOUND);
    ipc__frame__free_unpacked(r, NULL);
    assert_int_equal(proc_wait(&p), 0);
}

static void bench_prints_its_numbers(void **state)
{
    static const char *const keys[] = {
        "load_ms", "prefill_tok_s", "decode_tok_s", "decode_step_cpu_ms", "threads", "hot_allocs"};
    char out[4096];
    FILE *f = popen(
        EXE " --bench " GEMMA " --only prompt,decode --prompt 40 --gen 8 --seqs 2 --runs 2", "r");
    size_t n;
    json_t *o;

    (void)state;
    assert_non_null(f);
    n = fread(out, 1, sizeof(out), f);
    assert_int_equal(pclose(f), 0);
    o = json_loadb(out, n, 0, NULL);
    assert_non_null(o);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        assert_true(json_is_number(json_object_get(o, keys[i])));
    assert_int_equal(json_array_size(json_object_get(o, "decode_tok_s_runs")), 2);
    assert_int_equal(json_integer_value(json_object_get(o, "hot_allocs")), 0);
    assert_true(json_integer_value(json_object_get(o, "kv_read_bytes")) > 0);
    json_decref(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_ids_equal_the_reference),
        cmocka_unit_test(beside_seven_others_as_alone),
        cmocka_unit_test(conversations_cached_batched_and_restarted_as_cold),
        cmocka_unit_test(guessed_ahead_as_plain),
        cmocka_unit_test(a_missing_drafter_is_named),
        cmocka_unit_test(cancel_and_drain),
        cmocka_unit_test(vectors_in_a_batch_equal_those_alone),
        cmocka_unit_test(a_probe_tells_and_loads_nothing),
        cmocka_unit_test(what_is_no_model_is_told_and_ends_well),
        cmocka_unit_test(bench_prints_its_numbers),
    };
    json_t *all = json_load_file(GEMMA "/cases.json", JSON_ALLOW_NUL, NULL);
    int failed;

    gemma_cases = json_object_get(all, "logits");
    if (access(EXE, X_OK) != 0 || json_array_size(gemma_cases) == 0) {
        printf("skipped: needs %s and %s/cases.json\n", EXE, GEMMA);
        return 77;
    }
    if (system("rm -rf " GEMMA4_DRAFTED " && cp -r " GEMMA4 " " GEMMA4_DRAFTED
               " && cp -r " TEST_GOLDEN "/gemma4_assistant " GEMMA4_DRAFTED "/assistant") != 0) {
        printf("cannot make %s\n", GEMMA4_DRAFTED);
        return 1;
    }
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    json_decref(all);
    return failed;
}
