/* sup_http_gate.c - strict framing of HTTP/1.1 requests; see sup_http_gate.h.
 *
 * Source: RFC 9112 sections 2.2, 3, 5, 6, 7.1; where it lets a server choose, the
 * stricter reading is taken. Change with care: every relaxation here is a way
 * to hide a request. Tests: tests/supervisor/test_sup_http_parse.c
 */
#include "sup_http_gate.h"

const struct sup_fault_row sup_fault_rows[SUP_FAULT_COUNT] = {
#define X(id, status_, code_, reason_, msg_) \
    [SUP_F_##id] = {.status = (status_), .code = (code_), .reason = (reason_), .msg = (msg_)},
    SUP_FAULTS(X)
#undef X
};

bool sup_is_tchar(unsigned char c)
{
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'))
        return true;
    switch (c) {
    case '!':
    case '#':
    case '$':
    case '%':
    case '&':
    case '\'':
    case '*':
    case '+':
    case '-':
    case '.':
    case '^':
    case '_':
    case '`':
    case '|':
    case '~':
        return true;
    default:
        return false;
    }
}

static bool is_ctl(unsigned char c)
{
    return c < 0x20 || c == 0x7f;
}

static int hex(unsigned char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

static enum sup_fault want_lf(unsigned char c)
{
    return c == '\n' ? SUP_F_NONE : SUP_F_BARE_CR;
}

static enum sup_fault lead_byte(struct sup_gate *g, unsigned char c)
{
    if (c == '\r') {
        if (g->n_lead++ >= 2)
            return SUP_F_LEAD;
        g->st = SUP_G_LEAD_LF;
        return SUP_F_NONE;
    }
    if (c == '\n')
        return SUP_F_BARE_LF;
    if (is_ctl(c) || c >= 0x80)
        return SUP_F_LINE_BYTE;
    g->st = SUP_G_LINE;
    g->n_line = 1;
    return SUP_F_NONE;
}

static enum sup_fault line_byte(struct sup_gate *g, unsigned char c)
{
    if (c == '\r') {
        g->st = SUP_G_LINE_LF;
        return SUP_F_NONE;
    }
    if (c == '\n')
        return SUP_F_BARE_LF;
    if (is_ctl(c) || c >= 0x80)
        return SUP_F_LINE_BYTE;
    return ++g->n_line > SUP_MAX_TARGET_BYTES ? SUP_F_TARGET_LONG : SUP_F_NONE;
}

static enum sup_fault bol_byte(struct sup_gate *g, unsigned char c)
{
    if (c == '\r') {
        g->st = SUP_G_END_LF;
        return SUP_F_NONE;
    }
    if (c == '\n')
        return SUP_F_BARE_LF;
    if (c == ' ' || c == '\t')
        return SUP_F_FOLD;
    if (!sup_is_tchar(c))
        return SUP_F_NAME_BYTE;
    if (++g->n_lines > SUP_MAX_HEADERS)
        return SUP_F_HEADERS_MANY;
    g->st = SUP_G_NAME;
    return SUP_F_NONE;
}

static enum sup_fault value_byte(struct sup_gate *g, unsigned char c)
{
    if (c == '\r') {
        g->st = SUP_G_VALUE_LF;
        return SUP_F_NONE;
    }
    if (c == '\n')
        return SUP_F_BARE_LF;
    return is_ctl(c) && c != '\t' ? SUP_F_VALUE_BYTE : SUP_F_NONE;
}

/* One byte of a head or of a trailer section. */
static enum sup_fault text_byte(struct sup_gate *g, unsigned char c)
{
    enum sup_fault f;

    switch (g->st) {
    case SUP_G_LEAD:
        return lead_byte(g, c);
    case SUP_G_LEAD_LF:
        g->st = SUP_G_LEAD;
        return want_lf(c);
    case SUP_G_LINE:
        return line_byte(g, c);
    case SUP_G_LINE_LF:
    case SUP_G_VALUE_LF:
        g->st = SUP_G_BOL;
        return want_lf(c);
    case SUP_G_BOL:
        return bol_byte(g, c);
    case SUP_G_NAME:
        if (c == ':')
            g->st = SUP_G_VALUE;
        else if (c == '\n')
            return SUP_F_BARE_LF;
        else if (!sup_is_tchar(c))
            return SUP_F_NAME_BYTE;
        return SUP_F_NONE;
    case SUP_G_VALUE:
        return value_byte(g, c);
    default: /* SUP_G_END_LF */
        f = want_lf(c);
        g->st = g->trailer ? SUP_G_DONE : SUP_G_HEAD_END;
        return f;
    }
}

size_t sup_gate_head(struct sup_gate *g, const char *p, size_t n, size_t *skip)
{
    size_t i = 0;

    *skip = 0;
    while (i < n && g->st != SUP_G_HEAD_END && !g->fault) {
        g->fault = (uint8_t)text_byte(g, (unsigned char)p[i]);
        i++;
        if (g->st == SUP_G_LEAD || g->st == SUP_G_LEAD_LF)
            *skip = i;
    }
    return i;
}

void sup_gate_body(struct sup_gate *g, bool chunked, uint64_t length)
{
    g->left = chunked ? 0 : length;
    g->n_digits = 0;
    g->st = chunked ? SUP_G_SIZE : length ? SUP_G_LENGTH : SUP_G_DONE;
}

static enum sup_fault size_byte(struct sup_gate *g, unsigned char c)
{
    int d = hex(c);

    if (d >= 0) {
        if (g->n_digits++ >= 16)
            return SUP_F_CHUNK_SIZE;
        g->left = g->left << 4 | (unsigned)d;
        return SUP_F_NONE;
    }
    if (g->n_digits == 0 || (c != ';' && c != '\r'))
        return c == '\n' ? SUP_F_BARE_LF : SUP_F_CHUNK_SIZE;
    g->st = c == ';' ? SUP_G_EXT : SUP_G_SIZE_LF;
    return SUP_F_NONE;
}

static enum sup_fault size_end(struct sup_gate *g, unsigned char c, uint64_t max_body)
{
    if (c != '\n')
        return SUP_F_BARE_CR;
    if (g->left > max_body || g->n_body > max_body - g->left)
        return SUP_F_BODY_LONG;
    g->n_body += g->left;
    if (g->left == 0) {
        g->trailer = true;
        g->n_lines = 0;
        g->st = SUP_G_BOL;
    } else {
        g->st = SUP_G_DATA;
    }
    return SUP_F_NONE;
}

static enum sup_fault chunk_byte(struct sup_gate *g, unsigned char c, uint64_t max_body)
{
    switch (g->st) {
    case SUP_G_SIZE:
        return size_byte(g, c);
    case SUP_G_EXT:
        if (c == '\r') {
            g->st = SUP_G_SIZE_LF;
            return SUP_F_NONE;
        }
        if (c == '\n')
            return SUP_F_BARE_LF;
        if (++g->n_ext > SUP_MAX_CHUNK_EXT_BYTES || (is_ctl(c) && c != '\t'))
            return SUP_F_CHUNK_EXT;
        return SUP_F_NONE;
    case SUP_G_SIZE_LF:
        return size_end(g, c, max_body);
    case SUP_G_DATA_CR:
        g->st = SUP_G_DATA_LF;
        return c == '\r' ? SUP_F_NONE : SUP_F_CHUNK_END;
    case SUP_G_DATA_LF:
        g->st = SUP_G_SIZE;
        g->n_digits = 0;
        return c == '\n' ? SUP_F_NONE : SUP_F_CHUNK_END;
    default: /* trailer */
        if (++g->n_trailer > SUP_MAX_TRAILER_BYTES)
            return SUP_F_TRAILER_LONG;
        return text_byte(g, c);
    }
}

size_t sup_gate_scan(struct sup_gate *g, const char *p, size_t n, uint64_t max_body_bytes)
{
    size_t i = 0;

    while (i < n && g->st != SUP_G_DONE && !g->fault) {
        if (g->st == SUP_G_DATA || g->st == SUP_G_LENGTH) {
            size_t take = g->left < n - i ? (size_t)g->left : n - i;

            i += take;
            g->left -= take;
            if (g->left == 0)
                g->st = g->st == SUP_G_DATA ? SUP_G_DATA_CR : SUP_G_DONE;
        } else {
            g->fault = (uint8_t)chunk_byte(g, (unsigned char)p[i], max_body_bytes);
            i++;
        }
    }
    return i;
}
