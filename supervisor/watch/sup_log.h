/* sup_log.h - JSON log lines on stderr.
 *
 * One line per event: {"ts":"...","level":"info","event":"worker_started",
 * "model":"...","pid":123}. Values are escaped; invalid UTF-8 becomes U+FFFD.
 * Never: prompts, answers, keys, headers. A line is written with one write(2).
 * When stderr is full or gone, lines are dropped and counted. Tests:
 * tests/supervisor/test_sup_log.c
 */
#ifndef INFERD_SUP_LOG_H
#define INFERD_SUP_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum sup_level { SUP_DEBUG, SUP_INFO, SUP_WARN, SUP_ERROR };

struct sup_kv {
    const char *key;
    enum { SUP_KV_S, SUP_KV_I, SUP_KV_F, SUP_KV_B } kind;
    union {
        const char *s; /* NULL prints null */
        int64_t i;
        double f;
        bool b;
    };
};
#define SUP_S(k, v) { .key = (k), .kind = SUP_KV_S, .s = (v) }
#define SUP_I(k, v) { .key = (k), .kind = SUP_KV_I, .i = (int64_t)(v) }
#define SUP_F(k, v) { .key = (k), .kind = SUP_KV_F, .f = (v) }
#define SUP_B(k, v) { .key = (k), .kind = SUP_KV_B, .b = (v) }

void sup_log_init(enum sup_level least); /* process-wide; before any thread */
void sup_log_kv(enum sup_level level, const char *event,
                const struct sup_kv *kv, size_t n);
uint64_t sup_log_dropped(void);
enum sup_level sup_level_parse(const char *word); /* SUP_INFO when unknown */

#define SUP_LOG(level, event, ...)                                             \
    do {                                                                       \
        const struct sup_kv sup_kv_[] = { __VA_ARGS__ };                       \
        sup_log_kv((level), (event), sup_kv_,                                  \
                   sizeof(sup_kv_) / sizeof(sup_kv_[0]));                      \
    } while (0)

#endif
