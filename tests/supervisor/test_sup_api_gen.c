/* test_sup_api_gen.c - chat and completions: request to frame, frames to answer. */
#include "sup_api_test.h"

#define HI "{\"model\":\"gemma\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"
#define ID "chatcmpl-"

static void assert_refused(const char *body, unsigned status, const char *code, const char *part)
{
    char word[64];

    fake_req_reset();
    fake_post("/ai/v1/chat/completions", body);
    if (!T.req.done || T.req.status != status)
        print_error("body: %s\nanswer %u: %s\n", body, T.req.status, fake_answer());
    assert_true(T.req.done);
    assert_int_equal(T.req.status, status);
    snprintf(word, sizeof(word), "{\"error\":\"%s\"", code);
    assert_has(word);
    assert_has(part);
}

/* Puts the answer's own id in the place of ID in a pattern and compares. */
static void assert_answer(const char *want)
{
    static char buf[16384];
    const char *got = fake_answer(), *id = strstr(got, "cmpl-");
    char *to = buf;

    assert_non_null(id);
    id += 5;
    for (; *want; want++) {
        if (*want == '@') {
            memcpy(to, id, 16);
            to += 16;
        } else {
            *to++ = *want;
        }
    }
    *to = '\0';
    assert_string_equal(got, buf);
}

/* -------------------------------------------------------------- request to frame */

static void test_chat_defaults(void **state)
{
    const Ipc__Generate *q;

    fake_post("/v1/chat/completions", HI "}");
    q = fake_ticket(0)->frame->generate;
    assert_string_equal(fake_ticket(0)->model, "gemma");
    assert_int_equal(fake_ticket(0)->task.deadline_us, 5000000 + 60000 * 1000);
    assert_int_equal(q->deadline_us, 5000000 + 60000 * 1000);
    assert_int_equal(q->kind, 1);
    assert_int_equal(q->n_messages, 1);
    assert_string_equal(q->messages[0]->role, "user");
    assert_memory_equal(q->messages[0]->content.data, "Hi", 2);
    assert_int_equal(q->max_tokens, 256);
    assert_int_equal(q->n, 1);
    assert_false(q->stream || q->echo || q->logprobs || q->ignore_eos || q->return_token_ids);
    assert_true(q->sampling->temperature == 0.0f); /* greedy unless asked */
    assert_true(q->sampling->repetition_penalty == 1.0f);
    assert_false(q->sampling->has_seed);
}

static void test_chat_all_fields(void **state)
{
    const Ipc__Generate *q;
    const Ipc__Sampling *s;

    fake_post("/ai/v1/generate",
              "{\"model\":\"gemma\",\"messages\":[{\"role\":\"developer\",\"content\":\"S\"},"
              "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":"
              "\"text\",\"text\":\"b\\u0000c\"}]},{\"role\":\"assistant\",\"content\":\"x\"}],"
              "\"max_tokens\":9,\"max_completion_tokens\":7.0,\"temperature\":0.5,\"top_p\":0.9,"
              "\"top_k\":40,\"min_p\":0.05,\"typical_p\":0.25,\"repetition_penalty\":1.1,"
              "\"frequency_penalty\":-0.5,"
              "\"presence_penalty\":1,\"seed\":-3,\"stop\":[\"A\",\"\xe4\xb8\xad\"],\"n\":3,"
              "\"logprobs\":true,\"top_logprobs\":5,\"logit_bias\":{\"17\":-100,\"999\":1.5},"
              "\"stream\":true,\"stream_options\":{\"include_usage\":true},\"response_format\":"
              "{\"type\":\"text\"},\"ignore_eos\":true,\"return_token_ids\":true,\"tools\":[],"
              "\"tool_choice\":\"none\",\"user\":\"u\",\"unknown\":{\"x\":[1]},\"timeout_ms\":10,"
              "\"modalities\":[\"text\"],\"backend\":\"cpu\"}");
    q = fake_ticket(0)->frame->generate;
    s = q->sampling;
    assert_int_equal(q->n_messages, 3);
    assert_string_equal(q->messages[0]->role, "system");
    assert_int_equal(q->messages[1]->content.len, 5);
    assert_memory_equal(q->messages[1]->content.data, "a\nb\0c", 5);
    assert_string_equal(q->messages[2]->role, "assistant");
    assert_int_equal(q->max_tokens, 7);
    assert_true(s->temperature == 0.5f && s->top_p == 0.9f && s->top_k == 40 && s->min_p == 0.05f);
    assert_true(s->typical_p == 0.25f);
    assert_true(s->repetition_penalty == 1.1f && s->frequency_penalty == -0.5f);
    assert_true(s->presence_penalty == 1.0f && s->has_seed && s->seed == (uint64_t)-3);
    assert_int_equal(s->n_logit_bias, 2);
    assert_int_equal(s->logit_bias[0]->token, 17);
    assert_true(s->logit_bias[0]->bias == -100.0f && s->logit_bias[1]->bias == 1.5f);
    assert_int_equal(q->n_stop, 2);
    assert_memory_equal(q->stop[1].data, "\xe4\xb8\xad", 3);
    assert_true(q->n == 3 && q->logprobs && q->top_logprobs == 5 && q->stream);
    assert_true(q->ignore_eos && q->return_token_ids);
    assert_int_equal(q->deadline_us, 5000000 + 10 * 1000);
}

