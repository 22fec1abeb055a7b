/* wrk_pulse.c - the thread behind Beat; see the header.
 *
 * Must never touch the engine, the model or the channel's queue: a frame that is sent is one
 * datagram, so a Beat goes between the serving thread's frames and never into one. A socket
 * that is full drops the Beat: the front has frames of ours to read.
 *
 * Always true: the thread waits for a clock only while there is work, or for one beat
 * longer. Change with care: what both threads touch is under the lock or atomic (preset
 * tsan). Tests: tests/worker/test_wrk_pulse.c
 */
#include "wrk_pulse.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "be.h"
#include "ipc.h"

#define STACK_BYTES (256u << 10)

struct wrk_pulse {
    int fd;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool work, parked, stop; /* under the lock */
    const struct be_ctx *be; /* under the lock */
    bool said;               /* the serving thread's: what it told of work last */
    uint64_t moved;          /* atomic, relaxed */
};

static void send_beat(struct wrk_pulse *p)
{
    Ipc__Frame f = IPC__FRAME__INIT;
    Ipc__Beat b = IPC__BEAT__INIT;

    b.moved = __atomic_load_n(&p->moved, __ATOMIC_RELAXED);
    if (p->be != NULL)
        b.moved += be_ctx_moved(p->be);
    f.body_case = IPC__FRAME__BODY_BEAT;
    f.beat = &b;
    ipc_send(p->fd, &f.base, NULL, 0, NULL); /* a closed channel is the serving thread's to see */
}

static void add_ms(struct timespec *t, unsigned ms)
{
    t->tv_sec += ms / 1000;
    t->tv_nsec += (long)(ms % 1000) * 1000000;
    if (t->tv_nsec >= 1000000000) {
        t->tv_nsec -= 1000000000;
        t->tv_sec++;
    }
}

/* Waits a beat, or until it is to stop. Wake-ups without a reason only wait on. */
static void wait_beat(struct wrk_pulse *p)
{
    struct timespec until;
    int e = 0;

    clock_gettime(CLOCK_MONOTONIC, &until);
    add_ms(&until, WRK_BEAT_MS);
    while (!p->stop && e == 0)
        e = pthread_cond_timedwait(&p->wake, &p->lock, &until);
}

static void *run(void *arg)
{
    struct wrk_pulse *p = arg;

    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        if (!p->work) {
            p->parked = true;
            pthread_cond_wait(&p->wake, &p->lock);
            p->parked = false;
            continue;
        }
        wait_beat(p);
        if (p->work && !p->stop)
            send_beat(p);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static enum rc thread_make(struct wrk_pulse *p, struct rc_err *err)
{
    pthread_attr_t attr;
    int e = pthread_attr_init(&attr);

    if (e == 0) {
        pthread_attr_setstacksize(&attr, STACK_BYTES);
        e = pthread_create(&p->thread, &attr, run, p);
        pthread_attr_destroy(&attr);
    }
    return e == 0 ? RC_OK : rc_fail(err, RC_INTERNAL, "the thread that beats: %s", strerror(e));
}

enum rc wrk_pulse_start(struct wrk_pulse **out, int channel_fd, struct rc_err *err)
{
    struct wrk_pulse *p = calloc(1, sizeof(*p));
    pthread_condattr_t attr;
    enum rc rc;

    if (p == NULL)
        return rc_fail(err, RC_NOMEM, "no memory for the thread that beats");
    p->fd = channel_fd;
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&p->wake, &attr);
    pthread_condattr_destroy(&attr);
    if ((rc = thread_make(p, err)) != RC_OK) {
        pthread_cond_destroy(&p->wake);
        pthread_mutex_destroy(&p->lock);
        free(p);
        return rc;
    }
    *out = p;
    return RC_OK;
}

void wrk_pulse_stop(struct wrk_pulse **pp)
{
    struct wrk_pulse *p = *pp;

    if (p == NULL)
        return;
    *pp = NULL;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

void wrk_pulse_work(struct wrk_pulse *p, bool work)
{
    if (p == NULL || p->said == work)
        return;
    p->said = work;
    pthread_mutex_lock(&p->lock);
    p->work = work;
    if (work && p->parked) /* else it looks by itself at the next beat */
        pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

void wrk_pulse_moved(struct wrk_pulse *p)
{
    if (p != NULL)
        __atomic_fetch_add(&p->moved, 1, __ATOMIC_RELAXED);
}

void wrk_pulse_watch(struct wrk_pulse *p, const struct be_ctx *be)
{
    if (p == NULL)
        return;
    pthread_mutex_lock(&p->lock);
    p->be = be;
    pthread_mutex_unlock(&p->lock);
}
