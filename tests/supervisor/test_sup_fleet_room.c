/* test_sup_fleet_room.c - the list of models with real processes: files that come and go, loads on
 * request, and who makes room for whom. */
#include "fleet_rig.h"

static void unknown_models_and_new_ones(void)
{
    struct ask a = {0}, b = {0}, c = {0}, d = {0};

    echo(&a, "../../etc/passwd", "x");
    MUST(a.submitted == RC_NOT_FOUND);
    turn_ms(1100);
    echo(&b, "nobody.gguf", "x"); /* looked for, then refused */
    MUST(b.submitted == RC_OK);
    ENDS(b, RC_NOT_FOUND);
    MUST(is("nobody.gguf", "unknown"));
    echo(&c, "nobody.gguf", "x");
    MUST(c.submitted == RC_NOT_FOUND); /* within the second: known to be absent */
    tmp_write("new.gguf", "load-ok");
    turn_ms(1100);
    echo(&d, "new.gguf", "x");
    ENDS(d, RC_OK);
}

static void changed_files_are_loaded_anew(void)
{
    struct ask a = {0}, b = {0}, c = {0};

    echo(&a, "m.gguf", "x");
    ENDS(a, RC_OK);
    generate(&b, "m.gguf", "stream=400", 1); /* runs while the files change */
    UNTIL(b.deltas > 0);
    tmp_write("m.gguf", "weights=2000");
    fresh_list();
    MUST(is("m.gguf", "draining"));
    echo(&c, "m.gguf", "x"); /* waits for the new one; the old is not resurrected */
    UNTIL(c.ended);
    MUST(b.ended && b.code == RC_OK && b.deltas == 400); /* the old generation finished */
    OK_ASK(c);
    MUST(view("m.gguf").loads == 2 && view("m.gguf").info->weight_bytes == 2000);
    MUST(metric(SUP_M_MODEL_UNLOADS, "m.gguf", "changed") == 1);
}

static void files_renamed_away_and_back(void)
{
    struct ask a = {0}, b = {0}, c = {0};

    echo(&a, "m.gguf", "x");
    ENDS(a, RC_OK);
    MUST(rename(tmp_path("m.gguf"), tmp_path("m.away")) == 0);
    fresh_list();
    UNTIL(!view("m.gguf").pid);
    turn_ms(1100);
    echo(&b, "m.gguf", "x");
    MUST(b.submitted == RC_OK);
    ENDS(b, RC_WEIGHT_IO);
    MUST(b.retry_ms > 0);
    MUST(rename(tmp_path("m.away"), tmp_path("m.gguf")) == 0);
    turn_ms(1100);
    echo(&c, "m.gguf", "x");
    ENDS(c, RC_OK);
    /* away before anybody looked: the start finds nothing, and comes back by itself
     * although the files are the very same ones as before */
    struct ask d = {0}, e = {0};
    fresh_list();
    MUST(rename(tmp_path("third.gguf"), tmp_path("third.away")) == 0);
    echo(&d, "third.gguf", "x");
    ENDS(d, RC_WEIGHT_IO);
    MUST(d.retry_ms > 0);
    MUST(rename(tmp_path("third.away"), tmp_path("third.gguf")) == 0);
    turn_ms(1200);
    echo(&e, "third.gguf", "x");
    ENDS(e, RC_OK);
}