static void test_null_is_absent(void **state)
{
    fake_post("/v1/chat/completions",
              HI ",\"max_tokens\":null,\"temperature\":null,\"stop\":null,\"seed\":null,\"n\":null,"
                 "\"tools\":null,\"tool_choice\":null,\"response_format\":null,\"logit_bias\":null,"
                 "\"stream\":null,\"stream_options\":null,\"logprobs\":null,\"top_logprobs\":null,"
                 "\"grammar\":null,\"audio\":null,\"functions\":null}");
    assert_int_equal(fake_ticket(0)->frame->generate->max_tokens, 256);
    assert_int_equal(fake_ticket(0)->frame->generate->n, 1);
}

static void test_speculation_is_asked_of_the_worker(void **state)
{
    static const struct {
        const char *fields;
        uint32_t mode, most;
    } rows[] = {
        {"", 0, 0},
        {",\"speculation_policy\":null,\"speculative_k\":null,\"draft_model\":null", 0, 0},
        {",\"speculation_policy\":\"auto\",\"speculative_k\":8", 0, 8},
        {",\"speculation_policy\":\"off\"", 1, 0},
        {",\"speculation_policy\":\"lookup\",\"speculative_k\":1", 2, 1},
        {",\"speculation_policy\":\"mtp\"", 3, 0},
        {",\"draft_model\":\"gemma\"", 0, 0}, /* the model itself: no wish */
        {",\"draft_model\":\"assistant\"", 3, 0},
        {",\"draft_model\":\"gemma/assistant\",\"speculative_k\":2", 3, 2},
        {",\"draft_model\":\"assistant\",\"speculation_policy\":\"mtp\"", 3, 0},
        {",\"draft_model\":\"assistant\",\"speculation_policy\":\"off\"", 1, 0},
    };
    char body[512];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (int chat = 0; chat < 2; chat++) {
            const Ipc__Generate *q;

            fake_req_reset();
            snprintf(body, sizeof(body), "{\"model\":\"gemma\",%s%s}",
                     chat ? "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
                          : "\"prompt\":\"hi\"",
                     rows[i].fields);
            fake_post(chat ? "/v1/chat/completions" : "/v1/completions", body);
            assert_false(T.req.done);
            q = fake_ticket(T.fleet.n_tickets - 1)->frame->generate;
            if (q->speculation != rows[i].mode || q->speculation_tokens != rows[i].most)
                fail_msg("%s: mode %u, %u tokens", rows[i].fields, q->speculation,
                         q->speculation_tokens);
            T.req.abort_fn(T.req.abort_user);
            T.req.done = true;
        }
}

