/* sup_xfer.c - the loop over files, pieces and requests.
 *
 * Always true: a piece is fetched by at most one request; a request writes only while its answer
 * is of the content that its file began with. Tests: tests/e2e/pull.py
 */
#include "sup_xfer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TELL_MS 250
#define PROGRESS_BYTES (1u << 20) /* of a piece, that make its failures forgotten */
#define HASH_SLICE (8ull << 20)   /* between two looks at the sockets */
#define BACKOFF_MS 500u
#define BACKOFF_MAX_MS 30000u
#define RESTARTS 1

enum state { WAITING, ACTIVE, DONE };

struct run {
    struct sup_xfer_file *f;
    struct sup_part part;
    enum state state;
    unsigned restarts;
};

enum verdict { FITS, OTHER, NO_PARTS };

struct conn {
    struct sup_req req;
    struct run *run; /* NULL = free */
    size_t piece;
    bool checked;
    enum verdict verdict;
    enum rc rc; /* of writing */
    struct rc_err err;
    char saw[128]; /* why it does not fit */
};

struct loop {
    const struct sup_xfer *x;
    CURLM *multi;
    struct run *run;
    size_t n, n_done, n_active;
    struct conn *conn;
    uint64_t total, told_ms, rate, rate_ms, rate_bytes;
    bool hashing;
};

/* ----------------------------------------------------------------- answers */

static void other(struct conn *c, const char *what, uint64_t got, uint64_t want)
{
    c->verdict = OTHER;
    snprintf(c->saw, sizeof(c->saw), "%s %" PRIu64 " instead of %" PRIu64, what, got, want);
}

/* Is this answer what was asked for, of the content that the file began with? */
static enum verdict check(struct conn *c)
{
    struct sup_req *r = &c->req;
    struct sup_part *p = &c->run->part;
    bool known = p->etag[0] != '\0', same = strcmp(p->etag, r->etag) == 0;

    c->checked = true;
    c->verdict = FITS;
    if (known && !same) {
        c->verdict = OTHER;
        snprintf(c->saw, sizeof(c->saw), "another ETag");
    } else if (r->to && r->status == 200) {
        c->verdict = NO_PARTS;
    } else if (r->status == 206 && (!r->has_range || r->range_from != r->from)) {
        other(c, "bytes from", r->range_from, r->from);
    } else if (r->status == 206 && r->range_total != p->size) {
        other(c, "a size of", r->range_total, p->size);
    } else if (r->status == 200 && r->has_length && r->length != p->size) {
        other(c, "a size of", r->length, p->size);
    } else if (!known && r->etag[0] && sup_part_etag(p, r->etag, &c->err) != RC_OK) {
        c->rc = c->err.code;
    }
    return c->verdict;
}

static bool sink(struct sup_req *r, const char *b, size_t n)
{
    struct conn *c = r->user;

    if (!c->checked && check(c) != FITS)
        return false;
    if (c->rc == RC_OK)
        c->rc = sup_part_write(&c->run->part, c->piece, b, n, &c->err);
    if (c->rc == RC_TOO_LARGE) {
        c->rc = RC_OK;
        c->verdict = OTHER;
        snprintf(c->saw, sizeof(c->saw), "more bytes than announced");
        return false;
    }
    return c->rc == RC_OK;
}

/* ---------------------------------------------------------------- requests */

static void release(struct loop *l, struct conn *c)
{
    if (c->run && c->piece < c->run->part.n_pieces)
        c->run->part.piece[c->piece].busy = false;
    sup_req_deinit(&c->req, l->multi);
    c->run = NULL;
}

static void release_all(struct loop *l, const struct run *r)
{
    for (size_t i = 0; i < SUP_XFER_CONNS; i++)
        if (l->conn[i].run && (!r || l->conn[i].run == r))
            release(l, &l->conn[i]);
}

static enum rc begin(struct loop *l, struct conn *c, struct run *r, size_t i, struct rc_err *err)
{
    struct sup_part *p = &r->part;
    struct sup_piece *x = &p->piece[i];
    enum rc rc;

    if (p->whole && x->done) { /* no way to go on in the middle */
        unsigned tries = x->tries;

        if ((rc = sup_part_restart(p, true, err)) != RC_OK)
            return rc;
        x = &p->piece[i];
        x->tries = tries;
    }
    c->checked = false;
    c->rc = RC_OK;
    c->verdict = FITS;
    if ((rc = sup_req_init(&c->req, l->x->rules, r->f->url, err)) != RC_OK)
        return rc;
    c->run = r;
    c->piece = i;
    x->busy = true;
    c->req.sink = sink;
    c->req.user = c;
    if (x->begin + x->done > 0 || x->end < p->size) {
        c->req.from = x->begin + x->done;
        c->req.to = x->end;
        if (p->etag[0] && strncmp(p->etag, "W/", 2) != 0)
            snprintf(c->req.if_range, sizeof(c->req.if_range), "%s", p->etag);
    }
    return sup_req_start(&c->req, l->multi, err);
}

