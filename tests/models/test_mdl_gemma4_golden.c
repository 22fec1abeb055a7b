/* Gemma 4 text against what transformers computed: logits of every case, the residual
 * stream after each layer, greedy runs - from safetensors (F32, BF16, both spellings of
 * the config, inside a multimodal checkpoint) and from GGUF files made of the same
 * weights. Provenance: tests/golden/README.md */
/* Scores have scale 1: what is rounded on the way shows more than in Gemma 3. */
#define TOL_NORM test_tol(1e-4, 8.2e-2, 2.2e-1)
#define GAP test_tol(2e-3, 2.4e-1, 4.8e-1)

#include "mdl_golden.h"

#define G4 TEST_GOLDEN "/gemma4_text"
#define G4_BF16 TEST_GOLDEN "/gemma4_text-bf16"
#define G4_MM TEST_GOLDEN "/gemma4_mm"
#define TOL test_tol(4e-4, 2.4e-1, 4.8e-1)
#define TOL_16 test_tol(4e-4, 4e-4, 4.8e-1)
#define TOL_16_KV test_tol(9e-2, 3.3e-1, 5.7e-1) /* and keys and values of 11 bits */

/* 8 layers, the upper 3 read others' keys: a prompt's rows leave in layer 4. */
static void every_layer_agrees(void **state)
{
    check_layers(G4, G4, 4, false);
    check_layers(G4, G4, 8, true);
}

static void f32_agrees(void **s)
{
    check_cases(&(struct golden){G4, G4, BE_F32, TOL});
}

static void bf16_agrees(void **s)
{
    check_cases(&(struct golden){G4_BF16, G4_BF16, BE_F32, TOL_16});
}

static void f16_kv_agrees_within_its_rounding(void **s)
{
    check_cases(&(struct golden){G4, G4, BE_F16, TOL_16_KV, NULL, test_tol(1e-1, 3.4e-1, 5.8e-1)});
}

static void text_of_a_multimodal_checkpoint_agrees(void **s)
{
    check_cases(&(struct golden){G4_MM, G4_MM, BE_F32, TOL, "text_only"});
}

static void gguf_f32_agrees(void **s)
{
    char path[512];

    gguf_make(path, sizeof(path), G4, "g4-f32.gguf", NULL);
    check_cases(&(struct golden){path, G4, BE_F32, TOL});
}

static void gguf_bf16_agrees(void **s)
{
    char path[512];

    gguf_make(path, sizeof(path), G4_BF16, "g4-bf16.gguf", NULL);
    check_cases(&(struct golden){path, G4_BF16, BE_F32, TOL_16});
}

static void tokens_equal_those_of_the_reference(void **state)
{
    char path[512];

    gguf_make(path, sizeof(path), G4, "g4-f32.gguf", NULL);
    check_tokens(G4, G4);
    check_tokens(path, G4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layer_agrees),
        cmocka_unit_test(f32_agrees),
        cmocka_unit_test(bf16_agrees),
        cmocka_unit_test(f16_kv_agrees_within_its_rounding),
        cmocka_unit_test(text_of_a_multimodal_checkpoint_agrees),
        cmocka_unit_test(gguf_f32_agrees),
        cmocka_unit_test(gguf_bf16_agrees),
        cmocka_unit_test(tokens_equal_those_of_the_reference),
    };
    int rc;

    need_dir(G4);
    be = test_ctx(2);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    be_ctx_free(&be);
    return rc;
}
