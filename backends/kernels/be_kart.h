/* be_kart.h - the checked-in artifacts: reading and verifying the set.
 *
 * backends/kernels/cuda/<lib>.cu, <lib>.sm75.ptx, <lib>.sm80.ptx; metal/<lib>.metal; manifest.json
 * beside them. All are linked into the program (be_kart_embed), so a sandboxed worker reads no
 * file. The manifest (sorted, one entry per kernel: name, library, id, canonical
 * bytes, schedule, target, generator and renderer version, SHA-256 of source and
 * binary, compiler and options, production flag; and the number of files) is written by
 * kgen only. kgen --check remakes everything in memory and names each stale, missing
 * or extra file; PTX, whose compiler most hosts lack, is checked by hash of the source it was
 * made from and of itself.
 * Tests: tests/backends/test_be_kgen.c, and kgen --check in tests/run.
 */
#ifndef INFERD_BE_KART_H
#define INFERD_BE_KART_H

#include "be_kir.h"

#define BE_KGEN_VERSION 1  /* meaning of descriptor, IR and manifest */
#define BE_KCUDA_VERSION 1 /* the text the CUDA renderer writes */
#define BE_KMETAL_VERSION 1

/* PTX that uses instructions of one architecture only (wgmma): <lib>.sm90a.ptx serves sm_90, no other. */
#define BE_KART_ONLY_ARCH 90u

enum be_kart_kind { BE_KART_CU, BE_KART_PTX, BE_KART_METAL };
struct be_kart {
    const char *lib;
    enum be_kart_kind kind;
    uint32_t arch;    /* 75, 80, 90 (BE_KART_ONLY_ARCH); 0 for text */
    const char *data; /* NUL-terminated, n_bytes without it */
    size_t n_bytes;
};
/* Embedded artifact or NULL. For PTX: the one with the highest arch <= the asked that serves it. */
const struct be_kart *be_kart_find(const char *lib, enum be_kart_kind kind, uint32_t arch);
/* The PTX that defines this entry point of a library, the highest arch <= the asked; NULL. A
 * library's sm_80 PTX holds only what needs sm_80 or is better there, the rest is in its sm_75 PTX:
 * a module of kernels nobody launches would be compiled by the driver at each load. */
const struct be_kart *be_kart_entry(const char *lib, const char *name, uint32_t arch);
/* Does the PTX define that entry point? */
bool be_kart_has_entry(const struct be_kart *ptx, const char *name);
const struct be_kart *be_kart_at(uint32_t i); /* NULL past the end */
/* Every embedded artifact against the embedded manifest (hashes, number of files, every catalog
 * entry present). Cheap enough for start: run once by the cuda context. */
enum rc be_kart_verify(struct rc_err *err);

/* Text of one library, made now: be_kargs.h, kx_prelude.cu, kx_math.h, then the
 * library's shared functions and its kernels in catalog order. only: NULL = all, else
 * just that entry (run-time compilation), whose fixed dimensions become constants. */
enum rc be_kcuda_text(const char *lib, const struct be_kentry *only, struct be_ktext *out,
                      struct rc_err *err);
enum rc be_kmetal_text(const char *lib, struct be_ktext *out, struct rc_err *err);

#endif
