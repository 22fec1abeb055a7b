/* sup_completions.c - POST /v1/completions, /ai/v1/completions.
 *
 * `prompt` is a string, a list of strings, a list of token ids or a list of such
 * lists; each prompt is a task of its own and its n choices stand together in the
 * answer (choice = prompt * n + i). Tests: tests/supervisor/test_sup_api_gen.c
 */
#include "sup_gen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sup_conf.h"
#include "sup_front.h"

#define COMPLETIONS_FIELDS(X)                                                            \
    SUP_GEN_FIELDS(X)                                                                    \
    X(PROMPT, "prompt", ANY, true, 0, 0, 0,                                              \
      "a non-empty string, an array of strings, of token ids or of arrays of token ids") \
    X(LOGPROBS, "logprobs", INT, false, 0, 64, 0, NULL)                                  \
    X(ECHO, "echo", BOOL, false, 0, 1, 0, NULL)                                          \
    X(BEST_OF, "best_of", INT, false, 1, 128, 0, NULL)                                   \
    X(SUFFIX, "suffix", REFUSE, false, 0, 0, 0, NULL)

enum {
#define X(id, name, type, req, min, max, def, words) COMPL_##id,
    COMPLETIONS_FIELDS(X)
#undef X
        COMPL_N
};
_Static_assert(COMPL_N <= SUP_FIELDS_MAX, "struct sup_val array of sup_call.c");

static const struct sup_field completions_fields[COMPL_N] = {COMPLETIONS_FIELDS(SUP_FIELD_ROW)};

/* One prompt into q. The ids are *ids, to free after the submit. */
static bool set_prompt(struct sup_gen *g, json_t *p, const char *name, Ipc__Generate *q,
                       uint32_t **ids, struct sup_fail *f)
{
    size_t n;

    q->prompt = (ProtobufCBinaryData){0};
    q->prompt_tokens = NULL;
    q->n_prompt_tokens = 0;
    if (json_is_string(p) && json_string_length(p) > 0) {
        q->kind = 2;
        q->prompt.data = (uint8_t *)(uintptr_t)json_string_value(p);
        q->prompt.len = json_string_length(p);
        return true;
    }
    if (json_is_array(p)) {
        if (!(*ids = sup_ids_read(p, name, g->call.vocab_size, &n, f)))
            return false;
        q->kind = 3;
        q->prompt_tokens = *ids;
        q->n_prompt_tokens = n;
        return true;
    }
    sup_field_bad(f, name, p, "a non-empty string or an array of token ids");
    return false;
}

/* How many prompts the value holds; 0 and *f when it is none of the four forms. */
static uint32_t count_prompts(json_t *p, struct sup_fail *f)
{
    size_t n = json_array_size(p);

    if (json_is_string(p) || (n && json_is_number(json_array_get(p, 0))))
        return 1;
    if (n == 0) {
        sup_field_bad(f, "prompt", p,
                      "a non-empty string, an array of strings, of token ids or of arrays of "
                      "token ids");
        return 0;
    }
    if (n > SUP_PARTS_MAX) {
        sup_field_bad(f, "prompt", p, "at most 128 prompts");
        return 0;
    }
    return (uint32_t)n;
}

static bool submit_all(struct sup_gen *g, json_t *prompt, Ipc__Generate *q, struct sup_fail *f)
{
    bool list = json_is_array(prompt) && !json_is_number(json_array_get(prompt, 0));
    Ipc__Frame frame = IPC__FRAME__INIT;
    uint32_t *ids = NULL;
    char name[32];
    bool ok = true;

    frame.body_case = IPC__FRAME__BODY_GENERATE;
    frame.generate = q;
    /* all are checked before the first goes out: a bad one costs the worker nothing */
    for (uint32_t k = 0; ok && k < 2 * g->n_prompts; k++) {
        uint32_t i = k % g->n_prompts;

        snprintf(name, sizeof(name), list ? "prompt[%u]" : "prompt", i);
        ok = set_prompt(g, list ? json_array_get(prompt, i) : prompt, name, q, &ids, f) &&
             (k < g->n_prompts || sup_call_submit(&g->call, i, &frame, f));
        free(ids);
        ids = NULL;
    }
    return ok;
}

static bool start(struct sup_call *c, const struct sup_val *v, struct sup_fail *f)
{
    struct sup_gen *g = (struct sup_gen *)c;
    json_t *prompt = v[COMPL_PROMPT].j;
    Ipc__Generate *q;

    if (v[COMPL_BEST_OF].set && v[COMPL_BEST_OF].i != v[SUP_G_CHOICES].i) {
        sup_fail_set(f, SUP_E_UNSUPPORTED_FEATURE, "best_of",
                     "field 'best_of': got %lld, only the value of 'n' (%lld) is supported",
                     (long long)v[COMPL_BEST_OF].i, (long long)v[SUP_G_CHOICES].i);
        return false;
    }
    g->logprobs = v[COMPL_LOGPROBS].set;
    g->top_logprobs = (uint32_t)v[COMPL_LOGPROBS].i;
    if (!(g->n_prompts = count_prompts(prompt, f)))
        return false;
    if (!(q = sup_gen_request(g, v, v[SUP_G_MAX_TOKENS].set ? v[SUP_G_MAX_TOKENS].i : 0, f)))
        return false;
    if (g->n_prompts * g->n > SUP_CHOICES_MAX) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, "n",
                     "field 'n': got %u for each of %u prompts, expected at most %d choices "
                     "together",
                     g->n, g->n_prompts, SUP_CHOICES_MAX);
        return false;
    }
    if (g->n_prompts > c->front->conf->max_queue) { /* would be told "try again" for ever */
        sup_fail_set(f, SUP_E_CONTENT_TOO_LARGE, "prompt",
                     "field 'prompt': got %u prompts, the limit of one request is %llu "
                     "(max_queue)",
                     g->n_prompts, (unsigned long long)c->front->conf->max_queue);
        return false;
    }
    q->logprobs = g->logprobs;
    q->top_logprobs = g->top_logprobs;
    q->echo = v[COMPL_ECHO].b;
    return sup_gen_open(g, f) && sup_call_parts(c, g->n_prompts, f) && submit_all(g, prompt, q, f);
}

const struct sup_call_ops sup_completions_ops = {
    .size = sizeof(struct sup_gen),
    .need = SUP_NEED_GENERATE,
    .fields = completions_fields,
    .n_fields = COMPL_N,
    .start = start,
    .frame = sup_gen_frame,
    .finish = sup_gen_finish,
    .deinit = sup_gen_deinit,
};