static void test_chat_refusals(void **state)
{
    static const struct {
        const char *body;
        unsigned status;
        const char *code, *part;
    } rows[] = {
        {"{\"messages\":[]}", 400, "INVALID_REQUEST", "field 'model': missing"},
        {"{\"model\":\"\",\"messages\":[]}", 400, "INVALID_REQUEST", "an empty string"},
        {"{\"model\":\"nope\",\"messages\":5}", 404, "MODEL_NOT_FOUND", "model 'nope' not found"},
        {"{\"model\":\"gemma\"}", 400, "INVALID_REQUEST", "field 'messages': missing"},
        {"{\"model\":\"gemma\",\"messages\":[]}", 400, "INVALID_REQUEST", "an empty array"},
        {"{\"model\":\"gemma\",\"messages\":[5]}", 400, "INVALID_REQUEST", "'messages[0]': got 5"},
        {"{\"model\":\"gemma\",\"messages\":[{\"role\":\"user\"}]}", 400, "INVALID_REQUEST",
         "'messages[0].content': got null"},
        {"{\"model\":\"gemma\",\"messages\":[{\"role\":\"user\",\"content\":[]}]}", 400,
         "INVALID_REQUEST", "'messages[0].content': got an empty array"},
        {"{\"model\":\"gemma\",\"messages\":[{\"role\":\"king\",\"content\":\"x\"}]}", 400,
         "INVALID_REQUEST", "got \\\"king\\\""},
        {"{\"model\":\"gemma\",\"messages\":[{\"role\":\"user\\u0000\",\"content\":\"x\"}]}", 400,
         "INVALID_REQUEST", "messages[0].role"},
        {"{\"model\":\"gemma\",\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]}", 400,
         "INVALID_MODEL", "does not support tool calling"},
        {"{\"model\":\"gemma\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":"
         "\"image_url\",\"image_url\":\"x\"}]}]}",
         400, "INVALID_REQUEST", "content part of type \\\"image_url\\\""},
        {"{\"model\":\"gemma\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]"
         "}",
         400, "INVALID_REQUEST", "messages[0].content[0].text"},
        {HI ",\"tools\":[{\"type\":\"function\"}]}", 400, "INVALID_MODEL",
         "model 'gemma' does not support tool calling (field 'tools')"},
        {HI ",\"reasoning_effort\":\"high\"}", 400, "INVALID_MODEL",
         "model 'gemma' does not think before it answers (field 'reasoning_effort')"},
        {HI ",\"reasoning_effort\":\"much\"}", 400, "INVALID_REQUEST", "got \\\"much\\\""},
        {HI ",\"chat_template_kwargs\":{\"enable_thinking\":true}}", 400, "INVALID_MODEL",
         "chat_template_kwargs.enable_thinking"},
        {HI ",\"chat_template_kwargs\":{\"x\":1}}", 400, "UNSUPPORTED_FEATURE",
         "chat_template_kwargs.x"},
        {HI ",\"tool_choice\":\"auto\"}", 400, "INVALID_MODEL", "tool calling"},
        {HI ",\"functions\":[{}]}", 400, "INVALID_MODEL", "tool calling"},
        {HI ",\"modalities\":[\"audio\"]}", 400, "UNSUPPORTED_FEATURE", "modalities"},
        {HI ",\"top_k\":-5}", 400, "INVALID_REQUEST",
         "field 'top_k': got -5, expected an integer from 0 to 1000000"},
        {HI ",\"temperature\":1e308}", 400, "INVALID_REQUEST", "temperature"},
        {HI ",\"temperature\":1e999}", 400, "INVALID_REQUEST", "field 'temperature': the number"},
        {HI ",\"n\":1000000}", 400, "INVALID_REQUEST", "field 'n'"},
        {HI ",\"seed\":18446744073709551616}", 400, "INVALID_REQUEST", "field 'seed'"},
        {HI ",\"max_tokens\":0}", 400, "INVALID_REQUEST", "max_tokens"},
        {HI ",\"max_tokens\":9223372036854775808}", 400, "INVALID_REQUEST", "max_tokens"},
        {HI ",\"top_logprobs\":3}", 400, "INVALID_REQUEST", "top_logprobs"},
        {HI ",\"logit_bias\":{\"999999999\":5}}", 400, "INVALID_REQUEST", "999999999"},
        {HI ",\"logit_bias\":{\"1000\":5}}", 400, "INVALID_REQUEST", "from 0 to 999"},
        {HI ",\"logit_bias\":{\"-1\":1}}", 400, "INVALID_REQUEST", "logit_bias"},
        {HI ",\"logit_bias\":{\"abc\":1}}", 400, "INVALID_REQUEST", "logit_bias"},
        {HI ",\"logit_bias\":{\"7\":101}}", 400, "INVALID_REQUEST", "logit_bias.7"},
        {HI ",\"stop\":\"\"}", 400, "INVALID_REQUEST", "stop"},
        {HI ",\"stop\":[\"a\",5]}", 400, "INVALID_REQUEST", "stop[1]"},
        {HI ",\"stop\":[1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6,7]}", 400, "INVALID_REQUEST", "stop"},
        {HI ",\"stream_options\":{\"include_usage\":1}}", 400, "INVALID_REQUEST",
         "stream_options.include_usage"},
        {HI ",\"timeout_ms\":-1}", 400, "INVALID_REQUEST", "timeout_ms"},
        {HI ",\"speculation_policy\":\"force\"}", 400, "INVALID_REQUEST",
         "field 'speculation_policy': got \\\"force\\\", expected one of auto|off|lookup|mtp"},
        {HI ",\"speculative_k\":0}", 400, "INVALID_REQUEST",
         "field 'speculative_k': got 0, expected an integer from 1 to 8"},
        {HI ",\"speculative_k\":9}", 400, "INVALID_REQUEST", "speculative_k"},
        {HI ",\"draft_model\":5}", 400, "INVALID_REQUEST", "draft_model"},
        {HI ",\"draft_model\":\"\"}", 400, "INVALID_REQUEST", "draft_model"},
        {HI ",\"draft_model\":\"org/minilm\"}", 400, "INVALID_REQUEST",
         "field 'draft_model': got \\\"org/minilm\\\", expected \\\"assistant\\\""},
        {HI ",\"draft_model\":\"org/minilm/assistant\"}", 400, "INVALID_REQUEST", "draft_model"},
        {HI ",\"draft_model\":\"gemma.assistant\"}", 400, "INVALID_REQUEST", "draft_model"},
        {HI ",\"draft_model\":\"assistant\",\"speculation_policy\":\"lookup\"}", 400,
         "INVALID_REQUEST", "beside speculation_policy"},
        {"{\"model\":\"org/minilm\",\"messages\":[]}", 400, "INVALID_MODEL",
         "does not generate text"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_refused(rows[i].body, rows[i].status, rows[i].code, rows[i].part);
    assert_int_equal(T.fleet.n_tickets, 0);
}

static void test_completions_prompts(void **state)
{
    static const struct {
        const char *prompt;
        unsigned n;
        uint32_t kind;
    } rows[] = {
        {"\"ab\"", 1, 2}, {"[\"a\",\"b\"]", 2, 2}, {"[1,2,3]", 1, 3}, {"[[1],[2,999]]", 2, 3}};
    char body[128];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        unsigned before = T.fleet.n_tickets;

        fake_req_reset();
        snprintf(body, sizeof(body), "{\"model\":\"gemma\",\"prompt\":%s,\"echo\":true}",
                 rows[i].prompt);
        fake_post("/v1/completions", body);
        assert_false(T.req.done);
        assert_int_equal(T.fleet.n_tickets - before, rows[i].n);
        for (unsigned k = before; k < T.fleet.n_tickets; k++) {
            assert_int_equal(fake_ticket(k)->frame->generate->kind, rows[i].kind);
            assert_true(fake_ticket(k)->frame->generate->echo);
        }
        T.req.abort_fn(T.req.abort_user);
        T.req.done = true;
    }
}

static void test_completions_refusals(void **state)
{
    static const struct {
        const char *rest, *part;
    } rows[] = {
        {"}", "field 'prompt': missing"},
        {",\"prompt\":\"\"}", "an empty string"},
        {",\"prompt\":[]}", "an empty array"},
        {",\"prompt\":[[]]}", "prompt[0]"},
        {",\"prompt\":[\"a\",5]}", "prompt[1]"},
        {",\"prompt\":[1,\"a\"]}", "prompt[1]"},
        {",\"prompt\":[1000]}", "a token id from 0 to 999"},
        {",\"prompt\":[-1]}", "prompt[0]"},
        {",\"prompt\":{}}", "prompt"},
        {",\"prompt\":\"a\",\"logprobs\":65}", "from 0 to 64"},
        {",\"prompt\":\"a\",\"logprobs\":true}", "logprobs"},
        {",\"prompt\":\"a\",\"best_of\":2}", "best_of"},
        {",\"prompt\":[\"a\",\"b\"],\"n\":100}", "at most 128 choices"},
        {",\"prompt\":\"a\",\"suffix\":\"x\"}", "suffix"},
    };
    char body[256];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        fake_req_reset();
        snprintf(body, sizeof(body), "{\"model\":\"gemma\"%s", rows[i].rest);
        fake_post("/v1/completions", body);
        assert_true(T.req.done);
        assert_int_equal(T.req.status, 400);
        assert_has("{\"error\":{\"message\":\"");
        assert_has(rows[i].part);
    }
    assert_int_equal(T.fleet.n_tickets, 0);
}

