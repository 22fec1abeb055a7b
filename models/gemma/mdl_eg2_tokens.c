/* mdl_eg2_tokens.c - from texts and media in order to the token sequence EmbeddingGemma 2 reads.
 *
 *   <bos> prompt content <eos>      content: texts, and for a medium begin, N placeholders, end
 *
 * The prompt belongs to the task type and stands once, in front, where there is any text; parts of
 * a group are joined by newlines. Text between two media is encoded as one piece, its prompt with
 * it, so that pieces may join over our seams as they do in the reference.
 * Always true: control tokens are put in here, never read from a text; nothing is ever cut.
 * Source: gemma.md 7 and 8. Tests: tests/models/test_mdl_eg2*.c
 */
#include "mdl_eg2.h"

#include <stdlib.h>
#include <string.h>

#include "mdl_gemma.h"

/* As many tokens as any request's text may have, so that a count in a message is exact. */
#define COUNT_BOUND (8u << 20)

#define DOCUMENT "title: none | text: "

static const struct task {
    const char *type, *prompt; /* prompt NULL: a document's, with its title */
} tasks[] = {
    {"RETRIEVAL_DOCUMENT", NULL}, /* first: the default */
    {"RETRIEVAL_QUERY", "task: search result | query: "},
    {"QUESTION_ANSWERING", "task: question answering | query: "},
    {"FACT_VERIFICATION", "task: fact checking | query: "},
    {"CODE_RETRIEVAL_QUERY", "task: code retrieval | query: "},
    {"SEMANTIC_SIMILARITY", "task: sentence similarity | query: "},
    {"CLASSIFICATION", "task: classification | query: "},
    {"CLUSTERING", "task: clustering | query: "},
};
#define N_TASKS (sizeof(tasks) / sizeof(*tasks))

/* The checkpoint's names of these prompts. */
static const struct {
    const char *name, *type;
} named[] = {
    {"SearchQuery", "RETRIEVAL_QUERY"},
    {"query", "RETRIEVAL_QUERY"},
    {"Retrieval", "RETRIEVAL_QUERY"},
    {"Retrieval-query", "RETRIEVAL_QUERY"},
    {"Reranking", "RETRIEVAL_QUERY"},
    {"BitextMining", "RETRIEVAL_QUERY"},
    {"QuestionAnswering", "QUESTION_ANSWERING"},
    {"FactChecking", "FACT_VERIFICATION"},
    {"CodeRetrieval", "CODE_RETRIEVAL_QUERY"},
    {"InstructionRetrieval", "CODE_RETRIEVAL_QUERY"},
    {"Classification", "CLASSIFICATION"},
    {"MultilabelClassification", "CLASSIFICATION"},
    {"Clustering", "CLUSTERING"},
    {"SentenceSimilarity", "SEMANTIC_SIMILARITY"},
    {"STS", "SEMANTIC_SIMILARITY"},
    {"PairClassification", "SEMANTIC_SIMILARITY"},
    {"Summarization", "SEMANTIC_SIMILARITY"},
    {"Document", "RETRIEVAL_DOCUMENT"},
    {"document", "RETRIEVAL_DOCUMENT"},
    {"Retrieval-document", "RETRIEVAL_DOCUMENT"},
};

static const struct task *find_task(const char *type)
{
    size_t i;

    for (i = 0; i < N_TASKS; i++)
        if (strcmp(tasks[i].type, type) == 0)
            return &tasks[i];
    return NULL;
}

enum rc mdl_eg2_check_prompts(const struct bert_sbert *st, struct rc_err *err)
{
    size_t i, k;

