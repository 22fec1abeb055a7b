/* be_cpu_kv.c - the paged key/value cache and writing to it.
 *
 * Pages are ours to lay out (be_cpu.h, struct be_kv); page numbers come from the
 * worker and are checked at every write. A page of a class serves all layers of
 * that class. Tests: tests/backends/test_be_cpu_attn.c
 */
#include "be_cpu.h"

#include <string.h>

#include "be_half.h"

static enum rc check_desc(const struct be_kv_desc *d, struct rc_err *err)
{
    if (d->dtype != BE_F16 && d->dtype != BE_F32)
        return rc_fail(err, RC_UNSUPPORTED, "KV cache of %s: expected F16 or F32",
                       be_dtype_name((uint32_t)d->dtype));
    if (d->page_tokens < 16 || d->page_tokens > 256 || (d->page_tokens & (d->page_tokens - 1)))
        return rc_fail(err, RC_INVALID, "page_tokens %u: expected a power of 2 in 16..256",
                       d->page_tokens);
    if (d->n_classes < 1 || d->n_classes > BE_KV_CLASSES || d->n_layers < 1 || d->n_layers > 4096)
        return rc_fail(err, RC_INVALID, "KV cache of %u layers in %u classes", d->n_layers,
                       d->n_classes);
    for (uint32_t i = 0; i < d->n_layers; i++) {
        const struct be_kv_layer *l = &d->layers[i];

        /* widths of at most 2^20 keep every later product inside 64 bits */
        if (l->cls >= d->n_classes || l->n_kv_heads < 1 || l->head_dim < 1 ||
            (uint64_t)l->n_kv_heads * l->head_dim > 1u << 20)
            return rc_fail(err, RC_INVALID, "KV layer %u: class %u, %u heads of %u", i, l->cls,
                           l->n_kv_heads, l->head_dim);
    }
    for (uint32_t c = 0; c < d->n_classes; c++)
        if (d->n_pages[c] > INT32_MAX)
            return rc_fail(err, RC_INVALID, "KV class %u: %u pages", c, d->n_pages[c]);
    return RC_OK;
}

static uint32_t log2_of(uint32_t v)
{
    return (uint32_t)__builtin_ctz(v);
}

enum rc be_cpu_kv_new(struct be_ctx *ctx, const struct be_kv_desc *d, struct be_kv **out,
                      struct rc_err *err)
{
    struct be_cpu_ctx *c = be_cpu(ctx);
    struct be_kv *kv = NULL;
    uint64_t off[BE_KV_CLASSES] = {0};
    enum rc rc;

    if ((rc = check_desc(d, err)) != RC_OK)
        return rc;
    if ((rc = be_cpu_alloc(c, BE_CPU_MEM_KV, sizeof(*kv), &kv, "KV cache", err)) != RC_OK)
        return rc;
    kv->n_layers = d->n_layers;
    kv->n_classes = d->n_classes;
    kv->page_tokens = d->page_tokens;
    kv->page_shift = log2_of(d->page_tokens);
    kv->dtype = d->dtype;
    kv->elem = d->dtype == BE_F16 ? 2 : 4;
    kv->layers_bytes = (size_t)d->n_layers * sizeof(*kv->layers);
    if ((rc = be_cpu_alloc(c, BE_CPU_MEM_KV, kv->layers_bytes, &kv->layers, "KV cache", err)) !=
        RC_OK)
        goto out;
    for (uint32_t i = 0; i < d->n_layers; i++) {
        const struct be_kv_layer *l = &d->layers[i];

        kv->layers[i] = (struct be_cpu_kv_layer){l->cls, l->n_kv_heads, l->head_dim, off[l->cls]};
        off[l->cls] += 2ull * l->n_kv_heads * l->head_dim * d->page_tokens * kv->elem;
    }
    for (uint32_t i = 0; i < d->n_classes; i++) {
        uint64_t n_bytes;

        kv->n_pages[i] = d->n_pages[i];
        kv->page_bytes[i] = be_kv_page_bytes(d, i);
        if (__builtin_mul_overflow(kv->page_bytes[i], (uint64_t)d->n_pages[i], &n_bytes) ||
            kv->page_bytes[i] != off[i]) {
            rc = rc_fail(err, RC_NOMEM, "KV class %u: %u pages do not fit any memory", i,
                         d->n_pages[i]);
            goto out;
        }
        if (n_bytes == 0)
            continue;
        kv->base_bytes[i] = (size_t)n_bytes;
        if ((rc = be_cpu_alloc(c, BE_CPU_MEM_KV, n_bytes, &kv->base[i], "KV cache", err)) != RC_OK)
            goto out;
    }
    *out = kv;
    kv = NULL;
out:
    if (kv)
        be_cpu_kv_free(ctx, &kv);
    return rc;
}

void be_cpu_kv_free(struct be_ctx *ctx, struct be_kv **kvp)
{
    struct be_cpu_ctx *c = be_cpu(ctx);
    struct be_kv *kv = *kvp;

    for (uint32_t i = 0; i < BE_KV_CLASSES; i++)
        be_cpu_free(c, BE_CPU_MEM_KV, kv->base[i], kv->base_bytes[i]);
    be_cpu_free(c, BE_CPU_MEM_KV, kv->layers, kv->layers_bytes);
    be_cpu_free(c, BE_CPU_MEM_KV, kv, sizeof(*kv));
    *kvp = NULL;
}

