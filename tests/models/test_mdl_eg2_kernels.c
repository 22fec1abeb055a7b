/* test_mdl_eg2_kernels.c - is there a generated kernel, as Metal text, for every operation that
 * EmbeddingGemma 2 calls?
 *
 * A backend named "metal" that has every operation (the CPU's) loads the model and writes down what
 * it is asked: while weights are made, and while a text, a picture and a sound are encoded. Each
 * request must have a kernel in the catalog by the planner's rules, one that needs no tensor cores
 * (sm_75 is the least the catalog knows), and the checked-in Metal text must hold it by name. The
 * text itself is held to the executor's bits in tests/backends/test_be_kmetal.c.
 */
#include "mdl_media.h"

#include "be_impl.h"
#include "be_kart.h"
#include "be_kplan.h"

#define EG2_BF16_DIR TEST_GOLDEN "/embeddinggemma2-bf16"
#define MAX_KNOWN 4096
#define MAX_NAMES 64

struct known {
    const void *p; /* a weight or a tensor */
    enum be_dtype dtype;
    uint64_t rows, cols;
};
static struct known known[MAX_KNOWN];
static size_t n_known;
static char names[MAX_NAMES][64]; /* kernels asked for, each once */
static size_t n_names;

static void remember(const void *p, enum be_dtype t, uint64_t rows, uint64_t cols)
{
    size_t i = 0;

    while (i < n_known && known[i].p != p) /* an address may come back */
        i++;
    assert_true(i < MAX_KNOWN);
    known[i] = (struct known){p, t, rows, cols};
    n_known += i == n_known;
}

static const struct known *of(const void *p)
{
    for (size_t i = 0; i < n_known; i++)
        if (known[i].p == p)
            return &known[i];
    fail_msg("a weight or tensor that was never made");
    return NULL;
}

static uint32_t cols(const struct be_tensor *t)
{
    return (uint32_t)of(t)->cols;
}

/* A kernel serves the request, and Metal text holds it. */
static void need(struct be_kplan_req r)
{
    const struct be_kart *text;
    struct be_kplan p;
    char say[256], head[96];

    r.arch = 75;
    be_kplan_make(be_kfamilies, &r, &p);
    be_kplan_text(&r, &p, say, sizeof(say));
    if (p.why != BE_KPLAN_OK)
        fail_msg("%s", say);
    for (size_t i = 0; i < n_names; i++)
        if (strcmp(names[i], p.name) == 0)
            return;
    assert_true(n_names < MAX_NAMES);
    memcpy(names[n_names++], p.name, sizeof(p.name));
    if (!(text = be_kart_find(p.bucket->lib, BE_KART_METAL, 0)))
        fail_msg("%s: library '%s' has no Metal text", p.name, p.bucket->lib);
    snprintf(head, sizeof(head), "kernel void %s(", p.name);
    if (!strstr(text->data, head))
        fail_msg("the Metal text of library '%s' lacks '%s'", p.bucket->lib, p.name);
}

