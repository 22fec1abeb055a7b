/* be_kfam_attn.h - what the files of the attention family share. Private to them.
 *
 * One kernel is named by kind (paged one pass, paged split, merge, packed), head_dim (0: given
 * at run time) and the type of its keys; all else follows from these by be_kattn_geo.
 */
#ifndef INFERD_BE_KFAM_ATTN_H
#define INFERD_BE_KFAM_ATTN_H

#include "be_kir.h"

enum { BE_KATTN_THREADS = 128, BE_KATTN_MAX_DIM = 512 };

/* How a kernel is cut; all of it follows from its descriptor and schedule. In the
 * schedule rows_tile is the most rows of a query tile, cols_tile the (row, head) pairs of a block.
 */
struct be_kattn_geo {
    bool packed, split, merge, mma;
    bool wg;           /* packed, by wgmma: two warpgroups */
    bool tf32;         /* products of floats rounded to tf32 */
    bool rel;          /* packed, with relative positions */
    uint32_t hd;       /* 0 = at run time */
    uint32_t m_rows;   /* (row, head) pairs of a block */
    uint32_t key_tile; /* arithmetic: keys between two rescalings */
    uint32_t mt, cw;   /* mma: 16-row tiles of a warp, warps that share rows */
    uint32_t stage_keys, stages;
};
void be_kattn_geo_get(const struct be_kdesc *d, const struct be_ksched *s,
                      struct be_kattn_geo *out);

enum rc be_kattn_run(const struct be_kir *k, const void *args, struct rc_err *err);
enum rc be_kattn_cuda_lib(const char *lib, struct be_ktext *out, struct rc_err *err);
enum rc be_kattn_cuda(const struct be_kir *k, struct be_ktext *out, struct rc_err *err);
enum rc be_kattn_metal_lib(const char *lib, struct be_ktext *out, struct rc_err *err);
enum rc be_kattn_metal(const struct be_kir *k, struct be_ktext *out, struct rc_err *err);

#endif
