/* sup_conf_live.c - options that may change while the server runs, and how a new configuration
 * takes the place of the old one.
 *
 * An option is live when everyone that reads it does so at the moment of use, in the front or in
 * the launcher: a change then holds for the requests and loads that come after it. Options that
 * were handed on at the start (to the kernel, another process, a table of fixed size) are not.
 * Always true: either all live values of a new configuration hold, or none.
 * Tests: tests/supervisor/test_sup_conf_live.c, tests/e2e/reload.py */
#include "sup_conf_impl.h"

#include <string.h>

static const enum sup_option live[] = {
    /* connections and requests, in the front */
    SUP_OPT_allowed_origins,
    SUP_OPT_header_timeout_ms,
    SUP_OPT_body_timeout_ms,
    SUP_OPT_idle_timeout_ms,
    SUP_OPT_write_timeout_ms,
    SUP_OPT_stream_buffer_bytes,
    SUP_OPT_max_concurrent_requests,
    SUP_OPT_max_queue,
    SUP_OPT_request_timeout_ms,
    SUP_OPT_max_tokens_default,
    SUP_OPT_max_embed_inputs,
    SUP_OPT_keep_alive_s,
    SUP_OPT_keep_alive_max_s,
    SUP_OPT_prompt_cache,
    SUP_OPT_hang_timeout_s,
    SUP_OPT_silence_timeout_ms,
    SUP_OPT_trace_percent,
    SUP_OPT_access_log,
    SUP_OPT_usage_log,
    SUP_OPT_log_level, /* and of workers loaded from then on; other roles keep theirs */
    /* loads of models: told to a worker once */
    SUP_OPT_load_timeout_s,
    SUP_OPT_embed_wait_ms,
    SUP_OPT_prompt_cache_min_tokens,
    SUP_OPT_speculation,
    SUP_OPT_speculation_tokens,
    SUP_OPT_kv_dtype,
    SUP_OPT_cpu_level,
    SUP_OPT_f32_gemm,
    /* launcher and front */
    SUP_OPT_drain_grace_ms,
};

bool sup_conf_is_live(enum sup_option o)
{
    for (size_t i = 0; i < sizeof(live) / sizeof(live[0]); i++)
        if (live[i] == o)
            return true;
    return false;
}

static bool same_list(char **a, char **b)
{
    for (; a && *a && b && *b; a++, b++)
        if (strcmp(*a, *b) != 0)
            return false;
    return (!a || !*a) && (!b || !*b);
}

bool sup_conf_same(const struct sup_conf *a, const struct sup_conf *b, enum sup_option o)
{
    const struct sup_conf_opt *row = &sup_conf_opts[o];
    const void *x = sup_conf_view(a, row), *y = sup_conf_view(b, row);

    switch (row->kind) {
    case U64:
        return *(const uint64_t *)x == *(const uint64_t *)y;
    case BOOL:
        return *(const bool *)x == *(const bool *)y;
    case LIST:
        return same_list(*(char **const *)x, *(char **const *)y);
    default:
        return strcmp(*(char *const *)x, *(char *const *)y) == 0;
    }
}

static size_t width(const struct sup_conf_opt *o)
{
    return o->kind == U64 ? sizeof(uint64_t) : o->kind == BOOL ? sizeof(bool) : sizeof(char *);
}

static void swap(struct sup_conf *a, struct sup_conf *b, enum sup_option o)
{
    void *x = sup_conf_field(a, &sup_conf_opts[o]), *y = sup_conf_field(b, &sup_conf_opts[o]);
    size_t n = width(&sup_conf_opts[o]);
    unsigned char keep[sizeof(uint64_t)], from = a->from[o];

    memcpy(keep, x, n);
    memcpy(x, y, n);
    memcpy(y, keep, n);
    a->from[o] = b->from[o];
    b->from[o] = from;
}

enum rc sup_conf_take(struct sup_conf *c, struct sup_conf *fresh, struct sup_conf_changes *out,
                      struct rc_err *err)
{
    enum rc rc;

    memset(out, 0, sizeof(*out));
    for (int o = 0; o < SUP_OPT_COUNT; o++) {
        if (sup_conf_same(c, fresh, (enum sup_option)o))
            continue;
        if (sup_conf_is_live((enum sup_option)o)) {
            out->taken[out->n_taken++] = (enum sup_option)o;
            swap(c, fresh, (enum sup_option)o);
        } else {
            out->kept[out->n_kept++] = (enum sup_option)o;
        }
    }
    /* the new file was right as a whole; with old values kept it may not be */
    if ((rc = sup_conf_check(c, err)) != RC_OK)
        for (size_t i = 0; i < out->n_taken; i++)
            swap(c, fresh, out->taken[i]);
    return rc;
}

enum rc sup_conf_take_live(struct sup_conf *c, const char *json, size_t n,
                           struct sup_conf_changes *out, struct rc_err *err)
{
    struct sup_conf fresh;
    enum rc rc = sup_conf_parse(&fresh, json, n, err);

    if (rc != RC_OK)
        return rc;
    memset(out, 0, sizeof(*out));
    for (size_t i = 0; i < sizeof(live) / sizeof(live[0]); i++) {
        if (sup_conf_same(c, &fresh, live[i]))
            continue;
        out->taken[out->n_taken++] = live[i];
        swap(c, &fresh, live[i]);
    }
    sup_conf_deinit(&fresh);
    return RC_OK;
}

void sup_conf_names(const enum sup_option *o, size_t n, char *out, size_t cap)
{
    size_t at = 0;

    out[0] = '\0';
    for (size_t i = 0; i < n && at < cap; i++) {
        int m = snprintf(out + at, cap - at, "%s%s", i ? "," : "", sup_conf_name(o[i]));

        at += m > 0 ? (size_t)m : 0;
    }
}