/* Pages of positions [lo, hi) of s exist. */
enum rc be_cpu_check_pages(const struct be_kv *kv, uint32_t cls, const struct be_seq *s,
                           uint32_t lo, uint32_t hi, const char *op, struct rc_err *err)
{
    if (lo >= hi)
        return RC_OK;
    if (!s->pages[cls])
        return rc_fail(err, RC_INVALID, "%s: no page table for class %u", op, cls);
    for (uint32_t i = lo >> kv->page_shift; i <= (hi - 1) >> kv->page_shift; i++)
        if (s->pages[cls][i] < 0 || (uint32_t)s->pages[cls][i] >= kv->n_pages[cls])
            return rc_fail(err, RC_INVALID, "%s: page %d of position %u, expected 0..%u", op,
                           s->pages[cls][i], i << kv->page_shift, kv->n_pages[cls] - 1);
    return RC_OK;
}

enum rc be_cpu_check_seqs(const struct be_seq *seqs, uint32_t n_seqs, const struct be_tensor *t,
                          const char *op, struct rc_err *err)
{
    if (n_seqs > 0 && !seqs)
        return rc_fail(err, RC_INVALID, "%s: no sequences", op);
    for (uint32_t i = 0; i < n_seqs; i++) {
        const struct be_seq *s = &seqs[i];

        if (s->row0 > t->cap_rows || s->n_rows > t->cap_rows - s->row0)
            return rc_fail(err, RC_INVALID, "%s: sequence %u has rows %u..%llu of %u", op, i,
                           s->row0, (unsigned long long)s->row0 + s->n_rows, t->cap_rows);
        if (s->pos0 > INT32_MAX || s->n_rows > (uint32_t)INT32_MAX - s->pos0)
            return rc_fail(err, RC_INVALID, "%s: sequence %u ends past position 2^31", op, i);
    }
    return RC_OK;
}

static void store(void *dst, enum be_dtype t, float f)
{
    if (t == BE_F16) {
        uint16_t h = be_f32_to_half(f);

        memcpy(dst, &h, sizeof(h));
    } else {
        memcpy(dst, &f, sizeof(f));
    }
}

/* Position p of one sequence: all heads of k and v, one row each. */
static void write_row(const struct be_kv *kv, const struct be_cpu_kv_layer *l, const int32_t *pages,
                      uint32_t p, const float *k, const float *v)
{
    struct be_cpu_attn at = {.kv = kv, .layer = l, .pages = pages};

    for (uint32_t h = 0; h < l->n_kv_heads; h++, k += l->head_dim, v += l->head_dim) {
        const uint8_t *ck, *cv;
        uint8_t *kd, *vd;

        at.kv_head = h;
        be_cpu_kv_at(&at, p, &ck, &cv);
        kd = kv->base[l->cls] + (ck - kv->base[l->cls]);
        vd = kv->base[l->cls] + (cv - kv->base[l->cls]);
        for (uint32_t d = 0; d < l->head_dim; d++) {
            store(kd + (size_t)d * kv->page_tokens * kv->elem, kv->dtype, k[d]);
            store(vd + (size_t)d * kv->elem, kv->dtype, v[d]);
        }
    }
}

enum rc be_cpu_kv_write(struct be_ctx *ctx, const struct be_kv_write_args *a, struct rc_err *err)
{
    const struct be_cpu_kv_layer *l;
    uint32_t width;
    enum rc rc;

    be_cpu(ctx)->ops++;
    if (!a->kv || a->layer >= a->kv->n_layers)
        return rc_fail(err, RC_INVALID, "kv_write: no layer %u", a->layer);
    l = &a->kv->layers[a->layer];
    width = l->n_kv_heads * l->head_dim;
    if ((rc = be_cpu_check(a->k, "kv_write", "k", 0, width, err)) != RC_OK ||
        (rc = be_cpu_check(a->v, "kv_write", "v", 0, width, err)) != RC_OK ||
        (rc = be_cpu_check_seqs(a->seqs, a->n_seqs, a->k, "kv_write", err)) != RC_OK ||
        (rc = be_cpu_check_seqs(a->seqs, a->n_seqs, a->v, "kv_write", err)) != RC_OK)
        return rc;
    for (uint32_t i = 0; i < a->n_seqs; i++) {
        const struct be_seq *s = &a->seqs[i];

        if ((rc = be_cpu_check_pages(a->kv, l->cls, s, s->pos0, s->pos0 + s->n_rows, "kv_write",
                                     err)) != RC_OK)
            return rc;
    }
    for (uint32_t i = 0; i < a->n_seqs; i++) {
        const struct be_seq *s = &a->seqs[i];

        for (uint32_t r = 0; r < s->n_rows; r++) {
            size_t at = (size_t)(s->row0 + r) * width;

            write_row(a->kv, l, s->pages[l->cls], s->pos0 + r, a->k->data + at, a->v->data + at);
        }
    }
    return RC_OK;
}