/* -------------------------------------------------------------- frames to answer */

static void test_chat_answer(void **state)
{
    fake_post("/v1/chat/completions", HI "}");
    fake_delta(0, 0, "Hel\"lo\n", 0);
    fake_delta(0, 0, " \xf0\x9f\x98\x80", 1);
    fake_done(0, 10, 2, 4);
    assert_int_equal(T.req.status, 200);
    assert_string_equal(T.req.type, "application/json");
    assert_answer(
        "{\"id\":\"chatcmpl-@\",\"object\":\"chat.completion\",\"created\":0,\"model\":"
        "\"gemma\",\"system_fingerprint\":\"inferd-" INFERD_VERSION
        "\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":"
        "\"Hel\\\"lo\\n \xf0\x9f\x98\x80\",\"refusal\":null},\"logprobs\":null,"
        "\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":10,"
        "\"completion_tokens\":2,\"total_tokens\":12,\"cached_prompt_tokens\":4,"
        "\"prompt_tokens_details\":{\"cached_tokens\":4},\"completion_tokens_details\":{\"accepted_"
        "prediction_tokens\":0,\"rejected_prediction_tokens\":0}},\"timings\":{\"queue_ms\":1.000,"
        "\"prefill_ms\":2.000,\"decode_ms\":4.000,\"prefill_tokens_per_second\":3000.00,"
        "\"decode_tokens_per_second\":500.00}}");
}

