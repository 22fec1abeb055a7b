/* test_wrk_engine_media.c - Embed tasks with files and groups over the scripted model: what comes
 * back, what is refused and at which stage, and that nothing stays behind, whatever ends them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>

#include "worker/engine_ask.h"
#include "wrk_embed_impl.h"
#include "wrk_media.h"

#define IDENTITY "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

static struct mdl *seeing(void)
{
    struct mdl *m = fake_new(64, 2, 64);

    m->info.can_embed_groups = m->info.can_embed_image = m->info.can_embed_sound = true;
    m->info.sound_rate = 16000;
    m->info.sound_ms = 30000;
    m->media_bytes = 1000;
    m->n_layers = 2;
    snprintf(m->info.identity, sizeof(m->info.identity), "%s", IDENTITY);
    return m;
}

/* A part: "@type file" is a file of tests/worker/media, "@type" alone an empty one, else a text.
 * An input: parts up to NULL. */
struct input {
    const char *part[70];
    bool flat; /* not a group */
    const char *title, *text;
};
struct ask {
    const struct input *in;
    uint32_t n;
    bool per_item;
    uint64_t deadline_us;
    const char *identity;
};

static ProtobufCBinaryData bytes_of(const char *file)
{
    ProtobufCBinaryData b = {0};
    char path[256];
    FILE *f;

    snprintf(path, sizeof(path), TEST_SOURCE "/tests/worker/media/%s", file);
    if ((f = fopen(path, "rb")) == NULL)
        fail_msg("%s cannot be opened", path);
    b.data = malloc(1 << 16);
    b.len = fread(b.data, 1, 1 << 16, f);
    fclose(f);
    return b;
}

static void part_of(Ipc__EmbedPart *p, const char *s)
{
    const char *sep;

    ipc__embed_part__init(p);
    if (s[0] != '@') {
        p->text.data = (uint8_t *)s;
        p->text.len = strlen(s);
        return;
    }
    p->is_media = true;
    sep = strchr(s, ' ');
    p->mime = sep != NULL ? strndup(s + 1, (size_t)(sep - s - 1)) : strdup(s + 1);
    if (sep != NULL)
        p->data = bytes_of(sep + 1);
}

static void embed(struct rig *r, uint64_t task, const struct ask *q)
{
    static Ipc__EmbedPart part[32][70], *part_ptr[32][70];
    Ipc__EmbedInput in[32], *ptr[32];
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Embed m = IPC__EMBED__INIT;

    for (uint32_t i = 0; i < q->n; i++) {
        const struct input *x = &q->in[i];

        ipc__embed_input__init(ptr[i] = &in[i]);
        in[i].is_group = !x->flat && x->text == NULL;
        in[i].parts = part_ptr[i];
        for (uint32_t k = 0; k < 70 && x->part[k] != NULL; k++) {
            part_of(part_ptr[i][k] = &part[i][k], x->part[k]);
            in[i].n_parts++;
        }
        in[i].title.data = (uint8_t *)x->title;
        in[i].title.len = x->title != NULL ? strlen(x->title) : 0;
        in[i].text.data = (uint8_t *)x->text;
        in[i].text.len = x->text != NULL ? strlen(x->text) : 0;
    }
    m.inputs = ptr;
    m.n_inputs = q->n;
    m.per_item = q->per_item;
    m.deadline_us = q->deadline_us;
    m.model_identity = (char *)(q->identity != NULL ? q->identity : "");
    f.task = task;
    f.body_case = IPC__FRAME__BODY_EMBED;
    f.embed = &m;
    assert_int_equal(submit(r, &f), RC_OK);
    for (uint32_t i = 0; i < q->n; i++)
        for (size_t k = 0; k < in[i].n_parts; k++)
            if (part[i][k].is_media) {
                free(part[i][k].mime);
                free(part[i][k].data.data);
            }
}

