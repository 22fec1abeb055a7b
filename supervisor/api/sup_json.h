/* sup_json.h - a growing byte buffer that speaks JSON.
 *
 * Every answer of the API is written straight into one of these: no object tree,
 * no allocation per token once it has grown. It never holds more than `limit`
 * bytes: past it (or out of memory) `failed` turns true, later writes are
 * ignored, and the owner answers with an error instead of a cut body.
 * Whatever bytes come in, what sup_json_text writes is valid UTF-8.
 * Tests: tests/supervisor/test_sup_api_json.c
 */
#ifndef INFERD_SUP_JSON_H
#define INFERD_SUP_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SUP_JSON_MAX (256u << 20) /* bytes of one answer */

struct sup_json {
    char *p; /* not NUL-ended; NULL while nothing was written */
    size_t n, cap;
    size_t limit; /* 0 = SUP_JSON_MAX */
    bool failed;
};

void sup_json_deinit(struct sup_json *o);
/* Empties it and keeps the memory. */
void sup_json_reset(struct sup_json *o);
void sup_json_put(struct sup_json *o, const void *bytes, size_t n_bytes);
void sup_json_str(struct sup_json *o, const char *s);
void sup_json_fmt(struct sup_json *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The inside of a JSON string: quotes, backslashes and control characters are
 * escaped, other valid UTF-8 is kept as it is, each byte that is not part of valid
 * UTF-8 becomes U+FFFD. */
void sup_json_text(struct sup_json *o, const void *text, size_t n_bytes);
/* The same with its quotes; NULL prints null. */
void sup_json_quoted(struct sup_json *o, const char *s);
void sup_json_u64(struct sup_json *o, uint64_t v);
/* Up to 9 significant digits: reads back as the same float. Not finite: null. */
void sup_json_f32(struct sup_json *o, float v);
/* As few digits as read back as the same number. Not finite: null. */
void sup_json_f64(struct sup_json *o, double v);
/* Standard alphabet with padding, no line breaks. */
void sup_json_base64(struct sup_json *o, const void *bytes, size_t n_bytes);

/* Length of the valid UTF-8 character at s (n_bytes left), 0 when there is none. */
size_t sup_utf8_len(const unsigned char *s, size_t n_bytes);

#endif
