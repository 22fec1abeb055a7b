/* wrk_embed_media.c - items with files: decoded and made ready for the model, one at a time.
 *
 * Items are made ready just before they are encoded, few at a time, and what they hold is freed
 * right after, so the memory of media depends on two constants and not on the request
 * (wrk_embed_impl.h). Files are decoded one after the other; between two of them, and while one is
 * decoded, the channel and the clock are looked at and others have their turn. A file's bytes are
 * freed when its item is ready, the request's frame with the last of them.
 * Page: docs/media.md. Tests: tests/worker/test_wrk_engine_media.c
 */
#include "wrk_embed_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wrk_media.h"

enum rc wrk_embed_parts_check(const struct wrk_engine *e, const Ipc__EmbedInput *in,
                              bool *has_media, struct rc_err *why)
{
    *has_media = false;
    if (!e->info->can_embed_groups)
        return rc_fail_what(why, RC_UNSUPPORTED, "input",
                            "this model embeds single texts: no groups, pictures or sounds");
    if (in->n_parts > WRK_EMBED_PARTS_MAX || (!in->is_group && in->n_parts != 1) ||
        in->n_parts == 0) {
        rc_fail_what(why, RC_INVALID, "input", "%zu parts in one input, 1 to %u are taken",
                     in->n_parts, in->is_group ? WRK_EMBED_PARTS_MAX : 1);
        return RC_INVALID;
    }
    for (size_t i = 0; i < in->n_parts; i++)
        *has_media = *has_media || in->parts[i]->is_media;
    return RC_OK;
}

enum rc wrk_embed_parts_tokens(struct wrk_engine *e, struct wrk_embed *m, const Ipc__EmbedInput *in,
                               struct mdl_media *const *media, uint32_t *rows, struct rc_err *why)
{
    struct mdl_embed_part part[WRK_EMBED_PARTS_MAX];
    struct mdl_embed_input x = {
        .parts = part, .n_parts = in->n_parts, .group = in->is_group, .task_type = m->task_type};
    uint32_t n = 0;

    if (in->title.len > 0) {
        x.title = (const char *)in->title.data;
        x.n_title = in->title.len;
    }
    for (size_t i = 0; i < in->n_parts; i++) {
        const Ipc__EmbedPart *p = in->parts[i];

        part[i] = (struct mdl_embed_part){.media = p->is_media ? media[n++] : NULL};
        if (p->is_media)
            continue;
        part[i].text = p->text.data != NULL ? (const char *)p->text.data : "";
        part[i].n_bytes = p->text.len;
    }
    return mdl_embed_ordered(e->o.mdl, &x, &m->ids, rows, why);
}

void wrk_embed_media_drop(struct wrk_engine *e, struct wrk_item *it)
{
    for (uint32_t i = 0; it->media != NULL && i < it->n_media; i++) {
        if (it->media[i] != NULL)
            e->media.bytes -= mdl_media_bytes(it->media[i]);
        mdl_media_free(&it->media[i]);
    }
    if (it->ready) {
        e->media.n_ready--;
        e->media.ready_rows -= it->n;
        it->ready = false;
    }
    free(it->media);
    free(it->media_row);
    it->media = NULL;
    it->media_row = NULL;
    it->n_media = 0;
}

/* ------------------------------------------------------------------- one file */

static enum rc picture(const struct wrk_engine *e, enum wrk_media_kind kind,
                       const Ipc__EmbedPart *p, struct mdl_media **out, struct rc_err *why)
{
    const struct wrk_media_stop stop = {e->stop.ask, e->stop.user};
    const struct wrk_image_limits limits = {.pixels = e->info->image_pixels, .stop = &stop};
    struct wrk_image img = {0};
    enum rc rc;

    if (!e->info->can_embed_image)
        return rc_fail(why, RC_UNSUPPORTED, "this model embeds no pictures");
    if ((rc = wrk_image_decode(&img, kind, p->data.data, p->data.len, &limits, why)) == RC_OK) {
        const struct mdl_image x = {.width = img.width,
                                    .height = img.height,
                                    .stride = (size_t)img.width * 3,
                                    .n_channels = 3,
                                    .pixels = img.rgb};

        rc = mdl_media_image(e->o.mdl, &x, out, why);
    }
    wrk_image_deinit(&img);
    return rc;
}