#define CHUNK                                                                                    \
    "data: {\"id\":\"chatcmpl-@\",\"object\":\"chat.completion.chunk\",\"created\":0,\"model\":" \
    "\"gemma\",\"system_fingerprint\":\"inferd-" INFERD_VERSION "\",\"choices\":["
#define ROLE(i)                                                                                 \
    CHUNK "{\"index\":" #i ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":" \
          "null,\"finish_reason\":null}]}\n\n"
#define TEXT(i, t)                                                                 \
    CHUNK "{\"index\":" #i ",\"delta\":{\"content\":\"" t "\"},\"logprobs\":null," \
          "\"finish_reason\":null}]}\n\n"
#define END(i, r) \
    CHUNK "{\"index\":" #i ",\"delta\":{},\"logprobs\":null,\"finish_reason\":\"" r "\"}]}\n\n"

static void test_chat_stream_bytes(void **state)
{
    fake_post("/v1/chat/completions", HI ",\"stream\":true}");
    assert_false(T.req.streaming); /* no head before the first frame */
    fake_delta(0, 0, "Hi", 0);
    assert_true(T.req.streaming);
    assert_string_equal(T.req.type, "text/event-stream; charset=utf-8");
    assert_string_equal(fake_out_header("Cache-Control"), "no-cache");
    fake_delta(0, 0, "", 0); /* nothing new: no chunk */
    fake_delta(0, 0, "!", 2);
    fake_done(0, 3, 2, 0);
    assert_true(T.req.done);
    assert_answer(ROLE(0) TEXT(0, "Hi") TEXT(0, "!") END(0, "length") "data: [DONE]\n\n");
}