static enum rc start_over(struct loop *l, struct run *r, const char *why, struct rc_err *err)
{
    release_all(l, r);
    if (r->restarts++ >= RESTARTS)
        return rc_fail_what(err, RC_CONFLICT, r->f->path,
                            "'%.200s' is not what was announced, twice in a row: %s", r->f->path,
                            why);
    return sup_part_restart(&r->part, false, err);
}

static enum rc try_again(struct loop *l, struct run *r, size_t i, uint32_t ms, struct rc_err *err)
{
    struct sup_piece *x = &r->part.piece[i];
    uint64_t wait;

    if (x->done >= x->tried_at + PROGRESS_BYTES) {
        x->tries = 0;
        x->tried_at = x->done;
    }
    if (x->tries >= l->x->retries) {
        rc_wrap(err, "'%.200s', after %u attempts", r->f->path, x->tries + 1);
        return err->code;
    }
    wait = (uint64_t)BACKOFF_MS << (x->tries < 6 ? x->tries : 6);
    if (wait > BACKOFF_MAX_MS)
        wait = BACKOFF_MAX_MS;
    x->tries++;
    x->not_before_ms = sup_req_now_ms() + (ms ? ms : wait);
    return RC_OK;
}

/* One request is over: what comes of its piece. */
static enum rc ended(struct loop *l, struct conn *c, CURLcode code, struct rc_err *err)
{
    struct run *r = c->run;
    size_t i = c->piece;
    enum sup_req_end end = sup_req_finish(&c->req, l->multi, code, err);
    struct sup_piece *x = &r->part.piece[i];
    uint32_t ms = c->req.retry_ms;
    enum rc rc;

    if (end == SUP_REQ_REDIRECT)
        return sup_req_start(&c->req, l->multi, err);
    if (end == SUP_REQ_DONE && !c->checked)
        (void)check(c);
    if (c->req.status == 416) { /* the file has become shorter than what is asked for */
        c->verdict = OTHER;
        snprintf(c->saw, sizeof(c->saw), "fewer bytes than announced");
    }
    if (c->rc != RC_OK) {
        *err = c->err;
        return c->rc;
    }
    if (c->verdict == OTHER)
        return start_over(l, r, c->saw, err);
    if (c->verdict == NO_PARTS) {
        release_all(l, r);
        return sup_part_restart(&r->part, true, err);
    }
    rc = end == SUP_REQ_FAIL ? err->code : RC_OK;
    release(l, c);
    if (rc != RC_OK)
        rc_wrap(err, "'%.200s'", r->f->path);
    else if (end == SUP_REQ_RETRY)
        rc = try_again(l, r, i, ms, err);
    else if (x->begin + x->done < x->end) {
        rc_fail(err, RC_IO, "the answer ended %" PRIu64 " bytes early",
                x->end - x->begin - x->done);
        rc = try_again(l, r, i, 0, err);
    }
    return rc;
}

static enum rc reap(struct loop *l, struct rc_err *err)
{
    enum rc rc = RC_OK;
    CURLMsg *m;
    int left;

    while (rc == RC_OK && (m = curl_multi_info_read(l->multi, &left))) {
        CURLcode code = m->data.result;
        struct sup_req *r = NULL;

        if (m->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&r);
        for (size_t i = 0; i < SUP_XFER_CONNS; i++)
            if (l->conn[i].run && &l->conn[i].req == r) {
                rc = ended(l, &l->conn[i], code, err);
                break;
            }
    }
    return rc;
}

/* ------------------------------------------------------------------- files */

static size_t conns_of(const struct loop *l, const struct run *r)
{
    size_t n = 0;

    for (size_t i = 0; i < SUP_XFER_CONNS; i++)
        n += l->conn[i].run == r;
    return n;
}

static struct conn *free_conn(struct loop *l)
{
    for (size_t i = 0; i < SUP_XFER_CONNS; i++)
        if (!l->conn[i].run)
            return &l->conn[i];
    return NULL;
}

static enum rc feed(struct loop *l, struct run *r, uint64_t now, struct rc_err *err)
{
    const size_t most = r->part.size < 2 * SUP_PIECE_BYTES ? 1 : SUP_XFER_CONNS / 2;
    enum rc rc = RC_OK;
    struct conn *c;

    for (size_t i = 0; rc == RC_OK && i < r->part.n_pieces; i++) {
        const struct sup_piece *x = &r->part.piece[i];

        if (x->busy || x->begin + x->done >= x->end || x->not_before_ms > now)
            continue;
        if (conns_of(l, r) >= most || !(c = free_conn(l)))
            break;
        rc = begin(l, c, r, i, err);
    }
    return rc;
}

static enum rc compare(struct loop *l, struct run *r, struct rc_err *err)
{
    char sha[SUP_SHA256_HEX], blob[SUP_SHA1_HEX], why[200];
    const struct sup_xfer_file *f = r->f;
    bool sha_ok, blob_ok;
    enum rc rc;

