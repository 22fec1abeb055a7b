/* wrk_doctor_impl.h - private to the doctor: its lines and its children. */
#ifndef INFERD_WRK_DOCTOR_IMPL_H
#define INFERD_WRK_DOCTOR_IMPL_H

#include "wrk_device.h"
#include "wrk_doctor.h"

/* One line. A note is a fact that is no fault: {"check":..,"ok":true,"note":true,...}. */
enum wrk_finding { WRK_FOUND_BAD, WRK_FOUND_OK, WRK_FOUND_NOTE };
void wrk_doctor_say(const char *name, enum wrk_finding f, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Runs it in a child and returns its status; a line under `name` and -1 when the child was
 * killed or could not be made. */
int wrk_doctor_child(const char *name, int (*run)(void *arg), void *arg);

/* A GPU's software, and the sandbox with it: 0 = fine, or not asked for. */
int wrk_doctor_gpu(enum wrk_sandbox_mode mode, const struct wrk_device *d);

#endif
