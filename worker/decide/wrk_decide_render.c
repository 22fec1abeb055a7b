/* wrk_decide_render.c - the texts of a question (renderer instruction-category-v1), their hash.
 *
 * Must never change what it renders: numbers that people measured and thresholds they fitted
 * are bound to the renderer's name. Another rendering is another name.
 * Tests: tests/worker/test_wrk_decide_rule.c
 */
#include "wrk_decide.h"

#include <string.h>

#include <sodium.h>

static const char head[] = "Instruction: ";

static const char *word_of(enum wrk_render how)
{
    return how == WRK_RENDER_INPUT ? "\nInput: " : "\nCategory: ";
}

size_t wrk_render_bytes(const Ipc__DecideQuestion *q, enum wrk_render how, size_t n_text)
{
    return sizeof(head) - 1 + q->instructions.len + strlen(word_of(how)) + n_text;
}

static uint8_t *put(uint8_t *at, const void *p, size_t n)
{
    if (n > 0)
        memcpy(at, p, n);
    return at + n;
}

void wrk_render(const Ipc__DecideQuestion *q, enum wrk_render how, ProtobufCBinaryData text,
                uint8_t *out)
{
    out = put(out, head, sizeof(head) - 1);
    out = put(out, q->instructions.data, q->instructions.len);
    out = put(out, word_of(how), strlen(word_of(how)));
    put(out, text.data, text.len);
}

uint32_t wrk_choice_texts(const Ipc__DecideChoice *c)
{
    return c->n_examples > 0 ? (uint32_t)c->n_examples : 1;
}

ProtobufCBinaryData wrk_choice_text(const Ipc__DecideChoice *c, uint32_t i, enum wrk_render *how)
{
    *how = c->n_examples > 0 ? WRK_RENDER_INPUT : WRK_RENDER_CATEGORY;
    return c->n_examples > 0 ? c->examples[i] : c->description.len > 0 ? c->description : c->value;
}

static void number(crypto_hash_sha256_state *h, uint64_t v)
{
    uint8_t b[8];

    for (int i = 0; i < 8; i++)
        b[i] = (uint8_t)(v >> (8 * i));
    crypto_hash_sha256_update(h, b, sizeof(b));
}

static void bytes(crypto_hash_sha256_state *h, const void *p, size_t n)
{
    if (n > 0)
        crypto_hash_sha256_update(h, p, n);
}

static void field(crypto_hash_sha256_state *h, const void *p, size_t n)
{
    number(h, n);
    bytes(h, p, n);
}

void wrk_set_hash(const Ipc__DecideQuestion *q, const char *task_type, uint32_t dim,
                  uint8_t out[WRK_SET_HASH_BYTES])
{
    crypto_hash_sha256_state h;

    crypto_hash_sha256_init(&h);
    field(&h, IPC_DECIDE_RENDERER, strlen(IPC_DECIDE_RENDERER));
    field(&h, task_type, strlen(task_type));
    number(&h, dim);
    number(&h, q->n_choices);
    for (size_t c = 0; c < q->n_choices; c++) {
        uint32_t n = wrk_choice_texts(q->choices[c]);

        number(&h, n);
        for (uint32_t i = 0; i < n; i++) {
            enum wrk_render how;
            ProtobufCBinaryData text = wrk_choice_text(q->choices[c], i, &how);

            /* the same bytes as rendered, without a copy of them */
            number(&h, wrk_render_bytes(q, how, text.len));
            bytes(&h, head, sizeof(head) - 1);
            bytes(&h, q->instructions.data, q->instructions.len);
            bytes(&h, word_of(how), strlen(word_of(how)));
            bytes(&h, text.data, text.len);
        }
    }
    crypto_hash_sha256_final(&h, out);
}
