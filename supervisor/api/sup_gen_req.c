/* sup_gen_req.c - the common fields of a generation request to Ipc__Generate.
 *
 * Ranges stand in SUP_GEN_FIELDS; here is only what a range cannot say. Whatever
 * passes is safe for the worker: token ids below the vocabulary (when known),
 * finite floats, bounded lists. Tests: tests/supervisor/test_sup_api_gen.c
 */
#include "sup_gen.h"

#include <stdio.h>
#include <string.h>

#include "ipc.h"
#include "sup_conf.h"
#include "sup_front.h"
#include "sup_grant.h"

static bool read_stop(struct sup_gen *g, json_t *stop, Ipc__Generate *q, struct sup_fail *f)
{
    static const char want[] = "a non-empty string of at most 4096 bytes";
    bool one = json_is_string(stop);
    size_t n = one ? 1 : json_array_size(stop);
    char name[32];

    if (!stop)
        return true;
    if ((!one && !json_is_array(stop)) || n > SUP_STOP_MAX) {
        sup_field_bad(f, "stop", stop, "a string or an array of at most 16 strings");
        return false;
    }
    if (!(q->stop = sup_call_alloc(&g->call, (n + 1) * sizeof(*q->stop))))
        return sup_fail_no_memory(f);
    for (size_t i = 0; i < n; i++) {
        json_t *s = one ? stop : json_array_get(stop, i);

        snprintf(name, sizeof(name), one ? "stop" : "stop[%zu]", i);
        if (!json_is_string(s) || json_string_length(s) == 0 ||
            json_string_length(s) > SUP_STOP_BYTES) {
            sup_field_bad(f, name, s, want);
            return false;
        }
        q->stop[i].data = (uint8_t *)(uintptr_t)json_string_value(s);
        q->stop[i].len = json_string_length(s);
    }
    q->n_stop = n;
    return true;
}

/* "123" -> 123; only digits, so that "-1", "1e3" and "abc" are told apart from ids. */
static bool token_key(const char *key, uint32_t vocab, uint32_t *out)
{
    const uint64_t last = vocab ? vocab - 1 : INT32_MAX;
    uint64_t v = 0;

    if (!key[0])
        return false;
    for (; *key; key++) {
        if (*key < '0' || *key > '9')
            return false;
        v = v * 10 + (uint64_t)(*key - '0');
        if (v > last)
            return false;
    }
    *out = (uint32_t)v;
    return true;
}

static bool read_bias(struct sup_gen *g, json_t *obj, Ipc__Sampling *s, struct sup_fail *f)
{
    const uint32_t vocab = g->call.vocab_size;
    size_t n = json_object_size(obj), i = 0;
    Ipc__LogitBias *rows;
    const char *key;
    char name[64];
    json_t *val;

    if (n == 0)
        return true;
    if (n > SUP_BIAS_MAX) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, "logit_bias",
                     "field 'logit_bias': got %zu entries, expected at most %d", n, SUP_BIAS_MAX);
        return false;
    }
    rows = sup_call_alloc(&g->call, n * sizeof(*rows));
    s->logit_bias = sup_call_alloc(&g->call, n * sizeof(*s->logit_bias));
    if (!rows || !s->logit_bias)
        return sup_fail_no_memory(f);
    json_object_foreach(obj, key, val)
    {
        ipc__logit_bias__init(&rows[i]);
        if (!token_key(key, vocab, &rows[i].token)) {
            sup_fail_set(f, SUP_E_INVALID_REQUEST, "logit_bias",
                         "field 'logit_bias': got key \"%.40s\", expected a token id from 0 to %u",
                         key, vocab ? vocab - 1 : (unsigned)INT32_MAX);
            return false;
        }
        if (!json_is_number(val) || !(json_number_value(val) >= -100) ||
            !(json_number_value(val) <= 100)) {
            snprintf(name, sizeof(name), "logit_bias.%.40s", key);
            sup_field_bad(f, name, val, "a number from -100 to 100");
            return false;
        }
        rows[i].bias = (float)json_number_value(val);
        s->logit_bias[i] = &rows[i];
        i++;
    }
    s->n_logit_bias = n;
    return true;
}

static bool read_stream_options(struct sup_gen *g, json_t *obj, struct sup_fail *f)
{
    static const struct sup_field fields[] = {
        {"include_usage", SUP_FT_BOOL, false, 0, 1, 0, NULL},
    };
    struct sup_val v;

    if (!sup_fields_read(fields, 1, obj, "stream_options.", &v, f))
        return false;
    g->include_usage = v.b;
    return true;
}

/* Whose prompts it may share pages with; without a namespace the worker's cache is
 * neither used nor filled. */
static bool read_cache(struct sup_gen *g, const struct sup_val *v, Ipc__Generate *q,
                       struct sup_fail *f)
{
    const struct sup_val *key = &v[SUP_G_PROMPT_CACHE_KEY];