static void test_chat_stream_two_choices_and_usage(void **state)
{
    fake_post("/v1/chat/completions",
              HI ",\"stream\":true,\"n\":2,\"stream_options\":{\"include_usage\":true}}");
    fake_delta(0, 1, "b", 0);
    fake_delta(0, 0, "a", 1);
    fake_delta(0, 1, "", 1);
    fake_done(0, 3, 2, 0);
    assert_answer(
        ROLE(1) TEXT(1, "b") ROLE(0) TEXT(0, "a") END(0, "stop") END(1, "stop") CHUNK
        "],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5,"
        "\"cached_prompt_tokens\":0,\"prompt_tokens_details\":{\"cached_tokens\":0},\"completion_"
        "tokens_details\":{\"accepted_prediction_tokens\":0,\"rejected_prediction_tokens\":0}},"
        "\"timings\":{\"queue_ms\":1.000,\"prefill_ms\":2.000,\"decode_ms\":4.000,"
        "\"prefill_tokens_per_second\":1500.00,\"decode_tokens_per_second\":500.00}}\n\n"
        "data: [DONE]\n\n");
}

static void play_probs(unsigned ticket, uint32_t token, const char *piece, float lp, bool has,
                       uint32_t offset, uint32_t finish)
{
    Ipc__Frame fr = IPC__FRAME__INIT;
    Ipc__Delta d = IPC__DELTA__INIT;
    Ipc__TokenProb p = IPC__TOKEN_PROB__INIT, *pp = &p;
    Ipc__TopProb a = IPC__TOP_PROB__INIT, b = IPC__TOP_PROB__INIT, *top[2] = {&a, &b};

    p.token = token;
    p.piece.data = (uint8_t *)(uintptr_t)piece;
    p.piece.len = strlen(piece);
    p.logprob = lp;
    p.has_logprob = has;
    p.text_offset = offset;
    a.token = token;
    a.piece = p.piece;
    a.logprob = lp;
    b.piece.data = (uint8_t *)(uintptr_t) "\xe2\x9c";
    b.piece.len = 2;
    b.token = 3;
    b.logprob = -2.5f;
    if (has) {
        p.top = top;
        p.n_top = 2;
    }
    d.text = p.piece;
    d.tokens = &token;
    d.n_tokens = 1;
    d.probs = &pp;
    d.n_probs = 1;
    d.finish = finish;
    fr.body_case = IPC__FRAME__BODY_DELTA;
    fr.delta = &d;
    fake_play(ticket, &fr);
}

static void test_chat_logprobs(void **state)
{
    fake_post("/v1/chat/completions",
              HI ",\"logprobs\":true,\"top_logprobs\":2,\"return_token_ids\":true}");
    play_probs(0, 42, "a", -0.5f, true, 0, 1);
    fake_done(0, 1, 1, 0);
    assert_has("\"logprobs\":{\"content\":[{\"id\":42,\"token\":\"a\",\"logprob\":-0.5,"
               "\"bytes\":[97],\"top_logprobs\":[{\"id\":42,\"token\":\"a\",\"logprob\":-0.5,"
               "\"bytes\":[97]},{\"id\":3,\"token\":"
               "\"\xef\xbf\xbd\xef\xbf\xbd\",\"logprob\":-2.5,\"bytes\":[226,156]}]}],\"refusal\":"
               "null},\"finish_reason\":\"stop\",\"token_ids\":[42]}],\"prompt_token_ids\":[]");
}

