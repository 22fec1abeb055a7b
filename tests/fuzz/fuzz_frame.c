/* fuzz_frame.c - any bytes as framed attachments, through the whole endpoint. room: sup
 *
 * Input: the body of POST /ai/v1/embed with Content-Type vnd.antfly.attachments.v1.
 * Always: what is read lies inside the body, in order and up to its end; exactly one answer
 * or one task; each file of the task is a copy of an attachment or of text in the metadata.
 * Seeds: tests/fuzz/corpus/frame/
 */
#include "../supervisor/sup_api_fake.h"

#include "sup_api_frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "%s\n", what);
        abort();
    }
}

static void check_frame(const uint8_t *data, size_t n)
{
    struct sup_api_frame fr = {0};
    struct sup_fail f;
    const char *at;
    uint64_t sum = 0;

    if (!sup_api_frame_read(&fr, data, n, &f)) {
        check(!fr.att && f.err.msg[0], "a refusal without words");
        return;
    }
    check(fr.n_att <= SUP_FRAME_ATTACHMENTS_MAX, "too many attachments");
    at = fr.meta + fr.n_meta;
    for (uint32_t i = 0; i < fr.n_att; i++) {
        check(fr.att[i].mime == at, "a MIME type that is not behind the last");
        check((const char *)fr.att[i].data == at + fr.att[i].n_mime, "data not behind its type");
        at = (const char *)fr.att[i].data + fr.att[i].n_bytes;
    }
    check(at == (const char *)data + n, "not to the end");
    check(sup_api_frame_own(&fr), "memory");
    for (uint32_t i = 0; i < fr.n_att; i++)
        for (size_t k = 0; k < fr.att[i].n_bytes; k++)
            sum += fr.att[i].data[k];
    check(sum <= 255 * (uint64_t)n, "sum");
    sup_api_frame_deinit(&fr);
}

static void check_task(const Ipc__Embed *q, size_t n)
{
    size_t bytes = 0;

    check(q->n_inputs > 0, "a task of nothing");
    for (size_t i = 0; i < q->n_inputs; i++)
        for (size_t k = 0; k < q->inputs[i]->n_parts; k++) {
            const Ipc__EmbedPart *p = q->inputs[i]->parts[k];

            check(p->is_media == (p->data.len > 0), "a file without bytes");
            check(!p->is_media || strncmp(p->mime, "image/", 6) == 0 ||
                      strncmp(p->mime, "audio/", 6) == 0,
                  "a file of no kind");
            bytes += p->data.len;
        }
    check(bytes <= T.conf.max_media_bytes, "more than may be");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static bool ready;

    if (!ready) {
        fake_setup();
        T.fleet.n_models = 3;
        T.conf.max_media_bytes = 4096;
        ready = true;
    }
    check_frame(data, n);
    fake_req_reset();
    T.fleet.n_tickets = 0;
    fake_header("content-type", SUP_FRAME_TYPE);
    fake_send_bytes("POST", "/ai/v1/embed", (const char *)data, n);
    check(T.req.done == (T.fleet.n_tickets == 0), "an answer or a task");
    if (!T.req.done) {
        check_task(fake_ticket(0)->frame->embed, n);
        fake_fail(0, RC_INTERNAL, "enough", 0);
    }
    check(T.req.done && T.front.active == 0 && T.front.held_bytes == 0, "something is left");
    return 0;
}