static void load_and_unload_on_request(void)
{
    struct ask a = {0}, b = {0};
    struct rc_err err = RC_ERR_INIT;

    MUST(sup_fleet_load(fleet, "nope", set_flag, NULL, &err) == RC_NOT_FOUND);
    MUST(sup_fleet_unload(fleet, "nope", set_flag, NULL, &err) == RC_NOT_FOUND);
    for (int again = 0; again < 2; again++) { /* loading a loaded one is no work */
        flag_set = false;
        MUST(sup_fleet_load(fleet, "m", set_flag, NULL, NULL) == RC_OK);
        MUST(!flag_set);
        UNTIL(flag_set);
        MUST(flag_code == RC_OK && is("m.gguf", "ready") && view("m.gguf").loads == 1);
    }
    generate(&a, "m.gguf", "stream=50", 1);
    UNTIL(a.deltas > 0);
    flag_set = false;
    MUST(sup_fleet_unload(fleet, "m.gguf", set_flag, NULL, NULL) == RC_OK);
    MUST(is("m.gguf", "draining"));
    echo(&b, "m.gguf", "x"); /* a newcomer waits for the reload */
    UNTIL(flag_set);
    MUST(flag_code == RC_OK && a.ended && a.code == RC_OK && a.deltas == 50);
    ENDS(b, RC_OK);
    MUST(view("m.gguf").loads == 2 && view("m.gguf").deaths == 0);
    /* in the middle of a load: the waiters are told, and may come back */
    struct ask c = {0};
    echo(&c, "slow.gguf", "x");
    UNTIL(is("slow.gguf", "loading"));
    flag_set = false;
    MUST(sup_fleet_unload(fleet, "slow.gguf", set_flag, NULL, NULL) == RC_OK);
    ENDS(c, RC_UNLOADING);
    MUST(c.retry_ms > 0);
    UNTIL(flag_set && is("slow.gguf", "absent"));
    /* nothing loaded: done at once */
    flag_set = false;
    MUST(sup_fleet_unload(fleet, "slow.gguf", set_flag, NULL, NULL) == RC_OK);
    UNTIL(flag_set);
    MUST(flag_code == RC_OK);
}

/* What waits out a back-off after its worker's death is not lost to an unload that comes then. */
static void an_unload_beside_a_crash_loses_nobody(void)
{
    struct ask a = {0};
    char text[600];

    snprintf(text, sizeof(text), "crash @%s", tmp_path("once"));
    echo(&a, "m.gguf", text);
    UNTIL(is("m.gguf", "cooling"));
    flag_set = false;
    MUST(sup_fleet_unload(fleet, "m.gguf", set_flag, NULL, NULL) == RC_OK);
    UNTIL(flag_set);
    MUST(flag_code == RC_OK && !a.ended);
    ENDS(a, RC_OK);
    MUST(view("m.gguf").deaths == 1 && loads("loads") == 2);
}

static void a_worker_that_ignores_drain_is_ended(void)
{
    struct ask a = {0};

    tmp_write("deaf.gguf", "ignore-drain");
    fresh_list();
    echo(&a, "deaf.gguf", "x");
    ENDS(a, RC_OK);
    flag_set = false;
    MUST(sup_fleet_unload(fleet, "deaf.gguf", set_flag, NULL, NULL) == RC_OK);
    UNTIL(flag_set);
    MUST(is("deaf.gguf", "absent") && view("deaf.gguf").deaths == 0);
}

static void idle_models_are_unloaded(void)
{
    struct ask a = {0}, b = {0};

    echo(&a, "m.gguf", "x");
    ENDS(a, RC_OK);
    UNTIL(is("m.gguf", "absent"));
    MUST(metric(SUP_M_MODEL_UNLOADS, "m.gguf", "idle") == 1);
    echo(&b, "m.gguf", "x");
    ENDS(b, RC_OK);
}

static void the_longest_idle_makes_room(void)
{
    struct ask a = {0}, b = {0}, c = {0}, d = {0};

    echo(&a, "m.gguf", "x"); /* max_loaded_models is 2 */
    ENDS(a, RC_OK);
    turn_ms(20);
    echo(&b, "slow.gguf", "x");
    ENDS(b, RC_OK);
    echo(&c, "third.gguf", "x");
    ENDS(c, RC_OK);
    MUST(is("m.gguf", "absent") && is("slow.gguf", "ready") && is("third.gguf", "ready"));
    MUST(metric(SUP_M_MODEL_UNLOADS, "m.gguf", "evicted") == 1);
    /* both are busy: the newcomer waits until one is not */
    struct ask s1 = {0}, s2 = {0};
    generate(&s1, "slow.gguf", "stream=200", 1);
    generate(&s2, "third.gguf", "forever", 1);
    UNTIL(s1.deltas && s2.deltas);
    echo(&d, "m.gguf", "x");
    ENDS(d, RC_OK);
    MUST(s1.ended && s1.code == RC_OK && is("slow.gguf", "absent"));
    sup_ticket_cancel(&s2.ticket);
}