    for (i = 0; i < st->n_prompts; i++)
        for (k = 0; k < sizeof(named) / sizeof(*named); k++) {
            const char *want;

            if (strcmp(st->prompts[i].name, named[k].name) != 0)
                continue;
            want = find_task(named[k].type)->prompt;
            if (strcmp(st->prompts[i].text, want ? want : DOCUMENT) != 0)
                return rc_fail_what(err, RC_UNSUPPORTED, "prompts",
                                    "config_sentence_transformers.json: prompt '%s' is '%.60s', "
                                    "expected '%s'",
                                    named[k].name, st->prompts[i].text, want ? want : DOCUMENT);
        }
    if (st->default_prompt >= 0)
        return rc_fail_what(err, RC_UNSUPPORTED, "default_prompt_name",
                            "config_sentence_transformers.json: default prompt '%.48s', expected "
                            "none: a text without a task type is a document here",
                            st->prompts[st->default_prompt].name);
    return RC_OK;
}

/* ------------------------------------------------------------------ building */

struct build {
    const struct mdl *m;
    const struct eg2 *g;
    struct mdl_ids *out;
    char *text; /* not yet encoded */
    size_t n, cap;
    struct rc_err *err;
};

static enum rc add_text(struct build *b, const char *s, size_t n)
{
    size_t want, cap;
    char *p;

    if (n == 0)
        return RC_OK;
    if (__builtin_add_overflow(b->n, n, &want))
        return rc_fail(b->err, RC_NOMEM, "no memory for a text of %zu bytes", n);
    if (want > b->cap) {
        cap = want > SIZE_MAX / 2 ? want : want * 2;
        if (!(p = realloc(b->text, cap)))
            return rc_fail(b->err, RC_NOMEM, "no memory for a text of %zu bytes", want);
        b->text = p;
        b->cap = cap;
    }
    memcpy(b->text + b->n, s, n);
    b->n = want;
    return RC_OK;
}

static enum rc flush(struct build *b)
{
    const struct mdl_tok_flags flags = {.max_tokens = COUNT_BOUND, .stop = b->m->stop};
    size_t n = b->n;

    b->n = 0;
    return n ? mdl_tok_encode(b->m->tok, b->text, n, &flags, b->out, b->err) : RC_OK;
}

static enum rc add_id(struct build *b, enum eg2_token t)
{
    return mdl_ids_push(b->out, b->g->tok[t], b->err);
}

static enum rc add_media(struct build *b, const struct mdl_media *media, uint32_t *row)
{
    enum eg2_token begin = media->is_sound ? EG2_SOUND_BEGIN : EG2_IMAGE_BEGIN;
    enum eg2_token soft = media->is_sound ? EG2_SOUND : EG2_IMAGE;
    enum eg2_token end = media->is_sound ? EG2_SOUND_END : EG2_IMAGE_END;
    uint32_t i;
    enum rc rc;

    if ((rc = flush(b)) != RC_OK || (rc = add_id(b, begin)) != RC_OK)
        return rc;
    *row = (uint32_t)b->out->n;
    for (i = 0; i < media->n_tokens; i++)
        if ((rc = add_id(b, soft)) != RC_OK)
            return rc;
    return add_id(b, end);
}

static enum rc add_prompt(struct build *b, const struct task *task, const char *title,
                          size_t n_title)
{
    enum rc rc;

    if (task->prompt)
        return add_text(b, task->prompt, strlen(task->prompt));
    if ((rc = add_text(b, "title: ", 7)) != RC_OK || (rc = add_text(b, title, n_title)) != RC_OK)
        return rc;
    return add_text(b, " | text: ", 9);
}

/* ------------------------------------------------------------------- checking */

static enum rc choose_task(const char *type, const struct task **out, struct rc_err *err)
{
    *out = type && *type ? find_task(type) : &tasks[0];
    if (*out)
        return RC_OK;
    return rc_fail_what(err, RC_INVALID, "task_type",
                        "task_type '%.48s': this model has RETRIEVAL_DOCUMENT, RETRIEVAL_QUERY, "
                        "QUESTION_ANSWERING, FACT_VERIFICATION, CODE_RETRIEVAL_QUERY, "
                        "SEMANTIC_SIMILARITY, CLASSIFICATION and CLUSTERING",
                        type);
}

static enum rc check_parts(const struct mdl_embed_input *in, bool *any_text, struct rc_err *err)
{
    size_t i;

