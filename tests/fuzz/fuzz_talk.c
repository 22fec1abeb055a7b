/* fuzz_talk.c - any bytes as a saved conversation: an error with words, or a
 * conversation that is in order, within its bounds, and saves and loads to itself.
 * room: sup */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "sup_talk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sup_talk t = {0}, again = {0};
    struct rc_err err = RC_ERR_INIT;
    char *one, *two;

    if (sup_talk_parse(&t, (const char *)data, size, &err) != RC_OK) {
        assert(err.msg[0] && t.n == 0 && !t.system);
        return 0;
    }
    assert(t.n % 2 == 0 && t.n <= SUP_TALK_MAX_MESSAGES && t.n_bytes <= SUP_TALK_MAX_BYTES);
    for (size_t i = 0; i < t.n; i++)
        assert(t.msg[i].user == (i % 2 == 0));
    one = sup_talk_text(&t, "m");
    assert(one && sup_talk_parse(&again, one, strlen(one), &err) == RC_OK);
    two = sup_talk_text(&again, "m");
    assert(two && strcmp(one, two) == 0);
    free(one);
    free(two);
    sup_talk_deinit(&t);
    sup_talk_deinit(&again);
    return 0;
}
