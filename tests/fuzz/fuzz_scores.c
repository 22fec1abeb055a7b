/* fuzz_scores.c - any bytes as labelled scores. room: sup
 *
 * Always: refused with a reason, or a calibration whose counts agree with each other and whose
 * artifact is JSON.
 */
#include <stdlib.h>
#include <string.h>

#include "sup_calibrate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define CHECK(x)     \
    do {             \
        if (!(x))    \
            abort(); \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const struct sup_targets t = {.precision = 0.5, .minimum = 0.1};
    static struct sup_calibration c;
    struct sup_scores s = {0};
    struct rc_err err = RC_ERR_INIT;
    char *text;
    json_t *j;

    if (sup_scores_read(&s, (const char *)data, n, &err) != RC_OK) {
        CHECK(err.code != RC_OK && err.msg[0] != '\0');
        return 0;
    }
    sup_calibrate(&s, &t, &c);
    CHECK(c.qualified == (c.why.code == RC_OK));
    for (int k = 0; k < SUP_SPLITS; k++)
        for (uint32_t i = 0; i < (s.multi ? s.n_labels : 1); i++) {
            const struct sup_measure *m = &c.m[k][i];

            CHECK(m->n <= s.n && m->accepted <= m->n && m->positive <= m->n);
            CHECK(m->correct <= m->accepted && m->correct <= m->positive);
            CHECK(m->lower_95 >= 0 && m->lower_95 <= 1);
        }
    CHECK((text = sup_calibration_text(&s, &t, &c, "")) != NULL);
    CHECK((j = json_loads(text, JSON_REJECT_DUPLICATES, NULL)) != NULL);
    json_decref(j);
    free(text);
    sup_scores_deinit(&s);
    return 0;
}
