/* Pictures and sounds: equal to Pillow's and soundfile's where those say what is right, and every
 * bad file a row of its own. Files and expectations: tests/worker/media/make_media.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wrk_media.h"

#define DIR TEST_SOURCE "/tests/worker/media/"

struct file {
    uint8_t *data;
    size_t n;
};

static struct file load(const char *name)
{
    struct file f = {0};
    char path[512];
    FILE *in;

    snprintf(path, sizeof(path), DIR "%s", name);
    if ((in = fopen(path, "rb")) == NULL)
        fail_msg("%s cannot be opened", path);
    assert_int_equal(fseek(in, 0, SEEK_END), 0);
    f.n = (size_t)ftell(in);
    rewind(in);
    f.data = malloc(f.n + 1);
    assert_int_equal(fread(f.data, 1, f.n, in), f.n);
    f.data[f.n] = 0;
    fclose(in);
    return f;
}

/* A copy of exactly n bytes: reading past its end is seen by the address sanitizer. */
static uint8_t *copy(const uint8_t *data, size_t n)
{
    uint8_t *p = malloc(n > 0 ? n : 1);

    memcpy(p, data, n);
    return p;
}

static uint64_t fnv(const uint8_t *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325ull;

    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3ull;
    return h;
}

static void pictures_are_those_of_pillow(void **state)
{
    struct file list = load("expect.txt");
    unsigned n = 0;

    (void)state;
    for (char *line = strtok((char *)list.data, "\n"); line; line = strtok(NULL, "\n"), n++) {
        struct wrk_image img = {0};
        struct rc_err err = RC_ERR_INIT;
        unsigned w, h;
        unsigned long long want;
        char name[64];
        struct file f;

        assert_int_equal(sscanf(line, "%63s %u %u %llx", name, &w, &h, &want), 4);
        f = load(name);
        if (wrk_image_decode(&img, wrk_media_sniff(f.data, f.n, NULL), f.data, f.n, NULL, &err) !=
            RC_OK)
            fail_msg("%s: %s", name, err.msg);
        if (img.width != w || img.height != h)
            fail_msg("%s: %u x %u, expected %u x %u", name, img.width, img.height, w, h);
        if (fnv(img.rgb, (size_t)w * h * 3) != want)
            fail_msg("%s: other pixels than Pillow's", name);
        wrk_image_deinit(&img);
        free(f.data);
    }
    assert_int_equal(n, 42);
    free(list.data);
}

static void sounds_are_those_of_soundfile(void **state)
{
    static const struct {
        const char *name;
        float tolerance; /* lossy codings: other releases of their decoders */
    } rows[] = {
        {"s16.wav", 0},        {"u8.wav", 1e-6f},   {"s24.wav", 1e-6f},    {"s32x.wav", 1e-6f},
        {"f32.wav", 1e-6f},    {"f64.wav", 1e-6f},  {"ulaw.wav", 1e-6f},   {"stereo.flac", 1e-6f},
        {"vorbis.ogg", 1e-5f}, {"opus.ogg", 2e-4f}, {"stereo.mp3", 1e-4f},
    };

    (void)state;
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        char name[80];
        struct file f = load(rows[r].name), want;
        struct wrk_sound snd = {0}, again = {0};
        struct rc_err err = RC_ERR_INIT;
        enum wrk_media_kind kind = wrk_media_sniff(f.data, f.n, NULL);
        float worst = 0;

        snprintf(name, sizeof(name), "%s.f32", rows[r].name);
        want = load(name);
        if (wrk_sound_decode(&snd, kind, f.data, f.n, 16000, 30000, NULL, &err) != RC_OK)
            fail_msg("%s: %s", rows[r].name, err.msg);
        assert_int_equal(snd.rate, 16000);
        if (snd.n != want.n / sizeof(float))
            fail_msg("%s: %zu samples, expected %zu", rows[r].name, snd.n, want.n / sizeof(float));
        for (size_t i = 0; i < snd.n; i++) {
            float d = fabsf(snd.pcm[i] - ((const float *)(const void *)want.data)[i]);

            worst = d > worst ? d : worst;
        }
        if (!(worst <= rows[r].tolerance))
            fail_msg("%s: off by %g", rows[r].name, (double)worst);
        /* and the same bits each time */
        assert_int_equal(wrk_sound_decode(&again, kind, f.data, f.n, 16000, 30000, NULL, NULL),
                         RC_OK);
        assert_int_equal(again.n, snd.n);
        assert_memory_equal(again.pcm, snd.pcm, snd.n * sizeof(float));
        wrk_sound_deinit(&snd);
        wrk_sound_deinit(&again);
        free(f.data);
        free(want.data);
    }
}

