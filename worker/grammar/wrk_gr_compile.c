/* wrk_gr_compile.c - one text to one program.
 *
 * Which reader is whose, and the order of the steps. Tests: tests/worker/test_wrk_gr.c
 */
#include "wrk_gr_impl.h"

#include <stdlib.h>
#include <string.h>

const char *gr_field(enum wrk_gr_kind kind)
{
    return kind == WRK_GR_GBNF    ? "grammar"
           : kind == WRK_GR_REGEX ? "regex"
           : kind == WRK_GR_JSON  ? "response_format"
           : kind == WRK_GR_TALK  ? "tools"
                                  : "response_format.json_schema.schema";
}

void gr_read(struct gr_build *b, enum wrk_gr_kind kind, const char *text, size_t n)
{
    b->field = gr_field(kind);
    switch (kind) {
    case WRK_GR_JSON:
    case WRK_GR_SCHEMA:
        gr_read_schema(b, text, n, kind == WRK_GR_JSON);
        return;
    case WRK_GR_GBNF:
        gr_read_gbnf(b, text, n);
        return;
    case WRK_GR_REGEX:
        gr_read_regex(b, text, n);
        return;
    case WRK_GR_TALK:
        gr_read_talk(b, text, n);
        return;
    case WRK_GR_NONE:
        break;
    }
    gr_fail(b, RC_INVALID, "kind %d, expected 1 to 5", (int)kind);
}

enum rc wrk_gr_compile(struct wrk_gr_prog **out, enum wrk_gr_kind kind, const char *text, size_t n,
                       struct rc_err *err)
{
    struct gr_build b = {.field = gr_field(kind), .err = err};
    size_t most = kind == WRK_GR_TALK ? 2 * WRK_GR_TEXT_MAX + 256 : WRK_GR_TEXT_MAX;
    struct wrk_gr_prog *p = calloc(1, sizeof(*p));
    enum rc rc;

    if (p == NULL)
        gr_fail(&b, RC_NOMEM, "no memory for %zu bytes", n);
    if (n > most)
        gr_fail(&b, RC_TOO_LARGE, "it has %zu bytes, at most %zu", n, most);
    if (b.rc == RC_OK)
        gr_read(&b, kind, text, n);
    if (b.rc == RC_OK)
        gr_emit(&b);
    if (b.rc == RC_OK)
        gr_prog_make(&b, p);
    rc = b.rc;
    gr_build_deinit(&b);
    if (rc != RC_OK) {
        wrk_gr_prog_free(&p);
        return rc;
    }
    *out = p;
    return RC_OK;
}

void wrk_gr_prog_free(struct wrk_gr_prog **pp)
{
    struct wrk_gr_prog *p = *pp;

    if (p == NULL)
        return;
    free(p->state);
    free(p->edge);
    free(p->call);
    free(p->rule);
    free(p);
    *pp = NULL;
}

size_t wrk_gr_prog_bytes(const struct wrk_gr_prog *p)
{
    return sizeof(*p) + p->n_states * sizeof(*p->state) + p->n_edges * sizeof(*p->edge) +
           p->n_calls * sizeof(*p->call) + p->n_rules * sizeof(*p->rule);
}
