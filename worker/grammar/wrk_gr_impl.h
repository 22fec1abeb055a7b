/* wrk_gr_impl.h - private to the grammar room.
 *
 * Way of a grammar: a reader (schema, gbnf, regex) makes trees of struct gr_node, one
 * per rule; wrk_gr_nfa.c turns each into states and edges; wrk_gr_prog.c makes them
 * deterministic where that is cheap and checks that every rule ends; wrk_gr_mach.c
 * runs the result. Node 0 and rule NONE mean "failed": a reader goes on harmlessly and
 * looks at b->rc once.
 */
#ifndef INFERD_WRK_GR_IMPL_H
#define INFERD_WRK_GR_IMPL_H

#include "wrk_gr.h"

#define GR_NONE UINT32_MAX
#define GR_INF UINT32_MAX

#define GR_NODES_MAX (1u << 19)  /* of trees */
#define GR_STATES_MAX (1u << 18) /* before and after determinising */
#define GR_EDGES_MAX (1u << 20)
#define GR_RULES_MAX (1u << 15)
#define GR_TREE_DEPTH 96      /* nesting of groups, schemas, trees */
#define GR_STEPS_MAX 6000000u /* of compiling: some 50 ms */
#define GR_COUNT_MAX 1000000u /* a lower bound of a repetition */
#define GR_DEPTH 256u         /* frames of a stack */
#define GR_LEAST_MAX 1024u    /* bytes, as far as we count */
#define GR_CONFIGS 512u       /* stacks of a set */
#define GR_FAN 1024u    /* edges, and calls, of one place that could not be made determinate */
#define GR_VISITS 4096u /* places looked at to move by one byte */

/* ---------------------------------------------------------------------- trees */

enum gr_op {
    GR_EMPTY, /* the empty text */
    GR_SET,   /* one character of ranges; json: as it stands inside a JSON string */
    GR_TEXT,  /* these bytes */
    GR_SEQ,
    GR_ALT,
    GR_REP,  /* kid a, min..max times (GR_INF: no bound) */
    GR_CALL, /* rule a */
    /* members of a JSON object, in this order: kids are what stands between two, the end
     * behind some, the end behind none, then for each member its tree and enum gr_member */
    GR_MEMBERS,
};
enum gr_member { GR_OPTIONAL = 0, GR_REQUIRED = 1, GR_MANY = 2 /* any number of it */ };

struct gr_node {
    uint8_t op;
    bool json;
    uint32_t a, n; /* first range, byte or kid, and how many; GR_REP: the kid; GR_CALL: the rule */
    uint32_t min, max;
    uint32_t cost; /* states it becomes, about */
};

struct gr_range {
    uint32_t lo, hi; /* code points */
};

struct gr_src {
    uint32_t node;                 /* GR_NONE: named and not yet given */
    uint32_t start, accept, first; /* states; first: the lowest of them */
    char name[64];
};

/* Edges of the first automaton. rule GR_NONE: bytes lo..hi, or nothing if lo > hi. */
struct gr_nedge {
    uint32_t from, to, rule, min, max;
    uint8_t lo, hi;
};

struct gr_vec {
    void *p;
    uint32_t n, cap;
};

struct gr_build {
    struct gr_vec node, kid, range, text, rule; /* gr_node, u32, gr_range, byte, gr_src */
    struct gr_vec nedge;                        /* gr_nedge */
    uint32_t n_states;
    uint64_t steps;
    bool raw;          /* strings are no JSON: gr_set takes their characters as they stand */
    const char *field; /* the API's name of what is compiled */
    /* says where in the text a reader is, for messages; or NULL */
    void (*locate)(const void *user, char *out, size_t cap);
    const void *user;
    enum rc rc; /* the first failure */
    struct rc_err *err;
};

