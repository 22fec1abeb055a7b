/* mdl_tok_impl.h - private face of the tokenizer room.
 *
 * A tokenizer is data: lists of steps (normalizers, pre-tokenizers), one model,
 * a template and a decoder, filled in by a loader (mdl_tok_json.c,
 * mdl_tok_gguf.c) and run by mdl_tok_encode.c. A new kind adds an enum value, a
 * case where steps are run, and a file. Nothing here changes after load.
 * Tests: tests/models/test_mdl_tok_*.c
 */
#ifndef INFERD_MDL_TOK_IMPL_H
#define INFERD_MDL_TOK_IMPL_H

#include "mdl_tok.h"

#include "mdl_file_impl.h"

#define TOK_MAX_IDS (1u << 22)
#define TOK_MAX_STEPS 8
#define TOK_MAX_TEMPLATE 16
#define TOK_MAX_STR 64                      /* bytes of a Replace pattern or content */
#define TOK_PIECE_LIMIT (MDL_PIECE_MAX - 8) /* longest spelling accepted */
#define TOK_MAX_TEXT (1u << 30)             /* bytes of one text */
#define TOK_MAX_GROWN (1u << 30)            /* and of one on its way through the normalizers */

struct tok_run; /* one encoding under way */

enum tok_flag {
    TOK_USED = 1,
    TOK_SPECIAL = 2,
    TOK_BYTE = 4,    /* <0xXX> and the decoder knows such pieces */
    TOK_NO_JOIN = 8, /* never the result of a merge */
};

/* ------------------------------------------------------------- vocabulary */

struct tok_vocab {
    uint32_t n_ids;
    char *arena;    /* spellings, one after the other */
    uint32_t *at;   /* n_ids + 1 */
    uint8_t *flags; /* enum tok_flag */
    struct tok_slot {
        uint32_t id, tag; /* id + 1, 0 empty; upper half of the hash */
    } * slots;            /* by spelling */
    uint32_t mask;
    struct mdl_seed seed;
    uint32_t longest; /* bytes */
};

/* A spelling while loading; s NULL = id unused. */
struct tok_piece {
    const char *s;
    uint32_t n;
    uint8_t flags;
};

enum rc tok_vocab_build(struct tok_vocab *v, const struct tok_piece *p, uint32_t n_ids,
                        struct rc_err *err);
void tok_vocab_deinit(struct tok_vocab *v);
/* -1: no piece. */
int32_t tok_vocab_find(const struct tok_vocab *v, const char *s, size_t n);
/* The pieces "<0x00>" .. "<0xFF>" among ids below n_ids, -1 where there is none; true: all are. */
bool tok_vocab_bytes(const struct tok_vocab *v, uint32_t n_ids, int32_t byte_id[256]);
static inline const char *tok_vocab_at(const struct tok_vocab *v, uint32_t id, uint32_t *n)
{
    *n = v->at[id + 1] - v->at[id];
    return v->arena + v->at[id];
}

/* ----------------------------------------------------------- added tokens */

enum tok_added_flag { TOK_SINGLE_WORD = 1, TOK_LSTRIP = 2, TOK_RSTRIP = 4 };

struct tok_trie_node {
    int32_t id; /* token that ends here, -1 none */
    uint32_t child, sibling;
    uint8_t byte, flags;
};

/* Byte trie: the longest match at a place costs at most the longest token. */
struct tok_trie {
    struct tok_trie_node *nodes;
    uint32_t n, cap;
    uint32_t first[256]; /* root's children, 0 none */
    bool any, strips;
};

enum rc tok_trie_add(struct tok_trie *t, const char *s, size_t n, int32_t id, unsigned flags,
                     struct rc_err *err);
void tok_trie_deinit(struct tok_trie *t);

struct tok_match {
    size_t start, end; /* bytes, strips applied */
    int32_t id;        /* -1: no more */
};
/* The next added token at or behind byte `from` (leftmost, longest); from is
 * also the left border of lstrip. Tokens with TOK_SPECIAL are passed over unless
 * special. *scan is where the search goes on; start with *scan = from = 0. With
 * r->stopped the answer is none. */
