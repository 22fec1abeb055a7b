/* sup_decisions_out.c - what a worker decided, as the answer.
 *
 * The frame was checked against the request (sup_fleet_check.c). Similarities are raw cosines:
 * nothing here is called, or is, a probability. Tests: tests/supervisor/test_sup_api_decisions.c
 */
#include <string.h>

#include "ipc.h"
#include "sup_decisions.h"
#include "sup_http.h"
#include "sup_log.h"

static const char *const status_words[] = {"", "selected", "empty", "abstained"};
static const char *const reason_words[] = {"", "tie", "min_similarity", "min_margin"};

static json_t *value_of(json_t *question, size_t i)
{
    return json_object_get(json_array_get(json_object_get(question, "choices"), i), "value");
}

static void quoted(struct sup_json *o, const json_t *s)
{
    sup_json_quoted(o, json_string_value(s));
}

static void write_similarities(struct sup_json *o, json_t *question, const Ipc__DecidedAnswer *a)
{
    sup_json_str(o, ",\"similarities\":[");
    for (size_t i = 0; i < a->n_similarities; i++) {
        sup_json_str(o, i ? ",{\"value\":" : "{\"value\":");
        quoted(o, value_of(question, i));
        sup_json_str(o, ",\"similarity\":");
        sup_json_f64(o, a->similarities[i]);
        sup_json_str(o, "}");
    }
    sup_json_str(o, "]");
}

static void write_selection(struct sup_json *o, json_t *question, const Ipc__DecidedAnswer *a,
                            const Ipc__DecidedQuestion *q, bool multi)
{
    if (!multi) {
        sup_json_str(o, ",\"choice\":");
        quoted(o, a->n_chosen ? value_of(question, a->chosen[0]) : NULL);
        return;
    }
    sup_json_str(o, ",\"choices\":[");
    for (size_t i = 0; i < a->n_chosen; i++) {
        sup_json_str(o, i ? "," : "");
        quoted(o, value_of(question, a->chosen[i]));
    }
    sup_json_str(o, "],\"similarity_thresholds\":{");
    for (size_t i = 0; i < q->n_thresholds; i++) {
        sup_json_str(o, i ? "," : "");
        quoted(o, value_of(question, i));
        sup_json_str(o, ":");
        sup_json_f64(o, q->thresholds[i]);
    }
    sup_json_str(o, "}");
}

static void write_answer(struct sup_json *o, json_t *question, const Ipc__DecidedAnswer *a,
                         const Ipc__DecidedQuestion *q)
{
    const char *type = json_string_value(json_object_get(question, "type"));
    json_t *calibration =
        json_object_get(json_object_get(question, "embedding_options"), "calibration_id");
    bool multi = strcmp(type, "multi_choice") == 0;

    sup_json_str(o, "{\"name\":");
    quoted(o, json_object_get(question, "name"));
    sup_json_fmt(o,
                 ",\"type\":\"%s\",\"decision_method\":\"embedding_similarity\","
                 "\"similarity_metric\":\"cosine\"",
                 multi ? "multi_choice" : "choice");
    write_similarities(o, question, a);
    sup_json_str(o, ",\"margin\":");
    sup_json_f64(o, a->margin);
    sup_json_fmt(o, ",\"status\":\"%s\",\"prototype_set_hash\":\"%.64s\"",
                 status_words[a->status & 3], q->prototype_set_hash);
    write_selection(o, question, a, q, multi);
    if (json_is_string(calibration)) {
        sup_json_str(o, ",\"calibration_id\":");
        quoted(o, calibration);
    }
    if (a->reason)
        sup_json_fmt(o, ",\"abstention_reason\":\"%s\"", reason_words[a->reason & 3]);
    sup_json_str(o, "}");
}

static void write_answers(struct sup_decisions *d, const Ipc__Decided *w, uint32_t input)
{
    struct sup_json *o = &d->out;

    sup_json_str(o, "\"answers\":[");
    for (uint32_t k = 0; k < d->n_questions; k++) {
        sup_json_str(o, k ? "," : "");
        write_answer(o, json_array_get(d->questions, k),
                     w->answers[(size_t)input * d->n_questions + k], w->questions[k]);
    }
    sup_json_str(o, "]");
}

static void log_decided(const struct sup_decisions *d, const Ipc__Decided *w)
{
    uint64_t abstained = 0;

    for (size_t i = 0; i < w->n_answers; i++)
        abstained += w->answers[i]->reason != 0;
    SUP_LOG(SUP_DEBUG, "decided", SUP_S("id", sup_req_id(d->call.req)),
            SUP_S("model", d->call.model_id), SUP_I("inputs", d->n_inputs),
            SUP_I("questions", d->n_questions), SUP_I("abstained", abstained),
            SUP_I("input_tokens", w->input_tokens));
}

void sup_decisions_write(struct sup_decisions *d, const Ipc__Decided *w)
{
    struct sup_json *o = &d->out;

    if (w->n_questions != d->n_questions || w->n_answers != (size_t)d->n_inputs * d->n_questions) {
        struct sup_fail f;

        sup_fail_set(&f, SUP_E_INFERENCE_FAILED, "", "the worker gave %zu answers to %u questions",
                     w->n_answers, d->n_questions);
        sup_call_fail(&d->call, &f);
        return;
    }
    log_decided(d, w);
    sup_json_str(o, "{\"model\":");
    sup_json_quoted(o, d->call.model);
    if (w->model_identity[0])
        sup_json_fmt(o, ",\"model_identity\":\"%.64s\"", w->model_identity);
    sup_json_str(o, ",\"renderer_version\":\"" IPC_DECIDE_RENDERER "\",");
    if (!d->ids)
        write_answers(d, w, 0);
    for (uint32_t i = 0; d->ids && i < d->n_inputs; i++) {
        json_t *id = json_array_get(d->ids, i);

        sup_json_fmt(o, "%s{\"input_index\":%u,", i ? "," : "\"data\":[", i);
        if (json_is_string(id)) {
            sup_json_str(o, "\"id\":");
            quoted(o, id);
            sup_json_str(o, ",");
        }
        write_answers(d, w, i);
        sup_json_str(o, "}");
    }
    sup_json_fmt(o, "%s,\"usage\":{\"input_tokens\":%llu,\"output_tokens\":0}}", d->ids ? "]" : "",
                 (unsigned long long)w->input_tokens);
}
