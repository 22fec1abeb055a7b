/* be_kir.c - building and verifying the IR.
 *
 * The verifier is what lets renderers and executors trust a tree: it names the node and
 * the rule it breaks. Rules that need the whole tree (values, shared memory, outputs) are
 * functions of their own below; what a single node may hold is the table `kinds`.
 * Tests: tests/backends/test_be_kir.c breaks each rule once.
 */
#include "be_kir.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "be_kargs.h"

const struct be_ktarget be_ktarget_sm75 = {"sm_75", 1024, 48u << 10, 255, 65536};
/* what every part from sm_80 on can give one block with the opt-in (sm_86 and sm_89: 99 KiB) */
const struct be_ktarget be_ktarget_sm80 = {"sm_80", 1024, 99u << 10, 255, 65536};
const struct be_ktarget be_ktarget_sm90 = {"sm_90", 1024, 227u << 10, 255, 65536};
const struct be_ktarget be_ktarget_metal3 = {"metal3", 1024, 32u << 10, 255, 1u << 20};

enum {
    DST = 1, /* must have it */
    A = 2,
    B = 4,
    NO_DST = 8, /* must not */
    ACC = 16,   /* dst is added to */
};

struct kind {
    const char *name;
    uint8_t has;
};

static const struct kind kinds[BE_KN_COUNT] = {
    [BE_KN_GRID] = {"GRID", NO_DST},
    [BE_KN_LOOP] = {"LOOP", NO_DST},
    [BE_KN_LOAD_ACT] = {"LOAD_ACT", DST},
    [BE_KN_LOAD_BLOCK] = {"LOAD_BLOCK", DST},
    [BE_KN_DEQUANT] = {"DEQUANT", DST | A},
    [BE_KN_QUANT_ACT] = {"QUANT_ACT", DST | A},
    [BE_KN_FMA] = {"FMA", DST | A | B | ACC},
    [BE_KN_DP4A] = {"DP4A", DST | A | B | ACC},
    [BE_KN_MMA] = {"MMA", DST | A | B | ACC},
    [BE_KN_REDUCE] = {"REDUCE", DST | A},
    [BE_KN_BIAS] = {"BIAS", DST | A},
    [BE_KN_ACT] = {"ACT", DST | A},
    [BE_KN_MUL] = {"MUL", DST | A | B},
    [BE_KN_ADD_RES] = {"ADD_RES", DST | A},
    [BE_KN_SCALE] = {"SCALE", DST | A},
    [BE_KN_RMS_SCALE] = {"RMS_SCALE", DST | A},
    [BE_KN_LAYER_SCALE] = {"LAYER_SCALE", DST | A},
    [BE_KN_ROPE] = {"ROPE", DST | A},
    [BE_KN_STAGE_KV] = {"STAGE_KV", DST},
    [BE_KN_QK] = {"QK", DST | A | B},
    [BE_KN_MASK] = {"MASK", DST | A},
    [BE_KN_ONLINE_SOFTMAX] = {"ONLINE_SOFTMAX", DST | A},
    [BE_KN_PV] = {"PV", DST | A | B | ACC},
    [BE_KN_SPLIT_STORE] = {"SPLIT_STORE", NO_DST | A},
    [BE_KN_SPLIT_MERGE] = {"SPLIT_MERGE", DST},
    [BE_KN_BARRIER] = {"BARRIER", NO_DST},
    [BE_KN_GATHER] = {"GATHER", DST},
    [BE_KN_SOFTCAP] = {"SOFTCAP", DST | A},
    [BE_KN_POOL] = {"POOL", DST | A},
    [BE_KN_ARGMAX] = {"ARGMAX", DST | A},
    [BE_KN_SAMPLE] = {"SAMPLE", DST | A},
    [BE_KN_STORE] = {"STORE", NO_DST | A},
    [BE_KN_REL] = {"REL", DST | A | B},
    [BE_KN_UNARY] = {"UNARY", DST | A},
    [BE_KN_GATE] = {"GATE", DST | A | B},
};

static const char *const axis_names[] = {"", "K", "SPLIT", "TILE", "PART", "ROWS"};

const char *be_knode_name(unsigned kind)
{
    return kind < BE_KN_COUNT && kinds[kind].name ? kinds[kind].name : "unknown";
}

void be_kir_add(struct be_kir *k, struct be_knode n)
{
    if (k->n_nodes < BE_KIR_MAX_NODES)
        k->node[k->n_nodes] = n;
    if (k->n_nodes <= BE_KIR_MAX_NODES) /* one past the end says: too many */
        k->n_nodes++;
}

