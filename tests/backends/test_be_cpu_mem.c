/* test_be_cpu_mem.c - what memory is asked for, counted and refused; and that no
 * operation asks for any. */
#include "be_test.h"

#include <malloc.h>

/* Every allocation of this program passes here (glibc lets a program replace
 * malloc): the count is kept while `watching`. */
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
static _Atomic uint64_t allocs;
static _Atomic bool watching;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CAN_WATCH 1
void *malloc(size_t n)
{
    allocs += watching;
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t s)
{
    allocs += watching;
    return __libc_calloc(n, s);
}
void *realloc(void *p, size_t n)
{
    allocs += watching;
    return __libc_realloc(p, n);
}
void *aligned_alloc(size_t a, size_t n)
{
    allocs += watching;
    return __libc_memalign(a, n);
}
int posix_memalign(void **p, size_t a, size_t n)
{
    allocs += watching;
    *p = __libc_memalign(a, n);
    return *p ? 0 : 12;
}
#else
#define CAN_WATCH 0
#endif

static void counts_go_back_to_zero(void **state)
{
    struct be_ctx *c = make_ctx("auto", 2);
    struct be_stats st;
    size_t n;
    uint8_t *raw = random_blocks(BE_Q8_0, 33, 64, &n);
    struct be_weight *w = weight(c, BE_Q8_0, 33, 64, raw, BE_USE_LINEAR | BE_USE_EMBED);
    const struct be_kv_layer layer = {0, 2, 64};
    struct be_kv_desc d = {.n_layers = 1,
                           .n_classes = 1,
                           .page_tokens = 16,
                           .layers = &layer,
                           .n_pages = {100},
                           .dtype = BE_F16};
    struct be_kv *kv = NULL;
    struct be_tensor *t = tensor(c, 600, 640, NULL);
    uint64_t work;

    OK(be_kv_new(c, &d, &kv, err));
    be_ctx_stats(c, &st);
    assert_true(st.weight_bytes >= 48 / 32 * 33 * 68 && st.weight_bytes < 10000);
    assert_true(st.kv_bytes >= 100 * be_kv_page_bytes(&d, 0));
    assert_true(st.kv_bytes < 100 * be_kv_page_bytes(&d, 0) + 4096);
    assert_true(st.workspace_bytes >= 600 * 640 * 4);
    work = st.workspace_bytes;
    be_kv_free(c, &kv);
    be_weight_free(c, &w);
    be_tensor_free(c, &t);
    assert_null(t);
    be_tensor_free(c, &t); /* NULL is accepted */
    be_ctx_stats(c, &st);
    assert_int_equal(st.weight_bytes, 0);
    assert_int_equal(st.kv_bytes, 0);
    assert_true(st.workspace_bytes <= work - 600 * 640 * 4);
    be_ctx_free(&c);
    free(raw);
}

static void workspace_is_bounded(void **state)
{
    struct be_opts o = {.backend = "cpu", .n_threads = 1, .workspace_bytes = 4 << 20};
    struct rc_err e = RC_ERR_INIT;
    struct be_ctx *c = NULL;
    struct be_tensor *t = NULL, *many[64] = {NULL};
    struct be_stats st;
    int n = 0;

    OK(be_ctx_new(&c, &o, err));
    assert_int_equal(be_tensor_new(c, 1024, 1024, &t, &e), RC_NOMEM);
    assert_string_equal(e.what, "workspace");
    assert_true(e.n > 4 << 20);
    assert_int_equal(e.limit, 4 << 20);
    assert_null(t);
    while (n < 64 && be_tensor_new(c, 64, 1024, &many[n], &e) == RC_OK)
        n++;
    assert_true(n >= 8 && n < 16);
    be_ctx_stats(c, &st);
    assert_true(st.workspace_bytes <= 4 << 20);
    while (n > 0)
        be_tensor_free(c, &many[--n]);
    OK(be_tensor_new(c, 256, 1024, &t, err)); /* room again */
    {                                         /* a refused tensor leaves the others working */
        float v[1024] = {0};
        struct be_weight *w = weight(c, BE_F32, 1, 1024, v, BE_USE_LINEAR);
        struct be_tensor *out = tensor(c, 256, 1, NULL), *big = NULL;
        struct be_linear_args a = {.x = t, .n = 256, .n_parts = 1, .part = {{w, NULL, out}}};

        FAILS(RC_NOMEM, be_tensor_new(c, 220, 2048, &big, err));
        OK(be_linear(c, &a, err));
        be_weight_free(c, &w);
        be_tensor_free(c, &out);
    }
    be_tensor_free(c, &t);
    FAILS(RC_INVALID, be_tensor_new(c, 0, 4, &t, err));
    FAILS(RC_NOMEM, be_tensor_new(c, UINT32_MAX, UINT32_MAX / 8, &t, err));
    be_ctx_free(&c);
    o.workspace_bytes = 1000; /* less than the threads' scratch */
    FAILS(RC_NOMEM, be_ctx_new(&c, &o, err));
}

