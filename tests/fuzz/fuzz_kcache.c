/* fuzz_kcache.c - any bytes as a file of the kernel cache: an error, or exactly the
 * payload that its header names.
 * room: be
 *
 * The first byte is the kind asked for. To get past the key and the hash, which random
 * bytes never match, each input is tried as it is, with the key we ask for written in,
 * and with the payload's hash too. */
#include <assert.h>
#include <sodium.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "be_kjit.h"

static void try(const uint8_t *p, size_t n, const uint8_t key[32], enum be_kcache_kind kind)
{
    const uint8_t *payload = NULL;
    size_t payload_n = 0;
    struct rc_err e = RC_ERR_INIT;
    enum rc rc = be_kcache_parse(p, n, key, kind, &payload, &payload_n, &e);

    if (rc == RC_OK) {
        assert(payload == p + 88 && payload_n == n - 88);
        assert(memcmp(p + 24, key, 32) == 0 && p[12] == kind);
    } else {
        assert(rc == RC_FORMAT && e.msg[0] != '\0' && payload == NULL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t key[32] = {1, 2, 3};
    enum be_kcache_kind kind;
    uint8_t *p;
    size_t n;

    if (size == 0)
        return 0;
    kind = (enum be_kcache_kind)(data[0] % 6);
    n = size - 1;
    if (!(p = malloc(n ? n : 1))) /* its own block: reading past the end shows */
        return 0;
    memcpy(p, data + 1, n);
    try(p, n, key, kind);
    if (n >= 88) {
        memcpy(p + 24, key, 32);
        try(p, n, key, kind);
        crypto_hash_sha256(p + 56, p + 88, n - 88);
        try(p, n, key, kind);
    }
    free(p);
    return 0;
}
