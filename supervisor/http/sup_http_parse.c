/* sup_http_parse.c - bytes of a connection to whole requests; sup_http_parse.h.
 *
 * A head is collected whole before llhttp sees it, so spans come in one piece and
 * become offsets into one block: no copy per header, and slow clients cost no
 * parser state. Bodies are streamed through llhttp.
 *
 * Always true: llhttp gets exactly the bytes of one message; when it and the gate
 * disagree about where the message ends or how long it is, the request is
 * refused. Every leniency flag of llhttp stays off.
 */
#include "sup_http_parse.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int on_url(llhttp_t *ll, const char *at, size_t n)
{
    struct sup_hp *p = ll->data;

    p->head.target = (uint32_t)(at - p->head.buf);
    return 0;
}

static int on_field(llhttp_t *ll, const char *at, size_t n)
{
    struct sup_hp *p = ll->data;
    struct sup_hp_pair *pair;

    if (p->head_done) /* a trailer: checked by the gate, never used */
        return 0;
    if (p->head.n_pairs >= p->gate.n_lines)
        return HPE_USER;
    pair = &p->head.pairs[p->head.n_pairs++];
    *pair = (struct sup_hp_pair){.name = (uint32_t)(at - p->head.buf), .n_name = (uint32_t)n};
    return 0;
}

static int on_value(llhttp_t *ll, const char *at, size_t n)
{
    struct sup_hp *p = ll->data;
    struct sup_hp_pair *pair;

    if (p->head_done)
        return 0;
    if (p->head.n_pairs == 0)
        return HPE_USER;
    pair = &p->head.pairs[p->head.n_pairs - 1];
    if (pair->n_value) /* a value in two pieces would be a folded line */
        return HPE_USER;
    pair->value = (uint32_t)(at - p->head.buf);
    pair->n_value = (uint32_t)n;
    return 0;
}

static int on_headers_complete(llhttp_t *ll)
{
    struct sup_hp *p = ll->data;

    p->head_done = true;
    p->head.keep_alive = llhttp_should_keep_alive(ll) != 0;
    p->head.chunked = (ll->flags & F_CHUNKED) != 0;
    p->head.content_length = ll->content_length;
    ll->upgrade = 0; /* Upgrade (h2c, websocket) may be ignored: RFC 9110 7.8 */
    return 0;
}

static int body_grow(struct sup_hp *p, size_t need)
{
    struct sup_body *b = &p->body;
    size_t cap = b->cap ? b->cap : 1024;
    char *q;

    while (cap < need)
        cap *= 2;
    if (p->head.content_length && !p->head.chunked && cap > p->head.content_length)
        cap = (size_t)p->head.content_length;
    if (cap < need)
        cap = need;
    if (cap - b->cap > p->env->body_limit - p->env->body_used) {
        p->gate.fault = SUP_F_BODY_BUDGET;
        return HPE_USER;
    }
    q = realloc(b->data, cap);
    if (!q) {
        p->gate.fault = SUP_F_NOMEM;
        return HPE_USER;
    }
    p->env->body_used += cap - b->cap;
    b->data = q;
    b->cap = cap;
    return 0;
}

static int on_body(llhttp_t *ll, const char *at, size_t n)
{
    struct sup_hp *p = ll->data;

    if (n > p->max_body - p->body.n) {
        p->gate.fault = SUP_F_BODY_LONG;
        return HPE_USER;
    }
    if (p->body.n + n > p->body.cap && body_grow(p, p->body.n + n) != 0)
        return HPE_USER;
    memcpy(p->body.data + p->body.n, at, n);
    p->body.n += n;
    return 0;
}

static int on_message_complete(llhttp_t *ll)
{
    struct sup_hp *p = ll->data;

    p->complete = true;
    return 0;
}

static const llhttp_settings_t settings = {
    .on_url = on_url,
    .on_header_field = on_field,
    .on_header_value = on_value,
    .on_headers_complete = on_headers_complete,
    .on_body = on_body,
    .on_message_complete = on_message_complete,
};

