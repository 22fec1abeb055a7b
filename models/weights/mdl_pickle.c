/* mdl_pickle.c - runs the pickle of a state dict that torch.save wrote.
 *
 * A pickle is a program: of its instructions this machine knows those that a state dict needs, of
 * the functions it may call those that put a tensor or a dict together, and it runs nothing;
 * everything else is refused by name.
 * Always true: each instruction makes at most one value, and values are counted; texts lie in the
 * pickle; a tensor's number of values does not overflow.
 * Source: Python's pickletools (protocol 2), torch/_utils.py of 2.11.
 * Tests: tests/models/test_mdl_torch.c, fuzz: tests/fuzz/fuzz_torch.c
 */
#include "mdl_pickle.h"

#include <stdlib.h>

#include "mdl_file_impl.h"

#define MAX_VALUES (1u << 21)
#define MAX_TENSOR_DIMS 64

enum kind { MARK, NONE, INT, TEXT, TUPLE, DICT, GLOBAL, STORAGE, TENSOR };
static const char *const kind_names[] = {"mark", "none",   "number",  "text",  "tuple",
                                         "dict", "global", "storage", "tensor"};

enum global { ORDERED_DICT, REBUILD_TENSOR, REBUILD_PARAMETER, STORAGE_TYPE };

static const struct {
    const char *module, *name;
    enum global what;
    struct mdl_storage_type type; /* of a storage */
} globals[] = {
    {"collections", "OrderedDict", ORDERED_DICT, {0}},
    {"torch._utils", "_rebuild_tensor_v2", REBUILD_TENSOR, {0}},
    {"torch._utils", "_rebuild_parameter", REBUILD_PARAMETER, {0}},
    {"torch", "FloatStorage", STORAGE_TYPE, {"F32", 4, BE_F32}},
    {"torch", "HalfStorage", STORAGE_TYPE, {"F16", 2, BE_F16}},
    {"torch", "BFloat16Storage", STORAGE_TYPE, {"BF16", 2, BE_BF16}},
    {"torch", "DoubleStorage", STORAGE_TYPE, {"F64", 8, -1}},
    {"torch", "LongStorage", STORAGE_TYPE, {"I64", 8, -1}},
    {"torch", "IntStorage", STORAGE_TYPE, {"I32", 4, -1}},
    {"torch", "ShortStorage", STORAGE_TYPE, {"I16", 2, -1}},
    {"torch", "CharStorage", STORAGE_TYPE, {"I8", 1, -1}},
    {"torch", "ByteStorage", STORAGE_TYPE, {"U8", 1, -1}},
    {"torch", "BoolStorage", STORAGE_TYPE, {"BOOL", 1, -1}},
};

struct value {
    enum kind kind;
    uint32_t a, b; /* TUPLE: first of items, count; GLOBAL: its row; STORAGE: row, value of its key;
                      TENSOR: value of its storage, its number in tensors */
    int64_t i;     /* INT; STORAGE: how many numbers */
    const char *s; /* TEXT, in the pickle */
    size_t n;
};
struct pair {
    uint32_t dict, key, value;
};

struct list {
    void *p;
    size_t n, cap;
};
struct mdl_pickle {
    const uint8_t *p, *end;
    struct list values, stack, memo, items, pairs, tensors; /* of structs and of indices */
    const char *what;
    struct rc_err *err;
};

/* --------------------------------------------------------------- the machine */

static enum rc bad(const struct mdl_pickle *k, const char *why)
{
    return rc_fail(k->err, RC_FORMAT, "'%s': its pickle %s", k->what, why);
}

static enum rc push(struct mdl_pickle *k, struct list *l, const void *elem, size_t size)
{
    size_t cap = l->cap ? 2 * l->cap : 64;
    void *p;

    if (l->n == MAX_VALUES)
        return rc_fail(k->err, RC_TOO_LARGE, "'%s': a pickle of more than %u values", k->what,
                       MAX_VALUES);
    if (l->n == l->cap) {
        if (!(p = realloc(l->p, cap * size)))
            return rc_fail(k->err, RC_NOMEM, "no memory for a list of %zu values", cap);
        l->p = p;
        l->cap = cap;
    }
    memcpy((char *)l->p + l->n++ * size, elem, size);
    return RC_OK;
}

