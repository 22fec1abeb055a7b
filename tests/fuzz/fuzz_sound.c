/* fuzz_sound.c - any bytes as a sound of at most a second, decoded as what their first bytes say.
 * room: wrk */
#include "wrk_media.h"

#include <math.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct wrk_sound snd = {0};
    struct rc_err err = RC_ERR_INIT;

    if (wrk_sound_decode(&snd, wrk_media_sniff(data, size, NULL), data, size, 16000, 1000, NULL,
                         &err) != RC_OK) {
        if (snd.pcm != NULL || err.msg[0] == 0)
            abort();
        return 0;
    }
    if (snd.n == 0 || snd.n > 16000)
        abort();
    for (size_t i = 0; i < snd.n; i++)
        if (!isfinite(snd.pcm[i]))
            abort();
    wrk_sound_deinit(&snd);
    return 0;
}