struct tok_match tok_trie_next(const struct tok_trie *t, const struct tok_vocab *v, const char *s,
                               size_t n, size_t from, size_t *scan, bool special,
                               struct tok_run *r);

/* ------------------------------------------------------------------ steps */

enum tok_norm_kind {
    TOK_NORM_REPLACE,
    TOK_NORM_BERT,
    TOK_NORM_PRECOMPILED, /* SentencePiece's character map */
    TOK_NORM_STRIP,
    TOK_NORM_UNICODE, /* NFC NFD NFKC NFKD */
    TOK_NORM_LOWER,
    TOK_NORM_ACCENTS,
    TOK_NORM_PREPEND,
};
/* What Replace looks for. */
enum tok_pattern {
    TOK_PAT_LITERAL, /* from */
    TOK_PAT_SPACES2, /* " {2,}" */
    TOK_PAT_BLANKS2, /* "\\s{2,}|[\\n\\r\\t]" */
    TOK_PAT_BLANKS,  /* "\\s+" */
};
struct tok_charsmap;
struct tok_norm {
    enum tok_norm_kind kind;
    enum tok_pattern pattern;
    char from[TOK_MAX_STR], to[TOK_MAX_STR];
    uint32_t n_from, n_to;
    bool clean, chinese, strip_accents, lowercase; /* BERT */
    bool left, right;                              /* STRIP */
    bool compat, compose;                          /* UNICODE */
    struct tok_charsmap *map;                      /* PRECOMPILED */
};

/* The map's bytes as the file has them; RC_FORMAT when they are none. */
enum rc tok_charsmap_new(struct tok_charsmap **out, const uint8_t *bytes, size_t n,
                         struct rc_err *err);
void tok_charsmap_free(struct tok_charsmap **m);
/* What s as a whole becomes, not NUL-terminated; NULL: the map does not say. The rule
 * taken is that of the shortest beginning of s, as in the reference. */
const char *tok_charsmap_find(const struct tok_charsmap *m, const char *s, size_t n, size_t *out_n);

enum tok_pre_kind {
    TOK_PRE_BERT,
    TOK_PRE_NEWLINES,  /* stretches of newlines and of anything else */
    TOK_PRE_LITERAL,   /* Split */
    TOK_PRE_SPACES,    /* each white space */
    TOK_PRE_WORDS,     /* "\\w+|[^\\w\\s]+" */
    TOK_PRE_PUNCT,     /* each punctuation character */
    TOK_PRE_METASPACE, /* spaces become pat; it may be put in front */
    TOK_PRE_REGEX,     /* Split by a known expression */
    TOK_PRE_BYTES,     /* ByteLevel: a printable character for each byte */
};
/* What becomes of the matches of a pattern. */
enum tok_behavior { TOK_ISOLATED, TOK_REMOVED, TOK_CONTIGUOUS, TOK_PREV, TOK_NEXT };
/* The expressions of mdl_tok_regex.c. */
enum tok_regex { TOK_RE_GPT2, TOK_RE_NUMBERS3, TOK_RE_NUMBERS1, TOK_RE_CLIP, TOK_RE_CLIP_BARE };
bool tok_regex_known(const char *text, enum tok_regex *out);
/* End of the match at i of s[0, n); i when there is none there. */
size_t tok_regex_match(enum tok_regex regex, const char *s, size_t i, size_t n, struct tok_run *r);
enum tok_prepend { TOK_ALWAYS, TOK_FIRST, TOK_NEVER };
struct tok_pre {
    enum tok_pre_kind kind;
    enum tok_behavior behavior;
    enum tok_prepend prepend;
    bool invert; /* what does not match is the match */
    bool split;  /* METASPACE: before each pat; BYTES: by regex */
    enum tok_regex regex;
    char pat[TOK_MAX_STR];
    uint32_t n_pat;
};

/* Text between two added tokens on its way to the model. src holds, for every
 * byte of s, the code points [2i], [2i+1]) of the input it came from; NULL
 * unless offsets are wanted. */
