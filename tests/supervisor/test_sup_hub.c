/* test_sup_hub.c - the hub's lists, bad ones by name, and what is chosen from good ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "sup_hub.h"

#define C40 "0123456789abcdef0123456789abcdef01234567"
#define C64 C40 "89abcdef0123456789abcdef"
#define LIST(files) "{\"sha\":\"" C40 "\",\"siblings\":[" files "]}"

static void lists_are_read(void **state)
{
    const char *text =
        LIST("{\"rfilename\":\"config.json\",\"size\":7,\"blobId\":\"" C40 "\"},"
             "{\"rfilename\":\"a.gguf\",\"size\":9,\"blobId\":\"" C40 "\","
             "\"lfs\":{\"sha256\":\"" C64 "\",\"size\":900,\"pointerSize\":1}},"
             "{\"rfilename\":\"b.gguf\",\"lfs\":{\"oid\":\"sha256:" C64 "\",\"size\":5}},"
             "{\"rfilename\":\"c\"}");
    struct sup_hub_list l = {0};
    struct sup_hub_file *f;

    (void)state;
    assert_int_equal(sup_hub_parse(&l, text, strlen(text), NULL), RC_OK);
    assert_string_equal(l.commit, C40);
    assert_int_equal(l.n, 4);
    f = sup_hub_find(&l, "a.gguf");
    assert_int_equal(f->size, 900);
    assert_string_equal(f->sha256, C64);
    assert_string_equal(f->blob, "");
    f = sup_hub_find(&l, "config.json");
    assert_string_equal(f->blob, C40);
    assert_string_equal(sup_hub_find(&l, "b.gguf")->sha256, C64);
    assert_true(sup_hub_find(&l, "c")->size == SUP_SIZE_UNKNOWN);
    assert_null(sup_hub_find(&l, "d"));
    sup_hub_deinit(&l);
}

static void bad_lists_are_refused(void **state)
{
    static const struct {
        const char *text, *what;
    } rows[] = {
        {"", ""},
        {"[]", ""},
        {"{\"siblings\":[]}", "sha"},
        {"{\"sha\":\"main\",\"siblings\":[]}", "sha"},
        {"{\"sha\":\"" C40 "\"}", "siblings"},
        {LIST("{}"), "rfilename"},
        {LIST("7"), "rfilename"},
        {LIST("{\"rfilename\":\"../x\"}"), "rfilename"},
        {LIST("{\"rfilename\":\"/etc/passwd\"}"), "rfilename"},
        {LIST("{\"rfilename\":\"a/../../x\"}"), "rfilename"},
        {LIST("{\"rfilename\":\"a\\\\b\"}"), "rfilename"},
        {LIST("{\"rfilename\":\"x\",\"size\":-1}"), "size"},
        {LIST("{\"rfilename\":\"x\",\"size\":true}"), "size"},
        {LIST("{\"rfilename\":\"x\",\"blobId\":\"zz\"}"), "blobId"},
        {LIST("{\"rfilename\":\"x\",\"lfs\":{\"sha256\":\"" C40 "\"}}"), "sha256"},
        {LIST("{\"rfilename\":\"x\",\"lfs\":{\"oid\":7}}"), "oid"},
        {LIST("{\"rfilename\":\"x\"},{\"rfilename\":\"y\"},{\"rfilename\":\"x\"}"), "rfilename"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sup_hub_list l = {0};
        struct rc_err err = RC_ERR_INIT;

        if (sup_hub_parse(&l, rows[i].text, strlen(rows[i].text), &err) == RC_OK ||
            strcmp(err.what, rows[i].what) != 0)
            fail_msg("%s: '%s' %s", rows[i].text, err.what, err.msg);
    }
}

static void choices(void **state)
{
    /* files and what is taken of them: names separated by blanks, in the order of the alphabet */
    static const struct {
        const char *says, *files, *variant, *format, *taken;
    } rows[] = {
        {"one GGUF and no second format", "m-Q8_0.gguf m-f16.gguf model.safetensors config.json",
         "auto", "gguf:Q8_0", "config.json m-Q8_0.gguf"},
        {"the preferred one", "m-Q8_0.gguf m-Q4_K_S.gguf m-Q4_K_M.gguf", "auto", "gguf:Q4_K_S",
         "m-Q4_K_S.gguf"},
        {"Q4_K is not Q4_K_M", "m-Q4_K_M.gguf m-Q5_K_S.gguf", "auto", "gguf:Q4_K_M",
         "m-Q4_K_M.gguf"},
        {"UD is a kind of its own", "m-UD-Q4_K_S.gguf m-Q2_K.gguf", "auto", "gguf:UD-Q4_K_S",
         "m-UD-Q4_K_S.gguf"},
        {"an unknown one rather than none", "gemma_q4_0-it.gguf README.md", "auto", "gguf",
         "gemma_q4_0-it.gguf"},
        {"no projector, no part", "mmproj-a.gguf b-00001-of-00002.gguf c.gguf", "gguf", "gguf",
         "c.gguf"},
        {"a named quantization in any case", "m-q8_0.gguf m-Q4_K_M.gguf", "gguf:Q8_0", "gguf:Q8_0",
         "m-q8_0.gguf"},
        {"a bare quantization", "m-Q8_0.gguf m-Q4_K_M.gguf", "q4_k_m", "gguf:q4_k_m",
         "m-Q4_K_M.gguf"},
        {"a file by its name", "a.gguf b.gguf", "b.gguf", "b.gguf", "b.gguf"},
        {"safetensors although there is a GGUF",
         "a.gguf model.safetensors config.json 1_Pooling/config.json 2_Dense/model.safetensors "
         "x/config.json .hidden/config.json onnx/model.onnx",
         "safetensors", "safetensors",
         "1_Pooling/config.json 2_Dense/model.safetensors config.json model.safetensors"},
        {"safetensors of any name when it is alone", "config.json x.safetensors", "auto",
         "safetensors", "config.json x.safetensors"},
        {"torch where there is nothing else",
         "pytorch_model.bin config.json sparse_linear.pt tokenizer.json", "auto", "torch",
         "config.json pytorch_model.bin sparse_linear.pt tokenizer.json"},
        {"drafter",
         "model.safetensors config.json assistant/config.json assistant/model.safetensors", "auto",
         "safetensors",
         "assistant/config.json assistant/model.safetensors config.json model.safetensors"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char files[512], taken[512] = "", format[64];
        struct sup_hub_list l = {0};
        struct rc_err err = RC_ERR_INIT;
        bool index;

        snprintf(files, sizeof(files), "%s", rows[i].files);
        for (char *save, *p = strtok_r(files, " ", &save); p; p = strtok_r(NULL, " ", &save))
            assert_int_equal(sup_hub_add(&l, p, 1, NULL, NULL, &err), RC_OK);
        assert_int_equal(sup_hub_sort(&l, &err), RC_OK);
        if (sup_pick(&l, rows[i].variant, format, &index, &err) != RC_OK)
            fail_msg("%s: %s", rows[i].says, err.msg);
        assert_false(index);
        for (size_t k = 0; k < l.n; k++)
            if (l.file[k].taken)
                snprintf(taken + strlen(taken), sizeof(taken) - strlen(taken), "%s%s",
                         taken[0] ? " " : "", l.file[k].path);
        if (strcmp(taken, rows[i].taken) != 0 || strcmp(format, rows[i].format) != 0)
            fail_msg("%s: %s: %s", rows[i].says, format, taken);
        sup_hub_deinit(&l);
    }
}