static enum rc sound(const struct wrk_engine *e, enum wrk_media_kind kind, const Ipc__EmbedPart *p,
                     struct mdl_media **out, struct rc_err *why)
{
    const struct wrk_media_stop stop = {e->stop.ask, e->stop.user};
    struct wrk_sound snd = {0};
    enum rc rc;

    if (!e->info->can_embed_sound)
        return rc_fail(why, RC_UNSUPPORTED, "this model embeds no sounds");
    if ((rc = wrk_sound_decode(&snd, kind, p->data.data, p->data.len, e->info->sound_rate,
                               e->info->sound_ms, &stop, why)) == RC_OK) {
        const struct mdl_sound x = {.rate = snd.rate, .n = snd.n, .pcm = snd.pcm};

        rc = mdl_media_sound(e->o.mdl, &x, out, why);
    }
    wrk_sound_deinit(&snd);
    return rc;
}

/* *stage: of a failure; a file of no known kind is what it was declared as. */
static enum rc file(const struct wrk_engine *e, const Ipc__EmbedPart *p, struct mdl_media **out,
                    const char **stage, struct rc_err *why)
{
    enum wrk_media_kind kind = WRK_MEDIA_UNKNOWN;
    enum rc rc = wrk_media_check(p->mime, p->data.data, p->data.len, &kind, why);

    *stage = strncmp(p->mime, "audio/", 6) == 0 || wrk_media_is_sound(kind) ? IPC_STAGE_SOUND
                                                                            : IPC_STAGE_IMAGE;
    if (rc == RC_OK && wrk_media_is_sound(kind))
        rc = sound(e, kind, p, out, why);
    else if (rc == RC_OK && wrk_media_is_image(kind))
        rc = picture(e, kind, p, out, why);
    else if (rc == RC_OK)
        rc =
            rc_fail(why, RC_UNSUPPORTED, "a file of type %s cannot be a part of an input", p->mime);
    why->n = why->limit = 0; /* pixels, bytes or ms: clients are told tokens */
    return rc;
}

/* ------------------------------------------------------------------- one item */

/* All files of an item, into it. */
static enum rc files(struct wrk_engine *e, struct wrk_item *it, const Ipc__EmbedInput *in,
                     const char **stage, struct rc_err *why)
{
    uint64_t bytes = 0, rows = 0;
    enum rc rc;

    for (size_t i = 0; i < in->n_parts; i++) {
        struct mdl_media **m = &it->media[it->n_media];

        if (!in->parts[i]->is_media)
            continue;
        if (e->stop.ask(e->stop.user))
            return rc_fail(why, RC_CANCELLED, "stopped");
        if ((rc = file(e, in->parts[i], m, stage, why)) != RC_OK) {
            if (rc == RC_CANCELLED) /* the task's end, no fault of the file */
                return rc;
            e->media.n_refused++;
            if (in->is_group)
                rc_wrap(why, "part %zu", i);
            return rc;
        }
        it->n_media++;
        e->media.n_decoded++;
        e->media.bytes += mdl_media_bytes(*m);
        bytes += mdl_media_bytes(*m);
        rows += mdl_media_tokens(*m);
        if (strcmp(it->run_stage, IPC_STAGE_TEXT_RUN) == 0) /* its first file's */
            it->run_stage =
                strcmp(*stage, IPC_STAGE_SOUND) == 0 ? IPC_STAGE_SOUND_RUN : IPC_STAGE_IMAGE_RUN;
        if (rows > e->info->max_input_tokens) /* before more of them are decoded */
            return rc_bound(rc_fail_what(why, RC_TOO_LARGE, "input",
                                         "%llu tokens and more, the model takes %u",
                                         (unsigned long long)rows, e->info->max_input_tokens),
                            rows, e->info->max_input_tokens, why);
        if (bytes > WRK_MEDIA_ITEM_BYTES)
            return rc_bound(
                rc_fail_what(why, RC_LIMIT, "input",
                             "files of one input take %llu bytes when decoded, at most %llu",
                             (unsigned long long)bytes, WRK_MEDIA_ITEM_BYTES),
                bytes, WRK_MEDIA_ITEM_BYTES, why);
    }
    it->n_media_rows = (uint32_t)rows;
    return RC_OK;
}

