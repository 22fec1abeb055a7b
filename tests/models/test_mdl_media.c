/* Resizing against Pillow, byte for byte (resize_golden.py), and mel features against sums
 * written out; limits. */
#include "mdl_test.h"

#include "../../models/media/mdl_mel.h"
#include "../../models/media/mdl_resize.h"

static const struct {
    uint32_t w, h, n_channels, out_w, out_h;
    uint64_t hash;
} resized[] = {
#include "resize_golden.h"
};

static uint64_t fnv(const uint8_t *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325ull;

    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3ull;
    return h;
}

/* The picture of resize_golden.py, with rows `pad` bytes apart. */
static uint8_t *draw(uint32_t w, uint32_t h, uint32_t n_channels, size_t pad)
{
    size_t row = (size_t)w * n_channels;
    uint8_t *px = malloc((row + pad) * h);
    uint32_t x = 12345;

    assert_non_null(px);
    memset(px, 77, (row + pad) * h);
    for (uint32_t y = 0; y < h; y++)
        for (size_t i = 0; i < row; i++) {
            x = x * 1664525u + 1013904223u;
            px[y * (row + pad) + i] = (uint8_t)(x >> 30 == 3   ? 255
                                                : x >> 30 == 2 ? 0
                                                               : (x >> 16) & 255);
        }
    return px;
}

static void pictures_are_resized_as_pillow_does(void **state)
{
    for (size_t i = 0; i < sizeof(resized) / sizeof(*resized); i++) {
        size_t pad = i % 3 * 5, n = (size_t)resized[i].out_w * resized[i].out_h * 3;
        uint8_t *px = draw(resized[i].w, resized[i].h, resized[i].n_channels, pad);
        uint8_t *out = malloc(n);
        const struct mdl_image img = {.width = resized[i].w,
                                      .height = resized[i].h,
                                      .n_channels = resized[i].n_channels,
                                      .stride = (size_t)resized[i].w * resized[i].n_channels + pad,
                                      .pixels = px};

        assert_non_null(out);
        need_ok(mdl_resize_bicubic(&img, resized[i].out_w, resized[i].out_h, out, err));
        if (fnv(out, n) != resized[i].hash)
            fail_msg("%u x %u (%u channels) to %u x %u: other bytes than Pillow's", resized[i].w,
                     resized[i].h, resized[i].n_channels, resized[i].out_w, resized[i].out_h);
        free(px);
        free(out);
    }
}

static void sizes_that_cannot_be_are_refused(void **state)
{
    uint8_t px[12] = {0}, out[48];
    const struct mdl_image good = {
        .width = 2, .height = 2, .n_channels = 3, .stride = 6, .pixels = px};
    struct mdl_image img;
    struct rc_err e = RC_ERR_INIT;

    need_ok(mdl_resize_bicubic(&good, 4, 4, out, err));
    assert_int_equal(mdl_resize_bicubic(&good, 0, 4, out, &e), RC_INVALID);
    assert_int_equal(mdl_resize_bicubic(&good, 4, MDL_RESIZE_MAX_SIDE + 1, out, &e), RC_INVALID);
    img = good;
    img.width = UINT32_MAX;
    assert_int_equal(mdl_resize_bicubic(&img, 4, 4, out, &e), RC_INVALID);
    img = good;
    img.height = 0;
    assert_int_equal(mdl_resize_bicubic(&img, 4, 4, out, &e), RC_INVALID);
    img = good;
    img.stride = 5;
    assert_int_equal(mdl_resize_bicubic(&img, 4, 4, out, &e), RC_INVALID);
    img = good;
    img.n_channels = 1;
    assert_int_equal(mdl_resize_bicubic(&img, 4, 4, out, &e), RC_INVALID);
}

static const struct mdl_mel_desc small = {.rate = 8000,
                                          .frame = 50,
                                          .n_fft = 64,
                                          .n_mels = 12,
                                          .min_hz = 100,
                                          .max_hz = 4000,
                                          .floor = 0.001};

static double mel_of(double hz)
{
    return 2595 * log10(1 + hz / 700);
}

static double edge(uint32_t i)
{
    double lo = mel_of(small.min_hz), hi = mel_of(small.max_hz);

    return 700 * (pow(10, (lo + (hi - lo) * i / (small.n_mels + 1)) / 2595) - 1);
}

/* The definition, term by term: no fast transform, no sparse bank. */
static double by_definition(const float *x, uint32_t m)
{
    double sum = small.floor;

    for (uint32_t k = 0; k <= small.n_fft / 2; k++) {
        double re = 0, im = 0, hz = (double)k * small.rate / small.n_fft;
        double up = (hz - edge(m)) / (edge(m + 1) - edge(m));
        double down = (edge(m + 2) - hz) / (edge(m + 2) - edge(m + 1)), w = fmin(up, down);

        for (uint32_t i = 0; i < small.frame; i++) {
            double v = x[i] * (0.5 - 0.5 * cos(2 * M_PI * i / small.frame));

            re += v * cos(2 * M_PI * k * i / small.n_fft);
            im -= v * sin(2 * M_PI * k * i / small.n_fft);
        }
        sum += (w > 0 ? w : 0) * sqrt(re * re + im * im);
    }
    return log(sum);
}

static void mel_features_are_those_of_the_definition(void **state)
{
    struct mdl_mel *mel = NULL;
    float x[50], out[12];
    uint32_t seed = 7;

    need_ok(mdl_mel_new(&mel, &small, err));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 50; i++) {
            seed = seed * 1664525u + 1013904223u;
            x[i] = round == 0 ? 0 : (float)(int32_t)seed * 0x1p-31f;
        }
        mdl_mel_frame(mel, x, out);
        for (uint32_t m = 0; m < 12; m++)
            if (!(fabs(out[m] - by_definition(x, m)) <= 1e-5))
                fail_msg("round %d, band %u: %.7g, expected %.7g", round, m, (double)out[m],
                         by_definition(x, m));
    }
    mdl_mel_free(&mel);
    assert_null(mel);
    mdl_mel_free(&mel);
}

static void banks_that_cannot_be_are_refused(void **state)
{
    struct mdl_mel *mel = NULL;
    struct rc_err e = RC_ERR_INIT;
    struct mdl_mel_desc bad[8];

    for (size_t i = 0; i < 8; i++)
        bad[i] = small;
    bad[0].n_fft = 63;
    bad[1].n_fft = 1u << 31;
    bad[2].frame = 65;
    bad[3].frame = 0;
    bad[4].n_mels = 0;
    bad[5].max_hz = 4001;
    bad[6].min_hz = 5000;
    bad[7].floor = 0;
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(mdl_mel_new(&mel, &bad[i], &e), RC_INVALID);
        assert_null(mel);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pictures_are_resized_as_pillow_does),
        cmocka_unit_test(sizes_that_cannot_be_are_refused),
        cmocka_unit_test(mel_features_are_those_of_the_definition),
        cmocka_unit_test(banks_that_cannot_be_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
