/* test_sup_api_embed_media.c - groups, pictures and sound: what is taken, what is refused
 * with which words, what the worker gets and what of its answer is believed. */
#define TEST_MODELS 3
#include "sup_api_test.h"
#include "sup_media.h"

#define ID_A "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define ID_B "1123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define PNG "data:image/png;base64,iVBORw=="

static void embed(const char *rest)
{
    static char body[40000];

    fake_req_reset();
    snprintf(body, sizeof(body), "{\"model\":\"eg2\",%s}", rest);
    fake_post("/ai/v1/embed", body);
}

static const Ipc__Embed *sent(unsigned i)
{
    return fake_ticket(i)->frame->embed;
}

static struct answer {
    uint32_t n, dim;
    const char *identity, *stage;
    enum rc code; /* of row bad */
    uint64_t limit;
    int bad, bad_again;
    bool short_data;
} good = {.n = 1, .dim = 4, .identity = ID_A, .stage = "", .bad = -1, .bad_again = -1};

static void play(unsigned ticket, const struct answer *a)
{
    Ipc__Frame fr = IPC__FRAME__INIT;
    Ipc__Vectors w = IPC__VECTORS__INIT;
    Ipc__ItemError ie[2] = {IPC__ITEM_ERROR__INIT, IPC__ITEM_ERROR__INIT},
                   *pie[2] = {&ie[0], &ie[1]};
    Ipc__Error e = IPC__ERROR__INIT;
    float data[8 * 8] = {0};
    uint32_t n_tokens[8] = {3, 4, 5}, n_media[8] = {0, 280, 7};

    for (uint32_t i = 0; i < a->n * a->dim; i++)
        data[i] = (float)i;
    ie[0].index = (uint32_t)a->bad;
    ie[1].index = (uint32_t)a->bad_again;
    e.stage = (char *)(uintptr_t)a->stage;
    e.code = a->code;
    e.n = a->limit + 1;
    e.limit = a->limit;
    e.message.data = (uint8_t *)(uintptr_t) "no picture";
    e.message.len = 10;
    ie[0].error = ie[1].error = &e;
    w.errors = pie;
    w.n_errors = (a->bad >= 0) + (a->bad_again >= 0);
    w.n = a->n;
    w.dim = a->dim;
    w.data.data = (uint8_t *)data;
    w.data.len = a->n * a->dim * sizeof(float) - a->short_data;
    w.n_tokens = n_tokens;
    w.n_n_tokens = a->n;
    w.n_media_tokens = n_media;
    w.n_n_media_tokens = a->n;
    w.model_identity = (char *)(uintptr_t)a->identity;
    fr.body_case = IPC__FRAME__BODY_VECTORS;
    fr.vectors = &w;
    fake_play(ticket, &fr);
    fake_end(ticket, NULL, 0);
}

/* ------------------------------------------------------------------- forms */

static void test_flat_media(void **state)
{
    static const struct {
        const char *part, *mime;
        size_t n;
    } rows[] = {
        {"{\"type\":\"image_url\",\"image_url\":{\"url\":\"" PNG "\",\"detail\":\"low\"}}",
         "image/png", 4},
        {"{\"type\":\"image_url\",\"image_url\":\"" PNG "\"}", "image/png", 4},
        {"{\"type\":\"image_url\",\"image_url\":\"DATA:Image/PNG; x=y;BASE64,AAAA\"}", "image/png",
         3},
        {"{\"type\":\"image_url\",\"image_url\":\"data:image/svg+xml,<svg/>\"}", "image/svg+xml",
         6},
        {"{\"type\":\"media\",\"mime_type\":\"AUDIO/Wav; rate=1\",\"data\":\"QUI=\",\"x\":1}",
         "audio/wav", 2},
        {"{\"type\":\"media\",\"mime_type\":\"image/png\",\"data\":\"" PNG "\"}", "image/png", 4},
        {"{\"type\":\"media\",\"url\":\"" PNG "\",\"data\":null}", "image/png", 4},
        {"{\"type\":\"media\",\"mime_type\":\"image/PNG;q=1\",\"url\":\"" PNG "\"}", "image/png",
         4},
    };
    char rest[400];

    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const Ipc__EmbedInput *in;

        snprintf(rest, sizeof(rest), "\"input\":[\"a\",%s]", rows[i].part);
        embed(rest);
        if (T.fleet.n_tickets != i + 1)
            fail_msg("%s: %s", rows[i].part, fake_answer());
        assert_int_equal(sent(i)->n_inputs, 2);
        assert_int_equal(sent(i)->inputs[0]->n_parts, 0);
        in = sent(i)->inputs[1];
        assert_int_equal(in->n_parts, 1);
        assert_false(in->is_group);
        assert_true(in->parts[0]->is_media);
        assert_string_equal(in->parts[0]->mime, rows[i].mime);
        assert_int_equal(in->parts[0]->data.len, rows[i].n);
        assert_int_equal(T.front.held_bytes, rows[i].n);
        play(i, &(struct answer){.n = 2, .dim = 4, .identity = "", .bad = -1, .bad_again = -1});
        assert_int_equal(T.req.status, 200);
        assert_has("\"usage\":{\"prompt_tokens\":7,\"total_tokens\":7,\"media_tokens\":280}}");
        assert_int_equal(T.front.held_bytes, 0);
    }
}

