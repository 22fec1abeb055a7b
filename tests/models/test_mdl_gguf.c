/* test_mdl_gguf.c - GGUF headers that lie, and metadata that answers. */
#include "mdl_file.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "mdl_build.h"

/* A sound file: 5 keys, an F32 [3], a Q8_0 [2,32], an F16 [2]. */
static struct out sound(void)
{
    struct out o = {0};
    uint16_t half = 0x3C00;

    gguf_head(&o, 3, 3, 8);
    kv_str(&o, "general.architecture", "gemma3");
    kv_u32(&o, "general.alignment", 64);
    kv_bool(&o, "a.bool", 1);
    kv_arr(&o, "a.words", 8, 10);
    for (int i = 0; i < 10; i++) {
        char s[16];
        snprintf(s, sizeof(s), "word%d", i * i * i);
        put_str(&o, s);
    }
    kv_arr(&o, "a.numbers", 1, 3); /* i8 */
    put(&o, "\x01\xFF\x07", 3);
    put_str(&o, "a.f64");
    put32(&o, 12);
    double d = 0.5;
    put(&o, &d, 8);
    put_str(&o, "a.negative");
    put32(&o, 11);
    put64(&o, (uint64_t)-5);
    put_str(&o, "a.u16");
    put32(&o, 2);
    put(&o, "\x39\x05", 2);
    tensor_info(&o, "one", 1, 3, 0, 0, 0);
    tensor_info(&o, "two", 2, 32, 2, 8, 64);
    tensor_info(&o, "three", 1, 2, 0, 1, 192);
    pad(&o, 64);
    for (int i = 0; i < 64; i++)
        put(&o, "", 1);
    for (int b = 0; b < 2; b++) { /* two Q8_0 blocks */
        put(&o, &half, 2);
        for (int i = 0; i < 32; i++)
            put(&o, "\1", 1);
    }
    pad(&o, 64);
    put32(&o, 0);
    return o;
}

