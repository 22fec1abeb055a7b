/* sup_quota_file.c - the two places of the file; sup_quota_file.h.
 * After the open it only seeks, reads and writes: the front's sandbox allows no more. */
#include "sup_quota_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "sup_log.h"
#include "sup_tenant_name.h"
#include "sup_vault_dir.h"

#define MAGIC 0x3179616471666e69ull /* "infqday1" */
#define DAY_S 86400

struct row {
    uint64_t used;
    char name[72];
};
_Static_assert(sizeof(((struct row *)0)->name) > SUP_TENANT_MAX, "a name fits");

struct place {
    uint64_t magic, number, day, n;
    uint8_t sum[32]; /* over the four and the rows */
    struct row row[SUP_TENANTS_MAX];
};

struct sup_quota_file {
    int fd;
    bool failing;
    uint8_t last[32]; /* sum of what was written last, its number left out */
    uint64_t number;
    struct place buf;
};

static void sum_of(uint8_t out[32], const struct place *p, uint64_t number)
{
    const uint64_t head[] = {p->magic, number, p->day, p->n};
    crypto_generichash_state s;

    crypto_generichash_init(&s, NULL, 0, 32);
    crypto_generichash_update(&s, (const uint8_t *)head, sizeof(head));
    crypto_generichash_update(&s, (const uint8_t *)p->row, p->n * sizeof(p->row[0]));
    crypto_generichash_final(&s, out, 32);
}

/* False: nothing that was written whole. */
static bool read_place(struct sup_quota_file *f, int which)
{
    uint8_t sum[32];
    size_t got = 0;
    ssize_t r = 1;

    if (lseek(f->fd, which * (off_t)sizeof(f->buf), SEEK_SET) < 0)
        return false;
    memset(&f->buf, 0, sizeof(f->buf));
    while (got < sizeof(f->buf) && (r > 0 || (r < 0 && errno == EINTR))) {
        r = read(f->fd, (char *)&f->buf + got, sizeof(f->buf) - got);
        got += r > 0 ? (size_t)r : 0;
    }
    if (f->buf.magic != MAGIC || f->buf.n > SUP_TENANTS_MAX)
        return false;
    sum_of(sum, &f->buf, f->buf.number);
    return sodium_memcmp(sum, f->buf.sum, sizeof(sum)) == 0;
}

static void restore(struct sup_quota_file *f, struct sup_quota *q, uint64_t day)
{
    for (uint64_t i = 0; i < f->buf.n && f->buf.day == day; i++) {
        struct row *r = &f->buf.row[i];

        r->name[sizeof(r->name) - 1] = '\0';
        sup_quota_restore(q, r->name, day, r->used);
    }
}

static void load(struct sup_quota_file *f, struct sup_quota *q, uint64_t day)
{
    bool whole[2] = {read_place(f, 0), false};
    uint64_t number[2] = {f->buf.number, 0};
    int best;

    whole[1] = read_place(f, 1);
    number[1] = f->buf.number;
    if (!whole[0] && !whole[1]) {
        if (lseek(f->fd, 0, SEEK_END) > 0)
            SUP_LOG(SUP_WARN, "quota_days_lost", SUP_S("file", SUP_QUOTA_FILE),
                    SUP_S("why", "neither of its two places is whole: today counts from zero"));
        return;
    }
    best = whole[1] && (!whole[0] || number[1] > number[0]);
    f->number = number[best];
    if (read_place(f, best))
        restore(f, q, day);
}

static enum rc open_file(int *out_fd, const char *dir, struct rc_err *err)
{
    int dir_fd, fd;
    enum rc rc = sup_vault_dir_open(&dir_fd, dir, false, err);

    if (rc != RC_OK)
        return rc;
    fd = openat(dir_fd, SUP_QUOTA_FILE, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC,
                0600);
    if (fd < 0)
        rc = rc_fail_what(err, RC_IO, SUP_QUOTA_FILE, "'%.200s/%s': %s", dir, SUP_QUOTA_FILE,
                          strerror(errno));
    close(dir_fd);
    if (rc != RC_OK)
        return rc;
    if ((rc = sup_vault_file_check(fd, SUP_QUOTA_FILE, err)) == RC_OK &&
        flock(fd, LOCK_EX | LOCK_NB) != 0)
        rc = rc_fail_what(err, RC_BUSY, SUP_QUOTA_FILE,
                          "'%.200s/%s' is held by another server with the same folder", dir,
                          SUP_QUOTA_FILE);
    if (rc == RC_OK)
        *out_fd = fd;
    else
        close(fd);
    return rc;
}

enum rc sup_quota_file_open(struct sup_quota_file **out, const char *dir, struct sup_quota *q,
                            uint64_t unix_s, struct rc_err *err)
{
    struct sup_quota_file *f = calloc(1, sizeof(*f));
    enum rc rc;

    if (!f)
        return rc_fail(err, RC_NOMEM, "no memory for the file of used tokens");
    if ((rc = open_file(&f->fd, dir, err)) != RC_OK) {
        free(f);
        return rc;
    }
    load(f, q, unix_s / DAY_S);
    *out = f;
    return RC_OK;
}

static void add_row(void *user, const char *tenant, uint64_t used)
{
    struct place *p = user;
    struct row *r;

    if (p->n == SUP_TENANTS_MAX)
        return;
    r = &p->row[p->n++];
    memset(r, 0, sizeof(*r));
    r->used = used;
    snprintf(r->name, sizeof(r->name), "%s", tenant);
}

static bool write_place(struct sup_quota_file *f)
{
    size_t n = offsetof(struct place, row) + f->buf.n * sizeof(f->buf.row[0]), put = 0;

    if (lseek(f->fd, (off_t)(f->buf.number & 1) * (off_t)sizeof(f->buf), SEEK_SET) < 0)
        return false;
    while (put < n) {
        ssize_t r = write(f->fd, (const char *)&f->buf + put, n - put);

        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return false;
        put += (size_t)r;
    }
    return true;
}

void sup_quota_file_save(struct sup_quota_file *f, const struct sup_quota *q, uint64_t unix_s)
{
    uint8_t now[32];

    if (!f)
        return;
    f->buf.magic = MAGIC;
    f->buf.day = unix_s / DAY_S;
    f->buf.n = 0;
    sup_quota_days(q, f->buf.day, add_row, &f->buf);
    sum_of(now, &f->buf, 0);
    if (memcmp(now, f->last, sizeof(now)) == 0)
        return;
    f->buf.number = f->number + 1;
    sum_of(f->buf.sum, &f->buf, f->buf.number);
    if (!write_place(f)) {
        if (!f->failing)
            SUP_LOG(SUP_ERROR, "quota_days_unsaved", SUP_S("error", strerror(errno)));
        f->failing = true;
        return; /* the same place again: the other one is whole */
    }
    f->failing = false;
    f->number++;
    memcpy(f->last, now, sizeof(now));
}

void sup_quota_file_close(struct sup_quota_file **pf)
{
    if (*pf)
        close((*pf)->fd);
    free(*pf);
    *pf = NULL;
}
