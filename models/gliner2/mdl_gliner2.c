/* mdl_gliner2.c - GLiNER2, span architecture: one pass over packed sequences.
 *
 * The encoder's states go three ways: those of [P] say how many instances a prompt has, those of
 * its fields become vectors, one for every instance, and those of words are what spans are made of.
 * A span's score is v . W2 relu(A s_i + B e_j) + v . b2, computed as (W2' v) . relu(A s_i + B e_j):
 * fields are few, spans are many, and no span's representation is ever in memory.
 * Always true: a sequence's numbers are the same bytes alone and in any batch; a pass allocates
 * nothing; heads run over as many sequences at once as G2_ROWS words and fields hold.
 * Source: encoders.md 6.5. Tests: tests/models/test_mdl_gliner2.c, tests/worker/
 * test_wrk_extract_golden.c
 */
#include "mdl_gliner2.h"

#include <math.h>
#include <string.h>

enum rc g2_relu(struct mdl *m, struct be_tensor *x, uint32_t n, uint32_t n_cols, struct rc_err *err)
{
    struct g2 *g = m->state;
    struct be_act_args a = {.x = x, .out = x, .n = n, .kind = BE_ACT_RELU};
    uint32_t piece = (uint32_t)((size_t)g->rows * 4 * g->d / n_cols);
    enum rc rc;

    if (be_can_towers(m->be))
        return be_act(m->be, &a, err);
    for (uint32_t r = 0; r < n; r += piece) {
        uint32_t k = n - r < piece ? n - r : piece;

        if ((rc = be_tensor_read(m->be, x, r, k, g->scratch, err)) != RC_OK)
            return rc;
        for (size_t i = 0; i < (size_t)k * n_cols; i++)
            g->scratch[i] = g->scratch[i] < 0 ? 0 : g->scratch[i];
        if ((rc = be_tensor_write(m->be, x, r, k, g->scratch, err)) != RC_OK)
            return rc;
    }
    return RC_OK;
}

static enum rc mlp(struct mdl *m, const struct be_tensor *x, const struct g2_mlp *w,
                   struct be_tensor *mid, uint32_t n_mid, struct be_tensor *out, uint32_t n,
                   struct rc_err *err)
{
    enum rc rc;

    if ((rc = mdl_dense(m->be, x, w->w0, w->b0, mid, n, BE_EPI_NONE, err)) != RC_OK ||
        (rc = g2_relu(m, mid, n, n_mid, err)) != RC_OK)
        return rc;
    return mdl_dense(m->be, mid, w->w1, w->b1, out, n, BE_EPI_NONE, err);
}

/* -------------------------------------------------------------------- the pass */

struct pass {
    struct mdl *m;
    struct g2 *g;
    const struct mdl_extract_in *in;
    const struct mdl_extract_out *out;
    uint32_t n, first; /* sequences; number of the first */
    uint32_t n_rows;
    const struct be_tensor *states; /* of the encoder */
};

static uint32_t row_of(const struct pass *p, uint32_t s)
{
    return p->m->passes.offsets[s];
}

static enum rc encode(struct pass *p, struct rc_err *err)
{
    struct mdl *m = p->m;
    struct mdl_pass e = {
        .n_seqs = p->n, .offsets = m->passes.offsets, .ids = p->g->ids, .pos = m->passes.pos};
    uint32_t rows = 0;

    for (uint32_t s = 0; s < p->n; s++) {
        m->passes.offsets[s] = rows;
        for (uint32_t i = 0; i < p->in[s].n_ids; i++, rows++) {
            p->g->ids[rows] = p->in[s].ids[i];
            m->passes.pos[rows] = (int32_t)i;
        }
    }
    m->passes.offsets[p->n] = rows;
    e.n_rows = p->n_rows = rows;
    return mdl_deberta_run(p->g->enc, m, &e, NULL, &p->states, err);
}

/* The first row's number in a sequence's part of what is kept by mark. */
static uint32_t marks_before(const struct pass *p, uint32_t s)
{
    return row_of(p, s); /* a sequence has at most as many marks as rows: room enough */
}

/* Gathers states of g->gather[0 .. n) to x. */
static enum rc gather(struct pass *p, uint32_t n, struct rc_err *err)
{
    struct be_gather_args a = {.x = p->states, .rows = p->g->gather, .n = n, .out = p->g->x};

    return be_gather(p->m->be, &a, err);
}

/* States of all marks to the host. */
static enum rc read_marks(struct pass *p, struct rc_err *err)
{
    struct g2 *g = p->g;
    enum rc rc;

