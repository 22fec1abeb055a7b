/* test_wrk_engine_draw.c - who chooses a token: the host, a device, and under a grammar. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>

#include "fail/be_fail.h"
#include "worker/engine_ask.h"

/* ------------------------------------------------------------ draws on a device */

static struct mdl *drawing(int32_t give_back)
{
    struct mdl *m = fake_new(1024, 8, 96);

    m->can_sample = true;
    m->give_back = give_back;
    return m;
}

/* What a request asks decides where it is drawn; who shares its passes does not. */
static void the_device_draws_the_same_alone_and_in_company(void **state)
{
    struct rig one, many = rig_new(drawing(-1), 64);
    struct gen g[12];

    (void)state;
    for (uint32_t i = 0; i < 12; i++) {
        g[i] = (struct gen){.prompt = long_text(i * 37 % 300, i),
                            .max_tokens = 20 + i * 7 % 50,
                            .temperature = i % 3 == 0 ? 0 : 0.9f,
                            .top_k = 9,
                            .seed = i,
                            .repetition = i % 4 == 1 ? 1.3f : 1,
                            .logprobs = i % 5 == 2,
                            .ids = true};
        assert_int_equal(generate(&many, i + 1, &g[i]), RC_OK);
    }
    run(&many);
    assert_true(many.m->n_draws > 0 && many.m->n_host_rows > 0);
    for (uint32_t i = 0; i < 12; i++) {
        bool host = g[i].logprobs || i % 4 == 1;
        struct choice *a, *b = &many.a[i + 1].c[0];

        one = rig_new(drawing(-1), 4);
        assert_int_equal(generate(&one, 1, &g[i]), RC_OK);
        run(&one);
        a = &one.a[1].c[0];
        assert_int_equal(a->n_ids, g[i].max_tokens);
        assert_int_equal(b->n_ids, a->n_ids);
        assert_memory_equal(a->ids, b->ids, a->n_ids * sizeof(int32_t));
        assert_int_equal(one.m->n_draws, host ? 0 : g[i].max_tokens);
        assert_int_equal(one.m->n_host_rows, 0);
        rig_free(&one);
    }
    rig_free(&many);
}

/* Greedy has one answer, and a row that is given back goes on from the same generator. */
static void rows_the_device_gives_back_are_drawn_by_the_host(void **state)
{
    struct gen greedy = {.prompt = "some words", .max_tokens = 60, .ids = true},
               warm = {.prompt = "some words",
                       .max_tokens = 60,
                       .ids = true,
                       .temperature = 0.8f,
                       .seed = 7};
    struct rig plain = rig_new(fake_new(1024, 8, 96), 8), none = rig_new(drawing(-2), 8),
               some = rig_new(drawing('e' + 16), 8);

    (void)state;
    generate(&plain, 1, &greedy);
    generate(&plain, 2, &warm);
    generate(&none, 1, &greedy);
    generate(&none, 2, &warm);
    generate(&some, 1, &greedy);
    run(&plain);
    run(&none);
    run(&some);
    for (uint32_t t = 1; t <= 2; t++) {
        assert_int_equal(none.a[t].c[0].n_ids, 60);
        assert_memory_equal(none.a[t].c[0].ids, plain.a[t].c[0].ids, 60 * sizeof(int32_t));
    }
    assert_int_equal(plain.m->n_draws, 0);
    assert_int_equal(none.m->n_host_rows, 120);
    assert_memory_equal(some.a[1].c[0].ids, plain.a[1].c[0].ids, 60 * sizeof(int32_t));
    assert_true(some.m->n_draws == 60 && some.m->n_host_rows < 60);
    rig_free(&plain);
    rig_free(&none);
    rig_free(&some);
}

static void a_temperature_too_cold_for_a_device_is_the_hosts(void **state)
{
    struct gen g = {.prompt = "some words", .max_tokens = 10, .ids = true, .temperature = 1e-30f},
               greedy = {.prompt = "some words", .max_tokens = 10, .ids = true};
    struct rig r = rig_new(drawing(-1), 8);

    (void)state;
    generate(&r, 1, &g);
    run(&r);
    assert_int_equal(r.m->n_draws, 0);
    generate(&r, 2, &greedy);
    run(&r);
    assert_memory_equal(r.a[1].c[0].ids, r.a[2].c[0].ids, 10 * sizeof(int32_t));
    rig_free(&r);
}

