/* sup_media_remote.c - remote files become attachments. See sup_media_remote.h.
 *
 * Knows where in a body a file may be named, and nothing of what it is for: what is fetched and
 * not used costs a fetch, and the endpoint checks its own fields as ever.
 * Tests: tests/e2e/remote_media.py
 */
#include "sup_media_remote.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "sup_conf.h"
#include "sup_fleet.h"
#include "sup_front.h"
#include "sup_link.h"
#include "sup_media.h"
#include "sup_remote.h"

#define DEPTH 16

struct file {
    struct sup_media_remote *all;
    const char *url; /* of the call's memory */
    uint64_t id;     /* 0 = not under way */
    void *data;
    size_t n;
    char type[SUP_MIME_BYTES];
};

struct sup_media_remote {
    struct sup_call *call;
    void (*ready)(struct sup_call *c, const struct sup_fail *f);
    struct file file[SUP_REMOTE_FILES];
    size_t n, n_left;
    bool too_many, no_memory;
    uint64_t held;
};

/* A place where the body names a file: what to do with its URL. */
typedef void (*visit)(struct sup_media_remote *r, json_t *owner, const char *key);

static bool is_remote(const json_t *j)
{
    const char *s = json_string_value(j);

    return s && (strncasecmp(s, "https://", 8) == 0 || strncasecmp(s, "http://", 7) == 0);
}

static void walk(struct sup_media_remote *r, json_t *j, visit fn, int depth)
{
    const char *type = json_string_value(json_object_get(j, "type"));
    json_t *image = json_object_get(j, "image_url"), *v;
    const char *key;
    size_t i;

    if (depth <= 0)
        return;
    if (json_is_array(j)) {
        json_array_foreach(j, i, v)
        {
            walk(r, v, fn, depth - 1);
        }
        return;
    }
    if (is_remote(image))
        fn(r, j, "image_url");
    else if (is_remote(json_object_get(image, "url")))
        fn(r, image, "url");
    if (type && strcmp(type, "media") == 0 && is_remote(json_object_get(j, "url")))
        fn(r, j, "url");
    json_object_foreach(j, key, v)
    {
        if (json_is_object(v) || json_is_array(v))
            walk(r, v, fn, depth - 1);
    }
}

static struct file *file_of(struct sup_media_remote *r, const char *url)
{
    for (size_t i = 0; i < r->n; i++)
        if (strcmp(r->file[i].url, url) == 0)
            return &r->file[i];
    return NULL;
}

static void collect(struct sup_media_remote *r, json_t *owner, const char *key)
{
    const char *url = json_string_value(json_object_get(owner, key));

    if (file_of(r, url))
        return;
    if (r->n == SUP_REMOTE_FILES) {
        r->too_many = true;
        return;
    }
    if (!(url = sup_call_strdup(r->call, url))) {
        r->no_memory = true;
        return;
    }
    r->file[r->n++] = (struct file){.all = r, .url = url};
}

/* The URL in the body becomes the name of an attachment. */
static void rename_url(struct sup_media_remote *r, json_t *owner, const char *key)
{
    const struct file *x = file_of(r, json_string_value(json_object_get(owner, key)));
    char name[40];

    if (!x)
        return;
    snprintf(name, sizeof(name), "attachment:%zu", r->call->frame.n_att + (size_t)(x - r->file));
    (void)json_object_set_new(owner, key, json_string(name));
}

static bool attach(struct sup_media_remote *r, struct sup_fail *f)
{
    struct sup_api_frame *fr = &r->call->frame;
    struct sup_attachment *att;

    if (fr->n_att + r->n > SUP_FRAME_ATTACHMENTS_MAX) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, "", "the request has more than %u files",
                     SUP_FRAME_ATTACHMENTS_MAX);
        return false;
    }
    if (!(att = realloc(fr->att, (fr->n_att + r->n) * sizeof(*att))))
        return sup_fail_no_memory(f);
    fr->att = att;
    walk(r, r->call->body, rename_url, DEPTH);
    for (size_t i = 0; i < r->n; i++) {
        struct file *x = &r->file[i];

        att[fr->n_att + i] = (struct sup_attachment){
            .mime = x->type, .n_mime = strlen(x->type), .data = x->data, .n_bytes = x->n};
    }
    fr->n_att += (uint32_t)r->n;
    return true;
}

/* ------------------------------------------------------------------ fetching */

