/* fuzz_media_prep.c - pictures and sounds of any size on their way to a tower: an error, or rows
 * whose count obeys the tower's bounds and whose values are finite.
 * room: mdl
 *
 * The first 12 bytes are sizes, what follows (over and over) is pixels and samples. Buffers are
 * exactly as large as the sizes claim, so that reading past them shows. */
#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../models/gemma/mdl_g4_towers.h"
#include "../../models/media/mdl_resize.h"

#define MOST (1u << 18) /* bytes of one picture */

static uint32_t u16(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8;
}

static uint8_t *repeat(const uint8_t *p, size_t size, size_t n)
{
    uint8_t *out = malloc(n ? n : 1);

    for (size_t i = 0; out && i < n; i++)
        out[i] = size ? p[i % size] : 0;
    return out;
}

static void resize(const struct mdl_image *img, uint32_t out_w, uint32_t out_h)
{
    struct rc_err e = RC_ERR_INIT;
    uint8_t *out;

    if ((uint64_t)out_w * out_h > MOST / 3 || !(out = malloc((size_t)out_w * out_h * 3 + 1)))
        return;
    if (mdl_resize_bicubic(img, out_w, out_h, out, &e) != RC_OK)
        assert(e.msg[0] != '\0');
    free(out);
}

static void see(const struct mdl_image *img, uint32_t budget, uint32_t patch)
{
    json_t *c = json_pack("{s:i,s:i,s:i,s:i,s:i}", "hidden_size", 8, "intermediate_size", 8,
                          "num_hidden_layers", 1, "num_attention_heads", 1, "patch_size", patch);
    json_t *p = json_pack("{s:i}", "max_soft_tokens", budget);
    struct mdl_g4_vision *v = NULL;
    struct mdl_media *m = NULL;
    struct rc_err e = RC_ERR_INIT;

    if (mdl_g4_vision_config(&v, c, p, 8, &e) == RC_OK) {
        if (mdl_g4_vision_media(v, img, &m, &e) == RC_OK) {
            assert(m->n_tokens >= 1 && m->n_tokens <= budget && m->n_rows == m->n_tokens * 9);
            assert(m->grid_w * m->grid_h == m->n_rows && m->n_cols == 3 * patch * patch);
            for (size_t i = 0; i < (size_t)m->n_rows * m->n_cols; i++)
                assert(m->x[i] >= 0 && m->x[i] <= 1);
        } else {
            assert(e.msg[0] != '\0' && !m);
        }
    }
    mdl_media_free(&m);
    mdl_g4_vision_free(&v, NULL);
    json_decref(c);
    json_decref(p);
}

static void hear(const uint8_t *p, size_t size, size_t n)
{
    json_t *c = json_pack("{s:i,s:i,s:i}", "hidden_size", 8, "num_hidden_layers", 1,
                          "num_attention_heads", 1);
    struct mdl_g4_audio *a = NULL;
    struct mdl_media *m = NULL;
    struct rc_err e = RC_ERR_INIT;
    float *pcm = malloc((n ? n : 1) * sizeof(*pcm));

    for (size_t i = 0; pcm && i < n; i++)
        pcm[i] = size ? (float)(int8_t)p[i % size] / 128 : 0;
    if (pcm && mdl_g4_audio_config(&a, c, NULL, 8, &e) == RC_OK) {
        const struct mdl_sound snd = {.rate = MDL_G4_SOUND_RATE, .n = n, .pcm = pcm};

        if (mdl_g4_audio_media(a, &snd, &m, &e) == RC_OK) {
            assert(m->n_tokens == (m->n_rows + 3) / 4 && m->n_tokens >= 1);
            for (size_t i = 0; i < (size_t)m->n_rows * m->n_cols; i++)
                assert(isfinite(m->x[i]));
        } else {
            assert(e.msg[0] != '\0' && !m);
        }
    }
    mdl_media_free(&m);
    mdl_g4_audio_free(&a, NULL);
    json_decref(c);
    free(pcm);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mdl_image img = {0};
    uint8_t *px;
    size_t n;

    if (size < 12)
        return 0;
    img.width = u16(data);
    img.height = u16(data + 2);
    img.n_channels = data[4] % 6;
    img.stride = (size_t)img.width * img.n_channels + data[5] % 8;
    n = img.height ? (img.height - 1) * img.stride + (size_t)img.width * img.n_channels : 0;
    if (n > MOST || !(px = repeat(data + 12, size - 12, n)))
        return 0;
    img.pixels = px;
    resize(&img, u16(data + 6), u16(data + 8));
    see(&img, data[10] % 90, data[11] % 18);
    free(px);
    hear(data + 12, size - 12, u16(data + 8) % 20000);
    return 0;
}
