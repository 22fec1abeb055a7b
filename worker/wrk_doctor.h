/* wrk_doctor.h - what holds on this machine. Page: docs/sandbox.md */
#ifndef INFERD_WRK_DOCTOR_H
#define INFERD_WRK_DOCTOR_H

#include "wrk_device.h"
#include "wrk_sandbox.h"

/* Applies the sandbox in a forked child and prints one JSON object a line:
 * {"layer":..,"holds":..,"detail":..} per layer, then {"check":..,"ok":..,
 * "detail":..} for kernels, openblas, threads, and a GPU's driver, devices, libraries and
 * sandbox. Returns 0 when the mode can be had and every check passed, else 1; a GPU
 * counts when `device` names one. */
int wrk_doctor(enum wrk_sandbox_mode mode, unsigned n_threads, const struct wrk_device *device);

#endif