    if (!g->call.front->conf->prompt_cache || !v[SUP_G_PROMPT_CACHE].b)
        return true;
    if (!(q->cache_ns.data = sup_call_alloc(&g->call, SUP_CACHE_NS_BYTES)) ||
        !(q->cache_tenant.data = sup_call_alloc(&g->call, SUP_CACHE_NS_BYTES)))
        return sup_fail_no_memory(f);
    q->cache_ns.len = q->cache_tenant.len = SUP_CACHE_NS_BYTES;
    q->cache_percent = g->call.grant->cache_percent;
    sup_cache_tenant(q->cache_tenant.data, &g->call.front->cache_secret, g->call.grant->tenant);
    sup_cache_ns(q->cache_ns.data, &g->call.front->cache_secret, g->call.grant->tenant,
                 key->set ? key->s : "", key->set ? key->n_bytes : 0);
    return true;
}

/* MODEL/assistant for this model, or "assistant" alone: what the worker may have. */
static bool is_drafter(const struct sup_call *c, const char *name)
{
    const char *const models[] = {c->model, c->model_id};
    size_t n = strlen(name), tail = strlen(IPC_DRAFTER_DIR);

    if (strcmp(name, IPC_DRAFTER_DIR) == 0)
        return true;
    for (size_t i = 0; i < 2; i++)
        if (models[i] && n == strlen(models[i]) + 1 + tail &&
            strncmp(name, models[i], n - tail - 1) == 0 && name[n - tail - 1] == '/' &&
            strcmp(name + n - tail, IPC_DRAFTER_DIR) == 0)
            return true;
    return false;
}

/* How tokens are guessed ahead; whether this model can is the worker's to say. */
static bool read_speculation(struct sup_gen *g, const struct sup_val *v, Ipc__Generate *q,
                             struct sup_fail *f)
{
    static const char *const words[] = {"auto", "off", "lookup", "mtp"}; /* wrk_spec_mode */
    const struct sup_val *policy = &v[SUP_G_SPECULATION], *draft = &v[SUP_G_DRAFT_MODEL];
    const struct sup_call *c = &g->call;

    for (uint32_t i = 0; policy->set && i < 4; i++)
        if (strcmp(policy->s, words[i]) == 0)
            q->speculation = i;
    q->speculation_tokens = (uint32_t)v[SUP_G_SPECULATIVE_K].i;
    if (!draft->set || strcmp(draft->s, c->model) == 0 ||
        (c->model_id && strcmp(draft->s, c->model_id) == 0))
        return true;
    if (!is_drafter(c, draft->s)) {
        sup_fail_set(
            f, SUP_E_INVALID_REQUEST, "draft_model",
            "field 'draft_model': got \"%.100s\", expected \"%s\": a model drafts with the "
            "folder of that name in its own, and with no other model",
            draft->s, IPC_DRAFTER_DIR);
        return false;
    }
    if (q->speculation == 2) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, "draft_model",
                     "field 'draft_model': got \"%.100s\" beside speculation_policy \"lookup\", "
                     "which uses none, expected auto, mtp or off",
                     draft->s);
        return false;
    }
    if (q->speculation == 0)
        q->speculation = 3;
    return true;
}

Ipc__Generate *sup_gen_request(struct sup_gen *g, const struct sup_val *v, int64_t max_tokens,
                               struct sup_fail *f)
{
    Ipc__Generate *q = sup_call_alloc(&g->call, sizeof(*q));
    Ipc__Sampling *s = sup_call_alloc(&g->call, sizeof(*s));

    if (!q || !s) {
        sup_fail_no_memory(f);
        return NULL;
    }
    ipc__generate__init(q);
    ipc__sampling__init(s);
    g->n = (uint32_t)v[SUP_G_CHOICES].i;
    g->stream = v[SUP_G_STREAM].b;
    g->return_ids = v[SUP_G_RETURN_TOKEN_IDS].b;
    s->temperature = (float)v[SUP_G_TEMPERATURE].f;
    s->top_p = (float)v[SUP_G_TOP_P].f;
    s->top_k = (uint32_t)v[SUP_G_TOP_K].i;
    s->min_p = (float)v[SUP_G_MIN_P].f;
    s->typical_p = (float)v[SUP_G_TYPICAL_P].f;
    s->repetition_penalty = (float)v[SUP_G_REPETITION_PENALTY].f;
    s->frequency_penalty = (float)v[SUP_G_FREQUENCY_PENALTY].f;
    s->presence_penalty = (float)v[SUP_G_PRESENCE_PENALTY].f;
    s->has_seed = v[SUP_G_SEED].set;
    s->seed = (uint64_t)v[SUP_G_SEED].i;
    if (!read_stop(g, v[SUP_G_STOP].j, q, f) || !read_bias(g, v[SUP_G_LOGIT_BIAS].j, s, f) ||
        !read_stream_options(g, v[SUP_G_STREAM_OPTIONS].j, f) || !read_cache(g, v, q, f) ||
        !sup_format_read(g, v, q, f) || !read_speculation(g, v, q, f))
        return NULL;
    q->sampling = s;
    q->max_tokens =
        (uint32_t)(max_tokens ? max_tokens : (int64_t)g->call.front->conf->max_tokens_default);
    q->n = g->n;
    q->ignore_eos = v[SUP_G_IGNORE_EOS].b;
    q->return_token_ids = g->return_ids;
    q->stream = g->stream;
    q->deadline_us = g->call.deadline_us;
    return q;
}
