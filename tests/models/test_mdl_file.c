/* test_mdl_file.c - roots of every kind: a GGUF file, directories, shards, files
 * that shrink, scales that are not finite. */
#include "mdl_file.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "mdl_build.h"

static char dir[64];
static int root;

static int setup(void **state)
{
    strcpy(dir, "/tmp/test_mdl_file.XXXXXX");
    assert_non_null(mkdtemp(dir));
    root = open(dir, O_RDONLY | O_DIRECTORY);
    return root < 0;
}

static const char *const names[] = {"model.safetensors", "model.safetensors.index.json",
                                    "a.safetensors",     "b.safetensors",
                                    "one.gguf",          "two.gguf",
                                    "pytorch_model.bin", "pytorch_model.bin.index.json"};

static int clean(void **state)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        unlinkat(root, names[i], 0);
    return 0;
}

static int teardown(void **state)
{
    close(root);
    return rmdir(dir);
}

static void save(const char *name, const void *p, size_t n)
{
    int f = openat(root, name, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    assert_true(f >= 0);
    assert_int_equal(write(f, p, n), (ssize_t)n);
    close(f);
}

/* tensor named `name`, F32 [2] */
static void save_st(const char *file, const char *name)
{
    struct out o = {0};
    char json[256];

    snprintf(json, sizeof(json),
             "{\"%s\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", name);
    snprintf(json + strlen(json), 16, "%*s", (int)(8 - strlen(json) % 8), "");
    safetensors(&o, json, 8);
    save(file, o.p, o.n);
    free(o.p);
}

static void save_gguf(const char *file)
{
    struct out o = {0};

    gguf_head(&o, 2, 1, 1);
    kv_str(&o, "general.architecture", "x");
    tensor_info(&o, "t", 1, 8, 0, 0, 0);
    pad(&o, 32);
    for (int i = 0; i < 4; i++)
        put64(&o, 0);
    save(file, o.p, o.n);
    free(o.p);
}

static enum rc open_root(struct mdl_file **f, struct rc_err *err)
{
    *f = NULL;
    return mdl_file_open(f, root, err);
}

static void gguf_as_file_and_in_a_directory(void **state)
{
    struct rc_err err = RC_ERR_INIT;
    struct mdl_file *f;

    assert_int_equal(open_root(&f, &err), RC_NOT_FOUND);
    assert_non_null(strstr(err.msg, "model.safetensors.index.json"));
    save_gguf("one.gguf");
    assert_int_equal(open_root(&f, &err), RC_OK);
    assert_int_equal(mdl_file_format(f), MDL_GGUF);
    mdl_file_close(&f);
    int fd = openat(root, "one.gguf", O_RDONLY);
    assert_int_equal(mdl_file_open(&f, fd, &err), RC_OK);
    assert_non_null(mdl_file_find(f, "t"));
    close(fd); /* the root is only borrowed: the mapping stays */
    assert_int_equal(mdl_file_guard(f, &err), RC_OK);
    assert_int_equal(*(const float *)mdl_file_find(f, "t")->data, 0);
    mdl_file_close(&f);
    save_gguf("two.gguf");
    assert_int_equal(open_root(&f, &err), RC_NOT_FOUND);
    assert_non_null(strstr(err.msg, "2 *.gguf"));
    save_st("model.safetensors", "t"); /* goes first */
    assert_int_equal(open_root(&f, &err), RC_OK);
    assert_int_equal(mdl_file_format(f), MDL_SAFETENSORS);
    mdl_file_close(&f);
}

static void shards_by_their_index(void **state)
{
    static const struct {
        const char *name, *json;
        enum rc rc;
        const char *says;
    } rows[] = {
        {"sound",
         "{\"metadata\":{},\"weight_map\":{\"a\":\"a.safetensors\",\"b\":\"b.safetensors\"}}",
         RC_OK, ""},
        {"no map", "{\"metadata\":{}}", RC_FORMAT, "no weight_map"},
        {"no JSON", "{", RC_FORMAT, "index.json"},
        {"a number for a file", "{\"weight_map\":{\"a\":1}}", RC_FORMAT, "no file name"},
        {"an absent file", "{\"weight_map\":{\"a\":\"c.safetensors\"}}", RC_NOT_FOUND,
         "c.safetensors"},
        {"a file outside", "{\"weight_map\":{\"a\":\"../x.safetensors\"}}", RC_IO, "leads out"},
        {"a tensor in the wrong file",
         "{\"weight_map\":{\"a\":\"b.safetensors\",\"b\":\"a.safetensors\"}}", RC_WEIGHT_ABSENT,
         "does not hold it"},
        {"a tensor that is nowhere",
         "{\"weight_map\":{\"a\":\"a.safetensors\",\"x\":\"a.safetensors\"}}", RC_WEIGHT_ABSENT,
         "'x'"},
    };
    struct mdl_file *f;

    save_st("a.safetensors", "a");
    save_st("b.safetensors", "b");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct rc_err err = RC_ERR_INIT;
        save("model.safetensors.index.json", rows[i].json, strlen(rows[i].json));
        enum rc rc = open_root(&f, &err);
        if (rc != rows[i].rc || !strstr(err.msg, rows[i].says))
            fail_msg("%s: %s '%s'", rows[i].name, rc_name(rc), err.msg);
        if (rc == RC_OK) {
            assert_int_equal(mdl_file_n_tensors(f), 2);
            assert_non_null(mdl_file_find(f, "b"));
        }
        mdl_file_close(&f);
    }
    save_st("b.safetensors", "a"); /* the same name in two shards */
    save("model.safetensors.index.json", rows[0].json, strlen(rows[0].json));
    struct rc_err err = RC_ERR_INIT;
    assert_int_equal(open_root(&f, &err), RC_FORMAT);
    assert_non_null(strstr(err.msg, "appears twice"));
}

