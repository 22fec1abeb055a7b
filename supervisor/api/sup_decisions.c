/* sup_decisions.c - POST /ai/v1/decisions: questions about inputs, by similarity.
 *
 * Checks the request and hands it over as it came: what is rendered, embedded and decided is
 * the worker's. Unlike elsewhere an unknown key is an error: a misspelt bound would be a bound
 * that is not there. Page: docs/decisions.md. Questions: sup_decisions_ask.c; the answer:
 * sup_decisions_out.c. Tests: tests/supervisor/test_sup_api_decisions.c
 */
#include "sup_decisions.h"

#include <stdio.h>
#include <string.h>

#include "ipc.h"
#include "sup_endpoints.h"

#define INPUT_CHARS (1u << 20)
#define INPUT_WANT "a string of 1 to 1048576 characters"

#define FIELDS(X)                                                                           \
    X(F_IDENTITY, "model_identity", ANY, false, 0, 0, 0, SUP_IDENTITY_WANT)                 \
    X(F_INPUT, "input", ANY, false, 0, 0, 0, INPUT_WANT)                                    \
    X(F_INPUTS, "inputs", ANY, false, 0, 0, 0, "an array of 1 to 128 {\"id\"?, \"input\"}") \
    X(F_QUESTIONS, "questions", ANY, true, 0, 0, 0, "an array of 1 to 64 questions")        \
    X(F_OPTIONS, "embedding_options", OBJECT, false, 0, 0, 0, NULL)                         \
    X(F_KEEP, "keep_alive", ANY, false, 0, 0, 0, NULL)                                      \
    X(F_TIMEOUT, "timeout_ms", ANY, false, 0, 0, 0, NULL)

#define OPTION_FIELDS(X)                                                      \
    X(O_TASK, "task_type", ENUM, false, 0, 0, 0, "CLUSTERING|CLASSIFICATION") \
    X(O_DIMENSIONS, "dimensions", INT, false, 1, 65536, 0, NULL)

#define INPUT_FIELDS(X)                         \
    X(I_ID, "id", STR, false, 0, 1024, 0, NULL) \
    X(I_TEXT, "input", ANY, true, 0, 0, 0, INPUT_WANT)

enum { FIELDS(SUP_FIELD_ID) F_N };
enum { OPTION_FIELDS(SUP_FIELD_ID) O_N };
enum { INPUT_FIELDS(SUP_FIELD_ID) I_N };
static const struct sup_field fields[F_N] = {FIELDS(SUP_FIELD_ROW)},
                              options[O_N] = {OPTION_FIELDS(SUP_FIELD_ROW)},
                              of_input[I_N] = {INPUT_FIELDS(SUP_FIELD_ROW)};

static size_t characters(const char *s, size_t n)
{
    size_t count = 0;

    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)s[i] & 0xC0) != 0x80;
    return count;
}

static bool text_input(json_t *j, const char *name, ProtobufCBinaryData *out, struct sup_fail *f)
{
    size_t n = json_string_length(j);

    if (!json_is_string(j) || n == 0 || characters(json_string_value(j), n) > INPUT_CHARS) {
        sup_field_bad(f, name, j, INPUT_WANT);
        return false;
    }
    out->data = (uint8_t *)(uintptr_t)json_string_value(j);
    out->len = n;
    return true;
}

static bool batch_input(struct sup_decisions *d, json_t *j, uint32_t i, ProtobufCBinaryData *out,
                        struct sup_fail *f)
{
    struct sup_val v[I_N];
    char prefix[32], name[48];
    json_t *id;

    snprintf(prefix, sizeof(prefix), "inputs[%u].", i);
    snprintf(name, sizeof(name), "%sinput", prefix);
    if (!json_is_object(j)) {
        snprintf(name, sizeof(name), "inputs[%u]", i);
        sup_field_bad(f, name, j, "an object {\"id\"?, \"input\"}");
    } else if (sup_fields_known(of_input, I_N, NULL, j, prefix, f) &&
               sup_fields_read(of_input, I_N, j, prefix, v, f) &&
               text_input(v[I_TEXT].j, name, out, f)) {
        id = v[I_ID].set ? json_incref(v[I_ID].j) : json_null();
        return json_array_append_new(d->ids, id) == 0 || sup_fail_no_memory(f);
    }
    f->err.item = (int32_t)i;
    f->err.stage = IPC_STAGE_PARSE;
    return false;
}

static bool read_inputs(struct sup_decisions *d, const struct sup_val *v, Ipc__Decide *q,
                        struct sup_fail *f)
{
    size_t n = v[F_INPUTS].set ? json_array_size(v[F_INPUTS].j) : 1;

    if (v[F_INPUT].set == v[F_INPUTS].set) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, "input",
                     v[F_INPUT].set ? "fields 'input' and 'inputs': got both, expected exactly one"
                                    : "field 'input': missing, expected it or 'inputs'");
        return false;
    }
    if (n < 1 || n > IPC_DECIDE_INPUTS) {
        sup_field_bad(f, "inputs", v[F_INPUTS].j, fields[F_INPUTS].words);
        return false;
    }
    q->inputs = sup_call_alloc(&d->call, n * sizeof(*q->inputs));
    if (v[F_INPUTS].set)
        d->ids = json_array();
    if (!q->inputs || (v[F_INPUTS].set && !d->ids))
        return sup_fail_no_memory(f);
    q->n_inputs = n;
    d->n_inputs = (uint32_t)n;
    if (v[F_INPUT].set)
        return text_input(v[F_INPUT].j, "input", &q->inputs[0], f);
    for (uint32_t i = 0; i < n; i++)
        if (!batch_input(d, json_array_get(v[F_INPUTS].j, i), i, &q->inputs[i], f))
            return false;
    return true;
}