    for (uint32_t s = 0; s < p->n; s++)
        for (uint32_t i = 0; i < p->in[s].n_marks; i += g->rows) {
            uint32_t n = p->in[s].n_marks - i < g->rows ? p->in[s].n_marks - i : g->rows;

            for (uint32_t k = 0; k < n; k++)
                g->gather[k] = (int32_t)(row_of(p, s) + p->in[s].marks[i + k]);
            if ((rc = gather(p, n, err)) != RC_OK ||
                (rc = be_tensor_read(p->m->be, g->x, 0, n,
                                     g->marks + (size_t)(marks_before(p, s) + i) * g->d, err)) !=
                    RC_OK)
                return rc;
        }
    return RC_OK;
}

/* ----------------------------------------------------------- counts and classes */

/* A batch of marks through a head; where: of each, its place among what is kept by mark. */
struct small {
    uint32_t n, *where;
};

static enum rc run_small(struct pass *p, struct small *b, bool count, struct rc_err *err)
{
    struct g2 *g = p->g;
    struct be_tensor *to = count ? g->counts : g->one;
    uint32_t width = count ? MDL_EXTRACT_COUNTS : 1;
    enum rc rc;

    if (b->n == 0)
        return RC_OK;
    for (uint32_t i = 0; i < b->n; i++)
        memcpy(g->buf2 + (size_t)i * g->d, g->marks + (size_t)b->where[i] * g->d,
               g->d * sizeof(float));
    if ((rc = be_tensor_write(p->m->be, g->x, 0, b->n, g->buf2, err)) != RC_OK ||
        (rc = mlp(p->m, g->x, count ? &g->count : &g->cls, g->mid, 2 * g->d, to, b->n, err)) !=
            RC_OK ||
        (rc = be_tensor_read(p->m->be, to, 0, b->n, g->buf, err)) != RC_OK)
        return rc;
    for (uint32_t i = 0; i < b->n; i++)
        memcpy((count ? g->count_logits : g->cls_logits) + (size_t)b->where[i] * width,
               g->buf + (size_t)i * width, width * sizeof(float));
    b->n = 0;
    return RC_OK;
}

/* Every prompt's count, or every class' logit, of the whole pass. */
static enum rc small_heads(struct pass *p, bool count, struct rc_err *err)
{
    struct g2 *g = p->g;
    struct small b = {.where = g->seg};
    enum rc rc = RC_OK;

    for (uint32_t s = 0; s < p->n; s++)
        for (uint32_t i = 0; i < p->in[s].n_prompts; i++) {
            const struct mdl_extract_prompt *q = &p->in[s].prompts[i];
            uint32_t mark = marks_before(p, s) + q->mark;
            uint32_t from = count ? mark : mark + 1, to = count ? mark + 1 : mark + 1 + q->n_fields;

            if (q->is_classes == count)
                continue;
            for (uint32_t k = from; k < to; k++) {
                if (b.n == g->rows && (rc = run_small(p, &b, count, err)) != RC_OK)
                    return rc;
                b.where[b.n++] = k;
            }
        }
    return run_small(p, &b, count, err);
}

static void choose_counts(struct pass *p)
{
    struct g2 *g = p->g;

    for (uint32_t s = 0; s < p->n; s++)
        for (uint32_t i = 0; i < p->in[s].n_prompts; i++) {
            uint32_t mark = marks_before(p, s) + p->in[s].prompts[i].mark, best = 0;
            const float *logits = g->count_logits + (size_t)mark * MDL_EXTRACT_COUNTS;

            for (uint32_t k = 1; k < MDL_EXTRACT_COUNTS; k++)
                best = logits[k] > logits[best] ? k : best;
            g->n_inst[mark] = best;
        }
}

static enum rc tell_heads(struct pass *p, uint32_t s, struct rc_err *err)
{
    struct g2 *g = p->g;
    enum rc rc = RC_OK;

    for (uint32_t i = 0; rc == RC_OK && i < p->in[s].n_prompts; i++) {
        const struct mdl_extract_prompt *q = &p->in[s].prompts[i];
        uint32_t mark = marks_before(p, s) + q->mark;

        if (q->is_classes)
            rc = p->out->classes(p->out->user, p->first + s, i, g->cls_logits + mark + 1, err);
        else if (p->out->count)
            rc = p->out->count(p->out->user, p->first + s, i,
                               g->count_logits + (size_t)mark * MDL_EXTRACT_COUNTS, g->n_inst[mark],
                               err);
    }
    return rc;
}

