/* be_kart_files.h - the files that the build puts into the program.
 *
 * cmake/KernelArtifacts.cmake lists them (be_kargs.h, the preludes, kx_math.h, manifest.json, cuda/
 * and metal/) and generates the table: name relative to backends/kernels/, the bytes as they
 * are on disk, a NUL at end. Private to be_kart.c, be_klib.c and kgen.
 */
#ifndef INFERD_BE_KART_FILES_H
#define INFERD_BE_KART_FILES_H

struct be_kart_file {
    const char *name, *data, *end; /* "cuda/rows.sm75.ptx" */
};
/* Sorted by name; ended by a NULL name. */
extern const struct be_kart_file be_kart_files[];
/* NULL: not embedded. */
const struct be_kart_file *be_kart_file(const char *name);

#endif
