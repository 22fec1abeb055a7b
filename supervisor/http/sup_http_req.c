/* sup_http_req.c - what a handler sees of a request, and how it answers.
 *
 * None of these calls runs a callback or the next request; they queue bytes that
 * leave at the end of the loop's turn. A request whose client has gone swallows
 * its answer. Tests: tests/supervisor/test_sup_http.c, test_sup_http_stream.c
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sup_http_priv.h"

const char *sup_req_method(const struct sup_req *r)
{
    return llhttp_method_name(r->head.method);
}

const char *sup_req_path(const struct sup_req *r)
{
    return r->path;
}

const char *sup_req_tail(const struct sup_req *r)
{
    return r->tail;
}

const char *sup_req_query(const struct sup_req *r, const char *key)
{
    const char *at = r->query;

    for (uint32_t i = 0; i < r->n_query; i++) {
        const char *value = at + strlen(at) + 1;

        if (strcmp(at, key) == 0)
            return value;
        at = value + strlen(value) + 1;
    }
    return NULL;
}

const char *sup_req_header(const struct sup_req *r, const char *lower_name)
{
    return sup_head_get(&r->head, lower_name);
}

const char *sup_req_body(const struct sup_req *r, size_t *n_bytes)
{
    *n_bytes = r->body.n;
    return r->body.data ? r->body.data : "";
}

const char *sup_req_id(const struct sup_req *r)
{
    return r->id;
}

struct sup_grant *sup_req_grant(const struct sup_req *r)
{
    return r->grant;
}

uint64_t sup_req_start_us(const struct sup_req *r)
{
    return r->start_us;
}

void sup_req_on_abort(struct sup_req *r, void (*fn)(void *user), void *user)
{
    if (r->conn == NULL) /* too late: the answer ends it */
        return;
    r->abort_fn = fn;
    r->abort_user = user;
}

void sup_req_free(struct sup_req **rp, struct sup_http *h)
{
    struct sup_req *r = *rp;

    if (!r)
        return;
    if (h)
        sup_body_free(&r->body, &h->env);
    sup_head_free(&r->head);
    sup_grant_unref(&r->grant);
    free(r->extra);
    free(r);
    *rp = NULL;
}

/* Control bytes would end the line and begin another: they become spaces. */
void sup_req_set_header(struct sup_req *r, const char *name, const char *value)
{
    size_t n_name = strlen(name), n_value = strlen(value), n = n_name + n_value + 4;
    char *q;

    if (n > SUP_EXTRA_BYTES || r->n_extra + n > SUP_EXTRA_BYTES || n_name == 0)
        return;
    for (size_t i = 0; i < n_name; i++) {
        if (!sup_is_tchar((unsigned char)name[i]))
            return;
    }
    q = realloc(r->extra, r->n_extra + n);
    if (!q)
        return;
    r->extra = q;
    q += r->n_extra;
    memcpy(q, name, n_name);
    memcpy(q + n_name, ": ", 2);
    for (size_t i = 0; i < n_value; i++) {
        unsigned char c = (unsigned char)value[i];

        q[n_name + 2 + i] = c < 0x20 || c == 0x7f ? ' ' : (char)c;
    }
    memcpy(q + n - 2, "\r\n", 2);
    r->n_extra += n;
}

static bool has_body(const struct sup_req *r, unsigned status)
{
    return !r->is_head && status != 204 && status != 304;
}

/* The client has gone and the handler did not ask to hear of it: its answer is
 * the end of the husk. While the abort callback runs, that is not ours to free. */
static bool is_husk(const struct sup_req *r)
{
    return r->conn == NULL;
}

static void husk_end(struct sup_req *r)
{
    if (!r->abort_fn)
        sup_req_free(&r, NULL);
}

void sup_reply(struct sup_req *r, unsigned status, const char *content_type, const void *body,
               size_t n_bytes)
{
    struct sup_conn *c = r->conn;

    if (is_husk(r)) {
        husk_end(r);
        return;
    }
    sup_out_head(c, r, r->id, status, content_type, n_bytes, false, NULL);
    if (has_body(r, status))
        sup_out_add(c, body, n_bytes);
    r->n_sent = n_bytes;
    sup_conn_answered(c, status);
}

void sup_stream_start(struct sup_req *r, unsigned status, const char *content_type,
                      void (*on_drain)(void *user), void *user)
{
    if (is_husk(r))
        return;
    r->streaming = true;
    r->status = status;
    r->chunked = !r->head.http10;
    r->drain_fn = on_drain;
    r->drain_user = user;
    sup_out_head(r->conn, r, r->id, status, content_type, UINT64_MAX, r->chunked, NULL);
    sup_conn_dirty(r->conn);
}

static void stream_add(struct sup_req *r, const void *data, size_t n)
{
    char size[20];

    if (r->chunked)
        sup_out_add(r->conn, size, (size_t)snprintf(size, sizeof(size), "%zx\r\n", n));
    sup_out_add(r->conn, data, n);
    if (r->chunked)
        sup_out_add(r->conn, "\r\n", 2);
    r->n_sent += n;
}

bool sup_stream_write(struct sup_req *r, const void *data, size_t n_bytes)
{
    struct sup_conn *c = r->conn;
    uint64_t high;

    if (is_husk(r) || r->is_head || n_bytes == 0)
        return true;
    high = c->h->conf->stream_buffer_bytes;
    if (!c->cut && sup_out_pending(c) > 4 * high) {
        sup_http_refused(c->h, "slow_reader");
        c->cut = true;
    }
    if (!c->cut) {
        stream_add(r, data, n_bytes);
        if (c->n_out >= SUP_OUT_SOON_BYTES && !sup_out_write(c))
            c->cut = true;
    }
    sup_conn_dirty(c);
    if (c->cut)
        return false;
    if (sup_out_pending(c) <= high)
        return true;
    if (!r->paused) {
        r->paused = true;
        sup_series_add(c->h->m_paused, 1);
    }
    return false;
}

void sup_stream_end(struct sup_req *r)
{
    struct sup_conn *c = r->conn;

    if (is_husk(r)) {
        husk_end(r);
        return;
    }
    if (r->chunked && !r->is_head)
        sup_out_add(c, "0\r\n\r\n", 5);
    sup_conn_answered(c, r->status);
}
