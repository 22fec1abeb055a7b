/* test_be_krows_sample.c - the executor of sampling against the definition of worker/wrk_sample.c,
 * written here with a full sort and f64 sums.
 *
 * An answer is right when its share of the running sum holds u, give or take 1e-5 of the whole (the
 * device's weights and sums are f32), and when it is among those kept, the border of top_p
 * taken as loosely.
 */
#include "be_krows_test.h"

#include <stdlib.h>

#define LOOSE 1e-5

struct cand {
    float v;
    int32_t i;
    double w;
};

static int by_value(const void *a, const void *b)
{
    const struct cand *x = a, *y = b;

    return x->v > y->v ? -1 : x->v < y->v ? 1 : x->i < y->i ? -1 : x->i > y->i;
}

static int by_index(const void *a, const void *b)
{
    const struct cand *x = a, *y = b;

    return x->i < y->i ? -1 : x->i > y->i;
}

static void sample(const float *x, uint32_t k, struct kx_sample_row *rows, uint32_t n, int32_t *out)
{
    struct kx_sample a = {.x = at(x), .rows = at(rows), .out = at(out), .n = n, .k = k};
    float *many = xcalloc((size_t)n * k, sizeof(*many));

    for (uint32_t r = 0; r < n; r++)
        memcpy(many + (size_t)r * k, x, k * sizeof(float));
    a.x = at(many);
    a.scratch_row = (KX_SAMPLE_SCRATCH(k) + 15) / 16 * 16;
    a.scratch = at(values(KX_F32, (size_t)n * a.scratch_row / 4, 0));
    run("kx_sample_part", &a);
    run("kx_sample", &a);
    free(KX_AT(void, a.scratch));
    free(many);
}

/* Does id's share of the best n candidates hold u? Sorts c. */
static bool holds(struct cand *c, uint32_t n, const struct kx_sample_row *r, int32_t id)
{
    double all = 0, run_sum = 0, least = (double)r->min_p * c[0].w * (1 - LOOSE), w;

    qsort(c, n, sizeof(*c), by_index);
    for (uint32_t i = 0; i < n; i++)
        all += c[i].w >= least ? c[i].w : 0;
    for (uint32_t i = 0; i < n; i++) {
        w = c[i].w >= least ? c[i].w : 0;
        if (c[i].i == id)
            return w > 0 && (double)r->u * all >= run_sum - LOOSE * all &&
                   (double)r->u * all <= run_sum + w + LOOSE * all;
        run_sum += w;
    }
    return false;
}

/* Is id what the settings draw from x? c [k] is scratch. */
static void check_row(const float *x, uint32_t k, const struct kx_sample_row *r, int32_t id,
                      struct cand *c)
{
    uint32_t n = r->top_k > 0 && r->top_k < k ? r->top_k : k, lo = n, hi = n;
    double mass = 0, kept = 0;

    for (uint32_t i = 0; i < k; i++)
        c[i] = (struct cand){x[i], (int32_t)i, 0};
    qsort(c, k, sizeof(*c), by_value);
    if (r->inv_temperature == 0 || r->top_k == 1) {
        assert_int_equal(id, c[0].i);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        c[i].w = exp(((double)c[i].v - (double)c[0].v) * (double)r->inv_temperature);
        mass += c[i].w;
    }
    for (uint32_t i = 0; r->top_p < 1 && i < n; i++) { /* the fewest, strictly and loosely */
        kept += c[i].w;
        if (lo == n && kept >= (double)r->top_p * mass * (1 - LOOSE))
            lo = i + 1;
        if (hi == n && kept > (double)r->top_p * mass * (1 + LOOSE))
            hi = i + 1;
    }
    for (uint32_t m = lo; m <= hi; m++) {
        if (holds(c, m, r, id))
            return;
        qsort(c, m, sizeof(*c), by_value);
    }
    fail_msg("of %u: id %d is wrong for u %.9g (top_k %u top_p %g min_p %g, %u to %u kept)", k, id,
             (double)r->u, r->top_k, (double)r->top_p, (double)r->min_p, lo, hi);
}

static float normal(void)
{
    float s = 0;

    for (int i = 0; i < 6; i++)
        s += rndf();
    return s;
}

