/* be_kcuda_tower.c - CUDA text of the kernels of eyes and ears.
 *
 * A kernel's text is a list of pieces, one per node of its IR, in the IR's order; the renderer
 * walks both and refuses a node the list does not have. A thread makes one element; of attention
 * over the last rows a warp makes a head of a row: a lane has at most 16 of its columns and keeps
 * the scores of at most two keys. Tests: tests/backends/test_be_ktower.c
 */
#include "be_ktower.h"

#include <string.h>

#include "be_kart_impl.h"
#include "be_krows.h"

/* clang-format off */

#define ELEMENT(units) \
    "    const unsigned long long at = (unsigned long long)kx_bx() * 128u + kx_tid();\n" \
    "    if (at >= " units ")\n" \
    "        return;\n"

static const struct be_krow_step act_steps[] = {
    {BE_KN_GRID, ELEMENT("(unsigned long long)a.n * a.k") "    float v;\n"},
    {BE_KN_LOAD_ACT, "    v = kx_get(a.x, a.x_t, at);\n"},
    {BE_KN_UNARY, "    v = kx_act1(a.kind, v, a.lo, a.hi);\n"},
    {BE_KN_ADD_RES,
        "    if (a.add)\n"
        "        v = kx_get(a.add, a.add_t, at) + v;\n"},
    {BE_KN_STORE, "    kx_put(a.out, a.out_t, at, v);\n"},
};

static const struct be_krow_step glu_steps[] = {
    {BE_KN_GRID,
        ELEMENT("(unsigned long long)a.n * a.k")
        "    const unsigned long long from = at / a.k * 2u * a.k + at % a.k;\n"},
    {BE_KN_LOAD_ACT, "    const float x = kx_get(a.x, a.x_t, from);\n"},
    {BE_KN_LOAD_ACT, "    const float g = kx_get(a.x, a.x_t, from + a.k);\n"},
    {BE_KN_GATE, "    const float v = kx_gate(x, g);\n"},
    {BE_KN_STORE, "    kx_put(a.out, a.out_t, at, v);\n"},
};

static const struct be_krow_step affine_steps[] = {
    {BE_KN_GRID,
        ELEMENT("(unsigned long long)a.n * a.k")
        "    const kx_u c = (kx_u)(at % a.k);\n"
        "    float v;\n"},
    {BE_KN_LOAD_ACT, "    v = kx_get(a.x, a.x_t, at);\n"},
    {BE_KN_BIAS, "    v = v - ((const float *)a.sub)[c];\n"},
    {BE_KN_MUL, "    v = v * ((const float *)a.mul)[c];\n"},
    {BE_KN_STORE, "    kx_put(a.x, a.x_t, at, v);\n"},
};

/* a pair; the first half of a head's pairs turn by pos_x */
static const struct be_krow_step rope2d_steps[] = {
    {BE_KN_GRID,
        ELEMENT("(unsigned long long)a.n * a.n_heads * (a.head_dim / 2u)")
        "    const kx_u pairs = a.head_dim / 4u, p = (kx_u)(at % (2u * pairs)), i = p % pairs;\n"
        "    const unsigned long long head = at / (2u * pairs), row = head / a.n_heads;\n"
        "    const unsigned long long from = head * a.head_dim + p / pairs * (2u * pairs) + i;\n"
        "    float u, v, s, c;\n"},
    {BE_KN_LOAD_ACT,
        "    u = kx_get(a.x, a.x_t, from);\n"
        "    v = kx_get(a.x, a.x_t, from + pairs);\n"},
    {BE_KN_ROPE,
        "    kx_sincos((float)((double)(float)((const int *)(p < pairs ? a.pos_x : a.pos_y))[row] * ((const double *)a.freq)[i]), &s, &c);\n"},
    {BE_KN_STORE,
        "    kx_put(a.x, a.x_t, from, kx_fma(u, c, -(v * s)));\n"
        "    kx_put(a.x, a.x_t, from + pairs, kx_fma(v, c, u * s));\n"},
};