static void types_must_agree_with_bytes(void **state)
{
    static const struct {
        const char *mime, *file;
        enum rc rc;
        const char *says;
    } rows[] = {
        {"image/png", "pixel.png", RC_OK, ""},
        {"image/jpg", "420.jpg", RC_OK, ""},
        {"audio/x-wav", "s16.wav", RC_OK, ""},
        {"audio/opus", "opus.ogg", RC_OK, ""},
        {"audio/mpeg", "stereo.mp3", RC_OK, ""},
        {"image/png", "420.jpg", RC_INVALID,
         "declared as image/png, and its first bytes are those of type JPEG"},
        {"image/jpeg", "s16.wav", RC_INVALID, "type WAV"},
        {"audio/wav", "lossy.webp", RC_INVALID, "type WebP"},
        {"audio/mpeg", "expect.txt", RC_INVALID, "no type known here"},
        {"video/mp4", "pixel.png", RC_UNSUPPORTED, "video (video/mp4) is not taken"},
        {"image/bmp", "pixel.png", RC_UNSUPPORTED, "'image/bmp' is not taken"},
        {"image/svg+xml", "pixel.png", RC_UNSUPPORTED, "'image/svg+xml'"},
        {"", "pixel.png", RC_UNSUPPORTED, "type ''"},
    };
    enum wrk_media_kind kind;
    struct rc_err err;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct file f = load(rows[i].file);

        err = RC_ERR_INIT;
        if (wrk_media_check(rows[i].mime, f.data, f.n, &kind, &err) != rows[i].rc ||
            strstr(err.msg, rows[i].says) == NULL)
            fail_msg("%s as %s: %s", rows[i].file, rows[i].mime, err.msg);
        free(f.data);
    }
    assert_int_equal(wrk_media_check("image/png", NULL, 0, &kind, &err), RC_INVALID);
    assert_non_null(strstr(err.msg, "empty"));
    assert_int_equal(
        wrk_media_check("image/png", (const uint8_t *)"", WRK_MEDIA_BYTES_MAX + 1, &kind, &err),
        RC_TOO_LARGE);
    assert_int_equal(err.n, WRK_MEDIA_BYTES_MAX + 1);
    assert_int_equal(wrk_media_sniff((const uint8_t *)"\0\0\0 ftypavif", 12, NULL),
                     WRK_MEDIA_OTHER);
}

static void be32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (24 - 8 * i));
}

static void le32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static uint32_t crc32_of(const uint8_t *p, size_t n)
{
    uint32_t c = 0xffffffffu;

    while (n-- > 0) {
        c ^= *p++;
        for (int k = 0; k < 8; k++)
            c = (c >> 1) ^ (0xedb88320u & (0u - (c & 1)));
    }
    return ~c;
}

