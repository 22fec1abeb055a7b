/* sup_master.c - reads the master key; sup_master.h.
 * Tests: tests/supervisor/test_sup_secrets.c */
#include "sup_master.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MAX 200u

enum rc sup_master_parse(uint8_t out[SUP_MASTER_BYTES], const char *text, size_t n,
                         struct rc_err *err)
{
    size_t got = 0;

    if (n == SUP_MASTER_BYTES) {
        memcpy(out, text, n);
        return RC_OK;
    }
    while (n > 0 && strchr(" \t\r\n", text[n - 1]) && text[n - 1])
        n--;
    if (n == 64 && sodium_hex2bin(out, SUP_MASTER_BYTES, text, n, NULL, &got, NULL) == 0 &&
        got == SUP_MASTER_BYTES)
        return RC_OK;
    if ((n == 44 &&
         sodium_base642bin(out, SUP_MASTER_BYTES, text, n, NULL, &got, NULL,
                           sodium_base64_VARIANT_ORIGINAL) == 0 &&
         got == SUP_MASTER_BYTES) ||
        (n == 43 &&
         sodium_base642bin(out, SUP_MASTER_BYTES, text, n, NULL, &got, NULL,
                           sodium_base64_VARIANT_URLSAFE_NO_PADDING) == 0 &&
         got == SUP_MASTER_BYTES))
        return RC_OK;
    sodium_memzero(out, SUP_MASTER_BYTES);
    return rc_fail(err, RC_FORMAT,
                   "%zu bytes that are no key: expected 32 bytes, 64 hex digits, or "
                   "32 bytes in base64 ('inferd credentials make-key FILE' makes "
                   "one)",
                   n);
}

static enum rc check_file(int fd, const char *path, struct rc_err *err)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        return rc_fail_what(err, RC_IO, "vault_key_file", "'%.200s': %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return rc_fail_what(err, RC_FORMAT, "vault_key_file", "'%.200s' is no regular file", path);
    if (st.st_mode & 027)
        return rc_fail_what(err, RC_CONFLICT, "vault_key_file",
                            "'%.200s' has mode %04o: others must not read it, nor the group write "
                            "it (chmod 0400; in Kubernetes defaultMode: 0440)",
                            path, (unsigned)(st.st_mode & 07777));
    return RC_OK;
}

enum rc sup_master_open(int *out_fd, char *out_path, size_t cap, const char *file,
                        const char *credentials, struct rc_err *err)
{
    bool named = file && *file;
    int fd;

    *out_fd = -1;
    if (!named && !(credentials && *credentials))
        return RC_OK;
    snprintf(out_path, cap, "%s%s%s", named ? file : credentials, named ? "" : "/",
             named ? "" : SUP_MASTER_CREDENTIAL);
    fd = open(out_path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && errno == ENOENT && !named)
        return RC_OK;
    if (fd < 0)
        return rc_fail_what(err, errno == ENOENT ? RC_NOT_FOUND : RC_IO, "vault_key_file",
                            "the master key '%.200s': %s", out_path, strerror(errno));
    *out_fd = fd;
    return RC_OK;
}

enum rc sup_master_read_fd(uint8_t **out, int fd, const char *path, struct rc_err *err)
{
    char text[FILE_MAX + 1];
    uint8_t *key = NULL;
    ssize_t n;
    enum rc rc = check_file(fd, path, err);

    *out = NULL;
    if (rc != RC_OK)
        return rc;
    if ((n = read(fd, text, sizeof(text))) < 0)
        rc = rc_fail_what(err, RC_IO, "vault_key_file", "'%.200s': %s", path, strerror(errno));
    else if (!(key = sodium_malloc(SUP_MASTER_BYTES)))
        rc = rc_fail(err, RC_NOMEM, "no locked memory for the master key");
    else if ((rc = sup_master_parse(key, text, (size_t)n, err)) != RC_OK)
        rc_wrap(err, "'%.200s'", path);
    sodium_memzero(text, sizeof(text));
    if (rc == RC_OK)
        *out = key;
    else
        sup_master_free(&key);
    return rc;
}

enum rc sup_master_read(uint8_t **out, const char *file, const char *credentials,
                        struct rc_err *err)
{
    char path[PATH_MAX];
    int fd;
    enum rc rc = sup_master_open(&fd, path, sizeof(path), file, credentials, err);

    *out = NULL;
    if (rc != RC_OK || fd < 0)
        return rc;
    rc = sup_master_read_fd(out, fd, path, err);
    close(fd);
    return rc;
}

void sup_master_free(uint8_t **key)
{
    sodium_free(*key); /* wipes; accepts NULL */
    *key = NULL;
}