struct tok_text {
    char *s;
    uint32_t *src;
    size_t n, cap;
};
enum rc tok_text_push(struct tok_text *t, bool with_src, const char *s, size_t n, uint32_t from,
                      uint32_t to, struct rc_err *err);
/* Bytes [from, to) of in, with their places. */
enum rc tok_text_copy(struct tok_text *t, bool with_src, const struct tok_text *in, size_t from,
                      size_t to, struct rc_err *err);
void tok_text_deinit(struct tok_text *t);
/* The character at byte i of a text inside the normalizers, and one step of work (r NULL: none):
 * RC_CANCELLED when the caller wants to stop. */
enum rc tok_text_char(const struct tok_text *t, size_t i, struct tok_run *r, uint32_t *cp,
                      size_t *len, struct rc_err *err);
/* Puts the lower case of the character cp, which is at byte i of in, behind out. */
enum rc tok_text_lower(const struct tok_text *in, size_t i, uint32_t cp, struct tok_text *out,
                       bool with_src, struct rc_err *err);

/* A text rewritten character by character, as the reference aligns it: change 0 stands for
 * the next character of in, -k for it and k more, 1 for none: an added character has the
 * place of the one before it. */
struct tok_shift {
    const struct tok_text *in;
    struct tok_text *out;
    size_t at; /* bytes of in used up */
    bool with_src;
    struct rc_err *err;
};
enum rc tok_shift_put(struct tok_shift *s, uint32_t cp, ptrdiff_t change);

/* r is NULL while loading. */
enum rc tok_norm_run(const struct tok_norm *k, const struct tok_text *in, struct tok_text *out,
                     bool with_src, struct tok_run *r, struct rc_err *err);
enum rc tok_norm_bert(const struct tok_norm *k, const struct tok_text *in, struct tok_text *out,
                      bool with_src, struct tok_run *r, struct rc_err *err);
enum rc tok_norm_precompiled(const struct tok_norm *k, const struct tok_text *in,
                             struct tok_text *out, bool with_src, struct tok_run *r,
                             struct rc_err *err);
enum rc tok_norm_unicode(const struct tok_norm *k, const struct tok_text *in, struct tok_text *out,
                         bool with_src, struct tok_run *r, struct rc_err *err);
/* First place of pat in s, NULL none. */
const char *tok_find(const char *s, size_t n, const char *pat, size_t n_pat);
/* End of the word that starts at or behind *at; false: none left. */
bool tok_pre_bert(const char *s, size_t n, size_t *at, size_t *end);

/* ----------------------------------------------------------------- models */

enum tok_model_kind { TOK_BPE, TOK_SCORES, TOK_WORDPIECE, TOK_UNIGRAM };

struct tok_merge {
    uint32_t a, b, rank, id; /* id UINT32_MAX: empty slot */
};

struct tok_bpe {
    struct tok_merge *merges; /* open addressing by (a, b) */
    uint32_t mask;
    struct mdl_seed seed; /* a file cannot choose pairs that collide */
    float *scores;        /* TOK_SCORES */
    int32_t *bmp;         /* id of each one-character piece below U+10000, or -1 */
    int32_t byte_id[256];
    uint64_t *pairs; /* Bloom bits of neighbours inside any piece */
    int32_t unk;
    bool byte_fallback, all_bytes, fuse_unk;
    bool ignore_merges;       /* a word that is a piece is taken as it is */
    char suffix[TOK_MAX_STR]; /* belongs to the last character of a word */
    uint32_t n_suffix;
    bool cut; /* cutting between strangers is exact */
};

struct tok_wordpiece {
    int32_t unk;
    char start[TOK_MAX_STR], prefix[TOK_MAX_STR]; /* of the first piece of a word, of others */
    uint32_t n_start, n_prefix, max_chars;
};

/* Trie over the spellings. A step down is a miss of the cache, so children are neighbours
 * and a node says all that is asked of it; where there are many, a table says which is
 * which. */
struct tok_node {
    double score;
    uint32_t first; /* first child, in order of their byte; with a table its number */
    int32_t id;     /* piece that ends here, or -1 */
    uint16_t n;     /* children */
    uint8_t byte;
    bool special, table;
};

