/* test_sup_conf_live.c - a new configuration beside the one that holds: what is taken, what is
 * kept, and that nothing is half taken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "sup_conf_impl.h"

static struct sup_conf conf(const char *flag)
{
    char *words[] = {(char *)flag, NULL};
    char *none[] = {NULL};
    struct sup_conf c;
    struct rc_err err = RC_ERR_INIT;
    int used = 0;

    if (sup_conf_load(&c, NULL, none, flag ? 1 : 0, words, &used, &err) != RC_OK)
        fail_msg("%s: %s", flag ? flag : "defaults", err.msg);
    return c;
}

/* A flag that gives o another value than its default, or "" where rules allow none. */
static void another(enum sup_option o, char *out, size_t cap)
{
    const struct sup_conf_opt *row = &sup_conf_opts[o];
    char name[64];

    sup_conf_spell(row, SUP_FROM_FLAG, name, sizeof(name));
    if (row->kind == U64)
        snprintf(out, cap, "%s=%llu", name,
                 (unsigned long long)(row->def_u < row->max ? row->def_u + 1 : row->def_u - 1));
    else if (row->kind == BOOL)
        snprintf(out, cap, "--%s%s", row->def_b ? "no-" : "", name + 2);
    else if (row->kind == ENUM)
        snprintf(out, cap, "%s=%s", name, strrchr(row->words, '|') + 1);
    else
        snprintf(out, cap, "%s=%s", name,
                 o == SUP_OPT_host                                         ? "127.0.0.2"
                 : o == SUP_OPT_hub_endpoint || o == SUP_OPT_otlp_endpoint ? "http://127.0.0.1:9"
                                                                           : "x");
    /* what is for another backend, or asks for more than itself */
    if (o == SUP_OPT_device || o == SUP_OPT_compute || o == SUP_OPT_jit || o == SUP_OPT_kv_dtype)
        out[0] = '\0';
}

static void each_option_is_taken_or_kept(void **s)
{
    size_t n_live = 0;

    (void)s;
    for (int o = 0; o < SUP_OPT_COUNT; o++) {
        struct sup_conf c = conf(NULL), was = conf(NULL), fresh;
        struct sup_conf_changes what;
        struct rc_err err = RC_ERR_INIT;
        bool live = sup_conf_is_live((enum sup_option)o);
        char flag[128];

        n_live += live;
        another((enum sup_option)o, flag, sizeof(flag));
        fresh = conf(flag[0] ? flag : NULL);
        if (flag[0] && sup_conf_same(&c, &fresh, (enum sup_option)o))
            fail_msg("%s changes nothing", flag);
        assert_int_equal(sup_conf_take(&c, &fresh, &what, &err), RC_OK);
        assert_int_equal(what.n_taken, flag[0] && live);
        assert_int_equal(what.n_kept, flag[0] && !live);
        if (flag[0])
            assert_int_equal(live ? what.taken[0] : what.kept[0], o);
        if (sup_conf_same(&c, &was, (enum sup_option)o) == (live && flag[0]))
            fail_msg("%s: %s", flag, live ? "was not taken" : "was taken");
        sup_conf_deinit(&c);
        sup_conf_deinit(&was);
        sup_conf_deinit(&fresh);
    }
    assert_in_range(n_live, 20, SUP_OPT_COUNT - 20);
}

static void another_process_takes_what_it_is_told(void **s)
{
    static const char *const flags[] = {"--max-queue=7", "--allowed-origins=https://a.example",
                                        "--log-level=warn", "--no-access-log", "--port=1"};

    (void)s;
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        struct sup_conf here = conf(flags[i]), there = conf(NULL);
        struct sup_conf_changes what;
        struct rc_err err = RC_ERR_INIT;
        char *json = sup_conf_live_json(&here), names[64];

        assert_non_null(json);
        assert_null(strstr(json, "\"port\""));
        assert_int_equal(sup_conf_take_live(&there, json, strlen(json), &what, &err), RC_OK);
        assert_int_equal(what.n_taken, i != 4);
        sup_conf_names(what.taken, what.n_taken, names, sizeof(names));
        assert_string_equal(names, i == 0   ? "max_queue"
                                   : i == 1 ? "allowed_origins"
                                   : i == 2 ? "log_level"
                                   : i == 3 ? "access_log"
                                            : "");
        assert_int_equal(there.port, 8090);
        free(json);
        sup_conf_deinit(&here);
        sup_conf_deinit(&there);
    }
}

static void a_broken_rule_or_text_changes_nothing(void **s)
{
    struct sup_conf c = conf(NULL), was = conf(NULL), fresh = conf("--max-queue=7");
    struct sup_conf_changes what;
    struct rc_err err = RC_ERR_INIT;

    (void)s;
    free(fresh.kv_dtype); /* right beside backend cuda, which is kept */
    fresh.kv_dtype = strdup("q8_0");
    assert_int_equal(sup_conf_take(&c, &fresh, &what, &err), RC_INVALID);
    assert_string_equal(err.what, "kv_dtype");
    for (size_t i = 0; i < 3; i++) {
        static const char *const texts[] = {"{\"max_queue\": 0}", "[]", "{\"nope\": 1}"};

        assert_int_equal(sup_conf_take_live(&c, texts[i], strlen(texts[i]), &what, &err),
                         RC_INVALID);
    }
    for (int o = 0; o < SUP_OPT_COUNT; o++)
        if (!sup_conf_same(&c, &was, (enum sup_option)o))
            fail_msg("%s has changed", sup_conf_name((enum sup_option)o));
    sup_conf_deinit(&c);
    sup_conf_deinit(&was);
    sup_conf_deinit(&fresh);
}

static void names_are_cut_at_the_buffer(void **s)
{
    const enum sup_option o[] = {SUP_OPT_host, SUP_OPT_port, SUP_OPT_unix_socket};
    char out[12];

    (void)s;
    sup_conf_names(o, 3, out, sizeof(out));
    assert_string_equal(out, "host,port,u");
    sup_conf_names(o, 0, out, sizeof(out));
    assert_string_equal(out, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_option_is_taken_or_kept),
        cmocka_unit_test(another_process_takes_what_it_is_told),
        cmocka_unit_test(a_broken_rule_or_text_changes_nothing),
        cmocka_unit_test(names_are_cut_at_the_buffer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
