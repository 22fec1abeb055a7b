/* fuzz_http.c - the HTTP parser layer without sockets.
 * room: sup
 *
 * First byte: how the rest is cut into reads. Whatever the cut, the same messages
 * with the same bytes and the same verdict must come out; every text handed on is
 * NUL-ended inside its block; the body budget returns to zero.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc.h"
#include "sup_http_priv.h"

static void h_none(struct sup_req *r, void *user)
{
}

static const struct sup_route routes[] = {
    {"GET", "/healthz", h_none, "healthz"},
    {"POST", "/v1/models/load", h_none, "load"},
    {"GET", "/v1/models/*", h_none, "model"},
    {0},
};

struct trace {
    uint64_t hash;
    unsigned n_messages;
    enum sup_fault fault;
};

static void mix(struct trace *t, const void *data, size_t n)
{
    const unsigned char *p = data;

    for (size_t i = 0; i < n; i++)
        t->hash = (t->hash ^ p[i]) * 0x100000001b3u;
    t->hash = (t->hash ^ n) * 0x100000001b3u;
}

static void mix_text(struct trace *t, const char *s)
{
    mix(t, s, strlen(s));
}

static void take_head(struct trace *t, struct sup_hp *hp, const struct sup_http *h)
{
    struct sup_req r = {0};
    char allow[96];

    sup_hp_head_take(hp, &r.head);
    for (uint32_t i = 0; i < r.head.n_pairs; i++) {
        const struct sup_hp_pair *x = &r.head.pairs[i];
        const char *name = r.head.buf + x->name, *value = r.head.buf + x->value;

        if (strlen(name) != x->n_name || strlen(value) != x->n_value || x->n_name == 0)
            abort();
        if (strpbrk(name, "\r\n: \t") || strpbrk(value, "\r\n"))
            abort();
        mix_text(t, name);
        mix_text(t, value);
    }
    if (r.head.chunked && r.head.content_length)
        abort();
    mix(t, &r.head.method, 1);
    mix(t, &r.head.content_length, 8);
    mix(t, &r.head.keep_alive, 1);
    mix_text(t, r.head.buf + r.head.target);
    r.path = "";
    if (sup_target_parse(&r)) {
        sup_route_find(h, &r);
        sup_route_allow(h, &r, allow, sizeof(allow));
        if (!ipc_utf8_valid(r.path, strlen(r.path)))
            abort();
        if (r.route < h->n_routes && r.fault)
            abort();
        mix_text(t, r.path);
        mix_text(t, r.tail ? r.tail : "");
        mix_text(t, allow);
        for (const char *k = "q"; k; k = NULL) {
            const char *v = sup_req_query(&r, k);

            mix_text(t, v ? v : "-");
        }
        mix(t, &r.n_query, sizeof(r.n_query));
    }
    sup_head_free(&r.head);
}

static struct trace run(const char *data, size_t n, unsigned cut, const struct sup_http *h)
{
    struct sup_hp_env env = {.max_header_bytes = 2048, .max_body_bytes = 4096, .body_limit = 8192};
    struct trace t = {.hash = 0xcbf29ce484222325u};
    struct sup_hp hp;
    size_t at = 0, limit = 0;
    bool again = false;

    sup_hp_init(&hp, &env);
    while (at < n || again) {
        size_t piece = cut == 0 ? n - at : 1 + (cut * 7 + at * 13) % cut, used;
        enum sup_hp_event e;

        if (piece > n - at)
            piece = n - at;
        e = sup_hp_feed(&hp, data + at, piece, &used);
        if (used > piece || ++limit > 4 * n + 64)
            abort();
        at += used;
        again = false;
        if (e == SUP_HP_HEAD) {
            take_head(&t, &hp, h);
            again = true;
        } else if (e == SUP_HP_DONE) {
            struct sup_body b;

            sup_hp_body_take(&hp, &b);
            if (b.n > env.max_body_bytes || b.n > b.cap)
                abort();
            mix(&t, b.data ? b.data : "", b.n);
            sup_body_free(&b, &env);
            sup_hp_reset(&hp);
            t.n_messages++;
        } else if (e == SUP_HP_BAD) {
            t.fault = sup_hp_fault(&hp);
            if (t.fault == SUP_F_NONE || !*sup_fault_rows[t.fault].code)
                abort();
            break;
        }
    }
    sup_hp_deinit(&hp);
    if (env.body_used)
        abort();
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct sup_http h;
    struct trace whole, cut;

    if (n < 1 || n > 16384)
        return 0;
    h.routes = routes;
    h.n_routes = 3;
    whole = run((const char *)data + 1, n - 1, 0, &h);
    cut = run((const char *)data + 1, n - 1, 1 + data[0] % 64, &h);
    if (whole.hash != cut.hash || whole.n_messages != cut.n_messages || whole.fault != cut.fault) {
        fprintf(stderr, "whole: %u messages, fault %d; cut: %u, %d\n", whole.n_messages,
                whole.fault, cut.n_messages, cut.fault);
        abort();
    }
    return 0;
}