    sup_part_sums(&r->part, sha, blob);
    sha_ok = !f->sha256[0] || strcmp(sha, f->sha256) == 0;
    blob_ok = !f->blob[0] || strcmp(blob, f->blob) == 0;
    if (!sha_ok || !blob_ok) {
        snprintf(why, sizeof(why), "its hash is %s, published was %s", sha_ok ? blob : sha,
                 sha_ok ? f->blob : f->sha256);
        return start_over(l, r, why, err);
    }
    if ((rc = sup_part_finish(&r->part, err)) != RC_OK)
        return rc;
    snprintf(r->f->got, sizeof(r->f->got), "%s", sha);
    r->state = DONE;
    l->n_done++;
    l->n_active--;
    return RC_OK;
}

static enum rc step_file(struct loop *l, struct run *r, uint64_t now, struct rc_err *err)
{
    bool all = false;
    enum rc rc = RC_OK;

    if (r->state == WAITING && l->n_active < SUP_XFER_FILES) {
        rc = sup_part_open(&r->part, l->x->dir_fd, r->f->path, r->f->size, r->f->ident, err);
        r->part.want_blob = r->f->blob[0] != '\0';
        r->state = ACTIVE;
        l->n_active++;
    }
    if (rc != RC_OK || r->state != ACTIVE)
        return rc;
    if ((rc = feed(l, r, now, err)) == RC_OK)
        rc = sup_part_hash(&r->part, HASH_SLICE, &all, err);
    if (rc == RC_OK && all)
        rc = compare(l, r, err);
    else if (rc == RC_OK && conns_of(l, r) == 0 && sup_part_done(&r->part) == r->part.size)
        l->hashing = true;
    return rc;
}

/* -------------------------------------------------------------------- loop */

static bool tell(struct loop *l, uint64_t now)
{
    struct sup_xfer_now s = {.n = (uint32_t)l->n_done, .of = (uint32_t)l->n, .file = ""};
    bool moving = false;

    if (now < l->told_ms + TELL_MS && l->n_done < l->n)
        return true;
    l->told_ms = now;
    s.total_bytes = l->total;
    for (size_t i = 0; i < l->n; i++) {
        const struct run *r = &l->run[i];

        if (r->state == DONE)
            s.done_bytes += r->f->size;
        else if (r->state == ACTIVE) {
            s.done_bytes += sup_part_done(&r->part);
            moving = moving || conns_of(l, r) > 0;
            if (!s.file[0])
                s.file = r->f->path;
        }
    }
    if (now >= l->rate_ms + 1000) { /* half of it is the last second */
        uint64_t grown = s.done_bytes > l->rate_bytes ? s.done_bytes - l->rate_bytes : 0;
        uint64_t per_s = grown * 1000 / (now - l->rate_ms);

        l->rate = l->rate_ms && l->rate ? (l->rate + per_s) / 2 : l->rate_ms ? per_s : 0;
        l->rate_ms = now;
        l->rate_bytes = s.done_bytes;
    }
    s.bytes_per_s = l->rate;
    s.hashing = !moving && l->hashing;
    return !l->x->on_now || l->x->on_now(l->x->user, &s);
}

static enum rc spin(struct loop *l, struct rc_err *err)
{
    enum rc rc = RC_OK;
    int running;

    while (rc == RC_OK && l->n_done < l->n) {
        uint64_t now = sup_req_now_ms();

        l->hashing = false;
        for (size_t i = 0; rc == RC_OK && i < l->n; i++)
            rc = step_file(l, &l->run[i], now, err);
        if (rc == RC_OK && !tell(l, now))
            rc = rc_fail(err, RC_CANCELLED, "interrupted");
        if (rc != RC_OK)
            break;
        if (curl_multi_perform(l->multi, &running) != CURLM_OK)
            return rc_fail(err, RC_INTERNAL, "curl gave up");
        rc = reap(l, err);
        if (rc == RC_OK && l->n_done < l->n)
            (void)curl_multi_poll(l->multi, NULL, 0, l->hashing ? 0 : 50, NULL);
    }
    return rc;
}

enum rc sup_xfer_run(const struct sup_xfer *x, CURLM *multi, struct sup_xfer_file *file, size_t n,
                     struct rc_err *err)
{
    struct loop l = {.x = x, .multi = multi, .n = n};
    enum rc rc;

    l.run = calloc(n ? n : 1, sizeof(*l.run));
    l.conn = calloc(SUP_XFER_CONNS, sizeof(*l.conn));
    if (!l.run || !l.conn) {
        free(l.run);
        free(l.conn);
        return rc_fail(err, RC_NOMEM, "out of memory");
    }
    for (size_t i = 0; i < n; i++) {
        l.run[i].f = &file[i];
        l.run[i].part.part_fd = l.run[i].part.map_fd = -1;
        l.total += file[i].size;
    }
    rc = spin(&l, err);
    release_all(&l, NULL);
    for (size_t i = 0; i < n; i++)
        sup_part_close(&l.run[i].part);
    free(l.run);
    free(l.conn);
    return rc;
}
