/* wrk_ext_view.c - a text, or a window of one, as words with their tokens.
 *
 * Always true: every word has its place in the view's own text; tokens of a word are those of its
 * lower case, tokenized by itself.
 * Tests: tests/worker/test_wrk_extract_golden.c
 */
#include "wrk_extract.h"

#include <stdlib.h>
#include <string.h>

uint32_t wrk_windows(uint32_t n_words, const struct wrk_window_size *z)
{
    uint32_t step = z->words - z->overlap;

    return n_words <= z->words ? 1 : 1 + (n_words - z->words + step - 1) / step;
}

void wrk_window(uint32_t n_words, const struct wrk_window_size *z, uint32_t i, uint32_t *first,
                uint32_t *n)
{
    *first = i * (z->words - z->overlap);
    *n = n_words - *first < z->words ? n_words - *first : z->words;
}

static enum rc tokens(struct wrk_view *v, const struct mdl_tok *tok,
                      const struct mdl_tok_stop *stop, size_t max_ids, struct rc_err *err)
{
    struct mdl_tok_flags flags = {.parse_special = true, .max_tokens = max_ids, .stop = stop};
    char *low = NULL;
    size_t cap = 0, n = 0, i, kept = 0;
    enum rc rc = RC_OK;

    for (i = 0; rc == RC_OK && i < v->w.n; i++) {
        const struct wrk_word w = v->w.w[i];
        size_t before = v->ids.n;

        if ((rc = wrk_lower(v->text + w.at, w.to - w.at, &low, &cap, &n, err)) == RC_OK)
            rc = mdl_tok_encode(tok, low, n, &flags, &v->ids, err);
        if (rc == RC_TOO_LARGE || (rc == RC_OK && v->ids.n > max_ids)) {
            size_t all = v->ids.n + (rc == RC_OK || err == NULL ? 0 : (size_t)err->n);

            rc = rc_bound(rc_fail_what(err, RC_TOO_LARGE, "input",
                                       "the text has %zu tokens and more in %zu words, beside its "
                                       "schema the model takes %zu",
                                       all, i + 1, max_ids),
                          all, max_ids, err);
        }
        /* a word that leaves no token has a row all the same, but there are not more words than
         * tokens */
        if (v->ids.n == before && kept >= v->ids.n)
            continue;
        v->row[kept] = (uint32_t)before;
        v->w.w[kept++] = w;
    }
    v->w.n = kept;
    v->row[kept] = (uint32_t)v->ids.n;
    free(low);
    return rc;
}

enum rc wrk_view_init(struct wrk_view *v, const char *text, size_t n_bytes, uint32_t max_words,
                      const struct mdl_tok *tok, const struct mdl_tok_stop *stop, size_t max_ids,
                      struct rc_err *err)
{
    enum rc rc;

    *v = (struct wrk_view){0};
    if ((v->text = malloc(n_bytes + 1)) == NULL)
        return rc_fail(err, RC_NOMEM, "no memory for a text of %zu bytes", n_bytes);
    if (n_bytes > 0)
        memcpy(v->text, text, n_bytes);
    v->n_bytes = n_bytes;
    v->dotted = n_bytes == 0 || strchr(".!?", text[n_bytes - 1]) == NULL || text[n_bytes - 1] == 0;
    if (v->dotted)
        v->text[v->n_bytes++] = '.';
    if ((rc = wrk_words_split(v->text, v->n_bytes, stop, &v->w, err)) == RC_OK) {
        if (max_words > 0 && v->w.n > max_words)
            v->w.n = max_words;
        if ((v->row = malloc((v->w.n + 1) * sizeof(*v->row))) == NULL)
            rc = rc_fail(err, RC_NOMEM, "no memory for %zu words", v->w.n);
        else
            rc = tokens(v, tok, stop, max_ids, err);
    }
    if (rc != RC_OK)
        wrk_view_deinit(v);
    return rc;
}

void wrk_view_deinit(struct wrk_view *v)
{
    free(v->text);
    free(v->row);
    wrk_words_deinit(&v->w);
    mdl_ids_deinit(&v->ids);
    *v = (struct wrk_view){0};
}