static void a_bad_row_on_the_device_ends_its_task_alone(void **state)
{
    struct mdl *m = drawing(-1);
    struct gen good = {.prompt = "good", .max_tokens = 60, .logprobs = true},
               bad = {.prompt = "bad\xc8", .max_tokens = 60};
    struct rig r;

    (void)state;
    m->bad_after = FAKE_BYTE(0xc8);
    r = rig_new(m, 8);
    generate(&r, 1, &good);
    generate(&r, 2, &bad);
    run(&r);
    assert_int_equal(r.a[2].rc, RC_INTERNAL);
    assert_non_null(strstr(r.a[2].err.msg, "not finite"));
    equals_alone(&r, 1, "good", 60);
    rig_free(&r);
}

/* be_sync says again that the context is gone: the worker ends, and tells no task that it
 * failed, so that the front may try it elsewhere. */
static void a_lost_device_ends_the_worker_not_the_tasks(void **state)
{
    static const struct be_fail_plan lost = {.op_at = 1, .n_op_fails = 1000, .op_rc = RC_INTERNAL};
    const struct be_opts o = {.backend = "fail", .n_threads = 1};
    struct gen g = {.prompt = "p", .max_tokens = 5};
    struct rc_err err = RC_ERR_INIT;
    struct mdl *m = fake_new(512, 4, 64);
    struct be_ctx *be = NULL;
    struct rig r;

    (void)state;
    assert_int_equal(be_ctx_new(&be, &o, &err), RC_OK);
    r = rig_new_on(m, be, 8);
    m->fail_pass = true;
    generate(&r, 1, &g);
    run(&r); /* the device lives: the task fails */
    assert_int_equal(r.a[1].rc, RC_INTERNAL);
    generate(&r, 2, &g);
    be_fail_set(be, &lost);
    assert_int_equal(wrk_engine_step(r.e, &err), RC_INTERNAL);
    assert_non_null(strstr(err.msg, "the device is lost: pass of"));
    read_all(&r);
    assert_int_equal(r.a[2].ended, 0);
    rig_free(&r);
    be_ctx_free(&be);
}

/* ------------------------------------------------------------------ grammars */

static bool only(const struct choice *c, const char *letters)
{
    return strspn(c->text, letters) == c->n_text;
}

/* The same bytes alone, in company and on a device, where a grammar's rows are the
 * host's unless they are greedy; whole unless they were cut. */
static void grammars_hold_alone_and_in_company(void **state)
{
    static const struct {
        enum wrk_gr_kind kind;
        const char *grammar, *letters, *last; /* what a whole answer ends with */
    } rows[] = {
        {WRK_GR_REGEX, "[a-f]{5,20}!", "abcdef!", "!"},
        {WRK_GR_GBNF, "root ::= \"<\" [0-9]+ \">\"", "<0123456789>", ">"},
        {WRK_GR_SCHEMA, "{\"type\":\"integer\",\"minimum\":10,\"maximum\":3000}", "0123456789", ""},
        {WRK_GR_NONE, NULL, NULL, NULL},
        {WRK_GR_SCHEMA, "{\"enum\":[true,false]}", "truefals", "e"},
    };
    struct rig many = rig_new(fake_new(600, 8, 64), 64), device = rig_new(drawing(-1), 64), one;
    uint32_t whole = 0;
    struct gen g[15];

    (void)state;
    for (uint32_t i = 0; i < 15; i++) {
        g[i] = (struct gen){.prompt = long_text(i * 37 % 200, i),
                            .max_tokens = i == 0 ? 3 : 40,
                            .temperature = i % 4 == 0 ? 0 : 1,
                            .seed = i,
                            .repetition = i % 4 == 1 ? 1.3f : 1,
                            .logprobs = i % 5 == 2,
                            .ids = true,
                            .n = i == 5 ? 2 : 1,
                            .grammar_kind = rows[i % 5].kind,
                            .grammar = rows[i % 5].grammar};
        assert_int_equal(generate(&many, i + 1, &g[i]), RC_OK);
        assert_int_equal(generate(&device, i + 1, &g[i]), RC_OK);
    }
    run(&many);
    run(&device);
    assert_true(device.m->n_draws > 0 && device.m->n_host_rows > 0);
    for (uint32_t i = 0; i < 15; i++) {
        const char *last = rows[i % 5].last;
        const struct choice *b = &many.a[i + 1].c[0];

        assert_int_equal(many.a[i + 1].rc, RC_OK);
        if (last == NULL)
            continue; /* drawn on the device: other bits of the generator */
        assert_string_equal(device.a[i + 1].c[0].text, b->text);
        one = rig_new(fake_new(600, 8, 64), 4);
        assert_int_equal(generate(&one, 1, &g[i]), RC_OK);
        run(&one);
        assert_string_equal(one.a[1].c[0].text, b->text);
        assert_int_equal(one.a[1].c[0].n_ids, b->n_ids);
        assert_memory_equal(one.a[1].c[0].ids, b->ids, b->n_ids * sizeof(int32_t));
        assert_string_equal(one.a[1].c[1].text, many.a[i + 1].c[1].text);
        rig_free(&one);
        assert_true(only(b, rows[i % 5].letters));
        assert_int_equal(b->finish, i == 0 ? 2 : b->finish);
        if (b->finish == 1) {
            whole++;
            assert_string_equal(b->text + b->n_text - strlen(last), last);
        }
        for (uint32_t k = 0; k < b->n_probs; k++)
            assert_true(b->lp[k] <= 0);
    }
    assert_true(whole >= 8);
    rig_free(&many);
    rig_free(&device);
}