static void test_groups(void **state)
{
    const Ipc__EmbedInput *in;

    embed("\"input\":[{\"title\":\"T\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":"
          "\"image_url\",\"image_url\":{\"url\":\"" PNG "\"}},{\"type\":\"text\",\"text\":\"b\"}]},"
          "{\"content\":[{\"type\":\"media\",\"data\":\"AAAA\",\"mime_type\":\"audio/mpeg\"}],"
          "\"title\":null}],\"task_type\":\"RETRIEVAL_DOCUMENT\",\"dimensions\":3,"
          "\"model_identity\":\"" ID_A "\"");
    assert_int_equal(sent(0)->n_inputs, 2);
    assert_int_equal(sent(0)->dimensions, 3);
    assert_string_equal(sent(0)->model_identity, ID_A);
    in = sent(0)->inputs[0];
    assert_true(in->is_group);
    assert_int_equal(in->n_parts, 3);
    assert_memory_equal(in->title.data, "T", 1);
    assert_memory_equal(in->parts[0]->text.data, "a", 1);
    assert_memory_equal(in->parts[1]->data.data, "\x89PNG", 4);
    assert_memory_equal(in->parts[2]->text.data, "b", 1);
    assert_false(in->parts[2]->is_media);
    assert_int_equal(sent(0)->inputs[1]->title.len, 0);
    play(0, &(struct answer){.n = 2, .dim = 3, .identity = ID_A, .bad = -1, .bad_again = -1});
    assert_int_equal(T.req.status, 200);
    assert_has("\"media_tokens\":280},\"model_identity\":\"" ID_A "\"}");
    /* the default task is a document's; an empty title is none */
    embed("\"input\":{\"title\":\"T\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}");
    assert_int_equal(sent(1)->inputs[0]->title.len, 1);
    fake_fail(1, RC_INTERNAL, "enough", 0);
    embed("\"task_type\":\"CLUSTERING\",\"input\":[{\"title\":\"\",\"content\":[{\"type\":"
          "\"text\",\"text\":\"a\"}]}]");
    assert_int_equal(sent(2)->inputs[0]->title.len, 0);
}

static void test_groups_per_item(void **state)
{
    embed(
        "\"input\":[{\"content\":[{\"type\":\"text\",\"text\":\"a\"}]},{\"content\":[]},"
        "{\"content\":[{\"type\":\"text\",\"text\":\"b\"}]},{\"content\":[{\"type\":\"image_url\","
        "\"image_url\":\"https://x/y.png\"}]}],\"error_policy\":\"per_item\"");
    assert_int_equal(sent(0)->n_inputs, 2);
    assert_memory_equal(sent(0)->inputs[1]->parts[0]->text.data, "b", 1);
    play(0, &(struct answer){.n = 2, .dim = 4, .identity = ID_A, .bad = -1, .bad_again = -1});
    assert_int_equal(T.req.status, 200);
    assert_has("\"index\":0,\"embedding\":[0.0,1.0,2.0,3.0]},{\"object\":\"embedding\",\"index\":2,"
               "\"embedding\":[4.0,");
    assert_has("\"errors\":[{\"index\":1,\"code\":\"INVALID_REQUEST\",\"message\":\"field "
               "'input[1].content': got an empty array, expected an array of 1 to 64 content "
               "parts\",\"stage\":\"parse\",\"retryable\":false,\"status\":400},{\"index\":3,"
               "\"code\":\"CONTENT_NOT_ALLOWED\"");
    assert_has("\"stage\":\"fetch\",\"retryable\":false,\"status\":403}],\"summary\":{\"total\":4,"
               "\"succeeded\":2,\"failed\":2}");
    /* a title where there is none: each item by itself */
    embed("\"input\":[{\"title\":\"T\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]},{"
          "\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}],\"task_type\":\"RETRIEVAL_QUERY\","
          "\"error_policy\":\"per_item\"");
    assert_int_equal(sent(1)->n_inputs, 1);
    play(1, &good);
    assert_has("\"errors\":[{\"index\":0,\"code\":\"INVALID_REQUEST\"");
}