static enum rc item(struct wrk_engine *e, struct wrk_task *t, struct wrk_item *it,
                    const char **stage, struct rc_err *why)
{
    const Ipc__EmbedInput *in = t->frame->embed->inputs[it->idx];
    struct wrk_embed *m = t->embed;
    size_t from = m->ids.n;
    enum rc rc;

    it->run_stage = IPC_STAGE_TEXT_RUN;
    it->media = calloc(in->n_parts, sizeof(struct mdl_media *));
    it->media_row = calloc(in->n_parts, sizeof(*it->media_row));
    if (it->media == NULL || it->media_row == NULL)
        return rc_fail(why, RC_NOMEM, "files of an input");
    if ((rc = files(e, it, in, stage, why)) != RC_OK)
        return rc;
    *stage = IPC_STAGE_TEXT_RUN;
    if ((rc = wrk_embed_parts_tokens(e, m, in, it->media, it->media_row, why)) == RC_OK)
        rc = wrk_embed_item_take(e, m, it->idx, from, why);
    if (rc != RC_OK) {
        m->ids.n = from;
        return rc;
    }
    for (uint32_t i = 0; i < it->n_media; i++)
        it->media_row[i] -= (uint32_t)from;
    return RC_OK;
}

/* -------------------------------------------------------------------- the next */

static bool wants(const struct wrk_task *t)
{
    return t->kind == IPC__FRAME__BODY_EMBED && t->prepared &&
           t->embed->media_read < t->embed->n_media_order;
}

struct wrk_task *wrk_embed_media_next(struct wrk_engine *e)
{
    uint32_t n = 0, skip;

    if (e->media.bytes >= WRK_MEDIA_READY_BYTES || e->media.n_ready >= WRK_MEDIA_COHORT ||
        e->media.ready_rows >= WRK_MEDIA_COHORT_ROWS)
        return NULL;
    for (const struct wrk_task *t = e->tasks; t != NULL; t = t->next)
        n += wants(t);
    if (n == 0)
        return NULL;
    skip = e->media.turn++ % n;
    for (struct wrk_task *t = e->tasks;; t = t->next)
        if (wants(t) && skip-- == 0)
            return t;
}

/* An item's files are not needed any more; after the last item nothing of the frame is. */
static void files_read(struct wrk_engine *e, struct wrk_task *t, const struct wrk_item *it)
{
    const Ipc__EmbedInput *in = t->frame->embed->inputs[it->idx];

    for (size_t i = 0; i < in->n_parts; i++) {
        ProtobufCBinaryData *d = &in->parts[i]->data;

        e->queued_bytes -= d->len;
        t->frame_bytes -= d->len;
        free(d->data);
        *d = (ProtobufCBinaryData){0};
    }
    if (++t->embed->media_read == t->embed->n_media_order)
        wrk_task_drop_frame(e, t);
}

enum rc wrk_embed_media_prepare(struct wrk_engine *e, struct wrk_task *t, struct rc_err *why)
{
    struct wrk_embed *m = t->embed;
    struct wrk_item *it = m->media_order[m->media_read];
    const char *stage = IPC_STAGE_IMAGE;
    uint64_t from = wrk_now_us(), others = e->others_us;
    enum rc rc = item(e, t, it, &stage, why);

    e->media.us += wrk_now_us() - from - (e->others_us - others);
    if (rc == RC_OK) {
        it->ready = true;
        e->media.n_ready++;
        e->media.ready_rows += it->n;
        files_read(e, t, it);
        return RC_OK;
    }
    wrk_embed_media_drop(e, it);
    if (rc == RC_CANCELLED)
        return rc;
    it->n = it->n_media_rows = 0;
    if (strcmp(stage, IPC_STAGE_TEXT_RUN) != 0) /* a file: its decoder names no field */
        snprintf(why->what, sizeof(why->what), "input");
    if ((rc = wrk_embed_item_failed(m, it->idx, stage, why)) != RC_OK)
        return rc;
    files_read(e, t, it);
    return RC_OK;
}