/* A decode step of every operation, after the seal. */
static void operations_allocate_nothing(void **state)
{
    struct be_ctx *c = make_ctx("auto", 2);
    enum { N = 260, D = 512 };
    size_t nb;
    uint8_t *q5 = random_blocks(BE_Q5_0, D, D, &nb), *q4 = random_blocks(BE_Q4_K, D, D, &nb);
    uint8_t *f = random_blocks(BE_F32, D, D, &nb);
    float ones[D];
    const struct be_kv_layer layer = {0, 2, 64};
    struct be_kv_desc d = {.n_layers = 1,
                           .n_classes = 1,
                           .page_tokens = 16,
                           .layers = &layer,
                           .n_pages = {20},
                           .dtype = BE_F16};
    struct be_kv *kv = NULL;
    struct be_tensor *x = tensor(c, N, D, NULL), *y = tensor(c, N, D, NULL);
    struct be_tensor *k = tensor(c, N, 128, NULL), *z = tensor(c, N, D, NULL);
    struct be_tensor *y1 = tensor(c, N, D, NULL), *y2 = tensor(c, N, D, NULL);
    struct be_weight *w[3], *v;
    int32_t pages[20], ids[N], pos[N];
    uint32_t offsets[] = {0, 100, N};
    struct be_stats st;
    uint64_t before;

    for (int i = 0; i < D; i++)
        ones[i] = 1;
    for (int i = 0; i < 20; i++)
        pages[i] = i;
    for (int i = 0; i < N; i++)
        ids[i] = pos[i] = i;
    w[0] = weight(c, BE_Q5_0, D, D, q5, BE_USE_LINEAR | BE_USE_EMBED);
    w[1] = weight(c, BE_Q4_K, D, D, q4, BE_USE_LINEAR);
    w[2] = weight(c, BE_F32, D, D, f, BE_USE_LINEAR);
    v = vector(c, ones, D);
    OK(be_kv_new(c, &d, &kv, err));
    be_ctx_seal(c);
    before = allocs;
    watching = true;
    for (uint32_t n = 1; n <= N; n += 259) {
        struct be_seq s = {.n_rows = n, .pages = {pages}};

        OK(be_embed(
            c, &(struct be_embed_args){.table = w[0], .ids = ids, .n = n, .scale = 1, .out = x},
            err));
        OK(be_rms_norm(c, &(struct be_rms_norm_args){.x = x, .w = v, .out = x, .n = n}, err));
        OK(be_layer_norm(
            c, &(struct be_layer_norm_args){.x = x, .w = v, .b = v, .out = x, .n = n, .eps = 1e-5f},
            err));
        OK(be_linear(
            c,
            &(struct be_linear_args){.x = x,
                                     .n = n,
                                     .n_parts = 3,
                                     .part = {{w[0], NULL, y}, {w[1], NULL, y1}, {w[2], NULL, y2}}},
            err));
        OK(be_rope(c,
                   &(struct be_rope_args){.x = y,
                                          .pos = pos,
                                          .n = n,
                                          .n_heads = 8,
                                          .head_dim = 64,
                                          .theta = 1e4f,
                                          .factor = 1},
                   err));
        OK(be_kv_write(
            c, &(struct be_kv_write_args){.kv = kv, .k = k, .v = k, .seqs = &s, .n_seqs = 1}, err));
        OK(be_attention(
            c,
            &(struct be_attention_args){
                .q = y, .out = z, .kv = kv, .n_heads = 8, .scale = 1, .seqs = &s, .n_seqs = 1},
            err));
        OK(be_attention_packed(c,
                               &(struct be_attention_packed_args){.q = y,
                                                                  .k = k,
                                                                  .v = k,
                                                                  .out = z,
                                                                  .offsets = offsets,
                                                                  .n_seqs = 2,
                                                                  .n_heads = 8,
                                                                  .n_kv_heads = 2,
                                                                  .head_dim = 64,
                                                                  .scale = 1,
                                                                  .radius = -1},
                               err));
        OK(be_gather(c, &(struct be_gather_args){.x = y, .rows = ids, .n = n, .out = z}, err));
        OK(be_softcap(c, &(struct be_softcap_args){.x = z, .n = n, .cap = 30}, err));
        OK(be_pool(c,
                   &(struct be_pool_args){
                       .x = y, .offsets = offsets, .n_seqs = 2, .kind = BE_POOL_MEAN, .out = z},
                   err));
        OK(be_argmax(c, &(struct be_argmax_args){.x = z, .n = n, .out_ids = pos}, err));
    }
    watching = false;
    be_ctx_stats(c, &st);
    assert_int_equal(st.hot_allocs, 0);
    assert_int_equal(st.ops, 24);
    assert_int_equal(allocs, before);
    if (CAN_WATCH) { /* the watch itself works */
        void *volatile p;

        watching = true;
        p = malloc(1); /* volatile, or the compiler drops the pair */
        watching = false;
        free(p);
        assert_true(allocs > before);
    }
    {
        struct be_tensor *late = tensor(c, 1, 1, NULL); /* and so does the counter */

        be_ctx_stats(c, &st);
        assert_true(st.hot_allocs > 0);
        be_tensor_free(c, &late);
    }
    be_kv_free(c, &kv);
    for (int i = 0; i < 3; i++)
        be_weight_free(c, &w[i]);
    be_weight_free(c, &v);
    be_tensor_free(c, &x);
    be_tensor_free(c, &y);
    be_tensor_free(c, &y1);
    be_tensor_free(c, &y2);
    be_tensor_free(c, &z);
    be_tensor_free(c, &k);
    be_ctx_free(&c);
    free(q5);
    free(q4);
    free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_go_back_to_zero),
        cmocka_unit_test(workspace_is_bounded),
        cmocka_unit_test(operations_allocate_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