/* The vector of an input, put together here from what the files decode to. */
static void vector_of(const struct input *x, float *v)
{
    int32_t ids[256];
    uint32_t n = 0;

    for (const char *s = x->text; s != NULL && *s != 0; s++)
        ids[n++] = FAKE_BYTE(*s);
    for (const char *s = x->title; s != NULL && *s != 0; s++)
        ids[n++] = FAKE_BYTE(*s);
    if (x->title != NULL)
        ids[n++] = FAKE_BYTE('T');
    for (uint32_t k = 0; x->part[k] != NULL; k++) {
        const char *s = x->part[k];
        struct wrk_image img = {0};
        struct wrk_sound snd = {0};
        ProtobufCBinaryData b;
        uint32_t n_tok;
        uint64_t h;

        if (k > 0)
            ids[n++] = FAKE_BYTE('\n');
        for (; s[0] != '@' && *s != 0; s++)
            ids[n++] = FAKE_BYTE(*s);
        if (s[0] != '@')
            continue;
        b = bytes_of(strchr(s, ' ') + 1);
        if (strncmp(s, "@audio", 6) == 0)
            assert_int_equal(wrk_sound_decode(&snd, wrk_media_sniff(b.data, b.len, NULL), b.data,
                                              b.len, 16000, 30000, NULL, NULL),
                             RC_OK);
        else
            assert_int_equal(wrk_image_decode(&img, wrk_media_sniff(b.data, b.len, NULL), b.data,
                                              b.len, NULL, NULL),
                             RC_OK);
        h = n_tok = snd.pcm != NULL ? 2 : 3;
        for (size_t i = 0; i < snd.n * sizeof(float); i++)
            h = fake_mix(h, ((const uint8_t *)snd.pcm)[i]);
        for (size_t i = 0; i < (size_t)img.width * img.height * 3; i++)
            h = fake_mix(h, img.rgb[i]);
        ids[n++] = FAKE_BYTE('<');
        for (uint32_t i = 0; i < n_tok; i++)
            ids[n++] = fake_soft(h, i);
        ids[n++] = FAKE_BYTE('>');
        wrk_image_deinit(&img);
        wrk_sound_deinit(&snd);
        free(b.data);
    }
    fake_vector(ids, n, v);
}

static void has_vector(const struct rig *r, uint32_t task, uint32_t i, const struct input *x)
{
    float v[8];

    vector_of(x, v);
    if (memcmp(r->a[task].vec + (size_t)i * 8, v, sizeof(v)) != 0)
        fail_msg("task %u, input %u: another vector", task, i);
}

static void nothing_is_live(struct rig *r)
{
    assert_int_equal(r->m->n_live_media, 0);
    assert_int_equal(r->e->media.bytes, 0);
    assert_int_equal(r->e->media.n_ready, 0);
    assert_int_equal(r->e->media.ready_rows, 0);
    assert_int_equal(r->e->queued_bytes, 0);
    assert_null(r->e->tasks);
}

static const struct input good[] = {
    {.text = "a plain text"},
    {.part = {"@image/png rgb8.png"}, .flat = true},
    {.part = {"@audio/wav s16.wav"}, .flat = true},
    {.part = {"before", "@image/jpeg 420.jpg", "between", "@audio/flac stereo.flac", "after"}},
    {.part = {"only", "texts"}, .title = "named"},
    {.part = {"@image/gif plain.gif", "@image/webp lossless.webp", "@image/png gray16.png"}},
    {.text = "x"},
    {.part = {"@audio/mpeg stereo.mp3"}},
    {.part = {"@audio/ogg opus.ogg", "@audio/ogg vorbis.ogg"}},
};
#define N_GOOD (sizeof(good) / sizeof(good[0]))

static void files_and_groups_come_back_in_request_order(void **state)
{
    static const uint32_t rows[] = {0, 3, 2, 5, 0, 9, 0, 2, 4};
    struct rig r = rig_new(seeing(), 64);
    const struct ask q = {.in = good, .n = N_GOOD, .identity = IDENTITY};
    struct gen g = {.prompt = "beside", .max_tokens = 40, .logprobs = true};

    (void)state;
    generate(&r, 40, &g);
    for (uint32_t t = 1; t <= 4; t++)
        embed(&r, t, &q);
    run(&r);
    for (uint32_t t = 1; t <= 4; t++) {
        assert_int_equal(r.a[t].rc, RC_OK);
        assert_int_equal(r.a[t].n_vec, N_GOOD);
        assert_string_equal(r.a[t].identity, IDENTITY);
        assert_int_equal(r.a[t].n_media_lists, N_GOOD);
        for (uint32_t i = 0; i < N_GOOD; i++) {
            has_vector(&r, t, i, &good[i]);
            assert_int_equal(r.a[t].n_media[i], rows[i]);
        }
        assert_int_equal(r.a[t].n_tokens[0], 12);
        assert_int_equal(r.a[t].n_tokens[1], 2); /* marks */
        assert_int_equal(r.a[t].n_tokens[4], 6 + 4 + 1 + 5);
    }
    equals_alone(&r, 40, "beside", 40);
    assert_int_equal(r.e->media.n_decoded, 4 * 10);
    assert_int_equal(r.e->media.n_refused, 0);
    /* of four items at most, where the requests have 40 files */
    assert_true(r.m->most_live_media <= 4 * 3);
    assert_true(r.m->n_encodes < 4 * N_GOOD); /* and those four in one pass */
    nothing_is_live(&r);
    rig_free(&r);
}

