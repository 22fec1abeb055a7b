/* test_be_cuda_plan.c - every kernel that the backend keeps or launches is the one the planner
 * names for that request, on each architecture and with each compute; and the backend knows
 * no kernel by its name. Commands are looked at and taken back: nothing of it runs. */
#include "cuda_test.h"

#include <glob.h>

#include "be_cuda.h"

enum { ROWS = 70, K = 256, N = 16, PAGE = 16 };

static const char *const archs[] = {"75", "80", "90"};
static const uint32_t dims[] = {64, 80, 96, 128, 256, 512};
#define N_DIMS (sizeof(dims) / sizeof(dims[0]))

/* f is what the planner names for r, which has every dimension. */
static void is_planned(const char *what, const struct be_cuda_ctx *c, const struct be_cuda_fn *f,
                       struct be_kplan_req r)
{
    const struct be_kentry *e;
    struct be_kplan p;

    r.arch = c->arch;
    be_kplan_make(be_kfamilies, &r, &p);
    e = p.exact ? p.exact : p.bucket;
    if (!f || f->e != e)
        fail_msg("%s on sm_%u: the backend has '%s', the planner names '%s' (%s)", what, c->arch,
                 f ? f->e->name : "none", p.name, be_kplan_why_name(p.why));
}

/* The kernel of the last command; the list is empty afterwards. */
static const struct be_cuda_fn *take(struct be_cuda_ctx *c)
{
    const struct be_cuda_fn *f;

    assert_true(c->list.n > 0);
    f = c->list.cmd[c->list.n - 1].fn;
    be_cuda_pop(c, c->list.n);
    return f;
}

static struct be_ctx *context(const char *arch, const char *compute)
{
    setenv("INFERD_EMU_ARCH", arch, 1);
    return cuda_ctx(false, false, compute);
}

static struct be_weight *any_weight(struct be_ctx *c, enum be_dtype t)
{
    size_t n;
    uint8_t *b = random_blocks(t, N, K, &n);
    struct be_weight *w = weight(c, t, N, K, b, BE_USE_LINEAR | BE_USE_EMBED);

    free(b);
    return w;
}

/* --------------------------------------------------------------------- products */

static void one_weight(struct be_ctx *ctx, enum be_dtype t, struct be_tensor *x,
                       struct be_tensor *out)
{
    static const uint32_t rows[] = {1, 2, 8, 9, 64, 65, ROWS};
    struct be_cuda_ctx *c = be_cuda(ctx);
    struct be_weight *w = any_weight(ctx, t);
    struct be_embed_args em = {.table = w, .ids = (const int32_t[]){3}, .n = 1, .out = x};
    struct be_linear_args a = {.x = x, .n_parts = 2};
    enum be_knum num = x->type == KX_F16 ? BE_KNUM_FAST : c->tf32 ? BE_KNUM_TF32 : BE_KNUM_EXACT;
    uint32_t type = x->type;

    a.part[0].w = a.part[1].w = w;
    a.part[0].out = out;
    a.part[1].out = out;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (int glu = 0; glu < 2; glu++) {
            bool few;

            a.n = rows[i];
            a.n_parts = glu ? 2 : 1;
            a.epi = glu ? BE_EPI_GEGLU : BE_EPI_NONE;
            OK(be_linear(ctx, &a, err));
            /* few rows in tf32: small tiles, which are those of fewer rows still */
            few = num == BE_KNUM_TF32 && t == BE_F32 && a.n > 64;
            is_planned(be_dtype_name(t), c, take(c),
                       (struct be_kplan_req){.op = BE_KOP_LINEAR,
                                             .wfmt = w->stored,
                                             .epi = a.epi,
                                             .numerics = num,
                                             .rows = few ? 64 : a.n,
                                             .k = K,
                                             .n = N});
        }
    OK(be_embed(ctx, &em, err));
    is_planned("embed", c, take(c),
               (struct be_kplan_req){.op = BE_KOP_EMBED, .wfmt = w->stored, .rows = 1, .k = K});
    x->type = type;
    be_weight_free(ctx, &w);
}