static void a_request_says_how_long_its_model_stays(void)
{
    static const uint64_t none = 0, minute = 60000;
    struct ask a = {0}, b = {0}, c = {0}, d = {0};

    keep_alive = &none; /* keep_alive_s is 0: for ever */
    echo(&a, "m.gguf", "x");
    ENDS(a, RC_OK);
    UNTIL(is("m.gguf", "absent"));
    MUST(metric(SUP_M_MODEL_UNLOADS, "m.gguf", "idle") == 1);
    echo(&b, "m.gguf", "ms=300"); /* the later word counts */
    keep_alive = &minute;
    echo(&c, "m.gguf", "x");
    ENDS(b, RC_OK);
    ENDS(c, RC_OK);
    turn_ms(1300);
    MUST(is("m.gguf", "ready"));
    keep_alive = &none;
    probe = true; /* says nothing of that */
    echo(&d, "m.gguf", "x");
    ENDS(d, RC_OK);
    probe = false;
    turn_ms(300);
    MUST(is("m.gguf", "ready"));
    keep_alive = NULL;
}

static void the_pinned_stay(void)
{
    struct ask a = {0}, b = {0}, c = {0};

    MUST(is("m.gguf", "ready")); /* loaded at start; keep_alive_s is 1, two may be loaded */
    echo(&a, "slow.gguf", "x");
    ENDS(a, RC_OK);
    echo(&b, "third.gguf", "x");
    ENDS(b, RC_OK);
    UNTIL(is("third.gguf", "absent") && is("slow.gguf", "absent"));
    MUST(is("m.gguf", "ready") && view("m.gguf").loads == 1);
    MUST(metric(SUP_M_MODEL_UNLOADS, "m.gguf", "idle") == 0 &&
         metric(SUP_M_MODEL_UNLOADS, "m.gguf", "evicted") == 0);
    /* what fits only without the pinned is refused at once, and not for ever */
    tmp_write("third.gguf", "weights=1070000000");
    tmp_write("m.gguf", "weights=30000000");
    fresh_list();
    UNTIL(is("m.gguf", "absent"));
    UNTIL(view("third.gguf").info && view("third.gguf").info->weight_bytes == 1070000000);
    flag_set = false;
    MUST(sup_fleet_load(fleet, "m", set_flag, NULL, NULL) == RC_OK);
    UNTIL(flag_set);
    echo(&c, "third.gguf", "x");
    ENDS(c, RC_LIMIT);
    MUST(strstr(c.msg, "(pin)") && is("third.gguf", "absent"));
}

/* Two clients that ask for one model each, as fast as answers come; one may be loaded. */
static void two_that_take_turns_do_not_load_at_each_request(void)
{
    struct ask a = {0}, b = {0};
    uint64_t end = uv_hrtime() + 4000000000ull;
    long n_a = 0, n_b = 0;

    while (uv_hrtime() < end) {
        if (!a.ticket) {
            n_a += a.ended && a.code == RC_OK;
            memset(&a, 0, sizeof(a));
            echo(&a, "m.gguf", "ms=5");
        }
        if (!b.ticket) {
            n_b += b.ended && b.code == RC_OK;
            memset(&b, 0, sizeof(b));
            echo(&b, "third.gguf", "ms=5");
        }
        UNTIL(!a.ticket || !b.ticket);
    }
    UNTIL(a.ended && b.ended);
    MUST(n_a >= 20 && n_b >= 20); /* both are served, many at a time */
    MUST(view("m.gguf").loads + view("third.gguf").loads <= 7);
    MUST(view("m.gguf").loads >= 2 || view("third.gguf").loads >= 2);
}

static void memory_is_shared_out_by_the_ledger(void)
{
    struct ask a = {0}, b = {0}, c = {0}, d = {0};

    /* 40 MiB: before a model is known it is taken for its file + 1 + 16 MiB */
    tmp_write("huge.gguf", "probe-fail=3");
    MUST(truncate(tmp_path("huge.gguf"), 50 << 20) == 0);
    tmp_write("liar.gguf", "weights=100000000 probe-fail=3");
    fresh_list();
    echo(&a, "huge.gguf", "x");
    ENDS(a, RC_LIMIT);
    MUST(a.retry_ms == 0 && strstr(a.msg, "memory_mb"));
    echo(&b, "m.gguf", "x");
    ENDS(b, RC_OK);
    MUST(metric(SUP_M_LEDGER_BYTES, "weights", "host") == 1000); /* measured, not estimated */
    echo(&c, "liar.gguf", "x");                                  /* takes more than there is */
    ENDS(c, RC_LIMIT);
    echo(&d, "m.gguf", "x");
    ENDS(d, RC_OK);
}

