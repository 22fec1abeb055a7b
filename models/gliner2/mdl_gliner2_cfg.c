/* mdl_gliner2_cfg.c - the numbers of a GLiNER2 extractor from its two config.json.
 *
 * Refuses by name what the forward pass does not do: the boundary architecture before all.
 * Source: encoders.md 6. Tests: tests/models/test_mdl_gliner2.c
 */
#include "mdl_gliner2.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENCODER "encoder_config/config.json"
#define INPUT_TOKENS 8192u /* of the longest sequence, where nobody asks for another number */
#define INPUT_MOST 32768u

static enum rc read_pooling(struct g2 *g, const json_t *c, struct rc_err *err)
{
    const char *word = NULL;
    enum rc rc = mdl_cfg_str(c, "config.json", "token_pooling", &word, err);

    /* the reference takes any other word for "first" */
    if (rc == RC_OK && word)
        g->pool = strcmp(word, "mean") == 0  ? G2_MEAN
                  : strcmp(word, "max") == 0 ? G2_MAX
                                             : G2_FIRST;
    return rc;
}

static enum rc read_counting(struct g2 *g, const json_t *c, struct rc_err *err)
{
    static const char *const words[] = {"count_lstm", "count_lstm_v2", "count_lstm_moe"};
    const char *word = NULL;
    enum rc rc = mdl_cfg_str(c, "config.json", "counting_layer", &word, err);

    if (rc != RC_OK)
        return rc;
    for (int i = 0; i < 3; i++)
        if (strcmp(word ? word : "count_lstm", words[i]) == 0) {
            g->counting = (enum g2_count)i;
            return RC_OK;
        }
    return rc_fail_what(err, RC_UNSUPPORTED, "counting_layer",
                        "config.json: counting layer '%.40s' is not supported (count_lstm, "
                        "count_lstm_v2, count_lstm_moe)",
                        word);
}

static enum rc read_own(struct g2 *g, const json_t *c, struct rc_err *err)
{
    const char *arch = NULL;
    enum rc rc = mdl_cfg_str(c, "config.json", "architecture", &arch, err);

    if (rc != RC_OK)
        return rc;
    if (arch && strcmp(arch, "span") != 0)
        return rc_fail_what(err, RC_UNSUPPORTED, "architecture",
                            "config.json: architecture '%.40s' of GLiNER2 is not supported (span)",
                            arch);
    if ((rc = mdl_cfg_u32(c, "config.json", "max_width", 1, G2_MAX_WIDTH, 8, &g->width, err)) !=
            RC_OK ||
        (rc = read_pooling(g, c, err)) != RC_OK)
        return rc;
    return read_counting(g, c, err);
}

static enum rc read_encoder(struct g2 *g, int root_fd, struct rc_err *err)
{
    json_t *c = NULL;
    const char *type = NULL;
    enum rc rc = mdl_cfg_load(root_fd, ENCODER, true, &c, err);

    if (rc == RC_OK && (rc = mdl_cfg_str(c, ENCODER, "model_type", &type, err)) == RC_OK && type &&
        strcmp(type, "deberta-v2") != 0)
        rc = rc_fail_what(err, RC_UNSUPPORTED, "model_type",
                          ENCODER ": an encoder of type '%.40s' is not supported (deberta-v2)",
                          type);
    if (rc == RC_OK)
        rc = mdl_deberta_config(&g->enc, c, ENCODER, err);
    json_decref(c);
    return rc;
}

/* Every mark that prompts are made of. */
static enum rc check_marks(const struct mdl *m, struct rc_err *err)
{
    static const char *const marks[] = {"[SEP_STRUCT]", "[SEP_TEXT]",   "[P]", "[C]",
                                        "[E]",          "[R]",          "[L]", "[EXAMPLE]",
                                        "[OUTPUT]",     "[DESCRIPTION]"};

    for (size_t i = 0; i < sizeof(marks) / sizeof(*marks); i++)
        if (mdl_tok_find(m->tok, marks[i], strlen(marks[i])) < 0)
            return rc_fail_what(err, RC_FORMAT, "tokenizer.json", "the tokenizer has no token '%s'",
                                marks[i]);
    return RC_OK;
}

enum rc g2_config(struct mdl *m, const struct mdl_src *src, struct rc_err *err)
{
    struct g2 *g = calloc(1, sizeof(*g));
    const struct mdl_deberta_info *e;
    enum rc rc;

    if (!g)
        return rc_fail(err, RC_NOMEM, "no memory for a model");
    m->state = g; /* freed by mdl_close */
    if ((rc = read_own(g, src->config, err)) != RC_OK ||
        (rc = read_encoder(g, src->root_fd, err)) != RC_OK || (rc = check_marks(m, err)) != RC_OK)
        return rc;
    e = mdl_deberta_info(g->enc);
    if ((rc = mdl_cfg_vocab(m, e->vocab_size, err)) != RC_OK)
        return rc;
    g->d = e->d_model;
    m->info.can_extract = true;
    m->info.span_words = g->width;
    m->info.vocab_size = e->vocab_size;
    m->info.n_layers = e->n_layers;
    m->info.d_model = g->d;
    m->info.train_ctx_tokens = e->n_pos;
    /* distances beyond those of training have the farthest one's place: long schemas are read */
    m->info.max_input_tokens = e->bounded                        ? e->n_pos
                               : m->opts.ctx_tokens == 0         ? INPUT_TOKENS
                               : m->opts.ctx_tokens < INPUT_MOST ? m->opts.ctx_tokens
                                                                 : INPUT_MOST;
    return RC_OK;
}