static uint32_t at(const struct list *l, size_t i)
{
    return ((const uint32_t *)l->p)[i];
}

static struct value *value(const struct mdl_pickle *k, uint32_t i)
{
    return (struct value *)k->values.p + i;
}

static enum rc push_index(struct mdl_pickle *k, struct list *l, uint32_t i)
{
    return push(k, l, &i, sizeof(i));
}

static enum rc push_value(struct mdl_pickle *k, struct value v)
{
    enum rc rc = push(k, &k->values, &v, sizeof(v));

    return rc != RC_OK ? rc : push_index(k, &k->stack, (uint32_t)k->values.n - 1);
}

/* The value `depth` below the top; a mark is none. */
static struct value *top(const struct mdl_pickle *k, size_t depth)
{
    struct value *v;

    if (depth >= k->stack.n)
        return NULL;
    v = value(k, at(&k->stack, k->stack.n - 1 - depth));
    return v->kind == MARK ? NULL : v;
}

/* Index in the stack of the last mark, or SIZE_MAX. */
static size_t mark(const struct mdl_pickle *k)
{
    size_t i = k->stack.n;

    while (i-- > 0)
        if (value(k, at(&k->stack, i))->kind == MARK)
            return i;
    return SIZE_MAX;
}

static bool take(struct mdl_pickle *k, size_t n, const uint8_t **out)
{
    if ((size_t)(k->end - k->p) < n)
        return false;
    *out = k->p;
    k->p += n;
    return true;
}

/* The last n values of the stack as one; what stands below them at `keep` and above goes too. */
static enum rc op_tuple(struct mdl_pickle *k, size_t n, size_t keep)
{
    struct value v = {.kind = TUPLE, .a = (uint32_t)k->items.n, .b = (uint32_t)n};
    size_t i;
    enum rc rc;

    for (i = 0; i < n; i++) {
        uint32_t item = at(&k->stack, k->stack.n - n + i);

        if (value(k, item)->kind == MARK)
            return bad(k, "puts a mark into a tuple");
        if ((rc = push_index(k, &k->items, item)) != RC_OK)
            return rc;
    }
    k->stack.n = keep;
    return push_value(k, v);
}

/* Items behind the mark, or the last two, into the dict below. */
static enum rc op_set(struct mdl_pickle *k, size_t first, size_t below)
{
    struct pair p;
    size_t i;
    enum rc rc;

    if (below >= k->stack.n || first > k->stack.n || (k->stack.n - first) % 2 != 0)
        return bad(k, "sets items of nothing");
    p.dict = at(&k->stack, below);
    if (value(k, p.dict)->kind != DICT)
        return bad(k, "sets items of something that is no dict");
    for (i = first; i < k->stack.n; i += 2) {
        p.key = at(&k->stack, i);
        p.value = at(&k->stack, i + 1);
        if ((rc = push(k, &k->pairs, &p, sizeof(p))) != RC_OK)
            return rc;
    }
    k->stack.n = below + 1;
    return RC_OK;
}

static enum rc op_global(struct mdl_pickle *k)
{
    const uint8_t *a = k->p, *b, *c;
    size_t i, n_a, n_b;
    char show_a[64], show_b[64];

    b = memchr(a, '\n', (size_t)(k->end - a));
    c = b ? memchr(b + 1, '\n', (size_t)(k->end - b - 1)) : NULL;
    if (!c)
        return bad(k, "is cut short");
    k->p = c + 1;
    n_a = (size_t)(b - a);
    n_b = (size_t)(c - b - 1);
    for (i = 0; i < sizeof(globals) / sizeof(*globals); i++)
        if (strlen(globals[i].module) == n_a && memcmp(globals[i].module, a, n_a) == 0 &&
            strlen(globals[i].name) == n_b && memcmp(globals[i].name, b + 1, n_b) == 0)
            return push_value(k, (struct value){.kind = GLOBAL, .a = (uint32_t)i});
    return rc_fail_what(k->err, RC_UNSUPPORTED, "pickle",
                        "'%s': its pickle names %s.%s, which no state dict needs: only tensors "
                        "are read, nothing is run",
                        k->what, mdl_show(show_a, sizeof(show_a), (const char *)a, n_a),
                        mdl_show(show_b, sizeof(show_b), (const char *)b + 1, n_b));
}