/* ---------------------------------------------------------------- refusals */

#define GROUP(parts) "\"input\":[{\"content\":[" parts "]}]"
#define TEXT "{\"type\":\"text\",\"text\":\"a\"}"
#define URL(u) "{\"type\":\"image_url\",\"image_url\":{\"url\":\"" u "\"}}"

static void test_refusals(void **state)
{
    static const struct {
        const char *rest;
        unsigned status;
        const char *code, *part;
    } rows[] = {
        {"\"input\":[" TEXT ",{\"content\":[" TEXT "]}]", 400, "INVALID_REQUEST", "not mixed"},
        {"\"input\":[{\"content\":[" TEXT "]},\"a\"]", 400, "INVALID_REQUEST", "not mixed"},
        {"\"input\":[{\"content\":[" TEXT "]},[1]],\"error_policy\":\"per_item\"", 400,
         "INVALID_REQUEST", "not mixed"},
        {"\"input\":[{\"content\":[]}]", 400, "INVALID_REQUEST", "1 to 64 content parts"},
        {"\"input\":[{\"content\":\"a\"}]", 400, "INVALID_REQUEST", "1 to 64 content parts"},
        {"\"input\":[{\"title\":\"T\"}]", 400, "INVALID_REQUEST", "1 to 64 content parts"},
        {GROUP("\"a\""), 400, "INVALID_REQUEST", "input[0].content[0]"},
        {GROUP("[1,2]"), 400, "INVALID_REQUEST", "input[0].content[0]"},
        {GROUP("{\"type\":\"text\",\"text\":\"\"}"), 400, "INVALID_REQUEST", "content[0].text"},
        {"\"input\":[{\"content\":[" TEXT "],\"id\":1}]", 400, "INVALID_REQUEST",
         "key \\\"id\\\" is unknown, a group has only: title content"},
        {"\"input\":[{\"content\":[" TEXT "],\"title|content\":1}]", 400, "INVALID_REQUEST",
         "is unknown"},
        {GROUP("{\"type\":\"text\",\"text\":\"a\",\"txt\":1}"), 400, "INVALID_REQUEST",
         "key \\\"txt\\\" is unknown, a text part has only: type text"},
        {GROUP("{\"type\":\"image_url\",\"image_url\":{\"url\":\"" PNG "\",\"x\":1}}"), 400,
         "INVALID_REQUEST", "image_url has only: url detail"},
        {"\"input\":[{\"title\":5,\"content\":[" TEXT "]}]", 400, "INVALID_REQUEST",
         "input[0].title"},
        {"\"input\":[{\"title\":\"T\",\"content\":[" TEXT "]}],\"task_type\":\"RETRIEVAL_QUERY\"",
         400, "INVALID_REQUEST", "only documents have a title"},
        {"\"input\":[{\"title\":\"T\",\"content\":[" TEXT "]}],\"input_type\":\"clustering\"", 400,
         "INVALID_REQUEST", "only documents have a title"},
        {"\"input\":[{\"title\":\"T\",\"content\":[" URL(PNG) "]}]", 400, "INVALID_REQUEST",
         "without a text part"},
        {GROUP("{\"type\":\"video_url\"}"), 400, "INVALID_REQUEST", "video is not supported"},
        {GROUP("{\"type\":\"media\",\"mime_type\":\"video/mp4\",\"data\":\"AAAA\"}"), 400,
         "INVALID_REQUEST", "video is not supported"},
        {GROUP(URL("data:video/mp4;base64,AAAA")), 400, "INVALID_REQUEST",
         "video is not supported"},
        {GROUP(URL("data:audio/wav;base64,AAAA")), 400, "INVALID_REQUEST", "expected image/*"},
        {GROUP(URL("data:;base64,AAAA")), 400, "INVALID_REQUEST", "application/octet-stream"},
        {GROUP(URL("data:,AAAA")), 400, "INVALID_REQUEST", "text/plain"},
        {GROUP(URL("data:image;base64,AAAA")), 400, "INVALID_REQUEST", "no MIME type"},
        {GROUP(URL("data:image/png;base64")), 400, "INVALID_REQUEST", "without a comma"},
        {GROUP(URL("data:image/png;base64,")), 400, "INVALID_REQUEST", "the file is empty"},
        {GROUP(URL("data:image/png;base64,AAA")), 400, "INVALID_REQUEST", "not base64"},
        {GROUP(URL("data:image/png;base64,AAAA AAA")), 400, "INVALID_REQUEST",
         "at character 4 of 8"},
        {GROUP(URL("AAAA")), 400, "INVALID_REQUEST", "unknown kind"},
        {GROUP(URL("ftp://x/y")), 400, "INVALID_REQUEST", "unknown kind"},
        {GROUP(URL("")), 400, "INVALID_REQUEST", "image_url.url"},
        {GROUP("{\"type\":\"image_url\"}"), 400, "INVALID_REQUEST", "content[0].image_url"},
        {GROUP(URL("http://x/y.png")), 403, "CONTENT_NOT_ALLOWED", "fetches no http URLs"},
        {GROUP(URL("HTTPS://x/y.png")), 403, "CONTENT_NOT_ALLOWED", "remote media is off"},
        {GROUP(URL("file:///etc/passwd")), 403, "CONTENT_NOT_ALLOWED", "remote media is off"},
        {"\"input\":[{\"type\":\"media\",\"url\":\"s3://b/k\"}]", 403, "CONTENT_NOT_ALLOWED",
         "fetches no s3 URLs"},
        {GROUP(URL("attachment:0")), 400, "INVALID_REQUEST", "carries no attachments"},
        {GROUP("{\"type\":\"media\",\"data\":\"AAAA\"}"), 400, "INVALID_REQUEST",
         "'mime_type' is missing"},
        {GROUP("{\"type\":\"media\",\"data\":\"AAAA\",\"mime_type\":\"png\"}"), 400,
         "INVALID_REQUEST", "content[0].mime_type"},
        {GROUP("{\"type\":\"media\",\"data\":\"AAAA\",\"mime_type\":7}"), 400, "INVALID_REQUEST",
         "content[0].mime_type"},
        {GROUP("{\"type\":\"media\",\"data\":\"AAAA\",\"mime_type\":\"application/pdf\"}"), 400,
         "INVALID_REQUEST", "expected image/* or audio/*"},
        {GROUP("{\"type\":\"media\",\"data\":\"" PNG "\",\"mime_type\":\"image/jpeg\"}"), 400,
         "INVALID_REQUEST", "comes as \\\"image/png\\\""},
        {GROUP("{\"type\":\"media\",\"mime_type\":\"image/png\"}"), 400, "INVALID_REQUEST",
         "neither 'data' nor 'url'"},
        {GROUP("{\"type\":\"media\",\"data\":\"AAAA\",\"url\":\"" PNG "\"}"), 400,
         "INVALID_REQUEST", "both 'data' and 'url'"},
        {GROUP("{\"type\":\"input_audio\"}"), 400, "INVALID_REQUEST", "input_audio"},
        {GROUP("{\"text\":\"a\"}"), 400, "INVALID_REQUEST", "content part of type"},
        {"\"input\":[{\"text\":\"a\"}]", 400, "INVALID_REQUEST", "content part of type"},
        {"\"input\":\"a\",\"task_type\":\"RETRIEVE\"", 400, "INVALID_REQUEST", "task_type"},
        {"\"input\":\"a\",\"model_identity\":7", 400, "INVALID_REQUEST", "64 lowercase"},
        {"\"input\":\"a\",\"model_identity\":\"0123456789ABCDEF0123456789abcdef0123456789abcdef"
         "0123456789abcdef\"",
         400, "INVALID_REQUEST", "64 lowercase"},
    };
    char word[64];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        embed(rows[i].rest);
        if (!T.req.done || T.req.status != rows[i].status)
            fail_msg("%s: %u %s", rows[i].rest, T.req.status, fake_answer());
        snprintf(word, sizeof(word), "{\"error\":\"%s\"", rows[i].code);
        assert_has(word);
        assert_has(rows[i].part);
    }
    assert_int_equal(T.fleet.n_tickets, 0);
}