/* A state dict is read where there is nothing else; when it is not, the reason is told. */
static void why_no_state_dict_is_read(void **state)
{
    struct rc_err err = RC_ERR_INIT;
    struct mdl_file *f;

    save("pytorch_model.bin.index.json", "{}", 2);
    assert_int_equal(open_root(&f, &err), RC_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "in several files"));
    assert_string_equal(err.what, "pytorch_model.bin.index.json");
    save("pytorch_model.bin", "", 0);
    assert_int_equal(open_root(&f, &err), RC_FORMAT);
    assert_non_null(strstr(err.msg, "'pytorch_model.bin' is empty"));
    assert_int_equal(unlinkat(root, "pytorch_model.bin", 0), 0);
    assert_int_equal(symlinkat("/dev/null", root, "pytorch_model.bin"), 0);
    assert_int_equal(open_root(&f, &err), RC_IO);
    assert_string_equal(err.what, "pytorch_model.bin");
    assert_int_equal(unlinkat(root, "pytorch_model.bin", 0), 0);
    save("pytorch_model.bin", "\x80\2", 2);
    assert_int_equal(open_root(&f, &err), RC_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "before 1.6"));
    save_gguf("one.gguf"); /* which of the two is meant is for the folder's owner to say */
    save_gguf("two.gguf");
    assert_int_equal(open_root(&f, &err), RC_NOT_FOUND);
    assert_non_null(strstr(err.msg, "2 *.gguf"));
}

