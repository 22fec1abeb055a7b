/* fuzz_calibration.c - any bytes as a calibration artifact. room: wrk
 *
 * Input: one byte that picks the kind of question, then the artifact. Always: refused with a
 * reason, or thresholds within their ranges.
 */
#include <stdlib.h>
#include <string.h>

#include "wrk_decide.h"

#define IDENTITY "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define CHECK(x)     \
    do {             \
        if (!(x))    \
            abort(); \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    Ipc__DecideChoice a = IPC__DECIDE_CHOICE__INIT, b = IPC__DECIDE_CHOICE__INIT,
                      *list[2] = {&a, &b};
    Ipc__DecideQuestion q = IPC__DECIDE_QUESTION__INIT;
    const uint8_t hash[WRK_SET_HASH_BYTES] = {0};
    const struct wrk_binding bind = {.model_identity = IDENTITY,
                                     .task_type = "CLUSTERING",
                                     .dimensions = 8,
                                     .set_hash = hash,
                                     .question = &q};
    struct rc_err err = RC_ERR_INIT;
    struct wrk_accept out;
    enum rc rc;

    if (n < 1)
        return -1;
    a.value = (ProtobufCBinaryData){1, (uint8_t *)(uintptr_t) "a"};
    b.value = (ProtobufCBinaryData){1, (uint8_t *)(uintptr_t) "b"};
    q.kind = data[0] % 2 ? WRK_CHOICE : WRK_MULTI;
    q.choices = list;
    q.n_choices = 2;
    memset(&out, 0, sizeof(out));
    rc = wrk_calibration_parse((const char *)data + 1, n - 1, "id", &bind, &out, &err);
    if (rc != RC_OK) {
        CHECK(err.code == rc && err.msg[0] != '\0' && ipc_utf8_valid(err.msg, strlen(err.msg)));
        return 0;
    }
    CHECK(out.min_similarity >= -1 && out.min_similarity <= 1);
    CHECK(out.min_margin >= 0 && out.min_margin <= 2);
    CHECK(out.has_min_similarity == (q.kind == WRK_CHOICE));
    for (size_t i = 0; i < q.n_choices; i++)
        CHECK(out.threshold[i] >= -1 && out.threshold[i] <= 1);
    return 0;
}