/* ------------------------------------------------------------ whole kernel */

static enum rc bad(const struct be_kir *k, uint32_t i, struct rc_err *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static enum rc bad(const struct be_kir *k, uint32_t i, struct rc_err *err, const char *fmt, ...)
{
    va_list ap;

    if (!err)
        return RC_INTERNAL;
    rc_fail(err, RC_INTERNAL, "%s", "");
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
    va_end(ap);
    rc_wrap(err, "kernel '%s' node %u %s", k->name, i, be_knode_name(k->node[i].kind));
    return RC_INTERNAL;
}

static enum rc check_name(const struct be_kir *k, struct rc_err *err)
{
    size_t n = strnlen(k->name, sizeof(k->name));

    if (n == sizeof(k->name) || n < 4 || strncmp(k->name, "kx_", 3) != 0)
        return rc_fail(err, RC_INTERNAL,
                       "kernel name '%.64s', expected kx_ and at most 60 characters", k->name);
    for (size_t i = 0; i < n; i++)
        if (!islower((unsigned char)k->name[i]) && !isdigit((unsigned char)k->name[i]) &&
            k->name[i] != '_')
            return rc_fail(err, RC_INTERNAL, "kernel name '%s': expected a-z 0-9 _", k->name);
    return RC_OK;
}

static enum rc check_sched(const struct be_kir *k, const struct be_ktarget *t, struct rc_err *err)
{
    const struct be_ksched *s = &k->sched;

    if (s->threads == 0 || s->threads % 32 || s->threads > t->max_threads)
        return rc_fail(err, RC_INTERNAL,
                       "kernel '%s': %u threads, expected a multiple of 32 up to %u on %s", k->name,
                       s->threads, t->max_threads, t->name);
    if (s->shared_bytes > t->shared_bytes)
        return rc_fail(err, RC_INTERNAL, "kernel '%s': %u shared bytes, %s has %u", k->name,
                       s->shared_bytes, t->name, t->shared_bytes);
    if (s->regs > t->regs_per_thread)
        return rc_fail(err, RC_INTERNAL, "kernel '%s': %u registers a thread, %s has %u", k->name,
                       s->regs, t->name, t->regs_per_thread);
    if ((uint64_t)s->regs * s->threads > t->regs_per_block)
        return rc_fail(err, RC_INTERNAL,
                       "kernel '%s': %u threads of %u registers, %s has %u a block", k->name,
                       s->threads, s->regs, t->name, t->regs_per_block);
    return RC_OK;
}

static enum rc check_dim(const struct be_kir *k, const char *name, const struct be_kdim *d,
                         struct rc_err *err)
{
    if (d->max == 0 && (d->min || d->fixed))
        return rc_fail(err, RC_INTERNAL, "kernel '%s': dimension %s has no maximum", k->name, name);
    if (d->min > d->max || (d->fixed && d->min != d->max) || d->fixed > 1)
        return rc_fail(err, RC_INTERNAL, "kernel '%s': dimension %s is %u to %u%s", k->name, name,
                       d->min, d->max, d->fixed ? ", but fixed" : "");
    if (d->mult > 1 && (d->min % d->mult || (d->fixed && d->max % d->mult)))
        return rc_fail(err, RC_INTERNAL, "kernel '%s': dimension %s from %u, no multiple of %u",
                       k->name, name, d->min, d->mult);
    return RC_OK;
}

static enum rc check_dims(const struct be_kir *k, struct rc_err *err)
{
    const struct be_kdesc *d = &k->desc;
    enum rc rc;

    if ((rc = check_dim(k, "rows", &d->rows, err)) != RC_OK ||
        (rc = check_dim(k, "k", &d->k, err)) != RC_OK ||
        (rc = check_dim(k, "n", &d->n, err)) != RC_OK ||
        (rc = check_dim(k, "head_dim", &d->head_dim, err)) != RC_OK ||
        (rc = check_dim(k, "q_heads", &d->q_heads, err)) != RC_OK ||
        (rc = check_dim(k, "kv_heads", &d->kv_heads, err)) != RC_OK)
        return rc;
    return check_dim(k, "seq", &d->seq, err);
}

/* ------------------------------------------------------------- single nodes */

static enum rc check_tree(const struct be_kir *k, uint32_t i, struct rc_err *err)
{
    const struct be_knode *n = &k->node[i], *prev = i ? n - 1 : NULL;

    if (n->kind == 0 || n->kind >= BE_KN_COUNT)
        return bad(k, i, err, "kind %u, expected 1 to %u", n->kind, BE_KN_COUNT - 1);
    if ((n->kind == BE_KN_GRID) != (i == 0))
        return bad(k, i, err, i ? "a second root" : "the first node must be GRID");
    if (i == 0)
        return n->depth == 0 ? RC_OK : bad(k, i, err, "depth %u of the root, expected 0", n->depth);
    if (n->depth == 0)
        return bad(k, i, err, "outside the root");
    if (n->depth > prev->depth + 1)
        return bad(k, i, err, "depth %u after depth %u", n->depth, prev->depth);
    if (n->depth == prev->depth + 1 && prev->kind != BE_KN_GRID && prev->kind != BE_KN_LOOP)
        return bad(k, i, err, "child of %s, which takes none", be_knode_name(prev->kind));
    return RC_OK;
}

/* Enclosing loops of node i, innermost last; returns their number. */
static uint32_t loops_of(const struct be_kir *k, uint32_t i, uint32_t out[BE_KIR_MAX_NODES])
{
    uint32_t n = 0, depth = k->node[i].depth;

    for (uint32_t j = i; j-- > 0 && depth > 1;) {
        if (k->node[j].depth < depth) {
            depth = k->node[j].depth;
            if (k->node[j].kind == BE_KN_LOOP)
                out[n++] = j;
        }
    }
    for (uint32_t a = 0; a < n / 2; a++) {
        uint32_t x = out[a];

        out[a] = out[n - 1 - a];
        out[n - 1 - a] = x;
    }
    return n;
}

/* First node after the subtree of i. */
static uint32_t end_of(const struct be_kir *k, uint32_t i)
{
    uint32_t j = i + 1;

    while (j < k->n_nodes && k->node[j].depth > k->node[i].depth)
        j++;
    return j;
}

static bool axis_declared(const struct be_kdesc *d, uint32_t axis)
{
    switch (axis) {
    case BE_KA_K: /* columns: of a row, or of a head */
        return d->k.max > 0 || d->head_dim.max > 0;
    case BE_KA_SPLIT:
    case BE_KA_TILE:
        return d->seq.max > 0;
    case BE_KA_PART:
        return true;
    case BE_KA_ROWS:
        return d->rows.max > 0 || d->seq.max > 0;
    default:
        return false;
    }
}

static enum rc check_loop(const struct be_kir *k, uint32_t i, struct rc_err *err)
{
    const struct be_knode *n = &k->node[i];
    uint32_t up[BE_KIR_MAX_NODES], n_up = loops_of(k, i, up);

    if (n->imm == 0 || n->imm > BE_KA_ROWS)
        return bad(k, i, err, "axis %u, expected 1 to %d", n->imm, BE_KA_ROWS);
    if (!axis_declared(&k->desc, n->imm))
        return bad(k, i, err, "axis %s is no dimension of the descriptor", axis_names[n->imm]);
    if (n->imm2 == 0)
        return bad(k, i, err, "step 0 over axis %s", axis_names[n->imm]);
    for (uint32_t j = 0; j < n_up; j++)
        if (k->node[up[j]].imm == n->imm)
            return bad(k, i, err, "axis %s is already looped over by node %u", axis_names[n->imm],
                       up[j]);
    if (end_of(k, i) == i + 1)
        return bad(k, i, err, "without children");
    return RC_OK;
}

static enum rc check_reduce(const struct be_kir *k, uint32_t i, struct rc_err *err)
{
    const struct be_knode *n = &k->node[i];

    if (n->imm == 0 || n->imm > BE_KR_ARGMAX)
        return bad(k, i, err, "reduction %u, expected 1 to %d", n->imm, BE_KR_ARGMAX);
    if (n->imm == BE_KR_SLICES && k->sched.slices != KX_SLICES)
        return bad(k, i, err, "over slices, with %u in the schedule, expected %u", k->sched.slices,
                   KX_SLICES);
    for (uint32_t j = 0; j < i; j++)
        if (k->node[j].kind == BE_KN_LOOP && k->node[j].imm == n->imm2)
            return RC_OK;
    return bad(k, i, err, "over axis %s, which no loop before it declares",
               n->imm2 <= BE_KA_ROWS ? axis_names[n->imm2] : "unknown");
}

static enum rc check_mma(const struct be_kir *k, uint32_t i, struct rc_err *err)
{
    uint32_t m = k->node[i].imm;

    if (m == 0 || m > BE_KM_TF32_1688)
        return bad(k, i, err, "shape %u, expected 1 to %d", m, BE_KM_TF32_1688);
    if ((m == BE_KM_F16_16816 || m == BE_KM_F16_1688) && k->desc.numerics != BE_KNUM_FAST)
        return bad(k, i, err, "half products in a kernel whose numerics are not f16's");
    if (m == BE_KM_TF32_1688 && k->desc.numerics != BE_KNUM_TF32)
        return bad(k, i, err, "tf32 products in a kernel whose numerics are not tf32's");
    return RC_OK;
}

static enum rc check_imm(const struct be_kir *k, uint32_t i, struct rc_err *err)
{
    const struct be_knode *n = &k->node[i];

    switch (n->kind) {
    case BE_KN_GRID:
        return n->imm >= BE_KU_ELEM && n->imm <= BE_KU_BLOCK
                   ? RC_OK
                   : bad(k, i, err, "unit %u, expected 1 to %d", n->imm, BE_KU_BLOCK);
    case BE_KN_LOOP:
        return check_loop(k, i, err);
    case BE_KN_REDUCE:
        return check_reduce(k, i, err);
    case BE_KN_MMA:
        return check_mma(k, i, err);
    case BE_KN_LOAD_BLOCK:
    case BE_KN_DEQUANT:
        if (!be_dtype_known(n->imm))
            return bad(k, i, err, "format %u is none of ours", n->imm);
        if (n->imm != k->desc.wfmt)
            return bad(k, i, err, "format %s, the descriptor says %s", be_dtype_name(n->imm),
                       be_dtype_name(k->desc.wfmt));
        return RC_OK;
    case BE_KN_QUANT_ACT:
        return n->imm <= KX_ENC_Q8_K ? RC_OK
                                     : bad(k, i, err, "encoding %u, expected 0 or 1", n->imm);
    case BE_KN_ACT:
        return n->imm <= BE_EPI_GEGLU || n->imm == 0xff
                   ? RC_OK
                   : bad(k, i, err, "function %u, expected 0 to %d or 255", n->imm, BE_EPI_GEGLU);
    case BE_KN_UNARY:
        return n->imm <= BE_ACT_CLAMP || n->imm == 0xff
                   ? RC_OK
                   : bad(k, i, err, "function %u, expected 0 to %d or 255", n->imm, BE_ACT_CLAMP);
    case BE_KN_LOAD_ACT:
    case BE_KN_STORE:
        return n->imm <= BE_KACT_ANY
                   ? RC_OK
                   : bad(k, i, err, "element type %u, expected 0 to %d", n->imm, BE_KACT_ANY);
    default:
        return RC_OK;
    }
}

static enum rc check_fields(const struct be_kir *k, uint32_t i, struct rc_err *err)
{
    const struct be_knode *n = &k->node[i];
    uint8_t has = kinds[n->kind].has;

    if ((has & DST) && !n->dst)
        return bad(k, i, err, "writes no value");
    if ((has & NO_DST) && n->dst)
        return bad(k, i, err, "cannot write value %u", n->dst);
    if ((has & A) && !n->a)
        return bad(k, i, err, "lacks its first operand");
    if ((has & B) && !n->b)
        return bad(k, i, err, "lacks its second operand");
    if (n->flags & ~BE_KF_SHARED || ((n->flags & BE_KF_SHARED) && !n->dst))
        return bad(k, i, err, "flags %u", n->flags);
    if ((n->flags & BE_KF_SHARED) && k->sched.shared_bytes == 0)
        return bad(k, i, err, "value %u is shared, the schedule has no shared bytes", n->dst);
    return RC_OK;
}

/* ------------------------------------------------------------- whole tree */

static enum rc check_values(const struct be_kir *k, struct rc_err *err)
{
    bool written[256] = {false};

    for (uint32_t i = 0; i < k->n_nodes; i++) {
        const struct be_knode *n = &k->node[i];

        if (n->a && !written[n->a])
            return bad(k, i, err, "reads value %u, which nothing before it writes", n->a);
        if (n->b && !written[n->b])
            return bad(k, i, err, "reads value %u, which nothing before it writes", n->b);
        if (n->dst)
            written[n->dst] = true;
    }
    return RC_OK;
}

static bool reads(const struct be_knode *n, uint8_t v)
{
    return v && (n->a == v || n->b == v);
}

static bool barrier_in(const struct be_kir *k, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        if (k->node[i].kind == BE_KN_BARRIER)
            return true;
    return false;
}

/* Innermost loop that holds both i and j; false when there is none. */
static bool common_loop(const struct be_kir *k, uint32_t i, uint32_t j, uint32_t *out)
{
    uint32_t a[BE_KIR_MAX_NODES], b[BE_KIR_MAX_NODES];
    uint32_t na = loops_of(k, i, a), nb = loops_of(k, j, b), n = 0;

    while (n < na && n < nb && a[n] == b[n])
        n++;
    if (n == 0)
        return false;
    *out = a[n - 1];
    return true;
}

/* A barrier between a shared write and its read; and, in a loop, between the read and
 * the next step's write, unless stages give each step a buffer of its own. */
static enum rc check_shared(const struct be_kir *k, struct rc_err *err)
{
    for (uint32_t w = 0; w < k->n_nodes; w++) {
        if (!(k->node[w].flags & BE_KF_SHARED))
            continue;
        for (uint32_t r = w + 1; r < k->n_nodes; r++) {
            uint32_t loop;

            if (!reads(&k->node[r], k->node[w].dst))
                continue;
            if (!barrier_in(k, w + 1, r))
                return bad(k, r, err, "reads shared value %u of node %u, no BARRIER between",
                           k->node[w].dst, w);
            if (k->sched.stages <= 1 && common_loop(k, w, r, &loop) &&
                !barrier_in(k, r + 1, end_of(k, loop)) && !barrier_in(k, loop + 1, w))
                return bad(
                    k, w, err,
                    "overwrites shared value %u that node %u reads, no BARRIER between steps",
                    k->node[w].dst, r);
        }
    }
    return RC_OK;
}

/* Is loop l the innermost around an addition to value v? */
static bool sums_in(const struct be_kir *k, uint32_t l, uint8_t v)
{
    uint32_t up[BE_KIR_MAX_NODES], n;

    for (uint32_t i = l + 1; i < end_of(k, l); i++) {
        if (k->node[i].dst != v || !(kinds[k->node[i].kind].has & ACC))
            continue;
        n = loops_of(k, i, up);
        if (n && up[n - 1] == l)
            return true;
    }
    return false;
}

static enum rc check_outputs(const struct be_kir *k, struct rc_err *err)
{
    uint32_t seen = 0, planes = 0, up[BE_KIR_MAX_NODES];
    bool split = false;

    for (uint32_t i = 0; i < k->n_nodes; i++) {
        const struct be_knode *n = &k->node[i];

        if (n->kind == BE_KN_SPLIT_STORE) {
            if (split)
                return bad(k, i, err, "stores the split a second time");
            split = true;
        }
        if (n->kind != BE_KN_STORE)
            continue;
        if (n->imm2 >= 8)
            return bad(k, i, err, "output plane %u, expected 0 to 7", n->imm2);
        if (seen & 1u << n->imm2)
            return bad(k, i, err, "stores output plane %u a second time", n->imm2);
        seen |= 1u << n->imm2;
        planes = n->imm2 + 1 > planes ? n->imm2 + 1 : planes;
        for (uint32_t j = loops_of(k, i, up); j-- > 0;)
            if (sums_in(k, up[j], n->a))
                return bad(k, i, err, "stores value %u before loop node %u has summed it", n->a,
                           up[j]);
    }
    if (!planes && !split)
        return rc_fail(err, RC_INTERNAL, "kernel '%s' stores nothing", k->name);
    if (seen != (1u << planes) - 1)
        return rc_fail(err, RC_INTERNAL, "kernel '%s' never stores output plane %d", k->name,
                       __builtin_ctz(~seen));
    return RC_OK;
}

enum rc be_kir_verify(const struct be_kir *k, const struct be_ktarget *t, struct rc_err *err)
{
    enum rc rc;

    if ((rc = check_name(k, err)) != RC_OK || (rc = check_sched(k, t, err)) != RC_OK ||
        (rc = check_dims(k, err)) != RC_OK)
        return rc;
    if (k->n_nodes == 0 || k->n_nodes > BE_KIR_MAX_NODES)
        return rc_fail(err, RC_INTERNAL, "kernel '%s' has %s nodes, expected 1 to %d", k->name,
                       k->n_nodes ? "too many" : "no", BE_KIR_MAX_NODES);
    for (uint32_t i = 0; i < k->n_nodes; i++)
        if ((rc = check_tree(k, i, err)) != RC_OK)
            return rc;
    for (uint32_t i = 0; i < k->n_nodes; i++)
        if ((rc = check_fields(k, i, err)) != RC_OK || (rc = check_imm(k, i, err)) != RC_OK)
            return rc;
    if ((rc = check_values(k, err)) != RC_OK || (rc = check_shared(k, err)) != RC_OK)
        return rc;
    return check_outputs(k, err);
}