/* n times one text between two others. */
static char *repeat(const char *before, const char *one, unsigned n, const char *behind)
{
    struct sup_json o = {0};

    sup_json_str(&o, before);
    for (unsigned i = 0; i < n; i++) {
        sup_json_str(&o, i ? "," : "");
        sup_json_str(&o, one);
    }
    sup_json_str(&o, behind);
    sup_json_put(&o, "", 1);
    return o.p;
}

static void test_counts(void **state)
{
    static const struct {
        const char *before, *one, *behind;
        unsigned n;
        const char *part; /* NULL = taken */
    } rows[] = {
        {"\"input\":[", "{\"content\":[" TEXT "]}", "]", 64, NULL},
        {"\"input\":[", "{\"content\":[" TEXT "]}", "]", 65, "got 65 groups, expected at most 64"},
        {"\"input\":[{\"content\":[", TEXT, "]}]", 64, NULL},
        {"\"input\":[{\"content\":[", TEXT, "]}]", 65, "got an array of 65"},
    };

    T.conf.max_embed_inputs = 100;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        unsigned before = T.fleet.n_tickets;
        char *rest = repeat(rows[i].before, rows[i].one, rows[i].n, rows[i].behind);

        embed(rest);
        free(rest);
        assert_int_equal(T.fleet.n_tickets - before, rows[i].part == NULL);
        if (rows[i].part) {
            assert_int_equal(T.req.status, 400);
            assert_has(rows[i].part);
        } else {
            fake_fail(before, RC_INTERNAL, "enough", 0);
        }
    }
}

