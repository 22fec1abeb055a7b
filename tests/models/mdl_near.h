/* mdl_near.h - what the golden tests of encoders compare, and how near it has to be: vectors,
 * numbers, the states behind the last layer. Included after mdl_test.h. */
#ifndef INFERD_MDL_NEAR_H
#define INFERD_MDL_NEAR_H

#include "mdl_test.h"

/* Vectors of length 1, logits and states of tiny models; what differs is the order of sums. */
#define TOL_ENCODER test_tol(1e-5, 6e-3, 1e-2)

static inline void near_number(double got, const json_t *want, double tol, const char *what,
                               size_t item)
{
    double w = json_number_value(want);

    assert_true(json_is_number(want));
    if (!(fabs(got - w) <= tol))
        fail_msg("%s of case %zu: %.8f, expected %.8f", what, item, got, w);
}

/* As many values as the reference has: a list, or a number. */
static inline void near_values(const float *got, const json_t *want, double tol, const char *what,
                               size_t item)
{
    if (json_is_number(want)) {
        near_number(got[0], want, tol, what, item);
        return;
    }
    assert_true(json_array_size(want) > 0);
    for (size_t i = 0; i < json_array_size(want); i++) {
        double w = json_number_value(json_array_get(want, i));

        if (!(fabs(got[i] - w) <= tol))
            fail_msg("%s of case %zu, value %zu: %.8f, expected %.8f", what, item, i, got[i], w);
    }
}

/* n values against their summary: the first of them, the sum (where it is told) and that of their
 * magnitudes. */
static inline void near_summary(const float *got, size_t n, const json_t *want, double tol,
                                const char *what, size_t item)
{
    double sum = 0, abs_sum = 0;

    for (size_t i = 0; i < n; i++) {
        sum += got[i];
        abs_sum += fabs(got[i]);
    }
    near_values(got, json_object_get(want, "first"), tol, what, item);
    if (json_object_get(want, "sum"))
        near_number(sum, json_object_get(want, "sum"), tol * (double)n, what, item);
    near_number(abs_sum, json_object_get(want, "abs_sum"), tol * (double)n, what, item);
}

/* A case's ids, alone, to out. */
static inline void encode_ids(struct mdl *m, const json_t *ids, float *out)
{
    uint32_t offsets[2] = {0, 0};
    int32_t *v = ids_of(ids, &offsets[1]);

    need_ok(mdl_encode(m, 1, v, offsets, out, err));
    free(v);
}

/* The states behind the last layer of the last pass; a tracer. x is the caller's to free. */
struct last {
    struct be_ctx *be;
    uint32_t layer, d;
    float *x;
    size_t n;
};

static inline void keep_last(void *user, uint32_t layer, const struct be_tensor *x, uint32_t n)
{
    struct last *l = user;

    if (layer != l->layer)
        return;
    l->n = (size_t)n * l->d;
    l->x = realloc(l->x, l->n * sizeof(float));
    assert_non_null(l->x);
    need_ok(be_tensor_read(l->be, x, 0, n, l->x, err));
}

static inline void trace_last(struct mdl *m, struct be_ctx *be, struct last *l)
{
    *l = (struct last){
        .be = be, .layer = mdl_info_get(m)->n_layers - 1, .d = mdl_info_get(m)->d_model};
    m->trace = keep_last;
    m->trace_user = l;
}

#endif