/* Settings a server sees; every row of a batch gets its own. */
static uint32_t settings(struct kx_sample_row *r)
{
    static const float ps[] = {1, 0.95f, 0.5f, 0.05f}, ms[] = {0, 0.1f, 1};
    static const uint32_t ks[] = {0, 1, 2, 40, 250, 1024};
    uint32_t n = 0;

    for (unsigned i = 0; i < N_OF(ps) * N_OF(ms) * N_OF(ks); i++)
        r[n++] = (struct kx_sample_row){.inv_temperature = i % 5 == 0 ? 1 / 0.3f : 1,
                                        .top_p = ps[i % 4],
                                        .min_p = ms[i / 4 % 3],
                                        .top_k = ks[i / 12],
                                        .u = (float)(rnd() & 0xFFFFFF) * 0x1p-24f};
    r[0].u = 0;
    r[1].u = 0x1.fffffep-1f;
    r[2].inv_temperature = 0;
    return n;
}

static void draws_are_the_hosts(void **state)
{
    static const uint32_t ks[] = {1, 2, 5, 1000, 1024, 1025, 5000, 40000};
    struct kx_sample_row r[80];
    int32_t out[80];

    for (unsigned i = 0; i < N_OF(ks) * 2; i++) {
        uint32_t k = ks[i / 2], n;
        float *x = xcalloc(k, sizeof(*x));
        struct cand *c = xcalloc(k, sizeof(*c));

        for (uint32_t j = 0; j < k; j++) /* the second time many values are equal */
            x[j] = i % 2 ? rintf(normal() * 2) : normal() * 3;
        n = settings(r);
        sample(x, k, r, n, out);
        for (uint32_t j = 0; j < n; j++) {
            /* the set of top_p alone may be larger than the candidates */
            if (out[j] == -1 && r[j].top_p < 1 && (r[j].top_k == 0 || r[j].top_k >= k) && k > 1024)
                continue;
            check_row(x, k, &r[j], out[j], c);
        }
        free(c), free(x);
    }
}

/* Over 262,144 ids, with what is likely close together, as vocabularies have it. */
static void a_large_vocabulary_is_answered(void **state)
{
    uint32_t k = 262144;
    float *x = xcalloc(k, sizeof(*x));
    struct cand *c = xcalloc(k, sizeof(*c));
    struct kx_sample_row r[4] = {
        {.inv_temperature = 1, .top_p = 0.95f, .top_k = 64, .u = 0.7f},
        {.inv_temperature = 1, .top_p = 0.9f, .u = 0.3f},
        {.inv_temperature = 1, .top_p = 1, .u = 0.999f},
        {.inv_temperature = 1.25f, .top_p = 1, .min_p = 0.02f, .u = 0.5f},
    };
    int32_t out[4];

    for (uint32_t j = 0; j < k; j++)
        x[j] = normal() + (j < 200 ? 12 : 0);
    sample(x, k, r, 4, out);
    for (uint32_t j = 0; j < 4; j++) {
        assert_true(out[j] >= 0);
        check_row(x, k, &r[j], out[j], c);
    }
    free(c), free(x);
}

static void what_the_device_cannot_know_goes_to_the_host(void **state)
{
    uint32_t k = 262144;
    float *x = xcalloc(k, sizeof(*x));
    struct kx_sample_row r[4] = {
        {.inv_temperature = 1, .top_p = 1, .top_k = 1025, .u = 0.5f},
        {.inv_temperature = 1, .top_p = 0.99f, .u = 0.5f}, /* all are alike: a quarter million */
        {.inv_temperature = 1, .top_p = 1, .top_k = 300, .u = 0.5f},
        {.inv_temperature = 1, .top_p = 1, .top_k = 200, .u = 0.5f},
    };
    int32_t out[4];

    for (uint32_t j = 0; j < k; j++)
        x[j] = rndf() * 0.01f;
    for (uint32_t j = 0; j < 400; j++) /* more in one piece than its list has */
        x[5 * 1024 + j] = 1 + (float)j * 0x1p-10f;
    sample(x, k, r, 4, out);
    assert_int_equal(out[0], -1);
    assert_int_equal(out[1], -1);
    assert_int_equal(out[2], -1);
    assert_true(out[3] >= 5 * 1024 + 200 && out[3] < 5 * 1024 + 400);
    x[77] = NAN;
    r[0] = (struct kx_sample_row){.inv_temperature = 0};
    r[1].top_p = 1;
    sample(x, k, r, 4, out);
    for (int j = 0; j < 4; j++)
        assert_int_equal(out[j], -1);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_are_the_hosts),
        cmocka_unit_test(a_large_vocabulary_is_answered),
        cmocka_unit_test(what_the_device_cannot_know_goes_to_the_host),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