/* Of halves x is what a norm wrote; what the host wrote is floats and has exact products. */
static void products(void **state)
{
    float ones[K];

    for (int i = 0; i < K; i++)
        ones[i] = 1;
    for (size_t i = 0; i < 3 * sizeof(archs) / sizeof(archs[0]); i++) {
        static const char *const computes[] = {NULL, "f16", "tf32"};
        const char *arch = archs[i / 3];

        if (i % 3 == 2 && strcmp(arch, "75") == 0)
            continue; /* refused there */
        struct be_ctx *ctx = context(arch, computes[i % 3]);
        struct be_cuda_ctx *c = be_cuda(ctx);
        struct be_tensor *x = tensor(ctx, ROWS, K, NULL), *y = tensor(ctx, ROWS, K, NULL),
                         *out = tensor(ctx, ROWS, N, NULL);
        struct be_weight *v = vector(ctx, ones, K);
        struct be_rms_norm_args nrm = {.x = x, .w = v, .out = y, .n = ROWS, .eps = 1e-6f};

        OK(be_rms_norm(ctx, &nrm, err));
        is_planned("norm", c, take(c),
                   (struct be_kplan_req){.op = BE_KOP_RMS_NORM, .rows = ROWS, .k = K});
        assert_int_equal(y->type, i % 3 == 1 ? KX_F16 : KX_F32);
        for (size_t t = 0; t < N_TYPES; t++) {
            one_weight(ctx, all_types[t], x, out);
            one_weight(ctx, all_types[t], y, out);
        }
        be_tensor_free(ctx, &x);
        be_tensor_free(ctx, &y);
        be_tensor_free(ctx, &out);
        be_weight_free(ctx, &v);
        be_ctx_free(&ctx);
    }
}

/* -------------------------------------------------------------------- attention */

static void one_cache(struct be_ctx *ctx, enum be_dtype kv_dtype, uint32_t dim)
{
    struct be_cuda_ctx *c = be_cuda(ctx);
    const struct be_kv_layer layer = {0, 2, dim};
    struct be_kv_desc d = {.n_layers = 1,
                           .n_classes = 1,
                           .page_tokens = PAGE,
                           .layers = &layer,
                           .n_pages = {2},
                           .dtype = kv_dtype};
    struct be_kplan_req r = {.op = BE_KOP_ATTN,
                             .kv_dtype = kv_dtype,
                             .rows = 5,
                             .head_dim = dim,
                             .q_heads = 4,
                             .kv_heads = 2};
    struct be_kv *kv = NULL;

    OK(be_kv_new(ctx, &d, &kv, err));
    is_planned("one pass", c, kv->layers[0].pass, r);
    r.split = true;
    is_planned("splits", c, kv->layers[0].split, r);
    r = (struct be_kplan_req){.op = BE_KOP_ATTN_MERGE, .rows = 5, .head_dim = dim, .q_heads = 4};
    is_planned("merge", c, c->merge, r);
    be_kv_free(ctx, &kv);
}

static void one_packed(struct be_ctx *ctx, uint32_t dim)
{
    struct be_cuda_ctx *c = be_cuda(ctx);
    const uint32_t offsets[] = {0, 5};
    struct be_tensor *q = tensor(ctx, 5, 4 * dim, NULL), *k = tensor(ctx, 5, 2 * dim, NULL),
                     *v = tensor(ctx, 5, 2 * dim, NULL), *o = tensor(ctx, 5, 4 * dim, NULL);
    struct be_attention_packed_args a = {.q = q,
                                         .k = k,
                                         .v = v,
                                         .out = o,
                                         .offsets = offsets,
                                         .n_seqs = 1,
                                         .n_heads = 4,
                                         .n_kv_heads = 2,
                                         .head_dim = dim,
                                         .radius = -1,
                                         .scale = 1};

    for (int half = 0; half < 2; half++) {
        q->type = k->type = v->type = half ? KX_F16 : KX_F32;
        OK(be_attention_packed(ctx, &a, err));
        is_planned(half ? "packed halves" : "packed floats", c, take(c),
                   (struct be_kplan_req){.op = BE_KOP_ATTN_PACKED,
                                         .act = half ? BE_KACT_F16 : BE_KACT_F32,
                                         .rows = 5,
                                         .head_dim = dim,
                                         .q_heads = 4,
                                         .kv_heads = 2});
    }
    be_tensor_free(ctx, &q);
    be_tensor_free(ctx, &k);
    be_tensor_free(ctx, &v);
    be_tensor_free(ctx, &o);
}

static void attention(void **state)
{
    static const enum be_dtype types[] = {BE_F32, BE_F16, BE_Q8_0};

    for (size_t i = 0; i < sizeof(archs) / sizeof(archs[0]); i++) {
        struct be_ctx *ctx = context(archs[i], NULL);

        for (size_t d = 0; d < N_DIMS; d++) {
            for (size_t t = 0; t < 3; t++)
                if (dims[d] % be_dtype_block(types[t]) == 0)
                    one_cache(ctx, types[t], dims[d]);
            one_packed(ctx, dims[d]);
        }
        be_ctx_free(&ctx);
    }
}

