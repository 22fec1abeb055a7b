/* mdl_passes_extract.c - a call of mdl_extract, cut into passes that fit.
 *
 * Checks the sequences of a call, takes as many whole ones as the memory of a pass holds, and has
 * the family run them, until all are done.
 * Always true: nothing is computed for a call with a bad sequence in it; a sequence is never cut
 * over two passes; one of full length always fits.
 * Tests: tests/models/test_mdl_gliner2.c
 */
#include "mdl_impl.h"

static enum rc check_words(const struct mdl_extract_in *in, struct rc_err *err)
{
    if (in->n_words > MDL_EXTRACT_WORDS)
        return rc_fail(err, RC_INVALID, "%u words, expected at most %u", in->n_words,
                       MDL_EXTRACT_WORDS);
    for (uint32_t w = 0; w < in->n_words; w++)
        if (in->words[w] > in->words[w + 1])
            return rc_fail(err, RC_INVALID, "word %u: rows %u to %u", w, in->words[w],
                           in->words[w + 1]);
    if (in->n_words > in->n_ids || (in->n_words > 0 && in->words[in->n_words] > in->n_ids))
        return rc_fail(err, RC_INVALID, "%u words to row %u of %u", in->n_words,
                       in->words[in->n_words], in->n_ids);
    return RC_OK;
}

static enum rc check_prompts(const struct mdl_extract_in *in, struct rc_err *err)
{
    uint32_t next = 0;

    if (in->n_marks > in->n_ids)
        return rc_fail(err, RC_INVALID, "%u marks in %u rows", in->n_marks, in->n_ids);
    for (uint32_t i = 0; i < in->n_marks; i++)
        if (in->marks[i] >= in->n_ids)
            return rc_fail(err, RC_INVALID, "mark %u: row %u of %u", i, in->marks[i], in->n_ids);
    for (uint32_t i = 0; i < in->n_prompts; i++) {
        const struct mdl_extract_prompt *p = &in->prompts[i];

        if (p->n_fields == 0 || p->mark < next || p->mark >= in->n_marks ||
            p->n_fields >= in->n_marks - p->mark ||
            (!p->is_classes && (p->n_most == 0 || p->n_fields > MDL_EXTRACT_WORDS)))
            return rc_fail(err, RC_INVALID,
                           "prompt %u: %u fields behind mark %u of %u, %u instances looked at", i,
                           p->n_fields, p->mark, in->n_marks, p->n_most);
        next = p->mark + 1 + p->n_fields;
    }
    return RC_OK;
}

static enum rc check(const struct mdl *m, const struct mdl_extract_in *in, struct rc_err *err)
{
    enum rc rc;

    if ((rc = mdl_passes_check(m, in->ids, in->n_ids, err)) != RC_OK ||
        (rc = check_words(in, err)) != RC_OK)
        return rc;
    return check_prompts(in, err);
}

enum rc mdl_passes_extract(struct mdl *m, uint32_t n, const struct mdl_extract_in *in,
                           const struct mdl_extract_out *out, struct rc_err *err)
{
    const struct mdl_passes *p = &m->passes;
    uint32_t s, k;
    enum rc rc = RC_OK;

    for (s = 0; s < n; s++)
        if ((rc = check(m, &in[s], err)) != RC_OK)
            return mdl_passes_bad(s, rc, err);
    for (s = 0; rc == RC_OK && s < n; s += k) {
        uint32_t rows = 0;

        for (k = 0; s + k < n && k < p->max_seqs && in[s + k].n_ids <= p->max_rows - rows; k++)
            rows += in[s + k].n_ids;
        rc = m->fam->extract(m, s, k, in + s, out, err);
    }
    return rc;
}