static void test_media_budget(void **state)
{
    T.conf.max_media_bytes = 6;
    embed("\"input\":[" URL(PNG) "," URL(PNG) "]");
    assert_int_equal(T.req.status, 413);
    assert_has("\"error\":\"CONTENT_TOO_LARGE\"");
    assert_has("with those before it 8: the limit of a request is 6");
    assert_has("\"input_index\":1,\"stage\":\"parse\"");
    /* an item that is over takes nothing from those behind it */
    embed("\"error_policy\":\"per_item\",\"input\":[" URL(PNG) "," URL(PNG) "," URL(
        "data:image/png;base64,AAA=") "]");
    assert_int_equal(sent(0)->n_inputs, 2);
    assert_int_equal(T.front.held_bytes, 6);
    play(0, &(struct answer){.n = 2, .dim = 4, .identity = "", .bad = -1, .bad_again = -1});
    assert_has("\"code\":\"CONTENT_TOO_LARGE\"");
    T.conf.max_media_bytes = 0;
    embed("\"input\":[" URL(PNG) "]");
    assert_int_equal(T.req.status, 413);
    /* what all requests hold together */
    T.conf.max_media_bytes = 6;
    T.front.held_bytes = 16 * T.conf.max_body_bytes + 4 * 6 - 3;
    embed("\"input\":[" URL(PNG) "]");
    assert_int_equal(T.req.status, 503);
    assert_has("MODEL_RESOURCE_BUSY");
    T.front.held_bytes = 0;
}

/* ------------------------------------------------------------------ answers */

static void test_worker_is_not_believed(void **state)
{
    static const struct {
        const char *why;
        struct answer a;
    } rows[] = {
        {"2 vectors for 1", {.n = 2, .dim = 4, .identity = "", .bad = -1, .bad_again = -1}},
        {"another size", {.n = 1, .dim = 3, .identity = "", .bad = -1, .bad_again = -1}},
        {"another length",
         {.n = 1, .dim = 4, .identity = "", .bad = -1, .bad_again = -1, .short_data = true}},
        {"not given", {.n = 1, .dim = 4, .identity = "", .stage = "", .bad = 0, .bad_again = -1}},
    };

    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        embed("\"input\":\"a\"");
        play(i, &rows[i].a);
        if (T.req.status != 500 || !strstr(fake_answer(), rows[i].why))
            fail_msg("row %u: %u %s", i, T.req.status, fake_answer());
        assert_has("INFERENCE_FAILED");
    }
    /* per_item: an error of no input, and two of one */
    embed("\"input\":[\"a\",\"b\"],\"error_policy\":\"per_item\"");
    play(4, &(struct answer){
                .n = 2, .dim = 4, .identity = "", .stage = "", .bad = 2, .bad_again = -1});
    assert_int_equal(T.req.status, 500);
    embed("\"input\":[\"a\",\"b\"],\"error_policy\":\"per_item\"");
    play(5,
         &(struct answer){.n = 2, .dim = 4, .identity = "", .stage = "", .bad = 1, .bad_again = 1});
    assert_int_equal(T.req.status, 500);
}

