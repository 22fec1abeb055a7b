/* mdl_media.h - the pictures and sounds of tests/golden/embeddinggemma2, decoded. Included once per
 * test program, which links libpng (tests/CMakeLists.txt). */
#ifndef INFERD_MDL_MEDIA_H
#define INFERD_MDL_MEDIA_H

#include "mdl_test.h"

#include <png.h>

/* Pixels as a decoder leaves them: RGB, or RGBA where the file has alpha. */
static inline void picture(const char *name, struct mdl_image *out)
{
    png_image png = {.version = PNG_IMAGE_VERSION};
    char path[512];
    uint8_t *px;

    snprintf(path, sizeof(path), TEST_GOLDEN "/embeddinggemma2/%s.png", name);
    if (!png_image_begin_read_from_file(&png, path))
        fail_msg("%s: %s", path, png.message);
    png.format = png.format & PNG_FORMAT_FLAG_ALPHA ? PNG_FORMAT_RGBA : PNG_FORMAT_RGB;
    assert_non_null(px = malloc(PNG_IMAGE_SIZE(png)));
    assert_true(png_image_finish_read(&png, NULL, px, 0, NULL));
    *out = (struct mdl_image){.width = png.width,
                              .height = png.height,
                              .n_channels = PNG_IMAGE_PIXEL_CHANNELS(png.format),
                              .stride = PNG_IMAGE_ROW_STRIDE(png),
                              .pixels = px};
}

/* 16-bit mono WAV behind a plain header of 44 bytes. */
static inline void sound(const char *name, struct mdl_sound *out)
{
    char path[512];
    int16_t v;
    float *pcm;
    long n;
    FILE *f;

    snprintf(path, sizeof(path), TEST_GOLDEN "/embeddinggemma2/%s.wav", name);
    assert_non_null(f = fopen(path, "rb"));
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    n = (ftell(f) - 44) / 2;
    assert_true(n > 0);
    assert_int_equal(fseek(f, 44, SEEK_SET), 0);
    assert_non_null(pcm = malloc((size_t)n * sizeof(*pcm)));
    for (long i = 0; i < n; i++) {
        assert_int_equal(fread(&v, sizeof(v), 1, f), 1);
        pcm[i] = (float)v / 32768;
    }
    fclose(f);
    *out = (struct mdl_sound){.rate = 16000, .n = (size_t)n, .pcm = pcm};
}

/* The same, ready for the model's towers. */
static inline struct mdl_media *see(struct mdl *m, const char *name)
{
    struct mdl_media *media = NULL;
    struct mdl_image img;

    picture(name, &img);
    need_ok(mdl_media_image(m, &img, &media, err));
    free((void *)(uintptr_t)img.pixels);
    return media;
}

static inline struct mdl_media *hear(struct mdl *m, const char *name)
{
    struct mdl_media *media = NULL;
    struct mdl_sound snd;

    sound(name, &snd);
    need_ok(mdl_media_sound(m, &snd, &media, err));
    free((void *)(uintptr_t)snd.pcm);
    return media;
}

#endif
