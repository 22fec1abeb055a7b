/* Gemma 3 against what transformers computed: logits of every case, the residual
 * stream after each layer, greedy runs - from safetensors (F32, BF16) and from GGUF
 * files made of the same weights. Provenance: tests/golden/README.md */
#include "mdl_golden.h"

static void f32_agrees(void **s)
{
    check_cases(&(struct golden){GEMMA_DIR, GEMMA_DIR, BE_F32, TOL_F32});
}

static void bf16_agrees(void **s)
{
    need_dir(GEMMA_BF16_DIR);
    check_cases(&(struct golden){GEMMA_BF16_DIR, GEMMA_BF16_DIR, BE_F32, TOL_BF16});
}

static void f16_kv_agrees_within_its_rounding(void **s)
{
    check_cases(&(struct golden){GEMMA_DIR, GEMMA_DIR, BE_F16, TOL_F16_KV});
}

static void gguf_f32_agrees(void **s)
{
    char path[512];

    gguf_make(path, sizeof(path), GEMMA_DIR, "f32.gguf", NULL);
    check_cases(&(struct golden){path, GEMMA_DIR, BE_F32, TOL_F32});
}

static void gguf_bf16_agrees(void **s)
{
    char path[512];

    need_dir(GEMMA_BF16_DIR);
    gguf_make(path, sizeof(path), GEMMA_BF16_DIR, "bf16.gguf", NULL);
    check_cases(&(struct golden){path, GEMMA_BF16_DIR, BE_F32, TOL_BF16});
}

static void every_layer_agrees(void **state)
{
    check_layers(GEMMA_DIR, GEMMA_DIR, 6, false);
    check_layers(GEMMA_DIR, GEMMA_DIR, 7, true);
}

static void gguf_tokens_equal_those_of_the_reference(void **state)
{
    char path[512];

    gguf_make(path, sizeof(path), GEMMA_DIR, "f32.gguf", NULL);
    check_tokens(path, GEMMA_DIR);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layer_agrees),
        cmocka_unit_test(f32_agrees),
        cmocka_unit_test(bf16_agrees),
        cmocka_unit_test(f16_kv_agrees_within_its_rounding),
        cmocka_unit_test(gguf_f32_agrees),
        cmocka_unit_test(gguf_bf16_agrees),
        cmocka_unit_test(gguf_tokens_equal_those_of_the_reference),
    };
    int rc;

    need_dir(GEMMA_DIR);
    if (getenv("INFERD_TEST_ONLY")) /* one of the above */
        cmocka_set_test_filter(getenv("INFERD_TEST_ONLY"));
    be = test_ctx(2);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    be_ctx_free(&be);
    return rc;
}