/* What is done to a good picture. */
static void png_huge(struct file *f)
{
    be32(f->data + 16, 100000);
    be32(f->data + 20, 100000);
    be32(f->data + 29, crc32_of(f->data + 12, 17));
}
static void png_many(struct file *f) /* each edge is allowed */
{
    be32(f->data + 16, 16000);
    be32(f->data + 20, 16000);
    be32(f->data + 29, crc32_of(f->data + 12, 17));
}
static void png_crc(struct file *f)
{
    f->data[30] ^= 1;
}
static void png_empty(struct file *f)
{
    be32(f->data + 16, 0);
    be32(f->data + 29, crc32_of(f->data + 12, 17));
}
static void png_taller(struct file *f) /* than its data */
{
    be32(f->data + 20, 2300);
    be32(f->data + 29, crc32_of(f->data + 12, 17));
}
static uint8_t *jpeg_sof(const struct file *f)
{
    for (size_t i = 0; i + 9 < f->n; i++)
        if (f->data[i] == 0xff && (f->data[i + 1] == 0xc0 || f->data[i + 1] == 0xc2) &&
            f->data[i + 2] == 0)
            return f->data + i + 5;
    fail_msg("no frame header");
    return NULL;
}
static void jpeg_huge(struct file *f)
{
    memset(jpeg_sof(f), 0x9c, 4); /* the library itself ends at 65500 */
}
static void jpeg_taller(struct file *f)
{
    jpeg_sof(f)[0] = 8;
}
static void jpeg_deep(struct file *f)
{
    jpeg_sof(f)[-1] = 12;
}
static void jpeg_noise(struct file *f)
{
    memset(f->data + f->n - 200, 0x55, 100);
}
static void gif_huge(struct file *f)
{
    memset(f->data + 6, 0xff, 4);
}
static void gif_noise(struct file *f)
{
    memset(f->data + f->n - 100, 0xff, 50);
}
static void half(struct file *f)
{
    f->n /= 2;
}
static void last(struct file *f)
{
    f->n -= 13; /* of a PNG: IEND and a byte */
}
static void header(struct file *f)
{
    f->n = 12;
}
static void webp_noise(struct file *f)
{
    memset(f->data + 25, 0xaa, 200);
}
/* The setup header's first byte, and the page's checksum is right again: libsndfile would lose
 * memory for it. */
static void vorbis_headers(struct file *f)
{
    uint8_t *p = f->data, *page = NULL;
    uint32_t crc = 0;
    size_t len;

    for (size_t i = 0; i + 7 < f->n; i++)
        if (memcmp(p + i, "OggS", 4) == 0 && p[i + 18] == 1)
            page = p + i;
    assert_non_null(page);
    len = 27 + (size_t)page[26];
    for (size_t i = 0; i < page[26]; i++)
        len += page[27 + i];
    for (size_t i = 27; i + 7 < len; i++)
        if (memcmp(page + i, "\5vorbis", 7) == 0)
            page[i + 3] ^= 0x20;
    memset(page + 22, 0, 4);
    for (size_t i = 0; i < len; i++) {
        crc ^= (uint32_t)page[i] << 24;
        for (int k = 0; k < 8; k++)
            crc = (crc << 1) ^ ((crc & 0x80000000u) != 0 ? 0x04c11db7u : 0);
    }
    for (int i = 0; i < 4; i++)
        page[22 + i] = (uint8_t)(crc >> (8 * i));
}
static void ogg_noise(struct file *f)
{
    f->data[f->n / 2] ^= 1;
}
static void nothing(struct file *f)
{
    (void)f;
}