struct tok_unigram {
    double *scores; /* by id */
    double unk_score;
    uint32_t n_pieces; /* ids at and above are added tokens only */
    struct tok_node *nodes;
    uint32_t *tables; /* 256 children each, 0 none */
    int32_t unk;
    int32_t byte_id[256]; /* or -1 */
    bool byte_fallback;
};

/* Tokens of a template between two texts. */
struct tok_part {
    int32_t ids[TOK_MAX_TEMPLATE];
    uint32_t n;
};

struct mdl_tok {
    struct tok_vocab vocab;
    struct tok_trie raw, normed; /* added tokens before and after normalizing */
    struct tok_norm norms[TOK_MAX_STEPS];
    struct tok_pre pres[TOK_MAX_STEPS];
    uint32_t n_norms, n_pres;
    bool need_src;     /* a step asks where in the input a piece begins */
    bool space_prefix; /* GGUF add_space_prefix */
    enum tok_model_kind model;
    struct tok_bpe bpe;
    struct tok_wordpiece wp;
    struct tok_unigram uni;
    struct tok_part single[2]; /* around one text */
    struct tok_part pair[3];   /* around and between two */
    bool has_pair;
    bool trim, trim_prefix; /* offsets without white space; but for a space that was put in front */
    int32_t bos, eos;
    /* decoding: text of each id behind another token, and as the first one */
    bool dec_bytes, dec_wordpiece, dec_cleanup, dec_metaspace;
    bool dec_lossy; /* spellings are bytes of UTF-8, what is none becomes U+FFFD */
    bool dec_first; /* the first token is spelled otherwise */
    char dec_from[TOK_MAX_STR], dec_to[TOK_MAX_STR];
    uint32_t n_dec_from, n_dec_to;
    char dec_prefix[TOK_MAX_STR];
    uint32_t n_dec_prefix;
    struct tok_spell {
        char *arena;
        uint32_t *at;
    } text, first;
};

/* One encoding under way. */
struct tok_sym;
struct tok_cand;
struct tok_step;
struct tok_run {
    const struct mdl_tok *t;
    const struct mdl_tok_flags *flags;
    struct mdl_ids *out;
    size_t base;  /* ids in *out before this call */
    size_t start; /* and before the text's own */
    struct rc_err *err;
    bool src;                               /* keep track of places in the input */
    struct tok_text a, b;                   /* buffers of the current stretch */
    struct tok_text apart[2];               /* of BERT's normalizer, between its steps */
    struct tok_text pre[2 * TOK_MAX_STEPS]; /* a piece as rewritten by that pre-tokenizer */
    const struct tok_text *cur;
    struct tok_step *path; /* Unigram: the best way to each place */
    size_t cap_path;
    struct tok_sym *syms;
    size_t n_syms, cap_syms;
    struct tok_cand *heap;
    size_t n_heap, cap_heap;
    uint32_t n_steps; /* of work, for tok_stopped */
    bool stopped;
    bool keep; /* over max_tokens what is there is wanted */
    bool over;
};

/* One step of work done: does the caller want to stop? Then every loop ends, and
 * mdl_tok_encode says RC_CANCELLED. */
static inline bool tok_stopped(struct tok_run *r)
{
    const struct mdl_tok_stop *s = r->flags->stop;

    if ((++r->n_steps & 0x3FF) == 0 && s && !r->stopped)
        r->stopped = s->ask(s->user);
    return r->stopped;
}
enum rc tok_stop_error(struct tok_run *r);

/* Appends to v, with offsets when v has them or `offsets`. */
enum rc tok_ids_put(struct mdl_ids *v, int32_t id, uint32_t from, uint32_t to, bool offsets,
                    struct rc_err *err);
/* Appends id, made of bytes [from, to) of the current stretch. */
enum rc tok_emit(struct tok_run *r, int32_t id, size_t from, size_t to);
/* Over max_tokens: RC_TOO_LARGE with the count so far. */
enum rc tok_over(struct tok_run *r, size_t at_least);
/* mdl_tok_encode, but with max_tokens the first so many are kept: *more says that there
 * would be others. */