/* ------------------------------------------------------------------------- rows */

static void rows(void **state)
{
#define ROW(name, ...) [BE_CK_##name] = {.rows = 3, .k = 640, __VA_ARGS__ }
#define HEADS .kv_dtype = BE_Q8_0, .head_dim = 64, .q_heads = 4, .kv_heads = 2
    static const struct be_kplan_req r[BE_CK_COUNT] = {
        ROW(QUANT, .op = BE_KOP_QUANT, .wfmt = BE_Q4_0),
        ROW(RMS_NORM, .op = BE_KOP_RMS_NORM),
        ROW(LAYER_NORM, .op = BE_KOP_LAYER_NORM),
        ROW(ROPE, .op = BE_KOP_ROPE, HEADS),
        ROW(ROPE_KV, .op = BE_KOP_ROPE, .fused_kv = true, HEADS),
        ROW(KV_WRITE, .op = BE_KOP_KV_WRITE, HEADS),
        ROW(GATHER, .op = BE_KOP_GATHER),
        ROW(SOFTCAP, .op = BE_KOP_SOFTCAP),
        ROW(SCALE, .op = BE_KOP_SCALE),
        ROW(POOL, .op = BE_KOP_POOL),
        ROW(ARGMAX_PART, .op = BE_KOP_ARGMAX_PART),
        ROW(ARGMAX, .op = BE_KOP_ARGMAX),
        ROW(SAMPLE_PART, .op = BE_KOP_SAMPLE_PART),
        ROW(SAMPLE, .op = BE_KOP_SAMPLE),
        ROW(MUL, .op = BE_KOP_MUL),
    };
    char what[32];

    for (size_t i = 0; i < sizeof(archs) / sizeof(archs[0]); i++) {
        struct be_ctx *ctx = context(archs[i], NULL);

        for (int k = 0; k < BE_CK_COUNT; k++) {
            snprintf(what, sizeof(what), "kernel %d of rows", k);
            is_planned(what, be_cuda(ctx), be_cuda(ctx)->k[k], r[k]);
        }
        be_ctx_free(&ctx);
    }
}

/* A refusal is the planner's, in its words; a context that is sealed loads nothing more. */
static void refusals(void **state)
{
    struct be_ctx *ctx = context("90", NULL);
    struct be_cuda_ctx *c = be_cuda(ctx);
    struct be_kplan_req r = {.op = BE_KOP_ATTN, .kv_dtype = BE_F32, .head_dim = 81, .open = true};
    uint64_t missing = kstats_of(ctx).missing_artifacts;
    struct rc_err why = RC_ERR_INIT;
    struct be_cuda_fn *f = NULL;

    assert_int_equal(be_cuda_fn_plan(c, &r, &f, &why), RC_UNSUPPORTED);
    assert_non_null(strstr(why.msg, "unprofitable_shape on sm_"));
    assert_int_equal(kstats_of(ctx).missing_artifacts, missing);
    r.head_dim = 64;
    OK(be_cuda_fn_plan(c, &r, &f, err));
    be_ctx_seal(ctx);
    OK(be_cuda_fn_plan(c, &r, &f, err)); /* it is loaded */
    r.head_dim = 128;
    assert_int_equal(be_cuda_fn_plan(c, &r, &f, &why), RC_INTERNAL);
    assert_non_null(strstr(why.msg, "kx_attn_d128_f32_pass"));
    assert_int_equal(kstats_of(ctx).hot_compiles, 1);
    be_ctx_free(&ctx);
}

/* --------------------------------------------------------------------- the text */

static void no_names_in_the_backend(void **state)
{
    glob_t g;
    char line[512];

    assert_int_equal(glob(TEST_SOURCE "/backends/cuda/*.[ch]", 0, NULL, &g), 0);
    assert_true(g.gl_pathc > 10);
    for (size_t i = 0; i < g.gl_pathc; i++) {
        FILE *f = fopen(g.gl_pathv[i], "re");

        assert_non_null(f);
        for (unsigned n = 1; fgets(line, sizeof(line), f); n++)
            if (strstr(line, "\"kx_"))
                fail_msg("%s:%u names a kernel: %s", g.gl_pathv[i], n, line);
        fclose(f);
    }
    globfree(&g);
}

static int need(void **state)
{
    cuda_need();
    return 0;
}

static int back(void **state)
{
    unsetenv("INFERD_EMU_ARCH");
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products),
        cmocka_unit_test(attention),
        cmocka_unit_test(rows),
        cmocka_unit_test(refusals),
        cmocka_unit_test(no_names_in_the_backend),
    };

    return cmocka_run_group_tests(tests, need, back);
}