static const struct be_krow_step unfold_steps[] = {
    {BE_KN_GRID,
        ELEMENT("(unsigned long long)a.n * a.k")
        "    const kx_u row = (kx_u)(at / a.k), c = (kx_u)(at % a.k), area = a.k_h * a.k_w;\n"
        "    const kx_u place = a.ch_first ? c % area : c / a.n_ch, ch = a.ch_first ? c / area : c % a.n_ch;\n"
        "    const long long y = ((long long)a.line + row / a.n_x) * a.stride_h - a.pad_h + place / a.k_w;\n"
        "    const long long x = (long long)(row % a.n_x) * a.stride_w - a.pad_w + place % a.k_w;\n"
        "    float v = 0.0f;\n"},
    {BE_KN_GATHER,
        "    if (y >= 0 && x >= 0 && y < (long long)a.height && x < (long long)a.width)\n"
        "        v = kx_get(a.x, a.x_t, ((unsigned long long)(y - a.x_line) * a.width + (unsigned long long)x) * a.n_ch + ch);\n"},
    {BE_KN_STORE, "    kx_put(a.out, a.out_t, at, v);\n"},
};

static const struct be_krow_step conv1d_steps[] = {
    {BE_KN_GRID,
        ELEMENT("(unsigned long long)a.n * a.k")
        "    const unsigned long long t = at / a.k;\n"
        "    const kx_u c = (kx_u)(at % a.k);\n"
        "    float v = 0.0f;\n"},
    {BE_KN_LOOP, "    for (kx_u j = t + 1u < a.taps ? a.taps - 1u - (kx_u)t : 0u; j < a.taps; j++) {\n"},
    {BE_KN_LOAD_ACT, "        const float x = kx_get(a.x, a.x_t, (t + j + 1u - a.taps) * a.k + c);\n"},
    {BE_KN_LOAD_BLOCK, "        const float w = ((const float *)a.w)[(unsigned long long)c * a.taps + j];\n"},
    {BE_KN_FMA,
        "        v = kx_fma(w, x, v);\n"
        "    }\n"},
    {BE_KN_STORE, "    kx_put(a.out, a.out_t, at, v);\n"},
};

static const struct be_krow_step attn_local_steps[] = {
    {BE_KN_GRID,
        "    const unsigned long long unit = (unsigned long long)kx_bx() * 4u + kx_tid() / 32u, t = unit / a.n_heads;\n"
        "    const unsigned long long wide = (unsigned long long)a.n_heads * a.head_dim, head = unit % a.n_heads * a.head_dim;\n"
        "    const kx_u lane = kx_tid() % 32u, n = t + 1u < a.n_keys ? (kx_u)t + 1u : a.n_keys;\n"
        "    float u[16], o[16], w0 = 0.0f, w1 = 0.0f, most = -kx_i2f_bits(0x7f800000), sum = 0.0f;\n"
        "    if (t >= a.n) /* the whole warp */\n"
        "        return;\n"},
    {BE_KN_LOAD_ACT, "    kx_local_ld(u, a.q, a.x_t, t * wide + head, a.head_dim);\n"},
    {BE_KN_SCALE,
        "    kx_local_ld(o, a.q_scale, KX_F32, 0u, a.head_dim);\n"
        "    KX_UNROLL\n"
        "    for (int j = 0; j < 16; j++)\n"
        "        u[j] = u[j] * o[j];\n"},
    {BE_KN_LOOP, "    for (kx_u d = 0; d < n; d++) {\n"},
    {BE_KN_LOAD_ACT, "        float s, by_place;\n"},
    {BE_KN_QK, "        s = kx_local_dot(u, a.k, a.x_t, (t - d) * wide + head, a.head_dim);\n"},
    {BE_KN_REL, "        by_place = kx_local_dot(u, a.rel, a.rel_t, d * wide + head, a.head_dim);\n"},
    {BE_KN_SOFTCAP, "        s = kx_local_score(s, by_place, a.k_scale, a.cap);\n"},
    {BE_KN_REDUCE,
        "        most = kx_max(most, s);\n"
        "        w0 = d == lane ? s : w0;\n"
        "        w1 = d == lane + 32u ? s : w1;\n"
        "    }\n"
        "    w0 = kx_exp(w0 - most);\n"
        "    w1 = kx_exp(w1 - most);\n"},
    {BE_KN_LOOP,
        "    KX_UNROLL\n"
        "    for (int j = 0; j < 16; j++)\n"
        "        o[j] = 0.0f;\n"
        "    for (kx_u d = 0; d < n; d++) {\n"},
    {BE_KN_LOAD_ACT,
        "        float v[16], w;\n"
        "        kx_local_ld(v, a.v, a.x_t, (t - d) * wide + head, a.head_dim);\n"},
    {BE_KN_ONLINE_SOFTMAX,
        "        w = kx_shfl_f(d < 32u ? w0 : w1, (int)(d % 32u));\n"
        "        sum = sum + w;\n"},
    {BE_KN_PV,
        "        KX_UNROLL\n"
        "        for (int j = 0; j < 16; j++)\n"
        "            o[j] = kx_fma(w, v[j], o[j]);\n"
        "    }\n"},
    {BE_KN_STORE,
        "    KX_UNROLL\n"
        "    for (kx_u j = 0; j < 16u; j++)\n"
        "        if (lane + 32u * j < a.head_dim)\n"
        "            kx_put(a.out, a.out_t, t * wide + head + lane + 32u * j, kx_div(o[j], sum));\n"},
};