enum rc tok_encode_first(const struct mdl_tok *t, const char *text, size_t n_bytes,
                         const struct mdl_tok_flags *flags, bool *more, struct mdl_ids *out,
                         struct rc_err *err);

enum rc tok_bpe_init(struct mdl_tok *t, struct rc_err *err);
enum rc tok_bpe_merges_init(struct tok_bpe *b, size_t n, struct rc_err *err);
/* Merge number rank joins the pieces l and r (NULL: the file has none there) to the piece that they
 * spell together; a later one of the same pair wins. RC_FORMAT, naming the file, when one of the
 * three is no piece. */
enum rc tok_bpe_merge_add(struct mdl_tok *t, const char *l, size_t nl, const char *r, size_t nr,
                          uint32_t rank, const char *file, struct rc_err *err);
void tok_bpe_deinit(struct tok_bpe *b);
enum rc tok_bpe_word(struct tok_run *r, size_t from, size_t to);
/* Scores are there; the first n_ids pieces are the model's. */
enum rc tok_unigram_init(struct mdl_tok *t, uint32_t n_ids, struct rc_err *err);
void tok_unigram_deinit(struct tok_unigram *u);
enum rc tok_unigram_word(struct tok_run *r, size_t from, size_t to);
/* Bytes [from, to) of the current text through the pre-tokenizers and the model. */
enum rc tok_pre_run(struct tok_run *r, size_t from, size_t to);
enum rc tok_wordpiece_word(struct tok_run *r, size_t from, size_t to);

/* Fills text/first from the vocabulary and the dec_ fields. */
enum rc tok_spell_build(struct mdl_tok *t, struct rc_err *err);
struct mdl_tok *tok_alloc(void);

/* ---------------------------------------------------------------- unicode */

/* The printable character that stands for byte b in byte-level pieces, as UTF-8. */
size_t tok_byte_char(char *out, uint8_t b);
/* And back; -1 for a character that stands for none. */
int tok_char_byte(uint32_t cp);

/* Length of the valid UTF-8 character at s (n > 0 bytes left) and its code
 * point; 0 when it is none. */
static inline size_t tok_utf8(const char *s, size_t n, uint32_t *cp)
{
    const unsigned char *u = (const unsigned char *)s;

    if (u[0] < 0x80) {
        *cp = u[0];
        return 1;
    }
    if (u[0] >= 0xC2 && u[0] < 0xE0 && n >= 2 && (u[1] & 0xC0) == 0x80) {
        *cp = (u[0] & 0x1Fu) << 6 | (u[1] & 0x3Fu);
        return 2;
    }
    if (u[0] >= 0xE0 && u[0] < 0xF0 && n >= 3 && (u[1] & 0xC0) == 0x80 && (u[2] & 0xC0) == 0x80) {
        *cp = (u[0] & 0x0Fu) << 12 | (u[1] & 0x3Fu) << 6 | (u[2] & 0x3Fu);
        return *cp >= 0x800 && (*cp < 0xD800 || *cp > 0xDFFF) ? 3 : 0;
    }
    if (u[0] >= 0xF0 && u[0] < 0xF5 && n >= 4 && (u[1] & 0xC0) == 0x80 && (u[2] & 0xC0) == 0x80 &&
        (u[3] & 0xC0) == 0x80) {
        *cp = (u[0] & 0x07u) << 18 | (u[1] & 0x3Fu) << 12 | (u[2] & 0x3Fu) << 6 | (u[3] & 0x3Fu);
        return *cp >= 0x10000 && *cp <= 0x10FFFF ? 4 : 0;
    }
    return 0;
}
size_t tok_utf8_put(char *out, uint32_t cp); /* 1..4 bytes */
/* Characters of n bytes that are UTF-8. */
static inline uint32_t tok_count_chars(const char *s, size_t n)
{
    uint32_t c = 0;

    for (size_t i = 0; i < n; i++)
        c += ((unsigned char)s[i] & 0xC0) != 0x80;
    return c;
}
bool tok_is_space(uint32_t cp); /* Unicode White_Space */
bool tok_is_word(uint32_t cp);  /* \w */

#endif