static void a_file_that_shrinks_or_is_written_to_is_noticed(void **state)
{
    const struct timespec past[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000000000}};
    struct rc_err err = RC_ERR_INIT;
    struct mdl_file *f;

    save_gguf("one.gguf");
    assert_int_equal(utimensat(root, "one.gguf", past, 0), 0); /* however coarse the clock is */
    assert_int_equal(open_root(&f, &err), RC_OK);
    int fd = openat(root, "one.gguf", O_RDWR);
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(mdl_file_guard(f, &err), RC_OK);
    assert_int_equal(ftruncate(fd, st.st_size + 100), 0);
    assert_int_equal(mdl_file_guard(f, &err), RC_WEIGHT_IO);
    assert_non_null(strstr(err.msg, "written to"));
    assert_int_equal(ftruncate(fd, 10), 0);
    assert_int_equal(mdl_file_guard(f, &err), RC_WEIGHT_IO);
    assert_non_null(strstr(err.msg, "one.gguf"));
    close(fd);
    mdl_file_close(&f);
    save("one.gguf", "", 0);
    assert_int_equal(open_root(&f, &err), RC_FORMAT);
    assert_non_null(strstr(err.msg, "empty"));
}

/* One tensor of each type; poison one scale at a time. */
static void scales_must_be_finite(void **state)
{
    static const struct {
        enum be_dtype t;
        uint32_t block, bytes;
        int at[2]; /* bytes of the scales in a block, -1 none */
    } rows[] = {
        {BE_F32, 1, 4, {0, -1}},     {BE_F16, 1, 2, {0, -1}},        {BE_BF16, 1, 2, {0, -1}},
        {BE_Q4_0, 32, 18, {0, -1}},  {BE_Q4_1, 32, 20, {0, 2}},      {BE_Q5_0, 32, 22, {0, -1}},
        {BE_Q5_1, 32, 24, {0, 2}},   {BE_Q8_0, 32, 34, {0, -1}},     {BE_Q4_K, 256, 144, {0, 2}},
        {BE_Q5_K, 256, 176, {0, 2}}, {BE_Q6_K, 256, 210, {208, -1}},
    };
    enum { N = 37 }; /* blocks: more than the widest step, and a rest */

    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        struct rc_err err = RC_ERR_INIT;
        struct mdl_file *f = NULL;
        const struct mdl_tensor *t = NULL;
        struct out o = {0};
        uint64_t dims[2] = {N, rows[r].block};
        gguf_head(&o, 3, 1, 0);
        tensor_info(&o, "w", 2, rows[r].block, N, (uint32_t)rows[r].t, 0);
        pad(&o, 32);
        size_t start = o.n;
        for (uint32_t i = 0; i < N * rows[r].bytes; i++) /* large, and finite as a scale */
            put(&o, i % 2 ? "\x7A" : "\xFF", 1);
        assert_int_equal(mdl_gguf_parse(&f, o.p, o.n, &err), RC_OK);
        if (mdl_file_take(f, "w", 2, dims, &t, &err) != RC_OK)
            fail_msg("type %d: %s", rows[r].t, err.msg);
        for (uint32_t b = 0; b < N; b++)
            for (int k = 0; k < 2 && rows[r].at[k] >= 0; k++)
                for (int nan = 0; nan < 2; nan++) {
                    uint8_t *p = o.p + start + b * rows[r].bytes + rows[r].at[k], old[4];
                    uint32_t w = rows[r].t == BE_F32 ? 4 : 2;
                    uint32_t v = rows[r].t == BE_F32    ? 0x7F800000u + (nan ? 1 : 0)
                                 : rows[r].t == BE_BF16 ? 0xFF80u + (nan ? 1 : 0)
                                                        : 0xFC00u + (nan ? 1 : 0);
                    char want[32];
                    memcpy(old, p, w);
                    memcpy(p, &v, w);
                    snprintf(want, sizeof(want), " %u is not", b);
                    assert_int_equal(mdl_file_take(f, "w", 2, dims, &t, &err), RC_FORMAT);
                    assert_non_null(strstr(err.msg, want));
                    memcpy(p, old, w);
                }
        mdl_file_close(&f);
        free(o.p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(gguf_as_file_and_in_a_directory, clean),
        cmocka_unit_test_teardown(shards_by_their_index, clean),
        cmocka_unit_test_teardown(why_no_state_dict_is_read, clean),
        cmocka_unit_test_teardown(a_file_that_shrinks_or_is_written_to_is_noticed, clean),
        cmocka_unit_test(scales_must_be_finite),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
