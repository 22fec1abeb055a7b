/* wrk_verify.h - `inferd-worker verify-kernels`: every kernel of the catalog on this
 * device against its CPU executor. Page: docs/kernel-conformance.md.
 * Tests: tests/e2e/device_emulated.py, tests/device/run
 */
#ifndef INFERD_WRK_VERIFY_H
#define INFERD_WRK_VERIFY_H

/* --backend=cuda --device=N --arch=N --only=TEXT --quick --seed=N --markdown=PATH
 * --cuda-library=PATH, or each followed by its value. Prints a line per kernel and the
 * summary last. Returns 0 when all that ran passed, 1 when one failed or the device could
 * not be had, 2 for a word that is none. */
int wrk_verify(int argc, char **argv);
extern const char wrk_verify_usage[];

#endif