static bool read_options(struct sup_decisions *d, const struct sup_val *v, Ipc__Decide *q,
                         struct sup_fail *f)
{
    const char prefix[] = "embedding_options.";
    struct sup_val o[O_N];
    char want[64];

    if (!v[F_OPTIONS].set)
        return true;
    if (!sup_fields_known(options, O_N, NULL, v[F_OPTIONS].j, prefix, f) ||
        !sup_fields_read(options, O_N, v[F_OPTIONS].j, prefix, o, f))
        return false;
    if (o[O_DIMENSIONS].set && d->call.embed_dim && o[O_DIMENSIONS].i > d->call.embed_dim) {
        snprintf(want, sizeof(want), "an integer from 1 to %u (the model's size)",
                 d->call.embed_dim);
        sup_field_bad(f, "embedding_options.dimensions", o[O_DIMENSIONS].j, want);
        return false;
    }
    q->dimensions = (uint32_t)o[O_DIMENSIONS].i;
    if (o[O_TASK].set)
        q->task_type = (char *)(uintptr_t)o[O_TASK].s;
    return true;
}

/* Everything the request can make the model read. */
static bool bound_work(const Ipc__Decide *q, struct sup_fail *f)
{
    uint64_t texts = 0, bytes = 0, of_inputs = 0;

    for (size_t i = 0; i < q->n_inputs; i++)
        of_inputs += q->inputs[i].len;
    for (size_t i = 0; i < q->n_questions; i++) {
        const Ipc__DecideQuestion *k = q->questions[i];
        uint64_t n = q->n_inputs;

        bytes += of_inputs;
        for (size_t c = 0; c < k->n_choices; c++) {
            const Ipc__DecideChoice *choice = k->choices[c];

            n += choice->n_examples ? choice->n_examples : 1;
            for (size_t e = 0; e < choice->n_examples; e++)
                bytes += choice->examples[e].len;
            if (!choice->n_examples)
                bytes += choice->description.len ? choice->description.len : choice->value.len;
        }
        bytes += n * (k->instructions.len + sizeof("Instruction: \nCategory: ") - 1);
        texts += n;
    }
    if (texts <= IPC_DECIDE_TEXTS && bytes <= IPC_DECIDE_BYTES)
        return true;
    if (texts > IPC_DECIDE_TEXTS)
        sup_fail_set(f, SUP_E_CONTENT_TOO_LARGE, "questions",
                     "%llu texts to embed (inputs times questions, examples and descriptions), "
                     "expected at most %u: send fewer inputs or questions at a time",
                     (unsigned long long)texts, IPC_DECIDE_TEXTS);
    else
        sup_fail_set(f, SUP_E_CONTENT_TOO_LARGE, "questions",
                     "%llu bytes of rendered texts (every input is rendered for every question), "
                     "expected at most %u",
                     (unsigned long long)bytes, IPC_DECIDE_BYTES);
    return false;
}

static bool start(struct sup_call *c, const struct sup_val *v, struct sup_fail *f)
{
    struct sup_decisions *d = (struct sup_decisions *)c;
    Ipc__Frame frame = IPC__FRAME__INIT;
    Ipc__Decide q = IPC__DECIDE__INIT;

    if (!sup_fields_known(fields, F_N, "model", c->body, "", f) ||
        !sup_identity_read(&v[F_IDENTITY], &q.model_identity, f) || !read_options(d, v, &q, f) ||
        !sup_decisions_questions(c, v[F_QUESTIONS].j, &q, f) || !read_inputs(d, v, &q, f) ||
        !bound_work(&q, f))
        return false;
    d->questions = json_incref(v[F_QUESTIONS].j);
    d->n_questions = (uint32_t)q.n_questions;
    q.deadline_us = c->deadline_us;
    frame.body_case = IPC__FRAME__BODY_DECIDE;
    frame.decide = &q;
    return sup_call_parts(c, 1, f) && sup_call_submit(c, 0, &frame, f);
}

static void frame(struct sup_call *c, uint32_t part, const Ipc__Frame *fr)
{
    if (fr->body_case == IPC__FRAME__BODY_DECIDED)
        sup_decisions_write((struct sup_decisions *)c, fr->decided);
}

static void finish(struct sup_call *c)
{
    sup_call_reply(c, &((struct sup_decisions *)c)->out);
}

static void deinit(struct sup_call *c)
{
    struct sup_decisions *d = (struct sup_decisions *)c;

    json_decref(d->questions);
    json_decref(d->ids);
    sup_json_deinit(&d->out);
}

const struct sup_call_ops sup_decisions_ops = {
    .size = sizeof(struct sup_decisions),
    .need = SUP_NEED_EMBED,
    .fields = fields,
    .n_fields = F_N,
    .start = start,
    .frame = frame,
    .finish = finish,
    .deinit = deinit,
};