/* ------------------------------------------------------------------------ words */

/* n more rows of a word to its sum or maximum. */
static void pool_rows(const struct g2 *g, const float *x, uint32_t n, bool first, float *out)
{
    if (first)
        memcpy(out, x, g->d * sizeof(*out));
    for (uint32_t i = first; i < n; i++)
        for (uint32_t c = 0; c < g->d; c++) {
            float v = x[(size_t)i * g->d + c];

            out[c] = g->pool == G2_MEAN ? out[c] + v : v > out[c] ? v : out[c];
        }
}

/* Mean or maximum of the rows of a word of any length. view: the states; NULL: a device hides them,
 * and they are read back as many at a time as buf holds. */
static enum rc pool_word(const struct pass *p, const float *view, uint32_t from, uint32_t n,
                         float *out, struct rc_err *err)
{
    struct g2 *g = p->g;
    uint32_t most = view != NULL ? n : g->rows;
    enum rc rc;

    for (uint32_t i = 0; i < n; i += most) {
        uint32_t k = n - i < most ? n - i : most;

        if (view == NULL &&
            (rc = be_tensor_read(p->m->be, p->states, from + i, k, g->buf, err)) != RC_OK)
            return rc;
        pool_rows(g, view != NULL ? view + (size_t)from * g->d : g->buf, k, i == 0, out);
    }
    for (uint32_t c = 0; g->pool == G2_MEAN && n > 1 && c < g->d; c++)
        out[c] /= (float)n;
    return RC_OK;
}

/* A word that left no token has the row that follows. */
static void word_rows(const struct mdl_extract_in *in, uint32_t w, uint32_t *from, uint32_t *n)
{
    *from = in->words[w];
    *n = in->words[w + 1] - in->words[w];
    if (*n == 0) {
        *from = *from < in->n_ids ? *from : in->n_ids - 1;
        *n = 1;
    }
}

/* Words of sequences [s0, s1) to x. */
static enum rc read_words(struct pass *p, uint32_t s0, uint32_t s1, uint32_t *n_words,
                          struct rc_err *err)
{
    struct g2 *g = p->g;
    const float *view = be_tensor_view(p->m->be, p->states);
    uint32_t k = 0, from, n;
    enum rc rc;

    for (uint32_t s = s0; s < s1; s++)
        for (uint32_t w = 0; w < p->in[s].n_words; w++, k++) {
            word_rows(&p->in[s], w, &from, &n);
            from += row_of(p, s);
            g->gather[k] = (int32_t)from;
            if (g->pool == G2_FIRST)
                continue;
            if ((rc = pool_word(p, view, from, n, g->buf2 + (size_t)k * g->d, err)) != RC_OK)
                return rc;
        }
    *n_words = k;
    if (k == 0)
        return RC_OK;
    return g->pool == G2_FIRST ? gather(p, k, err)
                               : be_tensor_write(p->m->be, g->x, 0, k, g->buf2, err);
}

/* a and b of n words in x. */
static enum rc span_sums(struct pass *p, uint32_t n, struct rc_err *err)
{
    struct g2 *g = p->g;
    struct mdl *m = p->m;
    enum rc rc;

    if ((rc = mlp(m, g->x, &g->start, g->hid, 4 * g->d, g->y, n, err)) != RC_OK ||
        (rc = mlp(m, g->x, &g->end, g->hid, 4 * g->d, g->z, n, err)) != RC_OK ||
        (rc = g2_relu(m, g->y, n, g->d, err)) != RC_OK ||
        (rc = g2_relu(m, g->z, n, g->d, err)) != RC_OK ||
        (rc = mdl_dense(m->be, g->y, g->out_s, g->out_b, g->a, n, BE_EPI_NONE, err)) != RC_OK)
        return rc;
    return mdl_dense(m->be, g->z, g->out_e, NULL, g->b, n, BE_EPI_NONE, err);
}

/* ----------------------------------------------------------------------- scores */

/* Scores of queries [q0, q1), all of one sequence, whose words begin at row word0 of a and b; v:
 * their vectors. */