/* Small files come to passes of four. */
static void pages_are_run_in_cohorts(void **state)
{
    struct rig r = rig_new(seeing(), 64);
    struct input page[10];
    struct ask q = {.in = page, .n = 10};

    (void)state;
    for (uint32_t i = 0; i < 10; i++)
        page[i] = (struct input){.part = {"@image/png gray1.png"}, .flat = true};
    embed(&r, 1, &q);
    while (wrk_engine_busy(r.e)) {
        step(&r);
        assert_true(r.e->media.n_ready <= WRK_MEDIA_COHORT);
    }
    assert_int_equal(r.a[1].rc, RC_OK);
    assert_true(r.m->n_encodes >= 3 && r.m->n_encodes <= 10);
    assert_true(r.m->most_live_media <= WRK_MEDIA_COHORT);
    for (uint32_t i = 0; i < 10; i++)
        has_vector(&r, 1, i, &page[i]);
    assert_int_equal(r.e->media.n_ready, 0);
    assert_int_equal(r.e->media.ready_rows, 0);
    rig_free(&r);
}

static void alone_is_as_in_company(void **state)
{
    struct rig r = rig_new(seeing(), 64);
    struct ask q = {.in = good, .n = N_GOOD};

    (void)state;
    embed(&r, 1, &q);
    run(&r);
    for (uint32_t i = 0; i < N_GOOD; i++) {
        struct ask one = {.in = &good[i], .n = 1};

        embed(&r, 2 + i, &one);
        run(&r);
        assert_memory_equal(r.a[2 + i].vec, r.a[1].vec + i * 8, 8 * sizeof(float));
    }
    assert_int_equal(r.a[2].n_media_lists, 0); /* no file, no list */
    rig_free(&r);
}

static void bad_items_are_named_by_stage(void **state)
{
    static const struct {
        struct input in;
        enum rc rc;
        const char *stage, *what, *says;
    } rows[] = {
        {{.part = {"@image/png 420.jpg"}, .flat = true},
         RC_INVALID,
         "image_decode",
         "input",
         "type JPEG"},
        {{.part = {"@image/png"}, .flat = true}, RC_INVALID, "image_decode", "input", "empty"},
        {{.part = {"@image/jpeg scans.jpg"}}, RC_TOO_LARGE, "image_decode", "input", "part 0"},
        {{.part = {"x", "@audio/flac long.flac"}},
         RC_TOO_LARGE,
         "audio_decode",
         "input",
         "part 1: a sound of 31.000 s, at most 30.000 s"},
        {{.part = {"@audio/wav adpcm.wav"}, .flat = true},
         RC_UNSUPPORTED,
         "audio_decode",
         "input",
         "ADPCM"},
        {{.part = {"@audio/wav rgb8.png"}, .flat = true},
         RC_INVALID,
         "audio_decode",
         "input",
         "type PNG"},
        {{.part = {"@image/png pixel.png"}, .flat = true},
         RC_INVALID,
         "image_decode",
         "input",
         "too narrow"}, /* the model's own words */
        {{.part = {"@video/mp4 rgb8.png"}, .flat = true},
         RC_UNSUPPORTED,
         "image_decode",
         "input",
         "video"},
        {{.part = {"!bad", "@image/png rgb8.png"}},
         RC_INVALID,
         "text_inference",
         "input",
         "bad text"},
        {{.part = {"!bad"}}, RC_INVALID, "text_inference", "input", "bad text"},
        {{.part = {NULL}}, RC_INVALID, "text_inference", "input", "0 parts"},
        {{.part = {"a", "b"}, .flat = true},
         RC_INVALID,
         "text_inference",
         "input",
         "2 parts in one input, 1 to 1"},
        {{.part = {"@image/png rgb8.png", "sixty and more tokens are what this model does not take"
                                          " in one go"}},
         RC_TOO_LARGE,
         "text_inference",
         "input",
         "tokens"},
    };
    const uint32_t n = sizeof(rows) / sizeof(rows[0]);
    struct rig r = rig_new(seeing(), 64);
    struct input all[32];
    struct ask q = {.in = all, .n = n + 1, .per_item = true};

    (void)state;
    for (uint32_t i = 0; i < n; i++)
        all[i] = rows[i].in;
    all[n] = good[3];
    embed(&r, 1, &q);
    run(&r);
    assert_int_equal(r.a[1].rc, RC_OK);
    assert_int_equal(r.a[1].n_bad, n);
    has_vector(&r, 1, n, &good[3]);
    for (uint32_t k = 0; k < n; k++) {
        uint32_t i = r.a[1].bad[k];

        if (strcmp(r.a[1].stage[k], rows[i].stage) != 0)
            fail_msg("row %u: stage '%s'", i, r.a[1].stage[k]);
        for (int d = 0; d < 8; d++)
            assert_true(r.a[1].vec[i * 8 + d] == 0);
    }
    for (uint32_t i = 0; i < n; i++) { /* and as the failure of a whole task */
        struct ask one = {.in = &rows[i].in, .n = 1};

        embed(&r, 2 + i, &one);
        run(&r);
        if (r.a[2 + i].rc != rows[i].rc || strcmp(r.a[2 + i].err.what, rows[i].what) != 0 ||
            strcmp(r.a[2 + i].err.stage, rows[i].stage) != 0 ||
            strstr(r.a[2 + i].err.msg, rows[i].says) == NULL)
            fail_msg("row %u: %s, '%s': %s", i, rc_name(r.a[2 + i].rc), r.a[2 + i].err.what,
                     r.a[2 + i].err.msg);
        assert_int_equal(r.a[2 + i].err.item, 0);
        assert_int_equal(r.a[2 + i].err.limit, strcmp(rows[i].says, "tokens") == 0 ? 64 : 0);
    }
    assert_int_equal(r.e->media.n_refused, 2 * 8);
    nothing_is_live(&r);
    rig_free(&r);
}