static void test_completions_answer(void **state)
{
    Ipc__Frame fr = IPC__FRAME__INIT;
    Ipc__Done d = IPC__DONE__INIT;
    uint32_t ids[2] = {5, 6};

    fake_post("/v1/completions", "{\"model\":\"gemma\",\"prompt\":[\"a\",\"b\"],\"logprobs\":2,"
                                 "\"return_token_ids\":true,\"echo\":true}");
    play_probs(1, 7, "x", 0, false, 0, 0);
    play_probs(1, 8, "y", -1.25f, true, 1, 2);
    fake_delta(0, 0, "first", 1);
    d.prompt_token_ids = ids;
    d.n_prompt_token_ids = 2;
    d.prompt_tokens = 2;
    d.completion_tokens = 1;
    fr.body_case = IPC__FRAME__BODY_DONE;
    fr.done = &d;
    fake_play(1, &fr);
    fake_end(1, NULL, 0);
    assert_false(T.req.done);
    fake_done(0, 3, 4, 0);
    assert_has("{\"id\":\"cmpl-");
    assert_has("\"object\":\"text_completion\"");
    assert_has("\"choices\":[{\"index\":0,\"text\":\"first\",\"logprobs\":{\"tokens\":[],"
               "\"token_logprobs\":[],\"top_logprobs\":[],\"top_token_ids\":[],\"text_offset\":[]},"
               "\"finish_reason\":"
               "\"stop\",\"token_ids\":[],\"prompt_token_ids\":[]},{\"index\":1,\"text\":\"xy\","
               "\"logprobs\":{\"tokens\":[\"x\",\"y\"],\"token_logprobs\":[null,-1.25],"
               "\"top_logprobs\":[null,{\"y\":-1.25,\"bytes:\\\\xe2\\\\x9c\":-2.5}],"
               "\"top_token_ids\":[null,[[8,-1.25],[3,-2.5]]],"
               "\"text_offset\":[0,1]},\"finish_reason\":\"length\",\"token_ids\":[7,8],"
               "\"prompt_token_ids\":[5,6]}]");
    assert_has("\"prompt_tokens\":5,\"completion_tokens\":5,\"total_tokens\":10");
}

static void test_completions_stream(void **state)
{
    fake_post("/v1/completions", "{\"model\":\"gemma\",\"prompt\":\"a\",\"stream\":true}");
    fake_delta(0, 0, "b", 1);
    fake_done(0, 1, 1, 0);
    assert_answer("data: {\"id\":\"cmpl-@\",\"object\":\"text_completion\",\"created\":0,"
                  "\"model\":\"gemma\",\"system_fingerprint\":\"inferd-" INFERD_VERSION
                  "\",\"choices\":[{\"index\":0,\"text\":\"b\",\"logprobs\":null,"
                  "\"finish_reason\":null}]}\n\n"
                  "data: {\"id\":\"cmpl-@\",\"object\":\"text_completion\",\"created\":0,"
                  "\"model\":\"gemma\",\"system_fingerprint\":\"inferd-" INFERD_VERSION
                  "\",\"choices\":[{\"index\":0,\"text\":\"\",\"logprobs\":null,"
                  "\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n");
}

/* ----------------------------------------------------------- errors and back-pressure */

static void test_error_before_first_frame_keeps_its_status(void **state)
{
    fake_post("/v1/chat/completions", HI ",\"stream\":true}");
    fake_fail(0, RC_BUSY, "no room", 2500);
    assert_false(T.req.streaming);
    assert_int_equal(T.req.status, 503);
    assert_string_equal(fake_out_header("Retry-After"), "3");
    assert_null(fake_out_header("x-should-retry"));
    assert_string_equal(
        fake_answer(),
        "{\"error\":{\"message\":\"no room\",\"type\":\"overloaded_error\",\"param\":"
        "null,\"code\":\"MODEL_RESOURCE_BUSY\",\"retryable\":true,\"reason\":"
        "\"inference_capacity\",\"retry_after_ms\":2500}}");
}

static void test_error_in_the_middle_of_a_stream(void **state)
{
    fake_post("/ai/v1/chat/completions", HI ",\"stream\":true}");
    fake_delta(0, 0, "Hi", 0);
    fake_fail(0, RC_CRASHED, "the worker died", 0);
    assert_true(T.req.done);
    assert_answer(ROLE(0) TEXT(0, "Hi") "event: error\ndata: {\"error\":\"WORKER_CRASHED\","
                                        "\"message\":\"the worker died\",\"retryable\":false}\n\n");
}

static void beat(uv_handle_t *h, void *arg)
{
    if (h->type == UV_TIMER && !uv_is_closing(h)) {
        ((uv_timer_t *)h)->timer_cb((uv_timer_t *)h);
        ++*(int *)arg;
    }
}

static void test_waiting_stream_gets_a_heartbeat(void **state)
{
    int n = 0;

    fake_post("/v1/chat/completions", HI ",\"stream\":true}");
    uv_walk(&T.front.loop, beat, &n);
    assert_int_equal(n, 1);
    assert_true(T.req.streaming);
    assert_string_equal(fake_answer(), ": waiting\n\n");
    /* the head is out: now an error is an event */
    fake_fail(0, RC_DEADLINE, "too late", 0);
    assert_string_equal(fake_answer(),
                        ": waiting\n\nevent: error\ndata: {\"error\":{\"message\":\"too late\","
                        "\"type\":\"timeout_error\",\"param\":null,\"code\":\"DEADLINE_EXCEEDED\","
                        "\"retryable\":false}}\n\n");
}