static bool was_asked(const char *name)
{
    for (size_t i = 0; i < n_names; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

/* ------------------------------------------------------------ what is asked for */

static enum rc weight_new(struct be_ctx *c, const struct be_weight_desc *d, struct be_weight **out,
                          struct rc_err *e)
{
    enum rc rc = be_cpu_ops.weight_new(c, d, out, e);
    struct be_klayout l;

    if (rc != RC_OK)
        return rc;
    remember(*out, d->dtype, d->n_rows, d->n_cols);
    /* rows of floats are copied as they are; blocks would want a kernel of their own */
    if (d->use & (BE_USE_LINEAR | BE_USE_EMBED)) {
        assert_int_equal(be_dtype_block(d->dtype), 1);
        assert_true(be_klayout_get(d->dtype, (uint32_t)d->n_cols, &l));
    }
    return rc;
}

static enum rc tensor_new(struct be_ctx *c, uint32_t cap, uint32_t n_cols, struct be_tensor **out,
                          struct rc_err *e)
{
    enum rc rc = be_cpu_ops.tensor_new(c, cap, n_cols, out, e);

    if (rc == RC_OK)
        remember(*out, BE_F32, cap, n_cols);
    return rc;
}

static enum rc linear(struct be_ctx *c, const struct be_linear_args *a, struct rc_err *e)
{
    for (uint32_t i = 0; i < a->n_parts; i++)
        need((struct be_kplan_req){.op = BE_KOP_LINEAR,
                                   .wfmt = of(a->part[i].w)->dtype,
                                   .epi = a->epi,
                                   .rows = a->n,
                                   .k = cols(a->x),
                                   .n = (uint32_t)of(a->part[i].w)->rows});
    return be_cpu_ops.linear(c, a, e);
}

/* Operations whose request is rows and columns of one tensor, or rows and heads. */
#define BY_COLS(name, kop, n_rows, n_cols, fmt)                                                 \
    static enum rc name(struct be_ctx *c, const struct be_##name##_args *a, struct rc_err *e)   \
    {                                                                                           \
        need((struct be_kplan_req){.op = kop, .wfmt = (fmt), .rows = (n_rows), .k = (n_cols)}); \
        return be_cpu_ops.name(c, a, e);                                                        \
    }
#define BY_HEADS(name, kop, n_rows, n_kv)                                                     \
    static enum rc name(struct be_ctx *c, const struct be_##name##_args *a, struct rc_err *e) \
    {                                                                                         \
        need((struct be_kplan_req){.op = kop,                                                 \
                                   .act = BE_KACT_F32,                                        \
                                   .rows = (n_rows),                                          \
                                   .head_dim = a->head_dim,                                   \
                                   .q_heads = a->n_heads,                                     \
                                   .kv_heads = (n_kv)});                                      \
        return be_cpu_ops.name(c, a, e);                                                      \
    }
BY_COLS(embed, BE_KOP_EMBED, a->n, cols(a->out), of(a->table)->dtype)
BY_COLS(rms_norm, BE_KOP_RMS_NORM, a->n, cols(a->x), BE_F32)
BY_COLS(layer_norm, BE_KOP_LAYER_NORM, a->n, cols(a->x), BE_F32)
BY_COLS(gather, BE_KOP_GATHER, a->n, cols(a->x), BE_F32)
BY_COLS(scale, BE_KOP_SCALE, a->n, cols(a->x), BE_F32)
BY_COLS(pool, BE_KOP_POOL, a->n_seqs, cols(a->x), BE_F32)
BY_COLS(act, BE_KOP_ACT, a->n, cols(a->x), BE_F32)
BY_COLS(glu, BE_KOP_GLU, a->n, cols(a->out), BE_F32)
BY_COLS(affine, BE_KOP_AFFINE, a->n, cols(a->x), BE_F32)
BY_COLS(unfold, BE_KOP_UNFOLD, a->n_lines, cols(a->out), BE_F32)
BY_COLS(conv1d, BE_KOP_CONV1D, a->n, cols(a->x), BE_F32)
BY_HEADS(rope, BE_KOP_ROPE, a->n, 1)
BY_HEADS(rope2d, BE_KOP_ROPE2D, a->n, 1)
BY_HEADS(attention_packed, BE_KOP_ATTN_PACKED, (uint32_t)of(a->q)->rows, a->n_kv_heads)
BY_HEADS(attention_local, BE_KOP_ATTN_LOCAL, a->n, a->n_heads)

/* Anything else an encoder has no use for: a call would be one that nothing above looked at. */
#define NEVER(name)                                                                           \
    static enum rc name(struct be_ctx *c, const struct be_##name##_args *a, struct rc_err *e) \
    {                                                                                         \
        return rc_fail(e, RC_INTERNAL, "this test does not know how '" #name "' is planned"); \
    }
NEVER(kv_write)
NEVER(attention)
NEVER(softcap)
NEVER(argmax)
NEVER(attention_rel)

/* The CPU's context under another table. */
static struct be_ops metal;

static struct be_ctx *metal_ctx(void)
{
    struct be_opts o = {.backend = "cpu", .n_threads = 1};
    struct be_ctx *c = NULL;

    metal = be_cpu_ops;
    metal.name = "metal";
#define OP(name_) metal.name_ = name_;
    OP(weight_new)
    OP(tensor_new)
    OP(linear)
    OP(embed) OP(rms_norm) OP(layer_norm) OP(gather) OP(scale) OP(pool) OP(act) OP(glu) OP(affine)
        OP(unfold) OP(conv1d) OP(rope) OP(rope2d) OP(attention_packed) OP(attention_local)
            OP(kv_write) OP(attention) OP(softcap) OP(argmax) OP(attention_rel)
#undef OP
                need_ok(be_ctx_new(&c, &o, err));
    c->ops = &metal;
    return c;
}

/* ------------------------------------------------------------------------ tests */

/* One group: text, the picture, the sound. */
static void encode_all(struct mdl *m)
{
    struct mdl_media *grey = see(m, "grey"), *tone = hear(m, "short");
    const struct mdl_embed_part parts[3] = {
        {.text = "the wind", .n_bytes = 8}, {.media = grey}, {.media = tone}};
    const struct mdl_embed_input in = {.parts = parts, .n_parts = 3, .group = true};
    struct mdl_encode_media at[2] = {{.media = grey}, {.media = tone}};
    struct mdl_ids ids = {0};
    float *out = calloc(mdl_encode_dim(m), sizeof(float));
    uint32_t offsets[2] = {0}, rows[2];

    assert_non_null(out);
    need_ok(mdl_embed_ordered(m, &in, &ids, rows, err));
    at[0].row = rows[0];
    at[1].row = rows[1];
    offsets[1] = (uint32_t)ids.n;
    need_ok(mdl_encode_with(m, 1, ids.ids, offsets, at, 2, out, err));
    free(out);
    mdl_ids_deinit(&ids);
    mdl_media_free(&grey);
    mdl_media_free(&tone);
}

static void one_checkpoint(const char *path, const char *const *must)
{
    struct be_ctx *c = metal_ctx();
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m;

    n_known = n_names = 0;
    o.batch_tokens = 512;
    m = open_model(path, c, &o);
    encode_all(m);
    mdl_close(&m);
    be_ctx_free(&c);
    for (; *must; must++)
        if (!was_asked(*must))
            fail_msg("%s: kernel '%s' was never asked for", path, *must);
}

#define TOWERS                                                                                   \
    "kx_act", "kx_glu", "kx_rope2d", "kx_unfold", "kx_conv1d", "kx_attn_local", "kx_layer_norm", \
        "kx_gather", "kx_rms_norm", "kx_rope", "kx_scale", "kx_pool"

static void every_operation_has_a_kernel(void **state)
{
    static const char *const f32[] = {TOWERS, "kx_embed_f32", NULL};
    static const char *const bf16[] = {TOWERS, "kx_embed_bf16", NULL};

    one_checkpoint(EG2_DIR, f32);
    one_checkpoint(EG2_BF16_DIR, bf16);
}

/* The same operations at the published geometry (gemma.md 5, 6, 8), whose weights are BF16: text
 * 512 wide, heads of 256 and 512, eyes 768 wide with heads of 64 (larger ones: 72), ears 1024 wide
 * with heads of 128. */
static void at_the_published_geometry(void **state)
{
    static const uint32_t heads[][3] = {{256, 4, 2}, {512, 4, 1}, {64, 12, 12}, {72, 16, 16}};
    static const uint32_t mats[][2] = {{512, 2048},  {2048, 512},  {512, 768},   {768, 3072},
                                       {3072, 768},  {6912, 768},  {768, 512},   {1152, 32},
                                       {9, 128},     {1024, 4096}, {4096, 1024}, {1024, 2048},
                                       {1024, 1536}, {1536, 512},  {512, 1024},  {512, 512}};
    static const uint32_t cols_of[] = {512, 768, 1024, 1152, 1536, 2048, 3072, 4096};
    static const enum be_kop by_cols[] = {BE_KOP_ACT,    BE_KOP_GLU,      BE_KOP_AFFINE,
                                          BE_KOP_UNFOLD, BE_KOP_CONV1D,   BE_KOP_SCALE,
                                          BE_KOP_POOL,   BE_KOP_RMS_NORM, BE_KOP_LAYER_NORM};
    static const uint32_t rows[] = {1, 8, 64, 8192};

    n_names = 0;
    for (size_t r = 0; r < 4; r++) {
        for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
            struct be_kplan_req q = {.op = BE_KOP_ROPE,
                                     .rows = rows[r],
                                     .head_dim = heads[i][0],
                                     .q_heads = heads[i][1],
                                     .kv_heads = heads[i][2]};

            need(q);
            q.op = BE_KOP_ROPE2D;
            need(q);
            q.op = BE_KOP_ATTN_PACKED;
            need(q);
        }
        need((struct be_kplan_req){
            .op = BE_KOP_ATTN_LOCAL, .rows = rows[r], .head_dim = 128, .q_heads = 8});
        for (size_t i = 0; i < sizeof(mats) / sizeof(mats[0]); i++)
            need((struct be_kplan_req){.op = BE_KOP_LINEAR,
                                       .wfmt = BE_BF16,
                                       .rows = rows[r],
                                       .k = mats[i][0],
                                       .n = mats[i][1]});
        need((struct be_kplan_req){.op = BE_KOP_LINEAR,
                                   .wfmt = BE_BF16,
                                   .epi = BE_EPI_GEGLU,
                                   .rows = rows[r],
                                   .k = 512,
                                   .n = 2048});
        for (size_t i = 0; i < sizeof(by_cols) / sizeof(by_cols[0]); i++)
            for (size_t k = 0; k < sizeof(cols_of) / sizeof(cols_of[0]); k++)
                need((struct be_kplan_req){.op = by_cols[i], .rows = rows[r], .k = cols_of[k]});
    }
    assert_true(was_asked("kx_attn_packed_d256_f32") && was_asked("kx_attn_packed_any_f32"));
}

/* Who lacks a single one of the towers' operations is refused when the model is opened. */
static void a_backend_without_them_is_refused(void **state)
{
    struct be_ctx *c = metal_ctx();
    struct mdl_opts o = small_opts(BE_F32);
    struct rc_err e = RC_ERR_INIT;
    struct mdl *m = NULL;
    int fd = open_root(EG2_DIR);

    metal.attention_local = NULL;
    assert_int_equal(mdl_open(&m, fd, c, &o, &e), RC_UNSUPPORTED);
    assert_string_equal(e.what, "backend");
    assert_non_null(strstr(e.msg, "metal"));
    metal = be_cpu_ops;
    metal.scale = NULL;
    assert_int_equal(mdl_open(&m, fd, c, &o, &e), RC_UNSUPPORTED);
    metal = be_cpu_ops;
    be_ctx_free(&c);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_has_a_kernel),
        cmocka_unit_test(at_the_published_geometry),
        cmocka_unit_test(a_backend_without_them_is_refused),
    };

    need_dir(EG2_DIR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
