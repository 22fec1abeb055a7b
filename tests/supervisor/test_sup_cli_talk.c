/* test_sup_cli_talk.c - a conversation stays in order and fits its context. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "sup_talk.h"

static void turn(struct sup_talk *t, const char *q, const char *a, uint64_t prompt, uint64_t answer)
{
    assert_true(sup_talk_add(t, true, q));
    assert_true(sup_talk_add(t, false, a));
    sup_talk_settle(t, prompt, answer);
}

/* "s:..., u:..., a:..." */
static char *shape(const struct sup_talk *t)
{
    static char b[512];
    json_t *list = sup_talk_json(t), *m;
    size_t i, n = 0;

    assert_non_null(list);
    b[0] = '\0';
    json_array_foreach(list, i, m)
    {
        n += (size_t)snprintf(b + n, sizeof(b) - n, "%s%c:%s", i ? "," : "",
                              json_string_value(json_object_get(m, "role"))[0],
                              json_string_value(json_object_get(m, "content")));
    }
    json_decref(list);
    return b;
}

static void costs_come_from_the_servers_usage(void **state)
{
    struct sup_talk t = {0};

    turn(&t, "q1", "a1", 10, 5);
    assert_int_equal(sup_talk_tokens(&t), 10 + 5 + 4);
    turn(&t, "q2", "a2", 30, 7);
    assert_int_equal(sup_talk_tokens(&t), 30 + 7 + 4);
    /* a server that counts less than we thought does no harm */
    turn(&t, "q3", "a3", 3, 1);
    assert_int_equal(t.msg[4].n_tok, 1);
    sup_talk_deinit(&t);
}

static void oldest_turns_go_first_and_the_system_text_stays(void **state)
{
    struct sup_talk t = {0};

    assert_true(sup_talk_set_system(&t, "be brief"));
    t.system_tok = 10;
    turn(&t, "q1", "a1", 40, 16); /* q1 = 30, a1 = 20 */
    turn(&t, "q2", "a2", 90, 16); /* q2 = 30, a2 = 20 */
    assert_int_equal(sup_talk_tokens(&t), 110);
    assert_true(sup_talk_add(&t, true, "q3")); /* estimated 8 */
    assert_string_equal(shape(&t), "s:be brief,u:q1,a:a1,u:q2,a:a2,u:q3");
    assert_int_equal(sup_talk_fit(&t, 200, 50), 0);
    assert_int_equal(sup_talk_fit(&t, 167, 50), 1); /* 118 + 50 > 167 */
    assert_string_equal(shape(&t), "s:be brief,u:q2,a:a2,u:q3");
    assert_int_equal(sup_talk_fit(&t, 10, 5), 1); /* the newest always stays */
    assert_string_equal(shape(&t), "s:be brief,u:q3");
    assert_false(sup_talk_drop_oldest(&t));
    sup_talk_deinit(&t);
}

static void an_unknown_context_drops_nothing(void **state)
{
    struct sup_talk t = {0};

    turn(&t, "q1", "a1", 1000000, 5);
    assert_true(sup_talk_add(&t, true, "q2"));
    assert_int_equal(sup_talk_fit(&t, 0, 512), 0);
    sup_talk_deinit(&t);
}

static void bytes_are_limited_too(void **state)
{
    struct sup_talk t = {0};
    char *big = malloc(SUP_TALK_MAX_BYTES / 2 + 1);

    assert_non_null(big);
    memset(big, 'x', SUP_TALK_MAX_BYTES / 2);
    big[SUP_TALK_MAX_BYTES / 2] = '\0';
    turn(&t, big, "a1", 10, 5);
    turn(&t, big, "a2", 20, 5);
    assert_true(sup_talk_add(&t, true, "q"));
    assert_int_equal(sup_talk_fit(&t, 0, 1), 1);
    assert_int_equal(t.n_bytes, SUP_TALK_MAX_BYTES / 2 + 3);
    sup_talk_deinit(&t);
    free(big);
}

static void taking_back_and_clearing(void **state)
{
    struct sup_talk t = {0};

    sup_talk_pop(&t); /* nothing to take back */
    assert_true(sup_talk_set_system(&t, "s"));
    turn(&t, "q1", "a1", 10, 5);
    assert_true(sup_talk_add(&t, true, "q2"));
    sup_talk_pop(&t);
    assert_string_equal(shape(&t), "s:s,u:q1,a:a1");
    sup_talk_clear(&t);
    assert_string_equal(shape(&t), "s:s");
    assert_int_equal(t.n_bytes, 0);
    assert_true(sup_talk_set_system(&t, ""));
    assert_string_equal(shape(&t), "");
    assert_int_equal(sup_talk_tokens(&t), 0);
    sup_talk_deinit(&t);
}

static void many_turns(void **state)
{
    struct sup_talk t = {0};

    for (int i = 0; i < 1000; i++)
        turn(&t, "question", "answer", (uint64_t)(i + 1) * 20, 5);
    assert_true(sup_talk_fit(&t, 1000, 100) > 900);
    assert_true(t.msg[0].user);
    assert_false(t.msg[t.n - 1].user);
    assert_true(sup_talk_tokens(&t) + 100 <= 1000);
    sup_talk_deinit(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(costs_come_from_the_servers_usage),
        cmocka_unit_test(oldest_turns_go_first_and_the_system_text_stays),
        cmocka_unit_test(an_unknown_context_drops_nothing),
        cmocka_unit_test(bytes_are_limited_too),
        cmocka_unit_test(taking_back_and_clearing),
        cmocka_unit_test(many_turns),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
