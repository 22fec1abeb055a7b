/* sup_http_parse.h - bytes of a connection to whole requests; no sockets.
 *
 * The gate (sup_http_gate.h) decides what is well framed, llhttp reads method,
 * target, headers and body out of it, and what both say must agree. One message at
 * a time: feeding stops at its last byte. Memory: the head (one block, at most
 * max_header_bytes plus a table of headers) and the body, charged to a budget
 * shared by all connections. Tests: tests/supervisor/test_sup_http_parse.c,
 * tests/fuzz/fuzz_http.c
 */
#ifndef INFERD_SUP_HTTP_PARSE_H
#define INFERD_SUP_HTTP_PARSE_H

#include <llhttp.h>

#include "sup_http_gate.h"

/* Limits and the running total of all request bodies held. */
struct sup_hp_env {
    size_t max_header_bytes;
    uint64_t max_body_bytes;
    uint64_t max_file_bytes; /* more than that where a route takes files */
    uint64_t body_used, body_limit;
};

struct sup_hp_pair {
    uint32_t name, value; /* offsets in buf of NUL-ended text; name in lower case */
    uint32_t n_name, n_value;
};

enum sup_expect { SUP_EXPECT_NONE, SUP_EXPECT_CONTINUE, SUP_EXPECT_UNKNOWN };

/* A parsed head. Owns buf; pairs lies inside it. */
struct sup_head {
    char *buf;
    uint32_t n_buf; /* bytes of it that hold text; wiped before it is freed */
    struct sup_hp_pair *pairs;
    uint32_t n_pairs;
    uint32_t target; /* offset of the NUL-ended request target */
    uint8_t method;  /* llhttp_method_t */
    uint8_t expect;  /* enum sup_expect */
    bool http10, keep_alive, chunked;
    uint64_t content_length;
};

struct sup_body {
    char *data;
    size_t n, cap;
};

enum sup_hp_event {
    SUP_HP_MORE, /* not whole yet; feed what is left, then later bytes */
    SUP_HP_HEAD, /* head whole (take it now); feed the rest again */
    SUP_HP_DONE, /* message whole; take the body, then sup_hp_reset */
    SUP_HP_BAD,  /* sup_hp_fault says why; nothing more is read */
};

struct sup_hp {
    struct sup_hp_env *env;
    llhttp_t ll;
    struct sup_gate gate;
    struct sup_head head;
    uint32_t n_head, cap_head;
    uint64_t max_body; /* of this message */
    struct sup_body body;
    bool complete, head_done;
};

void sup_hp_init(struct sup_hp *p, struct sup_hp_env *env);
/* Frees what was not taken, drops the charge. */
void sup_hp_deinit(struct sup_hp *p);
/* Ready for the next message. */
void sup_hp_reset(struct sup_hp *p);
/* With the head whole: the body may also hold files. Without it max_body_bytes is the
 * limit; false: the length that was told is over it. */
bool sup_hp_body_may(struct sup_hp *p, const struct sup_head *head, bool files);
/* n may be 0 (asks whether a message without body is done). *used <= n. */
enum sup_hp_event sup_hp_feed(struct sup_hp *p, const char *data, size_t n, size_t *used);
enum sup_fault sup_hp_fault(const struct sup_hp *p);
/* No byte of a message seen since init or reset. */
bool sup_hp_fresh(const struct sup_hp *p);
/* Ownership moves out; free with the calls below. */
void sup_hp_head_take(struct sup_hp *p, struct sup_head *out);
void sup_hp_body_take(struct sup_hp *p, struct sup_body *out);
void sup_head_free(struct sup_head *h);
void sup_body_free(struct sup_body *b, struct sup_hp_env *env);
/* First header of that (lower case) name, or NULL. */
const char *sup_head_get(const struct sup_head *h, const char *lower_name);

#endif
