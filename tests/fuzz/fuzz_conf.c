/* fuzz_conf.c - any config file, environment and flags: an error or a configuration
 * that prints itself as JSON which loads again to the same text.
 * room: sup
 *
 * Input: parts separated by a 0x1E byte: the file, then words. A word that begins
 * with "INFERD_" goes to the environment, the others are flags in order. */
#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sup_conf.h"

#define WORDS_MAX 32

static int file_with(const char *s, size_t n)
{
    int fd = memfd_create("conf", MFD_CLOEXEC);

    if (fd >= 0 && write(fd, s, n) != (ssize_t)n) {
        close(fd);
        return -1;
    }
    return fd;
}

static enum rc load(struct sup_conf *c, const char *json, size_t n, char **env, int argc,
                    char **argv, struct rc_err *err)
{
    char path[64];
    int fd = file_with(json, n), used = 0;
    enum rc rc;

    if (fd < 0)
        return RC_IO;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    rc = sup_conf_load(c, path, env, argc, argv, &used, err);
    close(fd);
    if (rc == RC_OK)
        assert(used >= 0 && used <= argc);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1), *env[WORDS_MAX + 1] = {0}, *argv[WORDS_MAX + 1] = {0}, *json,
         *again;
    struct rc_err err = RC_ERR_INIT;
    struct sup_conf c, d;
    size_t n_env = 0;
    int argc = 0;
    char *none[] = {NULL};

    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    char *sep = memchr(text, 0x1E, size);
    size_t n_file = sep ? (size_t)(sep - text) : size;
    while (sep && argc < WORDS_MAX && n_env < WORDS_MAX) {
        char *word = sep + 1;

        *sep = '\0';
        sep = strchr(word, 0x1E);
        if (sep)
            *sep = '\0';
        if (strncmp(word, "INFERD_", 7) == 0)
            env[n_env++] = word;
        else
            argv[argc++] = word;
    }
    memset(&c, 0, sizeof(c));
    if (load(&c, text, n_file, env, argc, argv, &err) == RC_OK) {
        json = sup_conf_json(&c);
        assert(json);
        if (load(&d, json, strlen(json), none, 0, none, &err) == RC_OK) {
            again = sup_conf_json(&d);
            assert(again && strcmp(json, again) == 0);
            free(again);
            sup_conf_deinit(&d);
        } else {
            assert(strstr(json, "(not UTF-8)") || strchr(json, '\\'));
        }
        free(json);
        sup_conf_deinit(&c);
    } else {
        assert(err.msg[0]);
        assert(memchr(&c, 1, sizeof(c)) == NULL); /* untouched */
    }
    free(text);
    return 0;
}
