/* mdl_mel.c - log-mel features of sound frames.
 *
 * A radix-2 transform in f64 and a bank of triangles kept sparse. Knows no model: who cuts a
 * sound into frames, and what stands before its beginning, is the caller's.
 * Tests: tests/models/test_mdl_media.c
 */
#include "mdl_mel.h"

#include <math.h>
#include <stdlib.h>

struct triangle {
    uint32_t first, n; /* bins */
    uint32_t at;       /* in weights */
};

struct mdl_mel {
    struct mdl_mel_desc d;
    float *window;        /* [frame] */
    double *re, *im;      /* [n_fft] */
    double *cos, *sin;    /* [n_fft / 2] */
    struct triangle *tri; /* [n_mels] */
    double *weights;
};

void mdl_mel_free(struct mdl_mel **mel)
{
    struct mdl_mel *m = *mel;

    if (!m)
        return;
    free(m->window);
    free(m->re);
    free(m->im);
    free(m->cos);
    free(m->sin);
    free(m->tri);
    free(m->weights);
    free(m);
    *mel = NULL;
}

static double to_mel(double hz)
{
    return 2595 * log10(1 + hz / 700);
}

static double to_hz(double mel)
{
    return 700 * (pow(10, mel / 2595) - 1);
}

/* Edge point i of the n_mels + 2. */
static double edge(const struct mdl_mel_desc *d, uint32_t i)
{
    double lo = to_mel(d->min_hz), hi = to_mel(d->max_hz);

    return to_hz(lo + (hi - lo) * i / (d->n_mels + 1));
}

/* Bins with a weight above 0 of triangle m, handed to weights + at when that is there. */
static void make_triangle(struct mdl_mel *mel, uint32_t m, uint32_t at)
{
    const struct mdl_mel_desc *d = &mel->d;
    double lo = edge(d, m), mid = edge(d, m + 1), hi = edge(d, m + 2);
    struct triangle t = {.at = at};

    for (uint32_t k = 0; k <= d->n_fft / 2; k++) {
        double hz = (double)k * d->rate / d->n_fft;
        double w = fmin((hz - lo) / (mid - lo), (hi - hz) / (hi - mid));

        if (!(w > 0))
            continue;
        if (t.n == 0)
            t.first = k;
        if (mel->weights)
            mel->weights[at + t.n] = w;
        t.n++;
    }
    mel->tri[m] = t;
}

static enum rc check(const struct mdl_mel_desc *d, struct rc_err *err)
{
    if (d->n_fft < 2 || d->n_fft > MDL_MEL_MAX_FFT || (d->n_fft & (d->n_fft - 1)) != 0 ||
        d->frame < 1 || d->frame > d->n_fft)
        return rc_fail(err, RC_INVALID,
                       "mel: frames of %u samples in transforms of %u; expected a power of two up "
                       "to %u that holds the frame",
                       d->frame, d->n_fft, MDL_MEL_MAX_FFT);
    if (d->rate < 1 || d->n_mels < 1 || d->n_mels > d->n_fft || !(d->min_hz >= 0) ||
        !(d->max_hz > d->min_hz) || !(d->max_hz <= d->rate / 2.0) || !(d->floor > 0))
        return rc_fail(err, RC_INVALID,
                       "mel: %u bands from %g to %g Hz at %u samples a second over a floor of %g",
                       d->n_mels, d->min_hz, d->max_hz, d->rate, d->floor);
    return RC_OK;
}

enum rc mdl_mel_new(struct mdl_mel **out, const struct mdl_mel_desc *d, struct rc_err *err)
{
    struct mdl_mel *m;
    uint32_t n = 0;
    enum rc rc = check(d, err);

    if (rc != RC_OK)
        return rc;
    if (!(m = calloc(1, sizeof(*m))))
        return rc_fail(err, RC_NOMEM, "mel: no memory");
    m->d = *d;
    m->window = malloc(d->frame * sizeof(float));
    m->re = malloc(d->n_fft * sizeof(double));
    m->im = malloc(d->n_fft * sizeof(double));
    m->cos = malloc(d->n_fft / 2 * sizeof(double));
    m->sin = malloc(d->n_fft / 2 * sizeof(double));
    m->tri = malloc(d->n_mels * sizeof(*m->tri));
    if (!m->window || !m->re || !m->im || !m->cos || !m->sin || !m->tri)
        goto no_memory;
    for (uint32_t i = 0; i < d->frame; i++)
        m->window[i] = (float)(0.5 - 0.5 * cos(2 * M_PI * i / d->frame));
    for (uint32_t i = 0; i < d->n_fft / 2; i++) {
        m->cos[i] = cos(2 * M_PI * i / d->n_fft);
        m->sin[i] = -sin(2 * M_PI * i / d->n_fft);
    }
    for (uint32_t i = 0; i < d->n_mels; i++) {
        make_triangle(m, i, n);
        n += m->tri[i].n;
    }
    if (!(m->weights = malloc((n + 1) * sizeof(double))))
        goto no_memory;
    for (uint32_t i = 0; i < d->n_mels; i++)
        make_triangle(m, i, m->tri[i].at);
    *out = m;
    return RC_OK;
no_memory:
    mdl_mel_free(&m);
    return rc_fail(err, RC_NOMEM, "mel: no memory for transforms of %u", d->n_fft);
}

/* In place, decimation in time: bit reversal, then butterflies. Cooley & Tukey 1965. */
static void fft(struct mdl_mel *m)
{
    uint32_t n = m->d.n_fft;
    double *re = m->re, *im = m->im;

    for (uint32_t i = 1, j = 0; i < n; i++) {
        uint32_t bit = n >> 1;

        for (; j & bit; bit >>= 1)
            j ^= bit;
        j ^= bit;
        if (i < j) { /* im is all zero still */
            double t = re[i];

            re[i] = re[j];
            re[j] = t;
        }
    }
    for (uint32_t half = 1; half < n; half *= 2) {
        for (uint32_t i = 0; i < n; i += 2 * half) {
            for (uint32_t k = 0; k < half; k++) {
                double c = m->cos[k * (n / (2 * half))], s = m->sin[k * (n / (2 * half))];
                uint32_t a = i + k, b = a + half;
                double tr = re[b] * c - im[b] * s, ti = re[b] * s + im[b] * c;

                re[b] = re[a] - tr;
                im[b] = im[a] - ti;
                re[a] += tr;
                im[a] += ti;
            }
        }
    }
}

void mdl_mel_frame(struct mdl_mel *mel, const float *samples, float *out)
{
    const struct mdl_mel_desc *d = &mel->d;

    for (uint32_t i = 0; i < d->n_fft; i++) {
        mel->re[i] = i < d->frame ? (double)samples[i] * mel->window[i] : 0;
        mel->im[i] = 0;
    }
    fft(mel);
    for (uint32_t i = 0; i <= d->n_fft / 2; i++) /* magnitudes, over what is not needed any more */
        mel->re[i] = sqrt(mel->re[i] * mel->re[i] + mel->im[i] * mel->im[i]);
    for (uint32_t i = 0; i < d->n_mels; i++) {
        const struct triangle *t = &mel->tri[i];
        double sum = d->floor;

        for (uint32_t k = 0; k < t->n; k++)
            sum += mel->weights[t->at + k] * mel->re[t->first + k];
        out[i] = (float)log(sum);
    }
}
