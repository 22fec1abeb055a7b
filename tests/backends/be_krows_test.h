/* be_krows_test.h - what the tests of the row kernels share: values with poisoned margins,
 * running an entry's executor, one comparison.
 */
#ifndef INFERD_BE_KROWS_TEST_H
#define INFERD_BE_KROWS_TEST_H

#include "be_test.h"

#include "be_kargs.h"
#include "be_kir.h"
#include "be_kref.h"

#define POISON 0x7B

static inline void run(const char *name, const void *args)
{
    const struct be_kentry *e = be_kcat_find(name);
    struct rc_err err = RC_ERR_INIT;
    struct be_kir ir;

    assert_non_null(e);
    assert_int_equal(be_kfam_rows.build(e, &ir, &err), RC_OK);
    if (be_kir_verify(&ir, &be_ktarget_sm75, &err) != RC_OK)
        fail_msg("%s", err.msg);
    if (be_kfam_rows.run(&ir, args, &err) != RC_OK)
        fail_msg("%s: %s", name, err.msg);
}

static inline kx_p at(const void *p)
{
    return (kx_p)(uintptr_t)p;
}

/* n elements of type t with a margin of poison behind. */
static inline void *values(uint32_t t, size_t n, float scale)
{
    uint8_t *p = xcalloc(n * 4 + 64, 1);

    memset(p, POISON, n * 4 + 64);
    for (size_t i = 0; i < n && scale != 0; i++)
        kx_act_put(at(p), t, i, rndf() * scale);
    return p;
}

static inline void check_margin(const void *p, uint32_t elem, size_t n)
{
    for (size_t i = n * elem; i < n * elem + 32; i++)
        if (((const uint8_t *)p)[i] != POISON)
            fail_msg("byte %zu behind %zu elements of %u was written", i - n * elem, n, elem);
}

static inline uint32_t elem(uint32_t t)
{
    return t == KX_F16 ? 2 : 4;
}

static inline void expect(double got, double want, double tol, const char *what, uint32_t r,
                          uint32_t c)
{
    if (got != want && !(fabs(got - want) <= tol) && !(isnan(got) && isnan(want)))
        fail_msg("%s row %u column %u: %.9g, expected %.9g (tolerance %g, seed %llu)", what, r, c,
                 got, want, tol, (unsigned long long)test_seed);
}

#define N_OF(a) (sizeof(a) / sizeof((a)[0]))

static inline double act(const void *p, uint32_t t, size_t i)
{
    return (double)kx_act_get(at(p), t, i);
}

#endif
