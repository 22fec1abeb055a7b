/* sup_items.c - errors of single inputs, pins and the numeric frame (see sup_items.h). */
#include "sup_items.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

void sup_item_error(struct sup_item_errors *e, uint32_t idx, const struct sup_fail *f,
                    const char *stage)
{
    struct sup_json *o = &e->out;

    sup_json_fmt(o, "%s{\"index\":%u,\"code\":", e->n++ ? "," : "", idx);
    sup_json_quoted(o, sup_code_word(f->code));
    sup_json_str(o, ",\"message\":");
    sup_json_quoted(o, f->err.msg);
    sup_json_fmt(o, ",\"stage\":\"%s\",\"retryable\":%s,\"status\":%u", stage,
                 f->retry_ms ? "true" : "false", sup_fail_http(f));
    if (f->retry_ms)
        sup_json_fmt(o, ",\"retry_after_ms\":%u", f->retry_ms);
    sup_fail_tokens(f, o);
    sup_json_str(o, "}");
}

bool sup_item_rows(Ipc__ItemError *const *list, size_t n, uint32_t n_rows, bool per_item,
                   bool *failed)
{
    if (n && !per_item)
        return false;
    for (size_t k = 0; k < n; k++) {
        uint32_t row = list[k]->index;

        if (row >= n_rows || failed[row] || !list[k]->error)
            return false;
        failed[row] = true;
    }
    return true;
}

void sup_item_notes(struct sup_item_errors *e, Ipc__ItemError *const *list, size_t n,
                    const uint32_t *at)
{
    for (size_t k = 0; k < n; k++) {
        struct rc_err err;
        struct sup_fail f;

        ipc_error_to(&err, list[k]->error);
        sup_fail_refused(&f, &err);
        sup_item_error(e, at[list[k]->index], &f, err.stage ? err.stage : IPC_STAGE_TEXT_RUN);
    }
}

bool sup_item_bad(struct sup_item_errors *e, bool per_item, uint32_t idx, const char *stage,
                  struct sup_fail *f)
{
    if (per_item && f->code != SUP_E_MODEL_RESOURCE_BUSY) {
        sup_item_error(e, idx, f, stage);
        return true;
    }
    f->err.item = (int32_t)idx;
    f->err.stage = stage;
    return false;
}

static void put_errors(struct sup_json *o, const struct sup_item_errors *e, uint32_t n_inputs)
{
    sup_json_str(o, ",\"errors\":[");
    if (e->out.failed)
        o->failed = true;
    sup_json_put(o, e->out.p, e->out.n);
    sup_json_fmt(o, "],\"summary\":{\"total\":%u,\"succeeded\":%u,\"failed\":%u}", n_inputs,
                 n_inputs - e->n, e->n);
}

void sup_items_end(struct sup_json *o, const struct sup_items_end *e)
{
    unsigned long long n = e->n_tokens;

    sup_json_str(o, "],\"model\":");
    sup_json_quoted(o, e->model);
    sup_json_fmt(o, ",\"usage\":{\"prompt_tokens\":%llu%s,\"total_tokens\":%llu", n,
                 e->completion ? ",\"completion_tokens\":0" : "", n);
    if (e->n_media)
        sup_json_fmt(o, ",\"media_tokens\":%llu", (unsigned long long)*e->n_media);
    sup_json_str(o, "}");
    if (e->meta) {
        sup_json_str(o, ",\"meta\":");
        sup_json_str(o, e->meta);
    }
    if (*e->identity) {
        sup_json_str(o, ",\"model_identity\":");
        sup_json_quoted(o, e->identity);
    }
    if (e->errors)
        put_errors(o, e->errors, e->n_inputs);
    sup_json_str(o, "}");
}

bool sup_pin_kept(const char *asked, const char *have, struct sup_fail *f)
{
    if (!*asked || strcmp(asked, have) == 0)
        return true;
    sup_fail_set(f, SUP_E_MODEL_IDENTITY_MISMATCH, "model_identity",
                 "field 'model_identity': got %.8s..., the loaded model %s%.8s%s", asked,
                 *have ? "is " : "has no identity", have, *have ? "..." : "");
    return false;
}

bool sup_numeric_wanted(const char *accept)
{
    const size_t n = strlen(SUP_NUMERIC_TYPE);

    for (const char *p = accept ? accept : ""; *p; p += strcspn(p, ","), p += *p == ',') {
        const char *q;
        size_t len;

        p += strspn(p, " \t");
        len = strcspn(p, ",");
        if (len < n || strncasecmp(p, SUP_NUMERIC_TYPE, n) != 0 || strcspn(p + n, " \t;,") != 0)
            continue;
        q = strstr(p + n, "q=");
        if (!q || q >= p + len || strtod(q + 2, NULL) > 0)
            return true;
    }
    return false;
}

static void put64(uint8_t *p, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

void sup_numeric_head(struct sup_json *o, uint8_t kind, uint64_t rows, uint64_t columns)
{
    uint8_t h[SUP_NUMERIC_HEAD] = {'A', 'F', 'N', '1', kind};

    put64(h + 8, rows);
    put64(h + 16, columns);
    sup_json_put(o, h, sizeof(h));
}
