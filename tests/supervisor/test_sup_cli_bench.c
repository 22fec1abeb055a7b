/* test_sup_cli_bench.c - what a person sees of a bench: whole, cleaned, within 80 columns. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "sup_bench_show.h"
#include "sup_term.h"

static char *shown(const char *json)
{
    json_t *o = json_loads(json, 0, NULL);
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);

    assert_non_null(o);
    assert_non_null(f);
    sup_bench_show(f, o);
    fclose(f);
    json_decref(o);
    return text;
}

static void says(const char *json, const char *const *want, size_t n)
{
    char *text = shown(json);

    for (size_t i = 0; i < n; i++)
        if (strstr(text, want[i]) == NULL)
            fail_msg("'%s' is not in:\n%s", want[i], text);
    for (char *s = text; *s != '\0'; s += strcspn(s, "\n") + 1)
        if (sup_text_width(s, strcspn(s, "\n")) > 80)
            fail_msg("wider than 80: %.*s", (int)strcspn(s, "\n"), s);
    free(text);
}
#define SAYS(json, ...)                                     \
    do {                                                    \
        const char *const want[] = {__VA_ARGS__};           \
        says((json), want, sizeof(want) / sizeof(want[0])); \
    } while (0)

#define ROW(n, fits, rest) "{\"seqs\":" n ",\"fits\":" fits "," rest "}"

static void a_chat_model(void **state)
{
    (void)state;
    SAYS(
        "{\"family\":\"gemma3\",\"quant\":\"Q5_0\",\"kernels\":\"avx2\",\"f32_gemm\":\"openblas\","
        "\"threads\":128,\"runs\":100,\"load_ms\":123456.7,\"weight_bytes\":999999999999,"
        "\"kv_bytes\":999999999999,\"ctx_tokens\":131072,"
        "\"prompt_tokens\":131071,\"prefill_tok_s\":1234567.8,\"prefill_tok_s_runs\":[1200000,"
        "1234567.8,1300000],\"ttft_ms\":98.7,\"ttft_ms_runs\":[98.7],"
        "\"context_tokens\":131000,\"gen_tokens\":1048576,\"seqs\":3,\"decode_tok_s\":123456.7,"
        "\"batch\":[" ROW("1", "true", "\"decode_tok_s\":100.0,\"decode_tok_s_runs\":[99,101],\"scaling\":1.0") "," ROW(
            "2", "true", "\"decode_tok_s\":180.0,\"scaling\":1.8") "," ROW("32", "false",
                                                                           "\"why\":\"32 x 177 "
                                                                           "tokens need 96.0 MiB "
                                                                           "of KV cache, 64.0 are "
                                                                           "there\"") "],"
                                                                                      "\"prefix\":{"
                                                                                      "\"prefix_"
                                                                                      "tokens\":"
                                                                                      "2048,"
                                                                                      "\"prompt_"
                                                                                      "tokens\":"
                                                                                      "2080,"
                                                                                      "\"cached_"
                                                                                      "tokens\":"
                                                                                      "1024,"
                                                                                      "\"cold_ttft_"
                                                                                      "ms\":123456."
                                                                                      "7,\"hit_"
                                                                                      "ttft_ms\":"
                                                                                      "1234.5,"
                                                                                      "\"ratio\":0."
                                                                                      "01},"
                                                                                      "\"speculatio"
                                                                                      "n\":["
                                                                                      "{\"mode\":"
                                                                                      "\"lookup\","
                                                                                      "\"text\":"
                                                                                      "\"repeating"
                                                                                      "\",\"plain_"
                                                                                      "tok_s\":"
                                                                                      "12345.6,"
                                                                                      "\"spec_tok_"
                                                                                      "s\":23456.7,"
                                                                                      "\"gain\":1."
                                                                                      "9,"
                                                                                      "\"offered\":"
                                                                                      "123456,"
                                                                                      "\"accepted\""
                                                                                      ":123450,"
                                                                                      "\"rests\":"
                                                                                      "false,"
                                                                                      "\"same_"
                                                                                      "tokens\":"
                                                                                      "true},"
                                                                                      "{\"mode\":"
                                                                                      "\"mtp\","
                                                                                      "\"text\":"
                                                                                      "\"prose\","
                                                                                      "\"plain_tok_"
                                                                                      "s\":10,"
                                                                                      "\"spec_tok_"
                                                                                      "s\":9,"
                                                                                      "\"gain\":0."
                                                                                      "9,"
                                                                                      "\"offered\":"
                                                                                      "0,"
                                                                                      "\"accepted\""
                                                                                      ":0,"
                                                                                      "\"rests\":"
                                                                                      "true,\"same_"
                                                                                      "tokens\":"
                                                                                      "false}],"
                                                                                      "\"not_"
                                                                                      "applicable\""
                                                                                      ":{\"embed\":"
                                                                                      "\"the model "
                                                                                      "makes no "
                                                                                      "embeddings\""
                                                                                      "},"
                                                                                      "\"interrupte"
                                                                                      "d\":true}",
        "gemma3  Q5_0  kernels: avx2", "threads: 128", "1234567.8  1200000.0  1300000.0",
        "generated by 3 sequences together", "100.0   99.0  101.0  100.0    1.00 x",
        "180.0  180.0  180.0   90.0    1.80 x",
        "32 do not fit: 32 x 177 tokens need 96.0 MiB of KV cache, 64.0 are there",
        "prompt of 2080, all new", "second / first: 1.0 %", "of 2048 shared tokens 1024 were found",
        "123450 of 123456  goes on", "0 of 0  rests", "rests: guessing has switched itself off",
        "WARNING: guessed answers", "not applicable: embed - the model makes no embeddings",
        "interrupted: what is missing");
}

static void an_embedder(void **state)
{
    (void)state;
    SAYS("{\"family\":\"bert\",\"threads\":2,\"embed_batch\":32,\"embed_tokens\":128,"
         "\"encode_seq_s\":120.5,\"encode_tok_s\":15424,\"embed_scaling\":[{\"texts\":1,"
         "\"encode_seq_s\":30,\"scaling\":1},{\"texts\":2,\"encode_seq_s\":60,\"scaling\":2}],"
         "\"not_applicable\":{\"prompt\":\"the model does not generate text\","
         "\"spec\":\"the model does not generate text\"}}",
         "embedded texts/s, 32 in a request", "120.5", "15424.0", "TEXTS AT ONCE", "2.00 x",
         "not applicable: prompt - ", "\n                spec - ");
}

static void a_hostile_worker(void **state)
{
    char *text = shown("{\"family\":\"a\\u001b[2Jb\",\"threads\":\"x\",\"batch\":7,\"prefix\":[],"
                       "\"speculation\":[5,{\"mode\":\"\\u001b]0;t\\u0007\",\"text\":null}],"
                       "\"not_applicable\":{\"\\u001b[1mx\":3}}");

    (void)state;
    assert_null(strchr(text, '\x1b'));
    assert_non_null(strstr(text, "ab  threads: 0"));
    free(text);
    free(shown("{}"));
    free(shown("[]"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chat_model),
        cmocka_unit_test(an_embedder),
        cmocka_unit_test(a_hostile_worker),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