/* ------------------------------------------------------- storages and tensors */

static const struct value *item(const struct mdl_pickle *k, const struct value *tuple, uint32_t i)
{
    return value(k, at(&k->items, tuple->a + i));
}

static bool is_text(const struct value *v, const char *s)
{
    return v->kind == TEXT && v->n == strlen(s) && memcmp(v->s, s, v->n) == 0;
}

/* ("storage", its type, the entry's name, a device, how many numbers) */
static enum rc op_storage(struct mdl_pickle *k)
{
    const struct value *t = top(k, 0);
    struct value v = {.kind = STORAGE};

    if (!t || t->kind != TUPLE || t->b < 5 || t->b > 6 || !is_text(item(k, t, 0), "storage") ||
        item(k, t, 1)->kind != GLOBAL || globals[item(k, t, 1)->a].what != STORAGE_TYPE ||
        item(k, t, 2)->kind != TEXT || item(k, t, 4)->kind != INT || item(k, t, 4)->i < 0)
        return bad(k, "describes a storage in a way that torch.save does not");
    v.a = item(k, t, 1)->a;
    v.b = at(&k->items, t->a + 2);
    v.i = item(k, t, 4)->i;
    k->stack.n--;
    return push_value(k, v);
}

static bool whole(const struct value *v)
{
    return v->kind == INT && v->i >= 0;
}

/* (storage, first number, sizes, strides, ...) */
static enum rc rebuild(struct mdl_pickle *k, const struct value *args, struct value *out)
{
    const struct value *sizes, *strides;
    struct mdl_pickle_tensor t = {.n_values = 1, .in_order = true};
    uint64_t step = 1;
    uint32_t d;

    if (args->b < 4 || args->b > 7 || item(k, args, 0)->kind != STORAGE ||
        !whole(item(k, args, 1)) || item(k, args, 2)->kind != TUPLE ||
        item(k, args, 3)->kind != TUPLE || item(k, args, 2)->b != item(k, args, 3)->b ||
        item(k, args, 2)->b > MAX_TENSOR_DIMS)
        return bad(k, "describes a tensor in a way that torch.save does not");
    sizes = item(k, args, 2);
    strides = item(k, args, 3);
    t.first = (uint64_t)item(k, args, 1)->i;
    t.n_dims = sizes->b;
    for (d = sizes->b; d-- > 0;) {
        const struct value *size = item(k, sizes, d), *stride = item(k, strides, d);

        if (!whole(size) || !whole(stride))
            return bad(k, "gives a tensor a size or a stride that is no whole number");
        if (size->i != 1 && (uint64_t)stride->i != step)
            t.in_order = false;
        if (__builtin_mul_overflow(step, (uint64_t)(size->i ? size->i : 1), &step))
            return bad(k, "has a tensor of more numbers than there can be");
        t.n_values *= (uint64_t)size->i; /* at most step */
        if (d < MDL_MAX_DIMS)
            t.dims[d] = (uint64_t)size->i;
    }
    *out = (struct value){.kind = TENSOR, .a = at(&k->items, args->a), .b = (uint32_t)k->tensors.n};
    return push(k, &k->tensors, &t, sizeof(t));
}

static enum rc op_reduce(struct mdl_pickle *k)
{
    const struct value *args = top(k, 0), *fn = top(k, 1);
    struct value v = {.kind = DICT};
    enum rc rc = RC_OK;

    if (!args || !fn || fn->kind != GLOBAL || args->kind != TUPLE)
        return bad(k, "calls something that is no function");
    switch (globals[fn->a].what) {
    case ORDERED_DICT:
        if (args->b != 0)
            rc = bad(k, "makes a dict out of something");
        break;
    case REBUILD_TENSOR:
        rc = rebuild(k, args, &v);
        break;
    case REBUILD_PARAMETER:
        if (args->b < 1 || item(k, args, 0)->kind != TENSOR)
            rc = bad(k, "makes a parameter of something that is no tensor");
        else
            v = *item(k, args, 0);
        break;
    default:
        rc = bad(k, "calls a type of storage");
    }
    if (rc != RC_OK)
        return rc;
    k->stack.n -= 2;
    return push_value(k, v);
}

