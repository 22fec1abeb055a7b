/* test_sup_api_chunk.c - chunks: built in and of a worker, refusals in words. */
#include "sup_api_test.h"

#define PATH "/ai/v1/chunk"

static void post(const char *body)
{
    fake_req_reset();
    fake_post(PATH, body);
}

static void test_built_in(void **state)
{
    post("{\"input\":\"One two.\\n\\nThr\xc3\xa9\xc3\xa9 four "
         "five\",\"config\":{\"model\":\"fixed\","
         "\"text\":{\"target_tokens\":5,\"overlap_tokens\":0}}}");
    assert_string_equal(
        fake_answer(),
        "{\"object\":\"list\",\"data\":[{\"object\":\"chunk\",\"index\":0,\"id\":\"chunk-0\","
        "\"mime_type\":\"text/plain\",\"text\":\"One two.\",\"start_char\":0,\"end_char\":8,"
        "\"n_tokens\":3},{\"object\":\"chunk\",\"index\":1,\"id\":\"chunk-1\",\"mime_type\":"
        "\"text/plain\",\"text\":\"Thr\xc3\xa9\xc3\xa9 four "
        "five\",\"start_char\":10,\"end_char\":25,"
        "\"n_tokens\":3}],\"model\":\"fixed\",\"truncated\":false,\"cache_hit\":false,\"usage\":{"
        "\"prompt_tokens\":6,\"completion_tokens\":0,\"total_tokens\":6}}");
    post("{\"text\":\"   \"}");
    assert_has("\"data\":[],\"model\":\"fixed-bert-tokenizer\"");
    post("{\"input\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}],"
         "\"config\":{"
         "\"model\":\"fixed_bpe\",\"max_chunks\":1,\"text\":{\"target_tokens\":1}}}");
    assert_has("\"text\":\"a\"");
    assert_has("\"model\":\"fixed_bpe\",\"truncated\":true");
    assert_int_equal(T.fleet.n_tickets, 0);
}

static void play(const uint32_t (*at)[2], size_t n, bool cut)
{
    Ipc__ChunkPiece p[4], *pp[4];
    Ipc__Chunks w = IPC__CHUNKS__INIT;
    Ipc__Frame fr = IPC__FRAME__INIT;
    unsigned last = T.fleet.n_tickets - 1;

    for (size_t i = 0; i < n; i++) {
        ipc__chunk_piece__init(&p[i]);
        p[i].start = at[i][0];
        p[i].end = at[i][1];
        p[i].n_tokens = 2;
        pp[i] = &p[i];
    }
    w.pieces = pp;
    w.n_pieces = n;
    w.cut = cut;
    w.n_tokens = 5;
    fr.body_case = IPC__FRAME__BODY_CHUNKS;
    fr.chunks = &w;
    fake_play(last, &fr);
    fake_end(last, NULL, 0);
}

#define MODEL               \
    "{\"input\":\"\xc3\xa9" \
    "bc d\xf0\x9f\x98\x80"  \
    "f\",\"config\":{\"model\":\"org/minilm\",\"max_chunks\":3}}"

static void test_of_a_model(void **state)
{
    static const uint32_t good[][2] = {{0, 5}, {4, 7}};
    static const struct {
        uint32_t at[4][2];
        size_t n;
    } bad[] = {
        {{{0, 8}}, 1}, {{{2, 1}}, 1}, {{{2, 3}, {1, 4}}, 2}, {{{0, 1}, {1, 2}, {2, 3}, {3, 4}}, 4}};
    const Ipc__Chunk *q;

    post(MODEL);
    assert_string_equal(fake_ticket(0)->model, "org/minilm");
    q = fake_ticket(0)->frame->chunk;
    assert_int_equal(q->text.len, 11);
    assert_true(q->target_tokens == 500 && q->overlap_tokens == 50 && q->max_chunks == 3);
    assert_true(q->separator.len == 2 && memcmp(q->separator.data, "\n\n", 2) == 0 &&
                !q->sentences);
    play(good, 2, true);
    assert_has("\"text\":\"\xc3\xa9"
               "bc d\",\"start_char\":0,\"end_char\":5,\"n_tokens\":2}");
    assert_has("\"text\":\"d\xf0\x9f\x98\x80"
               "f\",\"start_char\":4,\"end_char\":7");
    assert_has("\"model\":\"org/minilm\",\"truncated\":true");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        post(MODEL);
        play(bad[i].at, bad[i].n, false);
        assert_int_equal(T.req.status, 500);
        assert_has("INFERENCE_FAILED");
    }
    post("{\"input\":\"a\",\"config\":{\"model\":\"nothing\"}}");
    assert_int_equal(T.req.status, 404);
}

static void test_refusals_say_what_was_expected(void **state)
{
    static const struct {
        const char *body, *code, *says;
    } rows[] = {
        {"{}", "INVALID_REQUEST", "'input': missing"},
        {"{\"input\":\"a\",\"text\":\"a\"}", "INVALID_REQUEST", "got both"},
        {"{\"input\":\"\"}", "INVALID_REQUEST", "got an empty string"},
        {"{\"input\":{\"type\":\"media\",\"data\":\"AAAA\",\"mime_type\":\"audio/wav\"}}",
         "UNSUPPORTED_FEATURE", "pictures and sounds"},
        {"{\"input\":\"a\",\"config\":{\"model\":7}}", "INVALID_REQUEST", "'config.model': got 7"},
        {"{\"input\":\"a\",\"config\":{\"max_chunks\":0}}", "INVALID_REQUEST",
         "'config.max_chunks'"},
        {"{\"input\":\"a\",\"config\":{\"text\":{\"target_tokens\":0}}}", "INVALID_REQUEST",
         "'config.text.target_tokens': got 0"},
        {"{\"input\":\"a\",\"config\":{\"text\":{\"target_tokens\":20,\"overlap_tokens\":20}}}",
         "INVALID_REQUEST", "got 20, expected less than target_tokens (20)"},
        {"{\"input\":\"a\",\"config\":{\"threshold\":2}}", "INVALID_REQUEST", "'config.threshold'"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char code[64];

        post(rows[i].body);
        snprintf(code, sizeof(code), "{\"error\":\"%s\"", rows[i].code);
        assert_int_equal(T.req.status, 400);
        assert_has(code);
        assert_has(rows[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_built_in, setup, teardown),
        cmocka_unit_test_setup_teardown(test_of_a_model, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refusals_say_what_was_expected, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