static void failed(struct sup_fail *f, const struct file *x, const struct rc_err *err)
{
    static const struct {
        enum rc rc;
        enum sup_code code;
    } rows[] = {
        {RC_CONFLICT, SUP_E_CONTENT_NOT_ALLOWED}, {RC_UNSUPPORTED, SUP_E_CONTENT_NOT_ALLOWED},
        {RC_TOO_LARGE, SUP_E_CONTENT_TOO_LARGE},  {RC_BUSY, SUP_E_OVERLOADED},
        {RC_NOMEM, SUP_E_MODEL_RESOURCE_BUSY},
    };
    const struct sup_call *c = x->all->call;
    bool late = c->deadline_us && uv_hrtime() / 1000 >= c->deadline_us;
    enum sup_code code = late ? SUP_E_DEADLINE_EXCEEDED : SUP_E_UPSTREAM_FAILURE;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].rc == err->code)
            code = rows[i].code;
    sup_fail_set(f, code, "url", "remote file '%.120s': %.300s", x->url, err->msg);
}

static void cancel_all(struct sup_media_remote *r)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->file[i].id) {
            sup_link_cancel(r->call->front->link, r->file[i].id);
            r->file[i].id = 0;
        }
}

static void on_done(void *user, struct sup_link_done *d)
{
    struct file *x = user;
    struct sup_media_remote *r = x->all;
    struct sup_fail f;

    x->id = 0;
    if (d->code != RC_OK) {
        cancel_all(r);
        failed(&f, x, &d->err);
        r->ready(r->call, &f);
        return;
    }
    x->data = d->data;
    x->n = d->n_data;
    snprintf(x->type, sizeof(x->type), "%s", d->type);
    if (--r->n_left > 0)
        return;
    if (attach(r, &f))
        r->ready(r->call, NULL);
    else
        r->ready(r->call, &f);
}

static uint32_t time_left(const struct sup_call *c)
{
    uint64_t now = uv_hrtime() / 1000, ms = c->front->conf->media_fetch_timeout_ms;

    if (c->deadline_us && c->deadline_us < now + ms * 1000)
        ms = c->deadline_us > now ? (c->deadline_us - now) / 1000 : 0;
    return ms ? (uint32_t)ms : 1;
}

static bool ask_all(struct sup_media_remote *r, struct sup_fail *f)
{
    const struct sup_conf *conf = r->call->front->conf;
    uint64_t max = conf->media_fetch_bytes < conf->max_media_bytes ? conf->media_fetch_bytes
                                                                   : conf->max_media_bytes;
    struct rc_err err = RC_ERR_INIT;

    if (max == 0) {
        sup_fail_set(f, SUP_E_CONTENT_TOO_LARGE, "url",
                     "no files are taken here (max_media_bytes is 0)");
        return false;
    }
    for (size_t i = 0; i < r->n; i++) /* all are looked at before one is asked for */
        if (sup_remote_allowed(conf, r->file[i].url, &err) != RC_OK) {
            failed(f, &r->file[i], &err);
            return false;
        }
    if (!sup_call_hold(r->call, r->n * max, f))
        return false;
    r->held = r->n * max;
    for (size_t i = 0; i < r->n; i++) {
        struct sup_link_cb cb = {.done = on_done, .user = &r->file[i]};

        if (sup_link_media(r->call->front->link, r->file[i].url, max, time_left(r->call), &cb,
                           &r->file[i].id, &err) != RC_OK) {
            failed(f, &r->file[i], &err);
            return false;
        }
        r->n_left++;
    }
    return true;
}

bool sup_media_remote_start(struct sup_media_remote **out, struct sup_call *c,
                            void (*ready)(struct sup_call *c, const struct sup_fail *f),
                            struct sup_fail *f)
{
    char *const *hosts = c->front->conf->media_hosts;
    struct sup_media_remote *r;

    *out = NULL;
    if (!c->body || !hosts || !hosts[0])
        return true;
    if (!(r = calloc(1, sizeof(*r))))
        return sup_fail_no_memory(f);
    r->call = c;
    r->ready = ready;
    walk(r, c->body, collect, DEPTH);
    if (r->no_memory) {
        free(r);
        return sup_fail_no_memory(f);
    }
    if (r->n == 0) {
        free(r);
        return true;
    }
    if (r->too_many)
        sup_fail_set(f, SUP_E_INVALID_REQUEST, "url", "the request names more than %d remote files",
                     SUP_REMOTE_FILES);
    if (r->too_many || !ask_all(r, f)) {
        sup_media_remote_free(&r);
        return false;
    }
    *out = r;
    return true;
}

uint64_t sup_media_remote_held(const struct sup_media_remote *r)
{
    return r->held;
}

void sup_media_remote_free(struct sup_media_remote **rp)
{
    struct sup_media_remote *r = *rp;

    *rp = NULL;
    if (!r)
        return;
    cancel_all(r);
    for (size_t i = 0; i < r->n; i++)
        sup_link_unmap(r->file[i].data, r->file[i].n);
    free(r);
}