static void bounds_of_one_input(void **state)
{
    struct rig r = rig_new(seeing(), 64);
    struct input many = {.part = {NULL}}, files = {.part = {NULL}};
    struct ask q = {.in = &many, .n = 1}, f = {.in = &files, .n = 1};

    (void)state;
    for (int i = 0; i < 65; i++)
        many.part[i] = "x";
    for (int i = 0; i < 30; i++)
        files.part[i] = "@image/png rgb8.png";
    embed(&r, 1, &q);
    embed(&r, 2, &f);
    run(&r);
    assert_int_equal(r.a[1].rc, RC_INVALID);
    assert_non_null(strstr(r.a[1].err.msg, "65 parts"));
    assert_int_equal(r.a[2].rc, RC_TOO_LARGE); /* told before the last of them is decoded */
    assert_int_equal(r.a[2].err.n, 66);
    assert_int_equal(r.a[2].err.limit, 64);
    assert_int_equal(r.e->media.n_decoded, 22);
    r.m->media_bytes = WRK_MEDIA_ITEM_BYTES / 2;
    files.part[3] = NULL;
    embed(&r, 3, &f);
    files.part[2] = NULL;
    embed(&r, 4, &f);
    embed(&r, 5, &f);
    run(&r);
    assert_int_equal(r.a[3].rc, RC_LIMIT);
    assert_int_equal(r.a[3].err.limit, WRK_MEDIA_ITEM_BYTES);
    assert_int_equal(r.a[4].rc, RC_OK);
    assert_int_equal(r.a[5].rc, RC_OK);
    assert_true(r.m->most_live_media <= 22); /* the two did not wait in memory together */
    nothing_is_live(&r);
    rig_free(&r);
}

static void a_model_is_asked_for_what_it_can(void **state)
{
    struct rig r = rig_new(seeing(), 64);
    struct ask picture = {.in = &good[1], .n = 1}, sound = {.in = &good[2], .n = 1},
               other = {.in = good, .n = N_GOOD, .identity = "cafe"};

    (void)state;
    embed(&r, 1, &other);
    run(&r);
    assert_int_equal(r.a[1].rc, RC_CONFLICT);
    assert_string_equal(r.a[1].err.what, "model_identity");
    assert_int_equal(r.e->media.n_decoded, 0);
    assert_int_equal(r.m->n_encodes, 0);
    r.m->info.can_embed_image = false;
    embed(&r, 2, &picture);
    embed(&r, 3, &sound);
    run(&r);
    assert_int_equal(r.a[2].rc, RC_UNSUPPORTED);
    assert_int_equal(r.a[3].rc, RC_OK);
    r.m->info.can_embed_sound = false;
    embed(&r, 4, &sound);
    r.m->info.can_embed_groups = false;
    embed(&r, 5, &picture);
    run(&r);
    assert_int_equal(r.a[4].rc, RC_UNSUPPORTED);
    assert_int_equal(r.a[5].rc, RC_UNSUPPORTED);
    assert_non_null(strstr(r.a[5].err.msg, "single texts"));
    nothing_is_live(&r);
    rig_free(&r);
}

