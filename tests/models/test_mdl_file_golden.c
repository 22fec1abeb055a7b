/* test_mdl_file_golden.c - the golden checkpoints open, and every tensor that
 * the generator listed is there with its shape and finite values.
 */
#include "mdl_file.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void take_all(const char *dir, size_t n_least, enum be_dtype dtype)
{
    struct rc_err err = RC_ERR_INIT;
    struct mdl_file *f = NULL;
    char path[512];
    uint64_t sum = 0;
    int fd;

    snprintf(path, sizeof(path), TEST_GOLDEN "/%s", dir);
    fd = open(path, O_RDONLY | O_DIRECTORY);
    assert_true(fd >= 0);
    if (mdl_file_open(&f, fd, &err) != RC_OK)
        fail_msg("%s: %s", dir, err.msg);
    assert_int_equal(mdl_file_format(f), MDL_SAFETENSORS);
    assert_true(mdl_file_n_tensors(f) >= n_least);
    for (size_t i = 0; i < mdl_file_n_tensors(f); i++) {
        const struct mdl_tensor *t = mdl_file_tensor(f, i), *got = NULL;
        assert_int_equal(t->dtype, dtype);
        assert_ptr_equal(mdl_file_find(f, t->name), t);
        if (mdl_file_take(f, t->name, t->n_dims, t->dims, &got, &err) != RC_OK)
            fail_msg("%s", err.msg);
        assert_ptr_equal(got, t);
        sum += t->n_bytes;
        mdl_file_drop(f, t);
    }
    assert_int_equal(mdl_file_bytes(f), sum);
    assert_null(mdl_file_find(f, "no.such.tensor"));
    assert_int_equal(mdl_file_guard(f, &err), RC_OK);
    mdl_file_close(&f);
    assert_null(f);
    close(fd);
}

static void gemma_f32(void **state)
{
    take_all("gemma3_text", 20, BE_F32);
}

static void gemma_bf16(void **state)
{
    take_all("gemma3_text-bf16", 20, BE_BF16);
}

static void minilm_f32(void **state)
{
    take_all("minilm", 20, BE_F32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemma_f32),
        cmocka_unit_test(gemma_bf16),
        cmocka_unit_test(minilm_f32),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