static void test_stages(void **state)
{
    static const char *const rows[][2] = {{"image_decode", "image_decode"},
                                          {"audio_inference", "audio_inference"},
                                          {"", "text_inference"}};
    char want[64];

    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        embed("\"input\":[" URL(PNG) ",\"a\"],\"error_policy\":\"per_item\"");
        play(i, &(struct answer){.n = 2,
                                 .dim = 4,
                                 .identity = "",
                                 .stage = rows[i][0],
                                 .code = RC_INVALID,
                                 .bad = 0,
                                 .bad_again = -1});
        assert_int_equal(T.req.status, 200);
        snprintf(want, sizeof(want), "\"message\":\"no picture\",\"stage\":\"%s\"", rows[i][1]);
        assert_has(want);
        assert_has("\"status\":400");
    }
}

/* An item is told what a whole request would be: whether to try again, and tokens only as tokens.
 */
static void test_items_that_may_be_tried_again(void **state)
{
    static const struct {
        enum rc code;
        uint64_t limit;
        const char *part;
    } rows[] = {
        {RC_NOMEM, 0, "\"retryable\":true,\"status\":503,\"retry_after_ms\":1000}]"},
        {RC_BUSY, 9,
         "\"code\":\"MODEL_RESOURCE_BUSY\",\"message\":\"no picture\",\"stage\":"
         "\"inference\",\"retryable\":true,\"status\":503,\"retry_after_ms\":1000}]"},
        {RC_LIMIT, 9,
         "\"code\":\"MODEL_RESOURCE_LIMIT\",\"message\":\"no picture\",\"stage\":"
         "\"inference\",\"retryable\":false,\"status\":507}]"},
        {RC_TOO_LARGE, 9, "\"retryable\":false,\"status\":413,\"n_tokens\":10,\"limit\":9}]"},
        {RC_TOO_LARGE, 0, "\"retryable\":false,\"status\":413}]"},
        {RC_INTERNAL, 0, "\"retryable\":false,\"status\":500}]"},
    };

    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        embed("\"input\":[" URL(PNG) ",\"a\"],\"error_policy\":\"per_item\"");
        play(i, &(struct answer){.n = 2,
                                 .dim = 4,
                                 .identity = "",
                                 .stage = "inference",
                                 .code = rows[i].code,
                                 .limit = rows[i].limit,
                                 .bad = 0,
                                 .bad_again = -1});
        assert_int_equal(T.req.status, 200);
        assert_has(rows[i].part);
    }
}

static void test_identity(void **state)
{
    struct rc_err err = RC_ERR_INIT;

    embed("\"input\":\"a\",\"model_identity\":\"" ID_A "\"");
    rc_fail_what(&err, RC_CONFLICT, "model_identity", "the loaded model is " ID_B);
    fake_end(0, &err, 0);
    assert_int_equal(T.req.status, 409);
    assert_has("{\"error\":\"MODEL_IDENTITY_MISMATCH\"");
    assert_has("\"retryable\":false");
    assert_string_equal(fake_out_header("x-should-retry"), "false");
    /* a worker that does not keep to the pin is found out */
    embed("\"input\":\"a\",\"model_identity\":\"" ID_B "\"");
    play(1, &good);
    assert_int_equal(T.req.status, 409);
    assert_has("MODEL_IDENTITY_MISMATCH");
    embed("\"input\":\"a\",\"model_identity\":\"" ID_B "\"");
    play(2, &(struct answer){.n = 1, .dim = 4, .identity = "", .bad = -1, .bad_again = -1});
    assert_int_equal(T.req.status, 409);
    assert_has("has no identity");
    embed("\"input\":\"a\"");
    assert_string_equal(sent(3)->model_identity, "");
    play(3, &good);
    assert_has("\"model_identity\":\"" ID_A "\"");
}