static void failures_of_a_pass(void **state)
{
    struct rig r = rig_new(seeing(), 64);
    struct ask q = {.in = good, .n = N_GOOD, .per_item = true};

    (void)state;
    r.m->fail_media_pass = true;
    embed(&r, 1, &q);
    run(&r);
    assert_int_equal(r.a[1].rc, RC_OK);
    assert_int_equal(r.a[1].n_bad, 6);
    for (uint32_t k = 0; k < 6; k++)
        assert_string_equal(r.a[1].stage[k], good[r.a[1].bad[k]].part[0][1] == 'a'
                                                 ? "audio_inference"
                                                 : "image_inference");
    has_vector(&r, 1, 0, &good[0]);
    has_vector(&r, 1, 4, &good[4]);
    nothing_is_live(&r);
    /* files that change while they are read fail the whole task, item errors or not */
    r.m->fail_media_pass = false;
    r.m->guard_after_pass = true;
    embed(&r, 2, &q);
    step(&r);
    assert_int_equal(r.a[2].rc, RC_WEIGHT_IO);
    assert_int_equal(r.a[2].n_vec, 0);
    nothing_is_live(&r);
    rig_free(&r);
}

/* ------------------------------------------------------------ ended in the middle */

static struct {
    struct rig *r;
    unsigned n_calls, at;
    uint64_t cancel;
    bool close;
} ear;

static enum rc listen_in_test(void *user, struct rc_err *err)
{
    assert_ptr_equal(user, &ear);
    if (++ear.n_calls != ear.at)
        return RC_AGAIN;
    if (ear.close)
        return rc_fail(err, RC_CLOSED, "gone");
    return wrk_engine_cancel(ear.r->e, ear.cancel, err);
}

static void a_cancel_ends_a_pass_and_no_one_else(void **state)
{
    struct rig r = rig_new_heard(seeing(), 64, listen_in_test, &ear);
    struct ask a = {.in = &good[3], .n = 1}, b = {.in = good, .n = 2};

    (void)state;
    memset(&ear, 0, sizeof(ear));
    ear.r = &r;
    ear.at = 2;
    ear.cancel = 1;
    r.m->n_layers = 12;
    r.m->layer_us = 4000;
    embed(&r, 1, &b);
    embed(&r, 2, &b);
    embed(&r, 3, &a);
    run(&r);
    assert_int_equal(r.a[1].rc, RC_CANCELLED);
    assert_int_equal(r.a[1].ended, 1);
    assert_int_equal(r.m->n_stopped, 1);
    assert_int_equal(r.e->n_cancelled, 1);
    for (uint32_t i = 0; i < 2; i++)
        has_vector(&r, 2, i, &good[i]);
    has_vector(&r, 3, 0, &good[3]);
    nothing_is_live(&r);

    /* a deadline in the middle of a pass */
    a.deadline_us = wrk_now_us() + 30000;
    embed(&r, 4, &a);
    embed(&r, 5, &b);
    run(&r);
    assert_int_equal(r.a[4].rc, RC_DEADLINE);
    assert_int_equal(r.a[5].rc, RC_OK);
    for (uint32_t i = 0; i < 2; i++)
        has_vector(&r, 5, i, &good[i]);
    nothing_is_live(&r);

    /* the front goes away in the middle of one */
    ear.close = true;
    ear.at = ear.n_calls + 1;
    embed(&r, 6, &a);
    a.deadline_us = 0;
    embed(&r, 7, &a);
    for (int i = 0; i < 10; i++)
        if (wrk_engine_step(r.e, NULL) == RC_CLOSED)
            goto closed;
    fail_msg("nobody noticed");
closed:
    rig_free(&r);
}