static void bad_pictures_are_refused(void **state)
{
    static const struct {
        const char *file;
        void (*harm)(struct file *);
        enum rc rc;
        const char *says;
        uint64_t n, limit;
    } rows[] = {
        {"rgb8.png", png_huge, RC_TOO_LARGE, "100000 x 100000", 100000, WRK_IMAGE_EDGE_MAX},
        {"rgb8.png", png_many, RC_TOO_LARGE, "16000 x 16000 = 256000000 pixels", 256000000,
         WRK_IMAGE_PIXELS_MAX},
        {"rgb8.png", png_crc, RC_INVALID, "broken PNG", 0, 0},
        {"rgb8.png", png_empty, RC_INVALID, "broken PNG", 0, 0},
        {"rgb8.png", png_taller, RC_INVALID, "broken PNG", 0, 0},
        {"rgb8.png", half, RC_INVALID, "cut short", 0, 0},
        {"rgb8.png", last, RC_INVALID, "cut short", 0, 0},
        {"adam7.png", half, RC_INVALID, "cut short", 0, 0},
        {"gray16.png", half, RC_INVALID, "cut short", 0, 0},
        {"rgb8.png", header, RC_INVALID, "cut short", 0, 0},
        {"420.jpg", jpeg_huge, RC_TOO_LARGE, "40092 x 40092", 40092, WRK_IMAGE_EDGE_MAX},
        {"420.jpg", jpeg_taller, RC_INVALID, "broken JPEG", 0, 0},
        {"420.jpg", jpeg_deep, RC_INVALID, "broken JPEG: Unsupported JPEG data precision 12", 0, 0},
        {"444.jpg", jpeg_noise, RC_INVALID, "broken JPEG", 0, 0},
        {"444.jpg", half, RC_INVALID, "broken JPEG: Premature end of JPEG file", 0, 0},
        {"cmyk.jpg", last, RC_INVALID, "broken JPEG", 0, 0},
        {"progressive.jpg", half, RC_INVALID, "broken JPEG", 0, 0},
        {"420.jpg", header, RC_INVALID, "broken JPEG", 0, 0},
        {"scans.jpg", nothing, RC_TOO_LARGE, "more than 32 scans", 33, 32},
        {"lossless.webp", half, RC_INVALID, "cut short", 0, 0},
        {"lossy.webp", half, RC_INVALID, "cut short", 0, 0},
        {"moving.webp", half, RC_INVALID, "cut short", 0, 0},
        {"lossy.webp", header, RC_INVALID, "broken WebP", 0, 0},
        {"lossless.webp", webp_noise, RC_INVALID, "broken WebP", 0, 0},
        {"plain.gif", gif_huge, RC_TOO_LARGE, "65535 x 65535", 65535, WRK_IMAGE_EDGE_MAX},
        {"plain.gif", half, RC_INVALID, "broken GIF", 0, 0},
        {"interlaced.gif", half, RC_INVALID, "broken GIF", 0, 0},
        {"plain.gif", gif_noise, RC_INVALID, "broken GIF", 0, 0},
        {"plain.gif", header, RC_INVALID, "broken GIF", 0, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct file f = load(rows[i].file);
        enum wrk_media_kind kind = wrk_media_sniff(f.data, f.n, NULL);
        struct wrk_image img = {0};
        struct rc_err err = RC_ERR_INIT;
        uint8_t *exact;

        rows[i].harm(&f);
        exact = copy(f.data, f.n);
        if (wrk_image_decode(&img, kind, exact, f.n, NULL, &err) != rows[i].rc ||
            strstr(err.msg, rows[i].says) == NULL || err.n != rows[i].n ||
            err.limit != rows[i].limit)
            fail_msg("row %zu, %s: '%s' (%llu of %llu)", i, rows[i].file, err.msg,
                     (unsigned long long)err.n, (unsigned long long)err.limit);
        assert_null(img.rgb);
        free(exact);
        free(f.data);
    }
}

static void pictures_keep_the_callers_limits(void **state)
{
    const struct wrk_image_limits few = {.pixels = 37 * 23 - 1}, just = {.pixels = 37 * 23},
                                  narrow = {.edge = 36};
    struct file f = load("rgb8.png");
    struct wrk_image img = {0};
    struct rc_err err = RC_ERR_INIT;

    (void)state;
    assert_int_equal(wrk_image_decode(&img, WRK_MEDIA_PNG, f.data, f.n, &few, &err), RC_TOO_LARGE);
    assert_int_equal(err.limit, 37 * 23 - 1);
    assert_int_equal(wrk_image_decode(&img, WRK_MEDIA_PNG, f.data, f.n, &narrow, &err),
                     RC_TOO_LARGE);
    assert_int_equal(err.n, 37);
    assert_int_equal(wrk_image_decode(&img, WRK_MEDIA_PNG, f.data, f.n, &just, &err), RC_OK);
    wrk_image_deinit(&img);
    assert_int_equal(wrk_image_decode(&img, WRK_MEDIA_WAV, f.data, f.n, NULL, &err),
                     RC_UNSUPPORTED);
    free(f.data);
}

/* ---------------------------------------------------------------------- sounds */

/* A WAV of 32-bit floats; bytes: what its header says of them. */
static struct file wav(uint32_t rate, uint32_t n_ch, const float *x, size_t n, uint32_t bytes)
{
    struct file f = {malloc(44 + n * 4), 44 + n * 4};
    uint8_t *p = f.data;

    memcpy(p, "RIFF....WAVEfmt \x10\0\0\0\x03\0", 22);
    le32(p + 4, (uint32_t)f.n - 8);
    p[22] = (uint8_t)n_ch;
    p[23] = (uint8_t)(n_ch >> 8);
    le32(p + 24, rate);
    le32(p + 28, rate * n_ch * 4);
    p[32] = (uint8_t)(n_ch * 4);
    p[33] = 0;
    p[34] = 32;
    p[35] = 0;
    memcpy(p + 36, "data", 4);
    le32(p + 40, bytes);
    memcpy(p + 44, x, n * 4);
    return f;
}

static void refused(const struct file *f, enum wrk_media_kind kind, enum rc rc, const char *says)
{
    uint8_t *exact = copy(f->data, f->n);
    struct wrk_sound snd = {0};
    struct rc_err err = RC_ERR_INIT;

    if (wrk_sound_decode(&snd, kind, exact, f->n, 16000, 30000, NULL, &err) != rc ||
        strstr(err.msg, says) == NULL)
        fail_msg("%s: '%s', expected '%s'", rc_name(err.code), err.msg, says);
    assert_null(snd.pcm);
    free(exact);
}

static void bad_sounds_are_refused(void **state)
{
    static const struct {
        const char *file;
        void (*harm)(struct file *);
        enum wrk_media_kind kind;
        enum rc rc;
        const char *says;
    } rows[] = {
        {"s16.wav", half, WRK_MEDIA_WAV, RC_INVALID, "cut short: its header says 1920 bytes"},
        {"s16.wav", header, WRK_MEDIA_WAV, RC_INVALID, "no chunk 'data'"},
        {"stereo.flac", half, WRK_MEDIA_FLAC, RC_INVALID, ""},
        {"stereo.flac", header, WRK_MEDIA_FLAC, RC_INVALID, "broken sound"},
        {"vorbis.ogg", half, WRK_MEDIA_OGG, RC_INVALID, "cut short"},
        {"opus.ogg", half, WRK_MEDIA_OGG, RC_INVALID, "cut short"},
        {"vorbis.ogg", header, WRK_MEDIA_OGG, RC_INVALID, "cut short or damaged at byte 0"},
        {"vorbis.ogg", ogg_noise, WRK_MEDIA_OGG, RC_INVALID, "damaged at byte"},
        {"vorbis.ogg", vorbis_headers, WRK_MEDIA_OGG, RC_INVALID, "headers of the Vorbis stream"},
        {"stereo.mp3", header, WRK_MEDIA_MP3, RC_INVALID, ""},
        {"adpcm.wav", nothing, WRK_MEDIA_WAV, RC_UNSUPPORTED, "ADPCM"},
        {"long.flac", nothing, WRK_MEDIA_FLAC, RC_TOO_LARGE, "31.000 s, at most 30.000 s"},
        {"unknown_length.flac", nothing, WRK_MEDIA_FLAC, RC_TOO_LARGE, "at most 30.000 s"},
        {"stereo.flac", nothing, WRK_MEDIA_MP3, RC_UNSUPPORTED, "not taken"},
        {"stereo.flac", nothing, WRK_MEDIA_PNG, RC_UNSUPPORTED, "no sound"},
    };
    static const float good[] = {0.5f, -0.5f, 0.25f}, nan[] = {0, NAN, 0}, inf[] = {0, 0, INFINITY},
                       loud[] = {3e38f, 3e38f, 3e38f, 3e38f};
    const struct {
        struct file f;
        enum rc rc;
        const char *says;
    } made[] = {
        {wav(16000, 1, nan, 3, 12), RC_INVALID, "sample 1 of the sound is not finite"},
        {wav(16000, 1, inf, 3, 12), RC_INVALID, "sample 2 of the sound is not finite"},
        {wav(16000, 2, loud, 4, 16), RC_INVALID, "sample 0 of the sound is not finite"},
        {wav(16000, 1, good, 3, 16), RC_INVALID, "header says 16 bytes of samples, 12 are there"},
        {wav(16000, 1, good, 0, 0), RC_INVALID, "without samples"},
        {wav(16000, 9, good, 3, 12), RC_INVALID, ""},
        {wav(999, 1, good, 3, 12), RC_INVALID, "999 samples a second"},
        {wav(768001, 1, good, 3, 12), RC_INVALID, "768001 samples a second"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct file f = load(rows[i].file);

        rows[i].harm(&f);
        refused(&f, rows[i].kind, rows[i].rc, rows[i].says);
        free(f.data);
    }
    for (size_t i = 0; i < sizeof(made) / sizeof(made[0]); i++) {
        refused(&made[i].f, WRK_MEDIA_WAV, made[i].rc, made[i].says);
        free(made[i].f.data);
    }
}

static void thirty_seconds_and_no_more(void **state)
{
    static const struct {
        uint32_t rate, n_ch;
        size_t frames;
        uint32_t bytes; /* 0xffffffff: up to the end of the file */
        bool fits;
    } rows[] = {
        {16000, 1, 480000, 480000 * 4, true},  {16000, 1, 480001, 480001 * 4, false},
        {16000, 1, 480001, 0xffffffff, false}, {8000, 2, 240000, 240000 * 8, true},
        {1000, 1, 30000, 30000 * 4, true},     {768000, 1, 768000 * 2, 768000 * 8, true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        float *x = calloc(rows[i].frames * rows[i].n_ch, sizeof(*x));
        struct file f =
            wav(rows[i].rate, rows[i].n_ch, x, rows[i].frames * rows[i].n_ch, rows[i].bytes);
        struct wrk_sound snd = {0};
        struct rc_err err = RC_ERR_INIT;
        enum rc rc = wrk_sound_decode(&snd, WRK_MEDIA_WAV, f.data, f.n, 16000, 30000, NULL, &err);

        if (rc != (rows[i].fits ? RC_OK : RC_TOO_LARGE))
            fail_msg("row %zu: %s", i, err.msg);
        if (rows[i].fits)
            assert_int_equal(snd.n, rows[i].frames * 16000 / rows[i].rate);
        else
            assert_int_equal(err.limit, 30000);
        wrk_sound_deinit(&snd);
        free(x);
        free(f.data);
    }
}

struct asked {
    unsigned n, stop_at; /* 0: never */
};

static bool ask(void *user)
{
    struct asked *a = user;

    return ++a->n == a->stop_at;
}

static enum rc decode_asked(const struct file *f, struct asked *a, struct rc_err *err)
{
    enum wrk_media_kind kind = wrk_media_sniff(f->data, f->n, NULL);
    const struct wrk_media_stop stop = {ask, a};
    const struct wrk_image_limits limits = {.stop = &stop};
    struct wrk_image img = {0};
    struct wrk_sound snd = {0};
    enum rc rc = wrk_media_is_sound(kind)
                     ? wrk_sound_decode(&snd, kind, f->data, f->n, 16000, 30000, &stop, err)
                     : wrk_image_decode(&img, kind, f->data, f->n, &limits, err);

    assert_int_equal(img.rgb != NULL || snd.pcm != NULL, rc == RC_OK);
    wrk_image_deinit(&img);
    wrk_sound_deinit(&snd);
    return rc;
}

/* Wherever it is told to. At least: how often it must have asked. */
static void a_decoder_stops_when_told(void **state)
{
    static const struct {
        const char *file;
        unsigned least;
    } rows[] = {
        {"rgb8.png", 23},       {"gray16.png", 10}, {"adam7.png", 40}, {"420.jpg", 3},
        {"progressive.jpg", 9}, {"cmyk.jpg", 3},    {"plain.gif", 20}, {"interlaced.gif", 20},
        {"s24.wav", 1},         {"stereo.flac", 1}, {"stereo.mp3", 1}, {"vorbis.ogg", 1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct file f = load(rows[i].file);
        struct rc_err err = RC_ERR_INIT;
        struct asked a = {0};
        unsigned n;

        assert_int_equal(decode_asked(&f, &a, &err), RC_OK);
        if ((n = a.n) < rows[i].least)
            fail_msg("%s: asked %u times, expected %u", rows[i].file, n, rows[i].least);
        for (unsigned at = 1; at <= n; at++) {
            a = (struct asked){.stop_at = at};
            if (decode_asked(&f, &a, &err) != RC_CANCELLED || a.n != at)
                fail_msg("%s, stopped at %u of %u: '%s', asked %u times", rows[i].file, at, n,
                         err.msg, a.n);
        }
        free(f.data);
    }
}

/* Every byte of every good file set to something else, and every length: whatever comes of it,
 * nothing is read outside the file and nothing is left behind. */
static void no_byte_breaks_a_decoder(void **state)
{
    static const char *const names[] = {"pal4_trns.png", "adam7_pal.png",   "low.jpg",
                                        "cmyk.jpg",      "progressive.jpg", "lossy_alpha.webp",
                                        "lossless.webp", "inset.gif",       "interlaced.gif",
                                        "u8.wav",        "opus.ogg"};
    unsigned n_ok = 0, n_refused = 0;

    (void)state;
    for (size_t k = 0; k < sizeof(names) / sizeof(names[0]); k++) {
        struct file f = load(names[k]);
        enum wrk_media_kind kind = wrk_media_sniff(f.data, f.n, NULL);

        for (size_t i = 0; i < f.n; i += f.n / 60 + 1) {
            uint8_t *exact = copy(f.data, i);
            uint8_t was = f.data[i];
            struct wrk_image img = {0};
            struct wrk_sound snd = {0};

            for (int turn = 0; turn < 2; turn++) { /* cut before i, then i changed */
                const uint8_t *d = turn == 0 ? exact : f.data;
                size_t n = turn == 0 ? i : f.n;
                enum rc rc = wrk_media_is_sound(kind)
                                 ? wrk_sound_decode(&snd, kind, d, n, 16000, 30000, NULL, NULL)
                                 : wrk_image_decode(&img, kind, d, n, NULL, NULL);

                n_ok += rc == RC_OK;
                n_refused += rc != RC_OK;
                wrk_image_deinit(&img);
                wrk_sound_deinit(&snd);
                f.data[i] = (uint8_t)~was;
            }
            f.data[i] = was;
            free(exact);
        }
        free(f.data);
    }
    assert_true(n_refused > 500);
    assert_true(n_ok > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pictures_are_those_of_pillow),
        cmocka_unit_test(sounds_are_those_of_soundfile),
        cmocka_unit_test(types_must_agree_with_bytes),
        cmocka_unit_test(bad_pictures_are_refused),
        cmocka_unit_test(pictures_keep_the_callers_limits),
        cmocka_unit_test(bad_sounds_are_refused),
        cmocka_unit_test(thirty_seconds_and_no_more),
        cmocka_unit_test(a_decoder_stops_when_told),
        cmocka_unit_test(no_byte_breaks_a_decoder),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
