/* fuzz_secrets.c - the file of credentials, the master key and origins: whatever the bytes are,
 * they are read or refused, and nothing that was not sealed opens. room: sup
 */
#include <sodium.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "sup_secrets.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerInitialize(int *argc, char ***argv);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    return sodium_init() < 0; /* locked memory needs it */
}

static void try_origin(const uint8_t *data, size_t n)
{
    char text[400], plain[SUP_ORIGIN_MAX], again[SUP_ORIGIN_MAX];

    if (n >= sizeof(text))
        return;
    memcpy(text, data, n);
    text[n] = '\0';
    if (sup_origin_parse(plain, text, NULL) != RC_OK)
        return;
    if (sup_origin_parse(again, plain, NULL) != RC_OK || strcmp(plain, again) != 0)
        abort(); /* what is plain stays as it is */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const uint8_t master[SUP_MASTER_BYTES] = "a key";
    struct sup_secrets s = {0};
    uint8_t key[SUP_MASTER_BYTES];
    struct sup_json o = {0};

    try_origin(data, n);
    (void)sup_master_parse(key, (const char *)data, n, NULL);
    if (sup_secrets_parse(&s, (const char *)data, n, NULL) != RC_OK)
        return 0;
    if (sup_secrets_open(&s, master, NULL) == RC_OK && s.n)
        abort();
    sup_secrets_print(&s, &o);
    sup_secrets_deinit(&s);
    if (o.failed || sup_secrets_parse(&s, o.p, o.n, NULL) != RC_OK)
        abort();
    sup_json_deinit(&o);
    sup_secrets_deinit(&s);
    return 0;
}