static void a_sound_file_is_read(void **state)
{
    struct out o = sound();
    struct rc_err err = RC_ERR_INIT;
    struct mdl_file *f = NULL;
    const struct mdl_tensor *t;
    const char *s;
    uint64_t u;
    double d;
    size_t n;
    bool b = false;

    if (mdl_gguf_parse(&f, o.p, o.n, &err) != RC_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(mdl_file_n_tensors(f), 3);
    const uint64_t dims[2] = {2, 32};
    assert_int_equal(mdl_file_take(f, "two", 2, dims, &t, &err), RC_OK);
    assert_int_equal(t->n_bytes, 68);
    assert_memory_equal(t->data, "\x00\x3C\x01", 3);
    assert_int_equal(mdl_file_bytes(f), 12 + 68 + 4);
    assert_true(mdl_gguf_str(f, "general.architecture", &s, &n) && n == 6);
    assert_false(mdl_gguf_u64(f, "general.architecture", &u));
    assert_true(mdl_gguf_bool(f, "a.bool", &b) && b);
    assert_true(mdl_gguf_arr(f, "a.words", &n) && n == 10);
    for (size_t i = 10; i-- > 0;) { /* any order */
        char want[16];
        snprintf(want, sizeof(want), "word%zu", i * i * i);
        assert_true(mdl_gguf_arr_str(f, "a.words", i, &s, &n));
        assert_int_equal(n, strlen(want));
        assert_memory_equal(s, want, n);
    }
    assert_false(mdl_gguf_arr_str(f, "a.words", 10, &s, &n));
    assert_false(mdl_gguf_arr_f64(f, "a.words", 0, &d));
    assert_true(mdl_gguf_arr_u64(f, "a.numbers", 2, &u) && u == 7);
    assert_false(mdl_gguf_arr_u64(f, "a.numbers", 1, &u)); /* -1 does not fit */
    assert_true(mdl_gguf_f64(f, "a.f64", &d) && d == 0.5);
    assert_false(mdl_gguf_u64(f, "a.negative", &u));
    assert_true(mdl_gguf_u64(f, "a.u16", &u) && u == 1337);
    assert_false(mdl_gguf_u64(f, "absent", &u));
    mdl_file_close(&f);
    free(o.p);
}

static void cut_anywhere_it_is_refused(void **state)
{
    struct out o = sound();

    for (size_t n = 0; n < o.n; n++) {
        struct rc_err err = RC_ERR_INIT;
        struct mdl_file *f = NULL;
        uint8_t *exact = malloc(n ? n : 1); /* the sanitizer sees every byte past the end */
        memcpy(exact, o.p, n);
        assert_int_not_equal(mdl_gguf_parse(&f, exact, n, &err), RC_OK);
        assert_null(f);
        assert_true(err.msg[0] != '\0');
        free(exact);
    }
    free(o.p);
}

static void any_changed_byte_is_harmless(void **state)
{
    struct out o = sound();

    for (size_t i = 0; i < o.n; i++)
        for (int v = 0; v < 3; v++) {
            struct mdl_file *f = NULL;
            uint8_t old = o.p[i];
            o.p[i] = v == 0 ? 0xFF : v == 1 ? 0 : (uint8_t)(old ^ 0x80);
            if (mdl_gguf_parse(&f, o.p, o.n, NULL) == RC_OK)
                for (size_t k = 0; k < mdl_file_n_tensors(f); k++) {
                    const struct mdl_tensor *t = mdl_file_tensor(f, k), *got;
                    mdl_file_take(f, t->name, t->n_dims, t->dims, &got, NULL);
                    assert_true((const uint8_t *)t->data + t->n_bytes <= o.p + o.n);
                }
            mdl_file_close(&f);
            o.p[i] = old;
        }
    free(o.p);
}

/* -------------------------------------------------------------- lies by name */

struct lie {
    const char *name;
    void (*write)(struct out *o);
    enum rc rc;
    const char *says;
};

static void w_version(struct out *o, uint32_t v)
{
    gguf_head(o, v, 0, 0);
}
static void w_v1(struct out *o)
{
    w_version(o, 1);
}
static void w_v4(struct out *o)
{
    w_version(o, 4);
}
static void w_swapped(struct out *o)
{
    w_version(o, 0x03000000);
}
static void w_magic(struct out *o)
{
    put(o, "GGML................", 20);
}
static void w_many_tensors(struct out *o)
{
    gguf_head(o, 3, 1u << 20, 0);
    for (int i = 0; i < 100; i++)
        put64(o, 0);
}
static void w_minus_kvs(struct out *o)
{
    gguf_head(o, 3, 0, (uint64_t)-1);
}
static void w_long_key(struct out *o)
{
    gguf_head(o, 3, 0, 1);
    put64(o, UINT64_MAX - 3);
    put(o, "key-and-some-more-bytes", 23);
}
static void w_empty_key(struct out *o)
{
    gguf_head(o, 3, 0, 1);
    kv_u32(o, "", 1);
    put64(o, 0);
}
static void w_twice_key(struct out *o)
{
    gguf_head(o, 3, 0, 2);
    kv_u32(o, "key", 1);
    kv_u32(o, "key", 2);
}
static void w_kv_type(struct out *o)
{
    gguf_head(o, 3, 0, 1);
    put_str(o, "key");
    put32(o, 13);
    put64(o, 0);
}
static void w_nested(struct out *o)
{
    gguf_head(o, 3, 0, 1);
    kv_arr(o, "key", 9, 1);
    put64(o, 0);
}
static void w_array_huge(struct out *o)
{
    gguf_head(o, 3, 0, 1);
    kv_arr(o, "key", 10, UINT64_MAX / 8 + 2);
    put64(o, 0);
}
static void w_strings_huge(struct out *o)
{
    gguf_head(o, 3, 0, 1);
    kv_arr(o, "key", 8, 1u << 29);
    put64(o, 0);
}
static void w_align(struct out *o, uint32_t v)
{
    gguf_head(o, 3, 0, 1);
    kv_u32(o, "general.alignment", v);
}
static void w_align0(struct out *o)
{
    w_align(o, 0);
}
static void w_align48(struct out *o)
{
    w_align(o, 48);
}
static void w_split(struct out *o)
{
    gguf_head(o, 3, 0, 1);
    put_str(o, "split.count");
    put32(o, 2);
    put(o, "\x03\x00", 2);
}
static void w_tensor(struct out *o, uint32_t n_dims, uint64_t d0, uint64_t d1, uint32_t type,
                     uint64_t offset)
{
    gguf_head(o, 3, 1, 0);
    tensor_info(o, "x", n_dims, d0, d1, type, offset);
    pad(o, 32);
    for (int i = 0; i < 64; i++)
        put64(o, 0);
}
static void w_negative(struct out *o)
{
    w_tensor(o, 2, (uint64_t)-32, 2, 0, 0);
}
static void w_product(struct out *o)
{
    w_tensor(o, 4, 1ull << 31, 1ull << 31, 0, 0);
}
static void w_size(struct out *o)
{
    w_tensor(o, 2, 1ull << 61, 2, 0, 0);
}
static void w_dims5(struct out *o)
{
    w_tensor(o, 5, 1, 1, 0, 0);
}
static void w_block(struct out *o)
{
    w_tensor(o, 1, 33, 0, 8, 0);
}
static void w_type4(struct out *o)
{
    w_tensor(o, 1, 32, 0, 4, 0);
}
static void w_q2k(struct out *o)
{
    w_tensor(o, 1, 256, 0, 10, 0);
}
static void w_type999(struct out *o)
{
    w_tensor(o, 1, 32, 0, 999, 0);
}
static void w_offset(struct out *o)
{
    w_tensor(o, 1, 8, 0, 0, 32);
}
static void w_outside(struct out *o)
{
    w_tensor(o, 1, 4096, 0, 0, 0);
}
static void w_twice(struct out *o)
{
    gguf_head(o, 3, 2, 0);
    tensor_info(o, "x", 1, 8, 0, 0, 0);
    tensor_info(o, "x", 1, 8, 0, 0, 32);
    pad(o, 32);
    for (int i = 0; i < 64; i++)
        put64(o, 0);
}
static void w_name64(struct out *o)
{
    gguf_head(o, 3, 1, 0);
    tensor_info(o, "0123456789012345678901234567890123456789012345678901234567890123", 1, 1, 0, 0,
                0);
}
static void w_name_nul(struct out *o)
{
    gguf_head(o, 3, 1, 0);
    put64(o, 3);
    put(o, "a\0b", 3);
    put32(o, 0);
    put32(o, 0);
    put64(o, 0);
    pad(o, 32);
    put64(o, 0);
}

static void lies_are_named(void **state)
{
    static const struct lie lies[] = {
        {"version 1", w_v1, RC_UNSUPPORTED, "version 1"},
        {"version 4", w_v4, RC_UNSUPPORTED, "version 4"},
        {"byte-swapped version", w_swapped, RC_UNSUPPORTED, "endian"},
        {"another magic", w_magic, RC_FORMAT, "not a GGUF file"},
        {"more tensors than bytes", w_many_tensors, RC_FORMAT, "1048576 tensors"},
        {"a negative key count", w_minus_kvs, RC_FORMAT, "metadata keys"},
        {"a key longer than the file", w_long_key, RC_FORMAT, "ends inside a metadata key"},
        {"an empty key", w_empty_key, RC_FORMAT, "key of 0 bytes"},
        {"the same key twice", w_twice_key, RC_FORMAT, "'key' appears twice"},
        {"an unknown value type", w_kv_type, RC_FORMAT, "type 13"},
        {"an array of arrays", w_nested, RC_FORMAT, "arrays of type 9"},
        {"an array whose size overflows", w_array_huge, RC_FORMAT, "does not fit"},
        {"an array of absent strings", w_strings_huge, RC_FORMAT, "does not fit"},
        {"alignment 0", w_align0, RC_FORMAT, "power of two"},
        {"alignment 48", w_align48, RC_FORMAT, "power of two"},
        {"one part of a split model", w_split, RC_UNSUPPORTED, "3 files"},
        {"a negative dimension", w_negative, RC_FORMAT, "dimension 0 is -32"},
        {"a product that overflows", w_product, RC_FORMAT, "too large"},
        {"a size that overflows", w_size, RC_FORMAT, "overflows"},
        {"five dimensions", w_dims5, RC_FORMAT, "5 dimensions"},
        {"rows that are no whole blocks", w_block, RC_FORMAT, "block of 32"},
        {"a removed type", w_type4, RC_UNSUPPORTED, "type number 4"},
        {"a type without a kernel", w_q2k, RC_UNSUPPORTED, "type Q2_K"},
        {"an unknown type", w_type999, RC_UNSUPPORTED, "999"},
        {"an offset that is not the running sum", w_offset, RC_FORMAT, "offset 32, expected 0"},
        {"a tensor past the end", w_outside, RC_FORMAT, "tensor 'x'"},
        {"a tensor name twice", w_twice, RC_FORMAT, "'x' appears twice"},
        {"a name of 64 bytes", w_name64, RC_FORMAT, "64 bytes"},
        {"a name with a NUL", w_name_nul, RC_FORMAT, "without a NUL"},
    };

    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        struct rc_err err = RC_ERR_INIT;
        struct mdl_file *f = NULL;
        struct out o = {0};
        lies[i].write(&o);
        enum rc rc = mdl_gguf_parse(&f, o.p, o.n, &err);
        if (rc != lies[i].rc || !strstr(err.msg, lies[i].says))
            fail_msg("%s: %s '%s', expected %s '%s'", lies[i].name, rc_name(rc), err.msg,
                     rc_name(lies[i].rc), lies[i].says);
        assert_null(f);
        free(o.p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sound_file_is_read),
        cmocka_unit_test(cut_anywhere_it_is_refused),
        cmocka_unit_test(any_changed_byte_is_harmless),
        cmocka_unit_test(lies_are_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