void sup_hp_init(struct sup_hp *p, struct sup_hp_env *env)
{
    memset(p, 0, sizeof(*p));
    p->env = env;
    p->max_body = env->max_body_bytes;
}

void sup_hp_deinit(struct sup_hp *p)
{
    sup_head_free(&p->head);
    if (p->env)
        sup_body_free(&p->body, p->env);
    p->n_head = p->cap_head = 0;
}

void sup_hp_reset(struct sup_hp *p)
{
    sup_hp_deinit(p);
    memset(&p->gate, 0, sizeof(p->gate));
    p->complete = p->head_done = false;
    p->max_body = p->env->max_body_bytes;
}

bool sup_hp_body_may(struct sup_hp *p, const struct sup_head *head, bool files)
{
    p->max_body = p->env->max_body_bytes + (files ? p->env->max_file_bytes : 0);
    return head->chunked || head->content_length <= p->max_body;
}

/* A head may hold a key. */
void sup_head_free(struct sup_head *h)
{
    if (h->buf)
        sodium_memzero(h->buf, h->n_buf);
    free(h->buf);
    memset(h, 0, sizeof(*h));
}

void sup_body_free(struct sup_body *b, struct sup_hp_env *env)
{
    free(b->data);
    env->body_used -= b->cap;
    memset(b, 0, sizeof(*b));
}

enum sup_fault sup_hp_fault(const struct sup_hp *p)
{
    return p->gate.fault;
}

bool sup_hp_fresh(const struct sup_hp *p)
{
    return p->gate.st == SUP_G_LEAD && p->gate.n_lead == 0;
}

void sup_hp_head_take(struct sup_hp *p, struct sup_head *out)
{
    *out = p->head;
    p->head.n_buf = 0;
    p->head.buf = NULL; /* framing facts stay: the body still needs them */
    p->head.pairs = NULL;
    p->head.n_pairs = 0;
    p->n_head = p->cap_head = 0;
}

void sup_hp_body_take(struct sup_hp *p, struct sup_body *out)
{
    *out = p->body;
    memset(&p->body, 0, sizeof(p->body));
}

const char *sup_head_get(const struct sup_head *h, const char *lower_name)
{
    size_t n = strlen(lower_name);

    for (uint32_t i = 0; i < h->n_pairs; i++) {
        if (h->pairs[i].n_name == n && memcmp(h->buf + h->pairs[i].name, lower_name, n) == 0)
            return h->buf + h->pairs[i].value;
    }
    return NULL;
}

static enum sup_hp_event bad(struct sup_hp *p, enum sup_fault f)
{
    if (!p->gate.fault)
        p->gate.fault = (uint8_t)f;
    return SUP_HP_BAD;
}

/* realloc would leave a copy behind. */
static bool head_grow(struct sup_head *h, size_t cap)
{
    char *q = malloc(cap);

    if (!q)
        return false;
    if (h->buf) {
        memcpy(q, h->buf, h->n_buf);
        sodium_memzero(h->buf, h->n_buf);
    }
    free(h->buf);
    h->buf = q;
    return true;
}

/* Appends head bytes; grows by doubling up to the limit. */
static bool head_add(struct sup_hp *p, const char *data, size_t n)
{
    size_t need = p->n_head + n;

    if (n == 0)
        return true;
    if (need > p->cap_head) {
        size_t cap = p->cap_head ? p->cap_head : need; /* usually one read, one size */

        while (cap < need)
            cap *= 2;
        if (!head_grow(&p->head, cap))
            return false;
        p->cap_head = (uint32_t)cap;
    }
    memcpy(p->head.buf + p->n_head, data, n);
    p->n_head += (uint32_t)n;
    p->head.n_buf = p->n_head;
    return true;
}

/* METHOD SP target SP HTTP/1.x CRLF, with exactly two spaces. llhttp lets more
 * through than that. */
