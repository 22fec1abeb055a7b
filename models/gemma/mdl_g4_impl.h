/* mdl_g4_impl.h - private to the towers (mdl_g4_*.c): what eyes and ears share. */
#ifndef INFERD_MDL_G4_IMPL_H
#define INFERD_MDL_G4_IMPL_H

#include "mdl_g4_towers.h"

#define G4_MAX_LAYERS 256
#define G4_MAX_WIDTH 65536
#define G4_MAX_HEAD 512 /* what the backend rotates and attends with */

/* A clipped linear: x is clamped to [in_lo, in_hi] before the product, its result to
 * [out_lo, out_hi] after it. Infinite = not clamped. Source: gemma.md 5.2. */
struct g4_linear {
    struct be_weight *w;
    float in_lo, in_hi, out_lo, out_hi;
};

/* Names of weights: prefix, then a printf'd rest. */
struct g4_names {
    struct mdl_plan *plan;
    const char *prefix;
    char name[224];
};

/* mdl_g4_common.c */
enum rc g4_vector(struct g4_names *p, uint64_t n, struct be_weight **slot, struct rc_err *err,
                  const char *fmt, ...) __attribute__((format(printf, 5, 6)));
enum rc g4_matrix(struct g4_names *p, uint64_t rows, uint64_t cols, struct be_weight **slot,
                  struct rc_err *err, const char *fmt, ...) __attribute__((format(printf, 6, 7)));
/* "<name>.linear.weight", and "<name>.input_min" ... when clipped. */
enum rc g4_clipped(struct g4_names *p, uint64_t rows, uint64_t cols, bool clipped,
                   struct g4_linear *out, struct rc_err *err, const char *fmt, ...)
    __attribute__((format(printf, 7, 8)));

/* out = linear(x). room: where the clamped input goes; x itself when it is not needed after. */
enum rc g4_apply(struct be_ctx *be, struct be_tensor *x, const struct g4_linear *l,
                 struct be_tensor *room, struct be_tensor *out, uint32_t n, struct rc_err *err);
/* The same for linears that read the same x: one product when their inputs are clamped alike. */
enum rc g4_apply_all(struct be_ctx *be, struct be_tensor *x, const struct g4_linear *const *l,
                     struct be_tensor *const *out, uint32_t n_linears, struct be_tensor *room,
                     uint32_t n, struct rc_err *err);
enum rc g4_act(struct be_ctx *be, struct be_tensor *x, enum be_act_kind kind, uint32_t n,
               struct rc_err *err);
/* RC_UNSUPPORTED unless obj[key] is absent, null or the number `want`. */
enum rc g4_cfg_is(const json_t *obj, const char *what, const char *key, double want,
                  struct rc_err *err);
/* The same for a word. */
enum rc g4_cfg_word(const json_t *obj, const char *what, const char *key, const char *want,
                    struct rc_err *err);
void g4_show(const struct mdl_g4_trace *t, const char *name, const struct be_tensor *x, uint32_t n);
void g4_show_layer(const struct mdl_g4_trace *t, uint32_t layer, const struct be_tensor *x,
                   uint32_t n);
enum rc g4_media_new(struct mdl_media **out, uint32_t n_rows, uint32_t n_cols, struct rc_err *err);

#endif