static void test_busy_stream_gets_no_heartbeat(void **state)
{
    int n = 0;
    unsigned writes;

    fake_post("/v1/chat/completions", HI ",\"stream\":true}");
    fake_delta(0, 0, "Hi", 0);
    writes = T.req.writes;
    uv_walk(&T.front.loop, beat, &n);
    assert_int_equal(T.req.writes, writes);
    uv_walk(&T.front.loop, beat, &n); /* quiet since the last beat */
    assert_int_equal(T.req.writes, writes + 1);
}

static void test_slow_client_pauses_its_ticket(void **state)
{
    fake_post("/v1/chat/completions", HI ",\"stream\":true}");
    T.req.full = true;
    fake_delta(0, 0, "Hi", 0);
    assert_true(fake_ticket(0)->paused);
    T.req.full = false;
    T.req.drain_fn(T.req.drain_user);
    assert_false(fake_ticket(0)->paused);
    fake_delta(0, 0, "", 1);
    fake_done(0, 1, 1, 0);
    assert_true(T.req.done);
}

static void test_client_cut_inside_a_write(void **state)
{
    fake_post("/v1/chat/completions", HI ",\"stream\":true}");
    T.req.cut_on_write = true;
    fake_delta(0, 0, "Hi", 0);
    assert_true(T.fleet.tickets[0].cancelled);
    assert_int_equal(T.front.active, 0);
}

static void test_client_leaves(void **state)
{
    fake_post("/v1/completions", "{\"model\":\"gemma\",\"prompt\":[\"a\",\"b\"]}");
    assert_int_equal(T.front.active, 1);
    T.req.abort_fn(T.req.abort_user);
    T.req.done = true;
    assert_true(T.fleet.tickets[0].cancelled && T.fleet.tickets[1].cancelled);
    assert_int_equal(T.front.active, 0);
}

static void test_queue_full_at_the_second_prompt(void **state)
{
    T.fleet.refuse = RC_BUSY;
    T.fleet.refuse_at = 1;
    fake_post("/v1/completions", "{\"model\":\"gemma\",\"prompt\":[\"a\",\"b\"]}");
    assert_int_equal(T.req.status, 503);
    assert_has("MODEL_RESOURCE_BUSY");
    assert_has("inference_admission");
    assert_string_equal(fake_out_header("Retry-After"), "1");
    assert_true(T.fleet.tickets[0].cancelled);
}

static void test_one_part_fails(void **state)
{
    fake_post("/ai/v1/completions", "{\"model\":\"gemma\",\"prompt\":[\"a\",\"b\"]}");
    fake_fail(0, RC_POISONED, "again", 0);
    assert_int_equal(T.req.status, 500);
    assert_has("{\"error\":\"REQUEST_POISONED\"");
    assert_string_equal(fake_out_header("x-should-retry"), "false");
    assert_true(T.fleet.tickets[1].cancelled);
}

int main(void)
{
#define T_(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        T_(test_chat_defaults),
        T_(test_chat_all_fields),
        T_(test_null_is_absent),
        T_(test_speculation_is_asked_of_the_worker),
        T_(test_chat_refusals),
        T_(test_completions_prompts),
        T_(test_completions_refusals),
        T_(test_chat_answer),
        T_(test_chat_stream_bytes),
        T_(test_chat_stream_two_choices_and_usage),
        T_(test_chat_logprobs),
        T_(test_completions_answer),
        T_(test_completions_stream),
        T_(test_error_before_first_frame_keeps_its_status),
        T_(test_error_in_the_middle_of_a_stream),
        T_(test_waiting_stream_gets_a_heartbeat),
        T_(test_busy_stream_gets_no_heartbeat),
        T_(test_slow_client_pauses_its_ticket),
        T_(test_client_cut_inside_a_write),
        T_(test_client_leaves),
        T_(test_queue_full_at_the_second_prompt),
        T_(test_one_part_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