/* Files of an item that its task's end finds half decoded. */
static void a_deadline_between_files_leaves_nothing(void **state)
{
    struct rig r = rig_new_heard(seeing(), 64, listen_in_test, &ear);
    struct ask q = {.in = &good[5], .n = 1};
    uint64_t bytes;

    (void)state;
    memset(&ear, 0, sizeof(ear));
    ear.r = &r;
    for (uint32_t t = 1; t < 20; t++) { /* wherever it strikes */
        q.deadline_us = wrk_now_us() + 50 * t;
        embed(&r, t, &q);
        run(&r);
        assert_int_equal(r.a[t].ended, 1);
        assert_true(r.a[t].rc == RC_OK || r.a[t].rc == RC_DEADLINE);
        nothing_is_live(&r);
    }
    embed(&r, 20, &(struct ask){.in = good, .n = N_GOOD}); /* freed with its files unread */
    bytes = r.e->queued_bytes;
    step(&r);
    step(&r);
    assert_true(r.e->queued_bytes + 2000 < bytes); /* but for those that were decoded */
    assert_int_equal(wrk_engine_cancel(r.e, 20, NULL), RC_OK);
    nothing_is_live(&r);
    embed(&r, 21, &(struct ask){.in = good, .n = N_GOOD}); /* and with the engine */
    step(&r);
    rig_free(&r);
}

/* 30 s of 8 channels at 96,000 samples a second: longer to decode than two looks around are apart.
 */
static Ipc__EmbedPart long_sound(void)
{
    enum { RATE = 96000, CHANNELS = 8, SAMPLES = 30 * RATE * CHANNELS };
    Ipc__EmbedPart p = IPC__EMBED_PART__INIT;
    uint32_t u32[] = {RATE, RATE * CHANNELS}, n = SAMPLES, size = 36 + SAMPLES, fmt = 16;
    uint16_t head[] = {1, CHANNELS}, tail[] = {CHANNELS, 8};
    uint8_t *d = malloc(44 + SAMPLES);

    memcpy(d, "RIFF....WAVEfmt ", 16);
    memcpy(d + 4, &size, 4);
    memcpy(d + 16, &fmt, 4);
    memcpy(d + 20, head, 4);
    memcpy(d + 24, u32, 8);
    memcpy(d + 32, tail, 4);
    memcpy(d + 36, "data", 4);
    memcpy(d + 40, &n, 4);
    memset(d + 44, 128, SAMPLES);
    p.is_media = true;
    p.mime = (char *)"audio/wav";
    p.data = (ProtobufCBinaryData){44 + SAMPLES, d};
    return p;
}

static void a_cancel_ends_a_file(void **state)
{
    struct rig r = rig_new_heard(seeing(), 64, listen_in_test, &ear);
    Ipc__EmbedPart part = long_sound(), *part_ptr = &part;
    Ipc__EmbedInput in = IPC__EMBED_INPUT__INIT, *ptr = &in;
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Embed m = IPC__EMBED__INIT;

    (void)state;
    memset(&ear, 0, sizeof(ear));
    ear.r = &r;
    ear.at = 1;
    ear.cancel = 1;
    in.parts = &part_ptr;
    in.n_parts = 1;
    m.inputs = &ptr;
    m.n_inputs = 1;
    f.body_case = IPC__FRAME__BODY_EMBED;
    f.embed = &m;
    for (f.task = 1; f.task <= 2; f.task++) { /* the second is not cancelled */
        assert_int_equal(submit(&r, &f), RC_OK);
        run(&r);
        assert_int_equal(r.a[f.task].ended, 1);
        assert_int_equal(r.a[f.task].rc, f.task == 1 ? RC_CANCELLED : RC_OK);
        assert_int_equal(r.e->media.n_decoded, f.task - 1);
        assert_int_equal(r.e->media.n_refused, 0);
        nothing_is_live(&r);
    }
    free(part.data.data);
    rig_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_and_groups_come_back_in_request_order),
        cmocka_unit_test(pages_are_run_in_cohorts),
        cmocka_unit_test(alone_is_as_in_company),
        cmocka_unit_test(bad_items_are_named_by_stage),
        cmocka_unit_test(bounds_of_one_input),
        cmocka_unit_test(a_model_is_asked_for_what_it_can),
        cmocka_unit_test(failures_of_a_pass),
        cmocka_unit_test(a_cancel_ends_a_pass_and_no_one_else),
        cmocka_unit_test(a_cancel_ends_a_file),
        cmocka_unit_test(a_deadline_between_files_leaves_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