static enum sup_fault check_line(const struct sup_hp *p)
{
    const char *line = p->head.buf, *end = memchr(line, '\r', p->n_head);
    const char *a = memchr(line, ' ', (size_t)(end - line)), *b;

    if (!a || a == line)
        return SUP_F_LINE_FORM;
    b = memchr(a + 1, ' ', (size_t)(end - a - 1));
    if (!b || b == a + 1 || memchr(b + 1, ' ', (size_t)(end - b - 1)))
        return SUP_F_LINE_FORM;
    if (end - b != 9 || memcmp(b, " HTTP/", 6) != 0)
        return SUP_F_LINE_FORM;
    if (memcmp(b + 6, "1.1", 3) != 0 && memcmp(b + 6, "1.0", 3) != 0)
        return SUP_F_VERSION;
    for (const char *c = line; c < a; c++) {
        if (!sup_is_tchar((unsigned char)*c))
            return SUP_F_LINE_FORM;
    }
    return SUP_F_NONE;
}

/* Ends every text with NUL inside the block, names in lower case. */
static void seal_text(struct sup_hp *p)
{
    struct sup_head *h = &p->head;

    *(char *)memchr(h->buf + h->target, ' ', p->n_head - h->target) = '\0';
    for (uint32_t i = 0; i < h->n_pairs; i++) {
        struct sup_hp_pair *x = &h->pairs[i];
        char *name = h->buf + x->name, *value = h->buf + x->value;

        name[x->n_name] = '\0'; /* was the colon */
        for (uint32_t k = 0; k < x->n_name; k++) {
            if (name[k] >= 'A' && name[k] <= 'Z')
                name[k] = (char)(name[k] + 32);
        }
        while (x->n_value && (value[x->n_value - 1] == ' ' || value[x->n_value - 1] == '\t'))
            x->n_value--;
        if (x->n_value)
            value[x->n_value] = '\0'; /* was white space or CR */
        else
            x->value = x->name + x->n_name; /* the NUL after the name */
    }
}

static bool parse_length(const char *s, uint64_t *out)
{
    uint64_t v = 0;

    if (!*s)
        return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '9' || v > (uint64_t)(INT64_MAX - (*s - '0')) / 10)
            return false;
        v = v * 10 + (unsigned)(*s - '0');
    }
    *out = v;
    return true;
}

/* Framing by our own reading of the headers; must equal llhttp's. */
static enum sup_fault check_framing(struct sup_hp *p)
{
    struct sup_head *h = &p->head;
    unsigned n_host = 0, n_length = 0, n_coding = 0;
    uint64_t length = 0;

    for (uint32_t i = 0; i < h->n_pairs; i++) {
        const char *name = h->buf + h->pairs[i].name, *value = h->buf + h->pairs[i].value;

        if (strcmp(name, "host") == 0) {
            n_host++;
        } else if (strcmp(name, "content-length") == 0) {
            if (n_length++)
                return SUP_F_LENGTH_TWICE;
            if (!parse_length(value, &length))
                return SUP_F_LENGTH_FORM;
        } else if (strcmp(name, "transfer-encoding") == 0) {
            if (n_coding++ || strcasecmp(value, "chunked") != 0 || h->http10)
                return SUP_F_CODING;
        } else if (strcmp(name, "expect") == 0 && !h->http10) {
            h->expect =
                strcasecmp(value, "100-continue") == 0 ? SUP_EXPECT_CONTINUE : SUP_EXPECT_UNKNOWN;
        }
    }
    if (n_length && n_coding)
        return SUP_F_LENGTH_CODING;
    if (n_host > 1 || (n_host == 0 && !h->http10))
        return SUP_F_HOST;
    if (h->chunked != (n_coding == 1) || (!h->chunked && h->content_length != length))
        return SUP_F_PARSER;
    if (length > p->env->max_body_bytes + p->env->max_file_bytes)
        return SUP_F_BODY_LONG;
    return SUP_F_NONE;
}