/* --------------------------------------------------------------- instructions */

static enum rc op_put(struct mdl_pickle *k, uint32_t slot)
{
    if (k->stack.n == 0 || slot > k->memo.n)
        return bad(k, "keeps nothing, or in a place that does not follow the last");
    if (slot < k->memo.n) {
        ((uint32_t *)k->memo.p)[slot] = at(&k->stack, k->stack.n - 1);
        return RC_OK;
    }
    return push_index(k, &k->memo, at(&k->stack, k->stack.n - 1));
}

static enum rc op_get(struct mdl_pickle *k, uint32_t slot)
{
    if (slot >= k->memo.n)
        return bad(k, "takes what was not kept");
    return push_index(k, &k->stack, at(&k->memo, slot));
}

static enum rc op_text(struct mdl_pickle *k, size_t n)
{
    const uint8_t *s;

    if (!take(k, n, &s))
        return bad(k, "is cut short");
    return push_value(k, (struct value){.kind = TEXT, .s = (const char *)s, .n = n});
}

static enum rc op_int(struct mdl_pickle *k, int64_t i)
{
    return push_value(k, (struct value){.kind = INT, .i = i});
}

/* Little-endian, signed, n bytes (0 = zero). */
static enum rc op_long(struct mdl_pickle *k, size_t n)
{
    const uint8_t *s;
    uint64_t v;

    if (n > 8 || !take(k, n, &s))
        return bad(k, "has a number of more than 64 bits, or is cut short");
    v = mdl_le(s, n);
    if (n > 0 && n < 8 && s[n - 1] >= 0x80)
        v |= UINT64_MAX << (8 * n);
    return op_int(k, (int64_t)v);
}

/* Bytes of the operand that stands behind an instruction. */
static size_t operand(uint8_t op)
{
    return strchr("\x80qhK\x8a", op) ? 1 : op == 'M' ? 2 : strchr("rjJX", op) ? 4 : 0;
}

static enum rc unknown(const struct mdl_pickle *k, uint8_t op)
{
    return rc_fail_what(k->err, RC_UNSUPPORTED, "pickle",
                        "'%s': its pickle has the instruction 0x%02x, which no state dict needs",
                        k->what, op);
}

/* One instruction; *done when it was the last. */
static enum rc step(struct mdl_pickle *k, bool *done)
{
    const uint8_t *p, *arg;
    size_t m;
    uint8_t op;
    uint32_t n;

    if (!take(k, 1, &p))
        return bad(k, "is cut short");
    op = *p;
    if (op == 0)
        return unknown(k, op);
    if (!take(k, operand(op), &arg))
        return bad(k, "is cut short");
    n = (uint32_t)mdl_le(arg, operand(op));
    switch (op) {
    case 0x80: /* PROTO */
        return n == 2 ? RC_OK
                      : rc_fail(k->err, RC_UNSUPPORTED, "'%s': pickle protocol %u, expected 2",
                                k->what, n);
    case 'c':
        return op_global(k);
    case '(':
        return push_value(k, (struct value){.kind = MARK});
    case ')':
        return op_tuple(k, 0, k->stack.n);
    case 0x85: /* TUPLE1..3 */
    case 0x86:
    case 0x87:
        n = op - 0x84u;
        return k->stack.n < n ? bad(k, "takes more than there is") : op_tuple(k, n, k->stack.n - n);
    case 't':
        return (m = mark(k)) == SIZE_MAX ? bad(k, "ends what was not begun")
                                         : op_tuple(k, k->stack.n - 1 - m, m);
    case '}':
        return push_value(k, (struct value){.kind = DICT});
    case 's':
        return k->stack.n < 3 ? bad(k, "takes more than there is")
                              : op_set(k, k->stack.n - 2, k->stack.n - 3);
    case 'u':
        return (m = mark(k)) == SIZE_MAX || m == 0 ? bad(k, "ends what was not begun")
                                                   : op_set(k, m + 1, m - 1);
    case 'R':
        return op_reduce(k);
    case 'Q':
        return op_storage(k);
    case 'b': /* attributes of the dict below (_metadata): nothing of the tensors */
        if (!top(k, 0) || !top(k, 1) || top(k, 1)->kind != DICT)
            return bad(k, "gives attributes to something that is no dict");
        k->stack.n--;
        return RC_OK;
    case 'X':
        return op_text(k, n);
    case 'K':
    case 'M':
        return op_int(k, n);
    case 'J':
        return op_int(k, (int32_t)n);
    case 0x8a: /* LONG1 */
        return op_long(k, n);
    case 0x88: /* NEWTRUE, NEWFALSE */
    case 0x89:
        return op_int(k, op == 0x88);
    case 'N':
        return push_value(k, (struct value){.kind = NONE});
    case 'q':
    case 'r':
        return op_put(k, n);
    case 'h':
    case 'j':
        return op_get(k, n);
    case '.':
        *done = true;
        return k->stack.n == 1 && top(k, 0) ? RC_OK : bad(k, "ends with more or less than a value");
    default:
        return unknown(k, op);
    }
}

