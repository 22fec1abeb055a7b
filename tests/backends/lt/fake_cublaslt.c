/* fake_cublaslt.c - a stand-in for cuBLASLt in tests: f16 products in plain C over host memory
 * (what the emulated CUDA driver hands out), f32 sums in ascending k.
 *
 * Offers three algorithms: 0 splits k (must never be pinned), 1 refuses odd row counts (nor that),
 * 2 keeps the contract. FAKE_CUBLASLT: "none" = only 0 and 1; "fail" = products fail with
 * status 14.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "be_half.h"

struct layout {
    uint64_t rows, cols;
    int64_t ld;
};
struct desc {
    int32_t trans_a;
    uint32_t epilogue;
    uint64_t bias;
};
struct algo {
    uint64_t data[8];
};
struct result {
    struct algo algo;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

static int says(const char *word)
{
    const char *v = getenv("FAKE_CUBLASLT");

    return v && strcmp(v, word) == 0;
}

size_t cublasLtGetVersion(void)
{
    return 990000;
}
int cublasLtCreate(void **h)
{
    *h = malloc(1);
    return *h ? 0 : 3;
}
int cublasLtDestroy(void *h)
{
    free(h);
    return 0;
}
int cublasLtMatmulDescCreate(void **d, int compute, int scale)
{
    *d = calloc(1, sizeof(struct desc));
    return compute == 68 && scale == 0 && *d ? 0 : 7;
}
int cublasLtMatmulDescDestroy(void *d)
{
    free(d);
    return 0;
}
int cublasLtMatmulDescSetAttribute(void *dp, int attr, const void *v, size_t n)
{
    struct desc *d = dp;

    if (attr == 3 && n == 4)
        memcpy(&d->trans_a, v, n);
    else if (attr == 7 && n == 4)
        memcpy(&d->epilogue, v, n);
    else if (attr == 8 && n == 8)
        memcpy(&d->bias, v, n);
    else
        return 7;
    return 0;
}
int cublasLtMatrixLayoutCreate(void **l, int type, uint64_t rows, uint64_t cols, int64_t ld)
{
    struct layout *x = malloc(sizeof(*x));

    if (!x || type != 2)
        return 7;
    *x = (struct layout){rows, cols, ld};
    *l = x;
    return 0;
}
int cublasLtMatrixLayoutDestroy(void *l)
{
    free(l);
    return 0;
}
int cublasLtMatrixLayoutSetAttribute(void *l, int attr, const void *v, size_t n)
{
    if (attr != 3 || n != 8)
        return 7;
    memcpy(&((struct layout *)l)->cols, v, n);
    return 0;
}
int cublasLtMatmulPreferenceCreate(void **p)
{
    *p = calloc(1, 8);
    return *p ? 0 : 3;
}
int cublasLtMatmulPreferenceDestroy(void *p)
{
    free(p);
    return 0;
}
int cublasLtMatmulPreferenceSetAttribute(void *p, int attr, const void *v, size_t n)
{
    (void)p;
    (void)v;
    return (attr == 1 && n == 8) || (attr == 3 && n == 4) ? 0 : 7;
}
int cublasLtMatmulAlgoGetHeuristic(void *h, void *d, void *a, void *b, void *c, void *o, void *pref,
                                   int n, struct result *r, int *found)
{
    (void)h, (void)d, (void)a, (void)b, (void)c, (void)o, (void)pref;
    *found = 0;
    for (uint64_t id = 0; id < (says("none") ? 2u : 3u) && *found < n; id++) {
        memset(&r[*found], 0, sizeof(*r));
        r[(*found)++].algo.data[0] = id;
    }
    return 0;
}
int cublasLtMatmulAlgoConfigGetAttribute(const struct algo *a, int attr, void *v, size_t n,
                                         size_t *w)
{
    uint32_t x = attr == 2 ? (a->data[0] == 0 ? 4 : 1) : 0;

    if (n != 4)
        return 7;
    memcpy(v, &x, 4);
    *w = 4;
    return 0;
}
int cublasLtMatmulAlgoCheck(void *h, void *d, void *a, void *b, void *c, void *o,
                            const struct algo *al, struct result *r)
{
    (void)h, (void)d, (void)a, (void)c, (void)o;
    memset(r, 0, sizeof(*r));
    return al->data[0] == 1 && ((struct layout *)b)->cols % 2 ? 15 : 0;
}
int cublasLtMatmul(void *h, void *dp, const void *alpha, const void *a, void *al, const void *b,
                   void *bl, const void *beta, const void *c, void *cl, void *o, void *ol,
                   const struct algo *algo, void *ws, size_t ws_n, void *stream)
{
    const struct desc *d = dp;
    const struct layout *A = al, *B = bl, *D = ol;
    const uint16_t *w = a, *x = b, *cc = c;
    uint16_t *out = o;

    (void)h, (void)cl, (void)ws, (void)ws_n, (void)stream;
    if (says("fail") || algo->data[0] != 2 || d->trans_a != 1)
        return 14;
    for (uint64_t j = 0; j < D->cols; j++)
        for (uint64_t i = 0; i < D->rows; i++) {
            float s = 0;

            for (uint64_t k = 0; k < A->rows; k++)
                s += be_half_to_f32(w[i * (uint64_t)A->ld + k]) *
                     be_half_to_f32(x[j * (uint64_t)B->ld + k]);
            s *= *(const float *)alpha;
            if (*(const float *)beta != 0)
                s += *(const float *)beta * be_half_to_f32(cc[j * (uint64_t)D->ld + i]);
            if (d->epilogue == 4)
                s += be_half_to_f32(((const uint16_t *)(uintptr_t)d->bias)[i]);
            out[j * (uint64_t)D->ld + i] = be_f32_to_half(s);
        }
    return 0;
}