static const char lib_local[] =
    "/* ---- attention over the last rows: a lane's columns of the head at element at; past n they are 0 */\n"
    "KX_DEV void kx_local_ld(float *v, kx_p x, kx_u t, unsigned long long at, kx_u n)\n"
    "{\n"
    "    KX_UNROLL\n"
    "    for (kx_u j = 0; j < 16u; j++) {\n"
    "        const kx_u i = kx_tid() % 32u + 32u * j;\n"
    "        v[j] = i < n ? kx_get(x, t, at + i) : 0.0f;\n"
    "    }\n"
    "}\n"
    "KX_DEV float kx_local_dot(const float *u, kx_p x, kx_u t, unsigned long long at, kx_u n)\n"
    "{\n"
    "    float s = 0.0f;\n"
    "    KX_UNROLL\n"
    "    for (kx_u j = 0; j < 16u; j++) {\n"
    "        const kx_u i = kx_tid() % 32u + 32u * j;\n"
    "        if (i < n)\n"
    "            s = kx_fma(u[j], kx_get(x, t, at + i), s);\n"
    "    }\n"
    "    KX_UNROLL\n"
    "    for (int m = 16; m; m /= 2)\n"
    "        s = s + kx_shfl_xor_f(s, m);\n"
    "    return s;\n"
    "}\n";

/* clang-format on */

static const struct {
    struct be_krow_text text;
    const char *args;
} texts[BE_KTOWER_COUNT] = {
#define X(id, name, op, type) \
    [BE_KTOWER_##id] = {{name##_steps, sizeof(name##_steps) / sizeof(name##_steps[0])}, #type},
    BE_KTOWER_MAP(X)
#undef X
};

enum rc be_ktower_file(const char *name, struct be_ktext *out, struct rc_err *err)
{
    const struct be_kart_file *f = be_kart_file_find(be_kart_files, name);

    if (!f)
        return rc_fail_what(err, RC_INTERNAL, name, "'%s' is not embedded in this build", name);
    be_ktext_add(out, "%.*s", (int)f->art.n_bytes, f->art.data);
    return RC_OK;
}

enum rc be_ktower_cuda_lib(const char *lib, struct be_ktext *out, struct rc_err *err)
{
    enum rc rc;

    if (strcmp(lib, BE_KTOWER_LIB) != 0)
        return rc_fail(err, RC_INTERNAL, "library '%s' is none of family tower", lib);
    if ((rc = be_ktower_file("kx_tower_args.h", out, err)) != RC_OK ||
        (rc = be_ktower_file("kx_tower.h", out, err)) != RC_OK)
        return rc;
    be_krow_cuda_values(out);
    be_ktext_add(out, "%s", lib_local);
    return RC_OK;
}

enum rc be_ktower_cuda(const struct be_kir *k, struct be_ktext *out, struct rc_err *err)
{
    enum be_ktower id = be_ktower_of(k->name);
    const struct be_krow_text *t;

    if (id == BE_KTOWER_COUNT)
        return rc_fail(err, RC_INTERNAL, "'%s' is no kernel of family tower", k->name);
    t = &texts[id].text;
    be_ktext_add(out, "KX_KERNEL(%s, %u, 1, struct %s, a)\n{\n", k->name, k->sched.threads,
                 texts[id].args);
    be_ktext_add(out, "    kx_wait();\n");
    for (uint32_t i = 0; i < k->n_nodes; i++) {
        if (i >= t->n_steps || t->step[i].kind != k->node[i].kind)
            return rc_fail(err, RC_INTERNAL, "node %u %s of '%s' has no CUDA text, expected %s", i,
                           be_knode_name(k->node[i].kind), k->name,
                           i < t->n_steps ? be_knode_name(t->step[i].kind) : "the end");
        be_ktext_add(out, "%s", t->step[i].text);
    }
    if (t->n_steps != k->n_nodes)
        return rc_fail(err, RC_INTERNAL, "'%s' ends after %u nodes, its CUDA text has %u", k->name,
                       k->n_nodes, t->n_steps);
    be_ktext_add(out, "}\n");
    return RC_OK;
}