static void test_numeric_frame(void **state)
{
    static const struct {
        const char *accept, *more;
        bool frame;
    } rows[] = {
        {"application/vnd.antfly.numeric.v1", "", true},
        {"application/json;q=0.5, Application/VND.antfly.numeric.v1;q=0.9", "", true},
        {"application/vnd.antfly.numeric.v1", ",\"encoding_format\":\"base64\"", true},
        {"application/vnd.antfly.numeric.v1;q=0", "", false},
        {"application/vnd.antfly.numeric.v11", "", false},
        {"application/vnd.antfly.numeric.v1", ",\"error_policy\":\"per_item\"", false},
        {"*/*", "", false},
    };
    const float want[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    char body[200];

    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        fake_req_reset();
        fake_header("accept", rows[i].accept);
        snprintf(body, sizeof(body), "{\"model\":\"eg2\",\"input\":[\"a\",\"b\"]%s}", rows[i].more);
        fake_post("/v1/embeddings", body);
        play(i, &(struct answer){.n = 2, .dim = 4, .identity = "", .bad = -1, .bad_again = -1});
        assert_int_equal(T.req.status, 200);
        if (!rows[i].frame) {
            assert_string_equal(T.req.type, "application/json");
            continue;
        }
        assert_string_equal(T.req.type, "application/vnd.antfly.numeric.v1");
        assert_int_equal(T.req.answer.n, 24 + sizeof(want));
        assert_memory_equal(T.req.answer.p, "AFN1\1\0\0\0\2\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0", 24);
        assert_memory_equal(T.req.answer.p + 24, want, sizeof(want));
    }
}

/* ------------------------------------------------------------- attachments */

struct part_of_frame {
    const char *mime, *data;
};

static size_t frame_make(char *out, const char *json, const struct part_of_frame *p, unsigned n)
{
    char *at = out;

    memset(out, 0, 24 + 16 * n);
    memcpy(out, "AFATT001", 8);
    out[8] = (char)(strlen(json) & 255);
    out[9] = (char)(strlen(json) >> 8);
    out[16] = (char)n;
    for (unsigned i = 0; i < n; i++) {
        out[24 + 16 * i] = (char)strlen(p[i].mime);
        out[24 + 16 * i + 8] = (char)strlen(p[i].data);
    }
    at += 24 + 16 * n;
    at = stpcpy(at, json);
    for (unsigned i = 0; i < n; i++)
        at = stpcpy(stpcpy(at, p[i].mime), p[i].data);
    return (size_t)(at - out);
}

static void send_frame(const char *path, const char *model, const char *input,
                       const struct part_of_frame *p, unsigned n)
{
    static char bytes[4000], json[1000];

    fake_req_reset();
    fake_header("content-type", "Application/vnd.antfly.attachments.v1; a=b");
    snprintf(json, sizeof(json), "{\"model\":\"%s\",\"input\":%s}", model, input);
    fake_send_bytes("POST", path, bytes, frame_make(bytes, json, p, n));
    memset(bytes, 'z', sizeof(bytes)); /* the body is gone when the handler has returned */
}