/* ----------------------------------------------------------------- the state dict */

/* Of all pairs those of the dict that the pickle ends with. */
static enum rc keep_root(struct mdl_pickle *k)
{
    uint32_t root = at(&k->stack, 0);
    struct pair *p = k->pairs.p;
    size_t i, n = 0;

    if (value(k, root)->kind != DICT)
        return rc_fail(k->err, RC_UNSUPPORTED, "'%s' holds a %s, expected a state dict", k->what,
                       kind_names[value(k, root)->kind]);
    for (i = 0; i < k->pairs.n; i++)
        if (p[i].dict == root)
            p[n++] = p[i];
    k->pairs.n = n;
    return RC_OK;
}

enum rc mdl_pickle_read(struct mdl_pickle **out, const uint8_t *p, size_t n_bytes, const char *what,
                        struct rc_err *err)
{
    struct mdl_pickle *k = calloc(1, sizeof(*k));
    bool done = false;
    enum rc rc = RC_OK;

    if (!k)
        return rc_fail(err, RC_NOMEM, "no memory for a pickle");
    *k = (struct mdl_pickle){.p = p, .end = p + n_bytes, .what = what, .err = err};
    while (rc == RC_OK && !done)
        rc = step(k, &done);
    if (rc == RC_OK)
        rc = keep_root(k);
    k->err = NULL;
    if (rc == RC_OK)
        *out = k;
    else
        mdl_pickle_free(&k);
    return rc;
}

void mdl_pickle_free(struct mdl_pickle **kp)
{
    struct mdl_pickle *k = *kp;

    *kp = NULL;
    if (!k)
        return;
    free(k->values.p);
    free(k->stack.p);
    free(k->memo.p);
    free(k->items.p);
    free(k->pairs.p);
    free(k->tensors.p);
    free(k);
}

size_t mdl_pickle_n(const struct mdl_pickle *k)
{
    return k->pairs.n;
}

enum rc mdl_pickle_tensor(const struct mdl_pickle *k, size_t i, struct mdl_pickle_tensor *out,
                          struct rc_err *err)
{
    const struct pair *p = (const struct pair *)k->pairs.p + i;
    const struct value *key = value(k, p->key), *v = value(k, p->value), *storage;
    char show[80];

    if (key->kind != TEXT)
        return rc_fail(err, RC_FORMAT, "'%s': its pickle has a dict whose names are no texts",
                       k->what);
    mdl_show(show, sizeof(show), key->s, key->n);
    if (v->kind != TENSOR)
        return rc_fail_what(err, RC_UNSUPPORTED, show,
                            "'%s': '%s' is a %s; expected a state dict, of tensors alone", k->what,
                            show, kind_names[v->kind]);
    storage = value(k, v->a);
    *out = ((const struct mdl_pickle_tensor *)k->tensors.p)[v->b];
    out->name = key->s;
    out->n_name = key->n;
    out->entry = value(k, storage->b)->s;
    out->n_entry = value(k, storage->b)->n;
    out->type = &globals[storage->a].type;
    out->n_storage = (uint64_t)storage->i;
    return RC_OK;
}