static void choices_that_are_refused(void **state)
{
    static const struct {
        const char *files, *variant, *says;
        enum rc rc;
    } rows[] = {
        {"README.md onnx/model.onnx", "auto", "no weights that are run here", RC_NOT_FOUND},
        {"a-Q8_0.gguf model.safetensors config.json", "gguf:Q2_K", "safetensors, a-Q8_0.gguf",
         RC_NOT_FOUND},
        {"a-Q8_0.gguf", "safetensors", "there is: a-Q8_0.gguf", RC_NOT_FOUND},
        {"a-Q8_0.gguf", "gguf:", "there is no variant 'gguf:'", RC_NOT_FOUND},
        {"README.md", "gguf", "nothing that is run here", RC_NOT_FOUND},
        {"onnx/model.onnx", "onnx", "'onnx' is not run here", RC_INVALID},
        {"mmproj-a.gguf", "mmproj", "'mmproj' is not run here", RC_INVALID},
        {"model.safetensors", "auto", "no config.json", RC_NOT_FOUND},
        {"a.safetensors b.safetensors config.json", "auto", "no weights", RC_NOT_FOUND},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char files[512], format[64];
        struct sup_hub_list l = {0};
        struct rc_err err = RC_ERR_INIT;
        bool index;

        snprintf(files, sizeof(files), "%s", rows[i].files);
        for (char *save, *p = strtok_r(files, " ", &save); p; p = strtok_r(NULL, " ", &save))
            assert_int_equal(sup_hub_add(&l, p, 1, NULL, NULL, &err), RC_OK);
        assert_int_equal(sup_hub_sort(&l, &err), RC_OK);
        if (sup_pick(&l, rows[i].variant, format, &index, &err) != rows[i].rc ||
            !strstr(err.msg, rows[i].says))
            fail_msg("%s of %s: %s", rows[i].variant, rows[i].files, err.msg);
        sup_hub_deinit(&l);
    }
}

static void shards_come_from_the_index(void **state)
{
    const char *good = "{\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\","
                       "\"c\":\"m-1.safetensors\"}}";
    static const char *const bad[] = {
        "",
        "{}",
        "{\"weight_map\":{}}",
        "{\"weight_map\":{\"a\":7}}",
        "{\"weight_map\":{\"a\":\"absent.safetensors\"}}",
        "{\"weight_map\":{\"a\":\"config.json\"}}",
        "{\"weight_map\":{\"a\":\"../m-1.safetensors\"}}",
    };
    static const char *const files[] = {"config.json", SUP_HUB_INDEX, "m-1.safetensors",
                                        "m-2.safetensors", "m-3.safetensors"};
    struct sup_hub_list l = {0};
    char format[64];
    bool index = false;

    (void)state;
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(sup_hub_add(&l, files[i], 1, NULL, NULL, NULL), RC_OK);
    assert_int_equal(sup_hub_sort(&l, NULL), RC_OK);
    assert_int_equal(sup_pick(&l, "auto", format, &index, NULL), RC_OK);
    assert_true(index);
    assert_true(sup_hub_find(&l, SUP_HUB_INDEX)->taken);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_not_equal(sup_pick_shards(&l, bad[i], strlen(bad[i]), NULL), RC_OK);
    assert_int_equal(sup_pick_shards(&l, good, strlen(good), NULL), RC_OK);
    assert_true(sup_hub_find(&l, "m-2.safetensors")->taken);
    assert_false(sup_hub_find(&l, "m-3.safetensors")->taken);
    sup_hub_deinit(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_read),
        cmocka_unit_test(bad_lists_are_refused),
        cmocka_unit_test(choices),
        cmocka_unit_test(choices_that_are_refused),
        cmocka_unit_test(shards_come_from_the_index),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