static enum rc score(struct pass *p, uint32_t q0, uint32_t q1, uint32_t t, uint32_t word0,
                     const float *v, struct rc_err *err)
{
    struct g2 *g = p->g;
    uint32_t seq = g->query[q0].seq, n_words = p->in[seq].n_words;
    size_t plane = (size_t)n_words * g->width;
    enum rc rc = RC_OK;

    for (uint32_t q = q0; rc == RC_OK && q < q1; q += G2_VECS) {
        uint32_t n = q1 - q < G2_VECS ? q1 - q : G2_VECS;
        struct be_spans_args a = {.a = g->a,
                                  .b = g->b,
                                  .g = g->vec,
                                  .n_cols = 4 * g->d,
                                  .row = word0,
                                  .n = n_words,
                                  .width = g->width,
                                  .g_row = q,
                                  .n_g = n,
                                  .out = g->scores,
                                  .scratch = g->scratch};

        rc = be_spans(p->m->be, &a, err);
        for (uint32_t k = 0; rc == RC_OK && k < n; k++) {
            const struct g2_query *x = &g->query[q + k];
            float *s = g->scores + k * plane;
            double bias = 0;

            for (uint32_t c = 0; c < g->d; c++)
                bias += (double)v[(size_t)(q + k) * g->d + c] * g->out_bias[c];
            for (size_t i = 0; i < plane; i++)
                s[i] += (float)bias;
            rc = p->out->spans(p->out->user, p->first + seq, x->prompt, t, x->field, s, err);
        }
    }
    return rc;
}

/* One step of n queries, of which those of a prompt lie together; a and b begin with the words of
 * sequence s0. */
static enum rc step(struct pass *p, uint32_t t, uint32_t n, uint32_t s0, struct rc_err *err)
{
    struct g2 *g = p->g;
    struct be_tensor *v = NULL;
    uint32_t n_seg = 0, q, from, word0 = 0, seq = s0;
    float *fields = g->buf; /* read before a projection writes there */
    enum rc rc;

    if ((rc = mdl_encode_stopped(p->m, err)) != RC_OK ||
        (rc = g2_count_step(p->m, t, n, g->state, err)) != RC_OK)
        return rc;
    g->seg[0] = 0;
    for (q = 0; q < n; q++) {
        memcpy(fields + (size_t)q * g->d, g->marks + (size_t)g->query[q].mark * g->d,
               g->d * sizeof(*fields));
        if (q + 1 == n || g->query[q].seq != g->query[q + 1].seq ||
            g->query[q].prompt != g->query[q + 1].prompt)
            g->seg[++n_seg] = q + 1;
    }
    if ((rc = g2_count_project(p->m, n, g->state, fields, g->seg, n_seg, &v, err)) != RC_OK ||
        (rc = mdl_dense(p->m->be, v, g->out_turned, NULL, g->vec, n, BE_EPI_NONE, err)) != RC_OK ||
        (rc = be_tensor_read(p->m->be, v, 0, n, g->buf2, err)) != RC_OK)
        return rc;
    for (from = 0; rc == RC_OK && from < n; from = q) {
        for (q = from; q < n && g->query[q].seq == g->query[from].seq; q++)
            ;
        for (; seq < g->query[from].seq; seq++)
            word0 += p->in[seq].n_words;
        rc = score(p, from, q, t, word0, g->buf2, err);
    }
    return rc;
}

/* Drops the queries whose prompt has no instance t, and their states. Gives how many are left. */
static uint32_t still(struct pass *p, uint32_t t, uint32_t n)
{
    struct g2 *g = p->g;
    uint32_t left = 0;

    for (uint32_t q = 0; q < n; q++) {
        const struct g2_query x = g->query[q];
        const struct mdl_extract_prompt *a = &p->in[x.seq].prompts[x.prompt];

        if (t >= g->n_inst[marks_before(p, x.seq) + a->mark] || t >= a->n_most)
            continue;
        if (left != q)
            memcpy(g->state + (size_t)left * g->d, g->state + (size_t)q * g->d,
                   g->d * sizeof(float));
        g->query[left++] = x;
    }
    return left;
}

/* All instances of the queries gathered. */
static enum rc run_queries(struct pass *p, uint32_t n, uint32_t s0, struct rc_err *err)
{
    struct g2 *g = p->g;
    enum rc rc = RC_OK;

    for (uint32_t q = 0; q < n; q++)
        memcpy(g->state + (size_t)q * g->d, g->marks + (size_t)g->query[q].mark * g->d,
               g->d * sizeof(float));
    for (uint32_t t = 0; rc == RC_OK && (n = still(p, t, n)) > 0; t++)
        rc = step(p, t, n, s0, err);
    return rc;
}

