/* wrk_ext_pattern.c - validators of a field: regular expressions of Python's re, run by PCRE2.
 *
 * The two languages agree in all but corners (docs/models/gliner2.md). What a pattern may cost is
 * bounded: its length, its nesting, the steps and the memory of one match. Nothing is compiled to
 * machine code: a worker may not write what it runs.
 * Tests: tests/worker/test_wrk_extract.c
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "wrk_extract.h"

#include <stdlib.h>

#define MATCH_STEPS 50000
#define MATCH_DEPTH 2000
#define MATCH_HEAP_KIB 4096
#define PATTERN_NESTING 50

struct wrk_patterns {
    size_t n;
    pcre2_match_data *data;
    pcre2_match_context *match;
    struct {
        pcre2_code *code;
        bool search, exclude;
    } one[];
};

static enum rc compile(struct wrk_patterns *p, pcre2_compile_context *ctx, size_t i,
                       const Ipc__ExtractPattern *q, struct rc_err *err)
{
    uint32_t how =
        PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | (q->case_sensitive ? 0 : PCRE2_CASELESS);
    PCRE2_UCHAR why[128] = "";
    PCRE2_SIZE where = 0;
    int code = 0;

    p->one[i].search = q->search;
    p->one[i].exclude = q->exclude;
    p->one[i].code = pcre2_compile(q->regex.data != NULL ? q->regex.data : (PCRE2_SPTR) "",
                                   q->regex.len, how, &code, &where, ctx);
    if (p->one[i].code != NULL)
        return RC_OK;
    pcre2_get_error_message(code, why, sizeof(why));
    return rc_fail_what(err, RC_INVALID, "validators", "pattern %zu: %s at byte %zu", i,
                        (const char *)why, (size_t)where);
}

enum rc wrk_patterns_new(struct wrk_patterns **out, Ipc__ExtractPattern *const *q, size_t n,
                         struct rc_err *err)
{
    struct wrk_patterns *p = calloc(1, sizeof(*p) + n * sizeof(p->one[0]));
    pcre2_compile_context *ctx = pcre2_compile_context_create(NULL);
    enum rc rc = RC_OK;

    if (p == NULL || ctx == NULL || (p->match = pcre2_match_context_create(NULL)) == NULL ||
        (p->data = pcre2_match_data_create(1, NULL)) == NULL) {
        rc = rc_fail(err, RC_NOMEM, "no memory for %zu patterns", n);
        goto out;
    }
    p->n = n;
    pcre2_set_match_limit(p->match, MATCH_STEPS);
    pcre2_set_depth_limit(p->match, MATCH_DEPTH);
    pcre2_set_heap_limit(p->match, MATCH_HEAP_KIB);
    pcre2_set_parens_nest_limit(ctx, PATTERN_NESTING);
    pcre2_set_max_pattern_length(ctx, IPC_EXTRACT_PATTERN_BYTES);
    for (size_t i = 0; i < n && rc == RC_OK; i++)
        rc = compile(p, ctx, i, q[i], err);
out:
    pcre2_compile_context_free(ctx);
    if (rc == RC_OK)
        *out = p;
    else
        wrk_patterns_free(&p);
    return rc;
}

void wrk_patterns_free(struct wrk_patterns **pp)
{
    struct wrk_patterns *p = *pp;

    if (p == NULL)
        return;
    for (size_t i = 0; i < p->n; i++)
        pcre2_code_free(p->one[i].code);
    pcre2_match_data_free(p->data);
    pcre2_match_context_free(p->match);
    free(p);
    *pp = NULL;
}

enum rc wrk_patterns_accept(struct wrk_patterns *p, const char *s, size_t n,
                            const struct mdl_tok_stop *stop, bool *accepts, struct rc_err *err)
{
    *accepts = true;
    for (size_t i = 0; p != NULL && i < p->n && *accepts; i++) {
        uint32_t how = p->one[i].search ? 0 : PCRE2_ANCHORED | PCRE2_ENDANCHORED;
        int k;

        if (stop != NULL && stop->ask(stop->user))
            return rc_fail(err, RC_CANCELLED, "stopped before pattern %zu", i);
        k = pcre2_match(p->one[i].code, (PCRE2_SPTR)s, n, 0, how, p->data, p->match);
        if (k < 0 && k != PCRE2_ERROR_NOMATCH)
            return rc_bound(rc_fail_what(err, RC_TOO_LARGE, "validators",
                                         "pattern %zu takes more than %u steps on a text of %zu "
                                         "bytes",
                                         i, MATCH_STEPS, n),
                            0, MATCH_STEPS, err);
        *accepts = (k >= 0) != p->one[i].exclude;
    }
    return RC_OK;
}
