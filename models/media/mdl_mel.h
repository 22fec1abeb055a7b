/* mdl_mel.h - private to models: what an ear makes of a sound, one frame at a time. */
#ifndef INFERD_MDL_MEL_H
#define INFERD_MDL_MEL_H

#include "rc.h"

#include <stdint.h>

#define MDL_MEL_MAX_FFT 4096u

struct mdl_mel;

struct mdl_mel_desc {
    uint32_t rate;         /* samples a second */
    uint32_t frame, n_fft; /* samples of a frame; the transform's length, a power of two >= frame */
    uint32_t n_mels;
    double min_hz, max_hz; /* ends of the first and the last triangle */
    double floor;          /* added before the logarithm */
};

/* Errors: RC_INVALID numbers that make no bank (says which), RC_NOMEM. */
enum rc mdl_mel_new(struct mdl_mel **out, const struct mdl_mel_desc *d, struct rc_err *err);
void mdl_mel_free(struct mdl_mel **mel);

/* out [n_mels] = ln(bank . |FFT(samples * hann)| + floor) of `frame` samples: periodic Hann window
 * rounded to f32, magnitude, triangles linear in Hz between points that are equally far apart on
 * the HTK scale, 2595 log10(1 + f/700), of height 1. Sums in f64. One thread at a time: mel holds
 * the working memory. Source: gemma.md 6.1; Young et al., The HTK Book, 5.6. */
void mdl_mel_frame(struct mdl_mel *mel, const float *samples, float *out);

#endif