/* Span prompts of sequences [s0, s1), as many at once as rows hold. */
static enum rc prompts(struct pass *p, uint32_t s0, uint32_t s1, struct rc_err *err)
{
    struct g2 *g = p->g;
    uint32_t n = 0;
    enum rc rc;

    for (uint32_t s = s0; s < s1; s++)
        for (uint32_t i = 0; i < p->in[s].n_prompts; i++) {
            const struct mdl_extract_prompt *a = &p->in[s].prompts[i];
            uint32_t mark = marks_before(p, s) + a->mark;

            if (a->is_classes || g->n_inst[mark] == 0 || p->in[s].n_words == 0)
                continue;
            if (a->n_fields > g->rows - n) {
                if ((rc = run_queries(p, n, s0, err)) != RC_OK)
                    return rc;
                n = 0;
            }
            for (uint32_t f = 0; f < a->n_fields; f++)
                g->query[n++] = (struct g2_query){s, i, f, mark + 1 + f};
        }
    return run_queries(p, n, s0, err);
}

enum rc g2_extract(struct mdl *m, uint32_t first, uint32_t n, const struct mdl_extract_in *in,
                   const struct mdl_extract_out *out, struct rc_err *err)
{
    struct pass p = {.m = m, .g = m->state, .in = in, .out = out, .n = n, .first = first};
    uint32_t s0, s1, n_words;
    enum rc rc;

    if ((rc = encode(&p, err)) != RC_OK || (rc = read_marks(&p, err)) != RC_OK ||
        (rc = small_heads(&p, true, err)) != RC_OK || (rc = small_heads(&p, false, err)) != RC_OK)
        return rc;
    choose_counts(&p);
    for (s0 = 0; rc == RC_OK && s0 < n; s0 = s1) {
        n_words = 0;
        for (s1 = s0; s1 < n && in[s1].n_words <= p.g->rows - n_words; s1++)
            n_words += in[s1].n_words;
        for (uint32_t s = s0; rc == RC_OK && s < s1; s++)
            rc = tell_heads(&p, s, err);
        if (rc == RC_OK && (rc = read_words(&p, s0, s1, &n_words, err)) == RC_OK && n_words > 0 &&
            (rc = span_sums(&p, n_words, err)) == RC_OK)
            rc = prompts(&p, s0, s1, err);
    }
    return rc;
}

/* -------------------------------------------------------------------- the family */

static enum rc hear_finite(float x, struct rc_err *err)
{
    return isfinite(x) || (isinf(x) && x < 0)
               ? RC_OK
               : rc_fail(err, RC_FORMAT, "the model's first score is not a finite number");
}

static enum rc hear_classes(void *user, uint32_t s, uint32_t p, const float *x, struct rc_err *err)
{
    return hear_finite(x[0], err);
}

static enum rc hear_spans(void *user, uint32_t s, uint32_t p, uint32_t t, uint32_t f,
                          const float *x, struct rc_err *err)
{
    return hear_finite(x[0], err);
}

static enum rc hear_count(void *user, uint32_t s, uint32_t p, const float *x, uint32_t n,
                          struct rc_err *err)
{
    return hear_finite(x[0], err);
}

/* A prompt of fields, one of classes, one word. */
static enum rc self_test(struct mdl *m, struct rc_err *err)
{
    const int32_t ids[5] = {0, 1, 2, 3, (int32_t)m->info.vocab_size - 1};
    const uint32_t marks[4] = {0, 1, 2, 3}, words[2] = {4, 5};
    const struct mdl_extract_prompt prompts[2] = {{0, 1, false, 1}, {2, 1, true, 0}};
    const struct mdl_extract_in in = {ids, 5, marks, 4, prompts, 2, words, 1};
    const struct mdl_extract_out out = {NULL, hear_classes, hear_count, hear_spans};

    return mdl_extract(m, 1, &in, &out, err);
}

static const char *const hf_archs[] = {"GLiNER2", "Extractor", "SpanExtractorModel", "extractor",
                                       NULL};
static const char *const gguf_archs[] = {NULL};
static const char *const more_files[] = {"encoder_config/config.json", NULL};

const struct mdl_family mdl_gliner2 = {
    .name = "gliner2",
    .hf_archs = hf_archs,
    .gguf_archs = gguf_archs,
    .recipe = "gliner2-f32-span-v1",
    .more_files = more_files,
    .config = g2_config,
    .plan = g2_plan,
    .fit = g2_fit,
    .shrink = mdl_passes_shrink,
    .self_test = self_test,
    .free = g2_free,
    .extract = g2_extract,
};
