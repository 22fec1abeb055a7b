/* be_cuda_map.c - matrices as the device's copy engine wants them described (the driver's
 * CUtensorMap).
 *
 * Rows of halves, in boxes of 64 columns (128 bytes, the widest swizzle) by 128 rows of x or 256 of
 * a weight, as kx_linear_wg.cu takes them; what lies outside the matrix reads as zero. The driver
 * only writes 128 bytes on the host: nothing is allocated and nothing to free. Tests:
 * tests/backends/test_be_cuda_linear.c
 */
#include "be_cuda_drv.h"
#include "be_kargs.h"

/* the driver's numbers */
enum { TYPE_F16 = 6, INTERLEAVE_NONE = 0, SWIZZLE_128 = 3, L2_256 = 3, OUTSIDE_ZERO = 0 };

static enum rc map(const struct be_cuda_drv *d, struct kx_tmap *out, kx_p p, uint32_t rows,
                   uint32_t k, uint32_t box, struct rc_err *err)
{
    uint64_t dim[2] = {k, rows}, stride = (uint64_t)k * 2;
    uint32_t boxes[2] = {64, box}, step[2] = {1, 1};
    int code = d->tensor_map(out, TYPE_F16, 2, (void *)(uintptr_t)p, dim, &stride, boxes, step,
                             INTERLEAVE_NONE, SWIZZLE_128, L2_256, OUTSIDE_ZERO);

    return be_cuda_check(d, code, "describing a matrix", err);
}

enum rc be_cuda_maps(const struct be_cuda_drv *d, struct kx_linear_wg *a, struct rc_err *err)
{
    enum rc rc;

    if ((rc = map(d, &a->x, a->a.x, a->a.n, a->a.k, 128, err)) != RC_OK)
        return rc;
    for (kx_u i = 0; i < a->a.n_parts; i++)
        if ((rc = map(d, &a->w[i], a->a.w[i][0], a->a.n_out[i], a->a.k, 256, err)) != RC_OK)
            return rc;
    return RC_OK;
}