static void test_attachments(void **state)
{
    const struct part_of_frame two[] = {{"image/PNG;x=1", "PIXELS"}, {"audio/wav", "WAVES"}};
    const Ipc__EmbedInput *in;

    send_frame("/ai/v1/embed", "eg2",
               "[{\"type\":\"media\",\"data\":\"attachment:1\",\"mime_type\":\"audio/WAV\"},{"
               "\"type\":\"image_url\",\"image_url\":{\"url\":\"attachment:0\"}},{\"type\":"
               "\"media\",\"url\":\"attachment:0\"}]",
               two, 2);
    assert_int_equal(sent(0)->n_inputs, 3);
    in = sent(0)->inputs[0];
    assert_string_equal(in->parts[0]->mime, "audio/wav");
    assert_memory_equal(in->parts[0]->data.data, "WAVES", 5);
    in = sent(0)->inputs[1];
    assert_string_equal(in->parts[0]->mime, "image/png");
    assert_int_equal(in->parts[0]->data.len, 6);
    assert_memory_equal(sent(0)->inputs[2]->parts[0]->data.data, "PIXELS", 6);
    fake_fail(0, RC_INTERNAL, "enough", 0);
    /* a model that a fresh look at the disk finds, behind the end of the handler */
    T.fleet.n_models = 2;
    T.fleet.hidden = T.fleet.models[2];
    T.fleet.hold_rescan = true;
    send_frame("/ai/v1/embed", "eg2",
               "[{\"type\":\"media\",\"url\":\"attachment:0\"},{\"type\":"
               "\"media\",\"url\":\"attachment:1\"}]",
               two, 2);
    assert_int_equal(T.front.held_bytes, T.req.n_body);
    T.req.body = "";
    T.req.n_body = 0;
    fake_rescan_end(&T.fleet);
    assert_int_equal(T.front.held_bytes, 6 + 5); /* the files, no longer the body */
    assert_memory_equal(sent(1)->inputs[0]->parts[0]->data.data, "PIXELS", 6);
    assert_memory_equal(sent(1)->inputs[1]->parts[0]->data.data, "WAVES", 5);
    fake_fail(1, RC_INTERNAL, "enough", 0);
    assert_int_equal(T.front.held_bytes, 0);
}

static void test_attachments_refused(void **state)
{
    static const struct {
        const char *input, *part;
        struct part_of_frame att;
        unsigned n;
    } rows[] = {
        {"[{\"type\":\"media\",\"url\":\"attachment:1\"}]",
         "expected attachment:0 to attachment:0",
         {"image/png", "x"},
         1},
        {"[{\"type\":\"media\",\"url\":\"attachment:00\"}]",
         "expected attachment:0",
         {"image/png", "x"},
         1},
        {"[{\"type\":\"media\",\"url\":\"attachment:\"}]",
         "expected attachment:0",
         {"image/png", "x"},
         1},
        {"[{\"type\":\"media\",\"url\":\"attachment:-1\"}]",
         "expected attachment:0",
         {"image/png", "x"},
         1},
        {"[{\"type\":\"media\",\"url\":\"attachment:4294967296\"}]",
         "expected attachment:0",
         {"image/png", "x"},
         1},
        {"[{\"type\":\"media\",\"url\":\"attachment:0\",\"mime_type\":\"image/jpeg\"}]",
         "comes as \\\"image/png\\\"",
         {"image/png", "x"},
         1},
        {"[{\"type\":\"media\",\"url\":\"attachment:0\"}]", "has no MIME type", {"png", "x"}, 1},
        {"[{\"type\":\"media\",\"url\":\"attachment:0\"}]",
         "video is not supported",
         {"video/mp4", "x"},
         1},
        {"[{\"type\":\"media\",\"url\":\"attachment:0\"}]",
         "the file is empty",
         {"image/png", ""},
         1},
        {"\"a\"", "no part names attachment:0 of the 1 that came", {"image/png", "x"}, 1},
        {"[{\"type\":\"media\",\"url\":\"attachment:0\"}]", "carries no attachments", {"", ""}, 0},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        send_frame("/ai/v1/embed", "eg2", rows[i].input, &rows[i].att, rows[i].n);
        if (T.req.status != 400 || !strstr(fake_answer(), rows[i].part))
            fail_msg("%s: %u %s", rows[i].input, T.req.status, fake_answer());
    }
    assert_int_equal(T.fleet.n_tickets, 0);
    /* endpoints without files say so */
    send_frame("/v1/chat/completions", "gemma", "\"a\"", NULL, 0);
    assert_int_equal(T.req.status, 415);
    assert_has("takes no attachments");
    /* and a frame is a frame, whatever is in it */
    fake_req_reset();
    fake_header("content-type", "application/vnd.antfly.attachments.v1");
    fake_post("/ai/v1/embed", "{\"model\":\"eg2\",\"input\":\"a\"}");
    assert_int_equal(T.req.status, 400);
    assert_has("AFATT001");
}

int main(void)
{
#define T_(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        T_(test_flat_media),
        T_(test_groups),
        T_(test_groups_per_item),
        T_(test_refusals),
        T_(test_counts),
        T_(test_media_budget),
        T_(test_worker_is_not_believed),
        T_(test_stages),
        T_(test_items_that_may_be_tried_again),
        T_(test_identity),
        T_(test_numeric_frame),
        T_(test_attachments),
        T_(test_attachments_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