/* Room for one more element, or NULL with b->rc set. what: "tree nodes", ... */
void *gr_push(struct gr_build *b, struct gr_vec *v, size_t elem, uint32_t limit, const char *what);
/* Counts work; false and b->rc when it is too much. */
bool gr_step(struct gr_build *b, uint64_t n);
/* Fails once: the first reason stays. */
void gr_fail(struct gr_build *b, enum rc rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void gr_build_deinit(struct gr_build *b);

static inline struct gr_node *gr_node(const struct gr_build *b, uint32_t i)
{
    return (struct gr_node *)b->node.p + i;
}
static inline struct gr_src *gr_rule(const struct gr_build *b, uint32_t i)
{
    return (struct gr_src *)b->rule.p + i;
}

uint32_t gr_empty(struct gr_build *b);
uint32_t gr_never(struct gr_build *b); /* a set without a character */
uint32_t gr_set(struct gr_build *b, const struct gr_range *r, uint32_t n, bool json);
uint32_t gr_text(struct gr_build *b, const void *bytes, size_t n);
uint32_t gr_str(struct gr_build *b, const char *s);
uint32_t gr_seq(struct gr_build *b, const uint32_t *kids, uint32_t n);
uint32_t gr_alt(struct gr_build *b, const uint32_t *kids, uint32_t n);
uint32_t gr_rep(struct gr_build *b, uint32_t kid, uint32_t min, uint32_t max);
uint32_t gr_call(struct gr_build *b, uint32_t rule);
uint32_t gr_members(struct gr_build *b, const uint32_t *kids, uint32_t n);
uint32_t gr_opt(struct gr_build *b, uint32_t kid);
/* A rule without a body yet; name for messages. */
uint32_t gr_rule_new(struct gr_build *b, const char *name);
/* GR_SEQ of the nodes given, ended by GR_NONE. */
#define GR_SEQ_OF(b, ...) gr_seq_of((b), (const uint32_t[]){__VA_ARGS__, GR_NONE})
#define GR_ALT_OF(b, ...) gr_alt_of((b), (const uint32_t[]){__VA_ARGS__, GR_NONE})
uint32_t gr_seq_of(struct gr_build *b, const uint32_t *kids);
uint32_t gr_alt_of(struct gr_build *b, const uint32_t *kids);

/* Next code point of valid UTF-8 at s[*at]; GR_NONE and *at unchanged when invalid. */
uint32_t gr_utf8(const char *s, size_t n, size_t *at);
unsigned gr_utf8_put(uint32_t c, uint8_t out[4]); /* returns its bytes */
uint32_t gr_utf8_count(const char *s, size_t n);  /* characters begun in s */
/* That many hexadecimal digits, at most 7 or a value below GR_NONE; GR_NONE: there are fewer. */
uint32_t gr_hex(const char *s, size_t n, size_t *at, unsigned digits);
/* Decimal digits, as many as there are, a billion at most; GR_NONE: there are none. */
uint32_t gr_decimal(const char *s, size_t n, size_t *at);

/* -------------------------------------------------------------------- readers */

/* Each makes its first rule the root. */
void gr_read_schema(struct gr_build *b, const char *text, size_t n, bool any_object);
void gr_read_gbnf(struct gr_build *b, const char *text, size_t n);
void gr_read_regex(struct gr_build *b, const char *text, size_t n);
void gr_read_talk(struct gr_build *b, const char *text, size_t n);
/* The one of a kind, under the API's name for it. Its root is the first rule it makes. */
void gr_read(struct gr_build *b, enum wrk_gr_kind kind, const char *text, size_t n);
const char *gr_field(enum wrk_gr_kind kind);
/* Calls of the tools in a JSON text, behind the mark of the first. only: a function's name,
 * or "" (any of them); one: no second call follows. */
uint32_t gr_calls(struct gr_build *b, const char *tools, size_t n, const char *only, bool one);
/* The byte that stands for a mark (enum wrk_mark). */
uint32_t gr_mark(struct gr_build *b, uint32_t mark);

/* A regular expression as a tree: search: it may match anywhere, inside a JSON string. */
uint32_t gr_regex(struct gr_build *b, const char *text, size_t n, bool search);

/* -------------------------------------------------------------------- program */

struct gr_edge {
    uint32_t to;
    uint8_t lo, hi;
};
struct gr_call {
    uint32_t rule, to, min, max; /* min >= 1 */
    bool tail;                   /* nothing follows: no frame needed */
};
enum gr_plain { GR_PLAIN_NO, GR_PLAIN_LOOP, GR_PLAIN_ONE };
struct gr_state {
    uint32_t edge0, n_edges, call0, n_calls;
    uint32_t need; /* frames needed to end the rule, GR_NONE: it cannot */
    bool final;
    /* every plain character (wrk_gr_vocab.c) leads into a loop of them, or to the rule's end */
    uint8_t plain;
    bool plain_out; /* some plain byte leads on from here */
};
struct gr_prule {
    uint32_t start, least; /* least: bytes of its shortest text */
    bool nullable;
};
struct wrk_gr_prog {
    struct gr_state *state;
    struct gr_edge *edge;
    struct gr_call *call;
    struct gr_prule *rule;
    uint32_t n_states, n_edges, n_calls, n_rules;
};

/* A repetition that is written out instead of counted: what is small. */
static inline bool gr_copied(uint32_t kid_cost, uint32_t min, uint32_t max)
{
    uint64_t times = max == GR_INF ? (min == 0 ? 1 : min) : max;

    return (max == GR_INF && min <= 1) || max == 1 || (uint64_t)kid_cost * times <= 64;
}

/* Trees to states and edges; a rule's states stand together, nothing leads into its start
 * and nothing out of its accept. */
void gr_emit(struct gr_build *b);
void gr_prog_make(struct gr_build *b, struct wrk_gr_prog *p);

/* -------------------------------------------------------------------- machine */

struct gr_frame { /* a call that was made, and how often it is done */
    uint32_t call, count, parent, depth, slot;
};
struct gr_config {
    uint32_t state, frame; /* frame 0: the root's */
};
struct gr_seen {
    uint32_t state, frame, slot;
};
struct gr_set_at {
    uint32_t first, n, trans, slot;
    bool may_end;
};

#define GR_DEAD 0u /* the empty set */
#define GR_UNKNOWN UINT32_MAX

#define GR_FRAMES_CAP 65536u
#define GR_CFG_CAP 262144u
#define GR_SETS_CAP 16384u
#define GR_TRANS_CAP 4096u

/* Sets of stacks, hash-consed, and the moves between them by bytes, remembered.
 * Emptied by gr_mach_reset: nothing lives longer than one question. */
struct gr_mach {
    const struct wrk_gr_prog *prog;
    struct gr_frame *frame;
    struct gr_config *cfg;
    struct gr_set_at *set;
    uint32_t *trans; /* 256 per set that was moved from */
    uint32_t n_frames, n_cfg, n_sets, n_trans;
    uint32_t *frame_hash, *set_hash;
    /* scratch of one move: places to look at, places seen, what is kept */
    struct gr_config *todo, kept[GR_CONFIGS];
    struct gr_seen *seen;
    uint32_t *seen_hash, *number;
    uint32_t n_todo, n_seen, n_kept;
    bool may_end;
    uint64_t work; /* places looked at since the reset */
    bool cut;      /* something did not fit and was left out */
};
enum rc gr_mach_init(struct gr_mach *m, struct rc_err *err);
void gr_mach_deinit(struct gr_mach *m);
void gr_mach_reset(struct gr_mach *m, const struct wrk_gr_prog *p);
uint32_t gr_mach_start(struct gr_mach *m);
/* Where a byte leads; GR_DEAD: nowhere. */
uint32_t gr_mach_move(struct gr_mach *m, uint32_t set, uint8_t byte);
/* A set to and from flat words. Counts that no text of `bytes` bytes and `chars` characters
 * can bring to their bounds are written alike; GR_INF: as they are. out: room for GR_SAVE_MAX
 * words; returns how many were written. Load only into a machine that was just reset. */
uint32_t gr_mach_save(struct gr_mach *m, uint32_t set, uint32_t bytes, uint32_t chars,
                      uint32_t *out);
uint32_t gr_mach_load(struct gr_mach *m, const uint32_t *words);
#define GR_SAVED_FRAMES 4096u
#define GR_SAVE_MAX (2 + 3 * GR_SAVED_FRAMES + 2 * GR_CONFIGS)
static inline bool gr_saved_may_end(const uint32_t *words)
{
    return (words[1] & 1) != 0;
}
static inline bool gr_saved_must_end(const uint32_t *words)
{
    return words[1] == 1;
}

/* ----------------------------------------------------------------- vocabulary */

struct gr_tnode {   /* depth-first order */
    uint32_t next;  /* behind this subtree */
    int32_t token;  /* -1: none ends here */
    uint16_t depth; /* 1 at the top */
    uint8_t byte;
};
struct gr_trie {
    struct gr_tnode *node;
    uint32_t n, most_depth;
};
#define GR_PLAIN_MAX 48u /* characters of a plain token */
struct wrk_gr_vocab {
    uint32_t n_vocab, n_words;
    uint32_t longest, most_chars;      /* of any token: bytes, characters begun */
    struct gr_trie all, odd;           /* every token; those that are not plain */
    uint64_t *plain[GR_PLAIN_MAX + 1]; /* [k]: plain tokens of at most k characters */
    uint32_t most_plain;
    int32_t *eos;
    size_t n_eos;
    char *text;        /* of all tokens */
    uint32_t *text_at; /* n_vocab + 1 */
    size_t bytes;
};

/* The tokens that a set allows, into bits (n_words, zeroed by the caller). Sets m->cut
 * when some had to be left out. */
void gr_mask_compute(struct gr_mach *m, uint32_t set, const struct wrk_gr_vocab *v, uint64_t *bits);

#endif
