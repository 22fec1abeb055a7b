/* fuzz_keys.c - the file of keys: whatever its bytes are, it is read or refused, and what was
 * read is written and read again as the same. room: sup
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "sup_keys.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct sup_keys a = {0}, b = {0};
    struct sup_json one = {0}, two = {0};
    const struct sup_key *k = NULL;
    uint64_t until = 0;

    (void)sup_keys_check(&a, data, n, 1, &k, &until);
    if (sup_keys_parse(&a, (const char *)data, n, NULL) != RC_OK)
        return 0;
    sup_keys_print(&a, &one);
    if (one.failed || sup_keys_parse(&b, one.p, one.n, NULL) != RC_OK)
        abort();
    sup_keys_print(&b, &two);
    if (one.n != two.n || memcmp(one.p, two.p, one.n) != 0)
        abort();
    for (size_t i = 0; i < a.n; i++) {
        two.n = 0;
        sup_key_json(&a.key[i], 1, &two);
    }
    if (sup_keys_check(&a, data, n, 1, &k, &until) == RC_OK)
        abort(); /* a file is no key */
    sup_json_deinit(&one);
    sup_json_deinit(&two);
    sup_keys_deinit(&a);
    sup_keys_deinit(&b);
    return 0;
}
