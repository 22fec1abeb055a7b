/* mdl_deberta.h - the encoder of DeBERTa-v2 and v3, for the families that have one: deberta
 * (rerankers, embedders) and GLiNER2.
 *
 * A part of a model: its owner calls config, plan and fit in the family's hooks of the same names,
 * run in a pass, and free in its free. What positions give depends on weights only: run makes it
 * once, the first time, so the owner's self test is that time.
 * Always true: a row's states depend on its own sequence alone; run allocates nothing.
 * Source: encoders.md 5; docs/models/deberta.md. Tests: tests/models/test_mdl_deberta.c
 */
#ifndef INFERD_MDL_DEBERTA_H
#define INFERD_MDL_DEBERTA_H

#include "mdl_impl.h"

struct mdl_deberta;

struct mdl_deberta_info {
    uint32_t d_model, n_layers, vocab_size;
    uint32_t n_pos;   /* tokens it was trained for */
    uint32_t n_types; /* 0: token types are not looked at */
    bool bounded;     /* positions are looked up in a table of n_pos: no longer inputs */
};

/* config: of the encoder; file: where it stands, for messages. Errors: RC_FORMAT (field, value,
 * range), RC_UNSUPPORTED (a setting that is not computed here, by name), RC_NOMEM. */
enum rc mdl_deberta_config(struct mdl_deberta **out, const json_t *config, const char *file,
                           struct rc_err *err);
const struct mdl_deberta_info *mdl_deberta_info(const struct mdl_deberta *e);
/* Weights below the prefix, dot included: "deberta.", "encoder.", "". RC_UNSUPPORTED too where
 * the backend lacks an operation that the encoder needs. */
enum rc mdl_deberta_plan(struct mdl_deberta *e, struct mdl_plan *plan, const char *prefix,
                         struct rc_err *err);
/* Memory for passes of at most rows rows in seqs sequences of at most longest rows. May be called
 * again (mdl_family.shrink). */
enum rc mdl_deberta_fit(struct mdl_deberta *e, struct mdl_plan *plan, uint32_t rows, uint32_t seqs,
                        uint32_t longest, struct rc_err *err);
/* States of the last layer to *out [p->n_rows, d_model], borrowed until the next run. types host
 * [n_rows], each < n_types, or NULL: all 0. Calls m->trace behind every layer. Errors:
 * RC_CANCELLED (mdl_set_encode_stop), those of the backend. */
enum rc mdl_deberta_run(struct mdl_deberta *e, const struct mdl *m, const struct mdl_pass *p,
                        const int32_t *types, const struct be_tensor **out, struct rc_err *err);
/* Weights and tensors are the plan's. */
void mdl_deberta_free(struct mdl_deberta **e);

#endif
