/* be_kart_impl.h - what be_kart.c, be_klib.c, be_kmanifest.c and kgen share.
 *
 * cmake/KernelArtifacts.cmake lists the files of backends/kernels/ that the program carries
 * (be_kargs.h, the preludes, kx_math.h, manifest.json, cuda/ and metal/) and generates the table
 * be_kart_files. Functions take the families and files they work on, so tests give them others.
 */
#ifndef INFERD_BE_KART_IMPL_H
#define INFERD_BE_KART_IMPL_H

#include "be_kart.h"

#define BE_KART_OTHER 255u /* kind of a file that is no artifact */
struct be_kart_file {
    const char *name; /* relative to backends/kernels/: "cuda/rows.sm75.ptx" */
    struct be_kart art;
};
/* Sorted by name, ended by a NULL name. */
extern const struct be_kart_file be_kart_files[];
/* NULL: not in the list. */
const struct be_kart_file *be_kart_file_find(const struct be_kart_file *files, const char *name);
enum rc be_kart_verify_set(const struct be_kart_file *files,
                           const struct be_kfamily *const *families, struct rc_err *err);

/* A library of the catalog and the artifacts it must have beside its .cu and .metal. */
struct be_klib {
    const char *name;
    const struct be_kfamily *family;
    bool sm75, sm80; /* some entry runs on every part; some needs sm_80 or gains from it */
    bool sm90;       /* some entry needs sm_90 itself */
};
/* Sorted by name; caller frees *out. */
enum rc be_klib_list(const struct be_kfamily *const *families, struct be_klib **out, size_t *n,
                     struct rc_err *err);
enum rc be_klib_text(const struct be_kfamily *const *families, const char *lib,
                     const struct be_kentry *only, bool metal, struct be_ktext *out,
                     struct rc_err *err);

/* Defined for the compiler when it makes an sm_80 artifact. */
#define BE_KLIB_SM80_ONLY "KX_SM80_ONLY"

/* "cuda/rows.sm75.ptx"; sm_90 is "sm90a": its PTX is of that architecture alone. */
void be_klib_ptx_name(const char *lib, unsigned arch, char *out, size_t n);

/* The first line of a PTX artifact says what it was made from and how. */
struct be_kptx_head {
    char source[65]; /* SHA-256 of the .cu */
    char compiler[32], options[96];
};
void be_kptx_head_text(const struct be_kptx_head *h, char out[256]); /* with newline */
bool be_kptx_head_parse(const char *ptx, size_t n, struct be_kptx_head *out);

#define BE_KMANIFEST_NAME "manifest.json"
/* The whole manifest for this catalog and these artifact files (get: NULL = absent, then
 * RC_NOT_FOUND names it). */
typedef const char *be_kfile_get(void *user, const char *name, size_t *n);
enum rc be_kmanifest_text(const struct be_kfamily *const *families, be_kfile_get *get, void *user,
                          struct be_ktext *out, struct rc_err *err);

#endif