static void probes_tell_what_a_model_is(void)
{
    tmp_write("odd.gguf", "probe-fail=3");
    fresh_list();
    UNTIL(view("m.gguf").info && view("odd.gguf").last_error[0]);
    MUST(is("m.gguf", "absent") && view("m.gguf").loads == 0 && loads("loads") == 0);
    MUST(strcmp(view("m.gguf").info->family, "fake") == 0);
    MUST(!view("odd.gguf").info && is("odd.gguf", "absent"));
    MUST(strcmp(view("odd.gguf").last_error, "the probe was told to fail") == 0);
}

static void preloads_hold_back_readiness(void)
{
    const char *why = NULL;

    MUST(!sup_fleet_ready(fleet, &why) && why);
    UNTIL(sup_fleet_started(fleet));
    MUST(sup_fleet_ready(fleet, NULL));
    MUST(is("slow.gguf", "ready") && is("absent-weight.gguf", "failed"));
}

static int n_seen;
static char last_id[64];
static void see(void *user, const struct sup_model_view *v)
{
    (void)user;
    MUST(n_seen == 0 || strcmp(last_id, v->id) < 0);
    snprintf(last_id, sizeof(last_id), "%s", v->id);
    n_seen++;
}

static void models_are_listed_in_order(void)
{
    n_seen = 0;
    sup_fleet_each(fleet, see, NULL);
    MUST(n_seen == 4);
    MUST(is("m", "absent") && is("dir/none", "unknown"));
}

static void stderr_of_a_worker_is_not_a_way_to_flood_the_log(void)
{
    struct ask a = {0};

    tmp_write("loud.gguf", "stderr=3000");
    fresh_list();
    echo(&a, "loud.gguf", "x");
    ENDS(a, RC_OK); /* the pipe being full holds nobody up */
}

/* --------------------------------------------------------- the configurations */

static void two_models(struct sup_conf *c)
{
    c->max_loaded_models = 2;
}

static void little_memory(struct sup_conf *c)
{
    c->memory_mb = 40;
}

static void short_idle(struct sup_conf *c)
{
    c->keep_alive_s = 1;
}

static void one_model(struct sup_conf *c)
{
    c->max_loaded_models = 1;
}

static void one_pinned(struct sup_conf *c)
{
    static char *list[] = {(char *)"m", NULL};

    c->pin = list;
    c->max_loaded_models = 2;
    c->keep_alive_s = 1;
    c->memory_mb = 1040;
}

static void with_preload(struct sup_conf *c)
{
    static char *list[] = {(char *)"slow.gguf", (char *)"absent-weight", (char *)"nobody", NULL};

    c->preload = list;
}

#define CASES(X)                                                                             \
    X(unknown_models_and_new_ones, no_change)                                                \
    X(changed_files_are_loaded_anew, no_change)                                              \
    X(files_renamed_away_and_back, no_change)                                                \
    X(load_and_unload_on_request, no_change)                                                 \
    X(an_unload_beside_a_crash_loses_nobody, no_change)                                      \
    X(a_worker_that_ignores_drain_is_ended, no_change)                                       \
    X(idle_models_are_unloaded, short_idle) X(the_longest_idle_makes_room, two_models)       \
        X(a_request_says_how_long_its_model_stays, no_change) X(the_pinned_stay, one_pinned) \
            X(two_that_take_turns_do_not_load_at_each_request, one_model)                    \
                X(memory_is_shared_out_by_the_ledger, little_memory)                         \
                    X(probes_tell_what_a_model_is, no_change)                                \
                        X(preloads_hold_back_readiness, with_preload)                        \
                            X(models_are_listed_in_order, no_change)                         \
                                X(stderr_of_a_worker_is_not_a_way_to_flood_the_log, no_change)

FLEET_MAIN(CASES)