    *any_text = false;
    if (in->n_parts == 0)
        return rc_fail_what(err, RC_INVALID, "content", "an input of no parts");
    if (!in->group && in->n_parts != 1)
        return rc_fail(err, RC_INVALID, "a flat input of %zu parts, expected 1", in->n_parts);
    for (i = 0; i < in->n_parts; i++)
        *any_text |= in->parts[i].media == NULL;
    return RC_OK;
}

/* "none", or nothing but white space, is no title. */
static enum rc check_title(const struct mdl_embed_input *in, const struct task *task, bool any_text,
                           const char **title, size_t *n_title, struct rc_err *err)
{
    *title = in->title ? in->title : "";
    *n_title = in->title ? in->n_title : 0;
    mdl_gemma_trim(title, n_title);
    if (*n_title == 0 || (*n_title == 4 && memcmp(*title, "none", 4) == 0)) {
        *title = "none";
        *n_title = 4;
        return RC_OK;
    }
    if (task->prompt)
        return rc_fail_what(err, RC_INVALID, "title",
                            "a title is for RETRIEVAL_DOCUMENT; this input's task type is %s",
                            task->type);
    if (!any_text)
        return rc_fail_what(err, RC_INVALID, "title",
                            "a title needs a text beside the pictures and sounds");
    return RC_OK;
}

static enum rc too_large(const struct mdl *m, size_t n, struct rc_err *err)
{
    return rc_bound(rc_fail_what(err, RC_TOO_LARGE, "input",
                                 "the input has %zu tokens, pictures and sounds counted, this "
                                 "model takes %u and never cuts",
                                 n, m->info.max_input_tokens),
                    n, m->info.max_input_tokens, err);
}

enum rc mdl_eg2_embed_ordered(const struct mdl *m, const struct mdl_embed_input *in,
                              struct mdl_ids *out, uint32_t *rows, struct rc_err *err)
{
    struct build b = {.m = m, .g = m->state, .out = out, .err = err};
    const struct task *task;
    size_t start = out->n, n_title, i, k = 0;
    const char *title;
    bool any_text;
    enum rc rc;

    if ((rc = choose_task(in->task_type, &task, err)) != RC_OK ||
        (rc = check_parts(in, &any_text, err)) != RC_OK ||
        (rc = check_title(in, task, any_text, &title, &n_title, err)) != RC_OK)
        return rc;
    if ((rc = add_id(&b, EG2_BOS)) != RC_OK ||
        (any_text && (rc = add_prompt(&b, task, title, n_title)) != RC_OK))
        goto out;
    for (i = 0; rc == RC_OK && i < in->n_parts; i++) {
        if (i > 0 && (rc = add_text(&b, "\n", 1)) != RC_OK)
            break;
        if (in->parts[i].media)
            rc = add_media(&b, in->parts[i].media, &rows[k++]);
        else
            rc = add_text(&b, in->parts[i].text, in->parts[i].n_bytes);
    }
    if (rc == RC_OK && (rc = flush(&b)) == RC_OK)
        rc = add_id(&b, EG2_EOS);
    if (rc == RC_OK && out->n - start > m->info.max_input_tokens)
        rc = too_large(m, out->n - start, err);
out:
    free(b.text);
    if (rc != RC_OK)
        out->n = start;
    return rc;
}

/* Never cuts, whatever truncate says: a text that is too long is refused. */
enum rc mdl_eg2_embed_tokens(const struct mdl *m, const char *text, size_t n_bytes,
                             const char *task_type, bool truncate, bool *truncated,
                             struct mdl_ids *out, struct rc_err *err)
{
    const struct mdl_embed_part part = {.text = text, .n_bytes = n_bytes};
    const struct mdl_embed_input in = {.parts = &part, .n_parts = 1, .task_type = task_type};
    enum rc rc = mdl_eg2_embed_ordered(m, &in, out, NULL, err);

    if (rc == RC_OK && truncated)
        *truncated = false;
    return rc;
}