/* Makes room for the table of headers behind the text. */
static bool pairs_new(struct sup_hp *p)
{
    size_t at = (p->n_head + 8u) & ~(size_t)7u;

    if (!head_grow(&p->head, at + p->gate.n_lines * sizeof(struct sup_hp_pair) + 8))
        return false;
    p->head.pairs = (struct sup_hp_pair *)(void *)(p->head.buf + at);
    p->head.n_pairs = 0;
    return true;
}

static enum sup_fault head_parse(struct sup_hp *p)
{
    enum sup_fault f = check_line(p);
    llhttp_errno_t e;
    bool has_body;

    if (f)
        return f;
    if (!pairs_new(p))
        return SUP_F_NOMEM;
    llhttp_init(&p->ll, HTTP_REQUEST, &settings);
    p->ll.data = p;
    p->head.target = 0;
    e = llhttp_execute(&p->ll, p->head.buf, p->n_head);
    p->head.method = llhttp_get_method(&p->ll);
    p->head.http10 = llhttp_get_http_minor(&p->ll) == 0;
    if (e == HPE_OK || p->head.n_pairs == p->gate.n_lines) {
        /* Name the fault of the framing headers even when llhttp found it first. */
        if (p->head.target == 0 || p->head.n_pairs != p->gate.n_lines)
            return SUP_F_PARSER;
        seal_text(p);
        f = check_framing(p);
    }
    if (f)
        return f;
    if (e == HPE_INVALID_METHOD)
        return SUP_F_METHOD;
    if (e != HPE_OK)
        return SUP_F_PARSER;
    has_body = p->head.chunked || p->head.content_length > 0;
    if (p->complete == has_body)
        return SUP_F_PARSER;
    sup_gate_body(&p->gate, p->head.chunked, p->head.content_length);
    return SUP_F_NONE;
}

static enum sup_hp_event feed_head(struct sup_hp *p, const char *data, size_t n, size_t *used)
{
    size_t room = p->env->max_header_bytes - p->n_head, skip;
    size_t take = n < room ? n : room;
    enum sup_fault f;

    *used = sup_gate_head(&p->gate, data, take, &skip);
    if (p->gate.fault)
        return SUP_HP_BAD;
    if (!head_add(p, data + skip, *used - skip))
        return bad(p, SUP_F_NOMEM);
    if (p->gate.st == SUP_G_HEAD_END) {
        f = head_parse(p);
        return f ? bad(p, f) : SUP_HP_HEAD;
    }
    if (p->n_head >= p->env->max_header_bytes)
        return bad(p, p->gate.st <= SUP_G_LINE_LF ? SUP_F_TARGET_LONG : SUP_F_HEAD_LONG);
    return SUP_HP_MORE;
}

static enum sup_hp_event feed_body(struct sup_hp *p, const char *data, size_t n, size_t *used)
{
    size_t k = sup_gate_scan(&p->gate, data, n, p->max_body);
    enum sup_fault f = p->gate.fault;

    *used = k;
    if (f) {
        /* What llhttp dislikes in front of the bad byte comes first, as it would
         * have if the bytes had come one by one. */
        p->gate.fault = SUP_F_NONE;
        return bad(p, k > 1 && llhttp_execute(&p->ll, data, k - 1) != HPE_OK ? SUP_F_PARSER : f);
    }
    if (k && llhttp_execute(&p->ll, data, k) != HPE_OK)
        return bad(p, SUP_F_PARSER);
    if (p->complete != (p->gate.st == SUP_G_DONE))
        return bad(p, SUP_F_PARSER);
    return p->complete ? SUP_HP_DONE : SUP_HP_MORE;
}

enum sup_hp_event sup_hp_feed(struct sup_hp *p, const char *data, size_t n, size_t *used)
{
    *used = 0;
    if (p->gate.fault)
        return SUP_HP_BAD;
    if (p->gate.st < SUP_G_HEAD_END)
        return p->gate.trailer ? feed_body(p, data, n, used) : feed_head(p, data, n, used);
    return feed_body(p, data, n, used);
}
