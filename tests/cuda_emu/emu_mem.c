/* emu_mem.c - device memory on the host.
 *
 * Each allocation ends at a page nobody may touch and begins after one; what is left of
 * its pages is a canary. Fresh memory is poison (0xFF: NaN, -1), freed memory is never
 * given out again and faults. With INFERD_EMU_PROTECT=1 all of it faults except while a
 * kernel or a copy runs, so a host that reads a device address is found.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "emu_dev.h"

#define POISON 0xFF
#define CANARY 0xA5
#define PAGE 4096u

struct area {
    unsigned char *map, *at; /* body starts one page after map */
    size_t body, n;
    struct area *next;
};
static struct area *areas;
static size_t used;
static int openings;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool protects(void)
{
    const char *s = getenv("INFERD_EMU_PROTECT");

    return s && strcmp(s, "1") == 0;
}

void *emu_mem_alloc(size_t n)
{
    struct area *a = NULL;
    size_t body;

    if (n == 0 || n > SIZE_MAX / 2 || !(a = calloc(1, sizeof(*a))))
        return NULL;
    body = (n + PAGE - 1) / PAGE * PAGE;
    a->map =
        mmap(NULL, body + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (a->map == MAP_FAILED || mprotect(a->map + PAGE, body, PROT_READ | PROT_WRITE) != 0) {
        if (a->map != MAP_FAILED)
            munmap(a->map, body + 2 * PAGE);
        free(a);
        return NULL;
    }
    a->body = body;
    a->n = n;
    a->at = a->map + PAGE + (body - (n + 255) / 256 * 256);
    memset(a->map + PAGE, CANARY, body);
    memset(a->at, POISON, n);
    pthread_mutex_lock(&lock);
    if (protects() && !openings)
        mprotect(a->map + PAGE, body, PROT_NONE);
    a->next = areas;
    areas = a;
    used += n;
    pthread_mutex_unlock(&lock);
    return a->at;
}

static void all_protect(int prot)
{
    for (struct area *a = areas; a; a = a->next)
        mprotect(a->map + PAGE, a->body, prot);
}

void emu_mem_open(void)
{
    pthread_mutex_lock(&lock);
    if (!openings++ && protects())
        all_protect(PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&lock);
}

void emu_mem_close(void)
{
    pthread_mutex_lock(&lock);
    if (!--openings && protects())
        all_protect(PROT_NONE);
    pthread_mutex_unlock(&lock);
}

/* The first byte of an area's canaries that changed, or NULL. */
static const unsigned char *hurt(const struct area *a)
{
    const unsigned char *p = a->map + PAGE;

    for (; p < a->at; p++)
        if (*p != CANARY)
            return p;
    for (p = a->at + a->n; p < a->map + PAGE + a->body; p++)
        if (*p != CANARY)
            return p;
    return NULL;
}

int emu_mem_check(char *err, size_t cap)
{
    int bad = 0;

    emu_mem_open();
    pthread_mutex_lock(&lock);
    for (const struct area *a = areas; a && !bad; a = a->next) {
        const unsigned char *p = hurt(a);

        if (p) {
            snprintf(err, cap, "byte %td of the allocation of %zu bytes at %p was written",
                     p - a->at, a->n, (void *)a->at);
            bad = 1;
        }
    }
    pthread_mutex_unlock(&lock);
    emu_mem_close();
    return bad;
}

int emu_mem_holds(uint64_t at, size_t n)
{
    int in = 0;

    pthread_mutex_lock(&lock);
    for (const struct area *a = areas; a && !in; a = a->next) {
        uint64_t base = (uint64_t)(uintptr_t)a->at;

        in = at >= base && at - base <= a->n && n <= a->n - (at - base);
    }
    pthread_mutex_unlock(&lock);
    return in;
}

int emu_mem_free(void *p)
{
    struct area *a;

    pthread_mutex_lock(&lock);
    for (struct area **at = &areas; (a = *at); at = &a->next)
        if (a->at == p) {
            *at = a->next;
            break;
        }
    if (a)
        used -= a->n;
    pthread_mutex_unlock(&lock);
    if (!a)
        return -1;
    /* the addresses stay taken, the memory goes back */
    mmap(a->map, a->body + 2 * PAGE, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    free(a);
    return 0;
}

void emu_mem_end(void)
{
    while (areas)
        emu_mem_free(areas->at);
}

size_t emu_mem_used(void)
{
    return used;
}