/* The device's largest is the grammar's where that allows it; else the host looks again. */
static void a_greedy_grammar_is_drawn_on_the_device(void **state)
{
    static const struct {
        const char *regex;
        uint32_t least, most; /* rows that the host looks at */
    } rows[] = {{".*", 0, 5}, {"[a-mA-M0-9 ]*", 5, 35}, {"#*", 40, 40}};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct rig host = rig_new(fake_new(600, 8, 64), 64), device = rig_new(drawing(-1), 64);
        struct gen g = {.prompt = long_text(20, 3),
                        .max_tokens = 40,
                        .ids = true,
                        .grammar_kind = WRK_GR_REGEX,
                        .grammar = rows[i].regex};
        const struct choice *a, *b;

        assert_int_equal(generate(&host, 1, &g), RC_OK);
        assert_int_equal(generate(&device, 1, &g), RC_OK);
        run(&host);
        run(&device);
        a = &host.a[1].c[0];
        b = &device.a[1].c[0];
        assert_string_equal(b->text, a->text);
        assert_int_equal(b->n_ids, a->n_ids);
        assert_memory_equal(b->ids, a->ids, a->n_ids * sizeof(int32_t));
        assert_int_equal(a->n_ids, 40);
        assert_int_equal(device.m->n_draws, b->n_ids);
        if (device.m->n_host_rows < rows[i].least || device.m->n_host_rows > rows[i].most)
            fail_msg("%s: %u tokens, %u looked at by the host", rows[i].regex, b->n_ids,
                     device.m->n_host_rows);
        rig_free(&host);
        rig_free(&device);
    }
}

static void bad_grammars_fail_their_task_alone(void **state)
{
    struct rig r = rig_new(fake_new(200, 4, 64), 64);
    const struct gen rows[] = {
        {.prompt = "a", .max_tokens = 5, .grammar_kind = WRK_GR_REGEX, .grammar = "("},
        {.prompt = "a", .max_tokens = 5, .grammar_kind = (enum wrk_gr_kind)9, .grammar = "x"},
        {.prompt = "a",
         .max_tokens = 5,
         .grammar_kind = WRK_GR_SCHEMA,
         .grammar = "{\"minItems\":2000000}"},
        {.prompt = "a", .max_tokens = 5, .grammar_kind = WRK_GR_SCHEMA, .grammar = "{\"not\":{}}"},
        {.prompt = "a",
         .max_tokens = 5,
         .grammar_kind = WRK_GR_REGEX,
         .grammar = "x",
         .ignore_eos = true},
        {.prompt = "a", .max_tokens = 5, .grammar_kind = WRK_GR_REGEX, .grammar = "xyz"},
    };

    (void)state;
    for (uint64_t i = 0; i < 6; i++)
        assert_int_equal(generate(&r, i + 1, &rows[i]), RC_OK);
    run(&r);
    assert_int_equal(r.a[1].rc, RC_INVALID);
    assert_string_equal(r.a[1].err.what, "regex");
    assert_int_equal(r.a[2].rc, RC_INVALID);
    assert_int_equal(r.a[3].rc, RC_INVALID); /* a bad grammar, not a long request */
    assert_int_equal(r.a[4].rc, RC_UNSUPPORTED);
    assert_string_equal(r.a[4].err.what, "response_format.json_schema.schema");
    assert_string_equal(r.a[5].err.what, "ignore_eos");
    assert_int_equal(r.a[6].rc, RC_OK);
    assert_string_equal(r.a[6].c[0].text, "xyz");
    assert_int_equal(r.a[6].c[0].finish, 1);
    rig_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_device_draws_the_same_alone_and_in_company),
        cmocka_unit_test(rows_the_device_gives_back_are_drawn_by_the_host),
        cmocka_unit_test(a_temperature_too_cold_for_a_device_is_the_hosts),
        cmocka_unit_test(a_bad_row_on_the_device_ends_its_task_alone),
        cmocka_unit_test(a_lost_device_ends_the_worker_not_the_tasks),
        cmocka_unit_test(grammars_hold_alone_and_in_company),
        cmocka_unit_test(a_greedy_grammar_is_drawn_on_the_device),
        cmocka_unit_test(bad_grammars_fail_their_task_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
