/* State dicts of torch.save: real ones, and archives and pickles that lie. */
#include "mdl_test.h"
#include "mdl_build.h"
#include "mdl_xlmr.h"

/* ------------------------------------------------------------- small archives */

struct entry {
    const char *name;
    const void *data;
    size_t n;
};

static void put16(struct out *o, uint32_t v)
{
    put(o, &v, 2);
}

/* A zip of stored entries; `zip64`: with the long end record, and the numbers in short forms. */
static struct out zip(const struct entry *e, size_t n, bool zip64)
{
    struct out o = {0}, dir = {0};
    size_t i, at, end;

    for (i = 0; i < n; i++) {
        at = o.n;
        put32(&o, 0x04034b50);
        put(&o, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 22);
        put16(&o, (uint32_t)strlen(e[i].name));
        put16(&o, 0);
        put(&o, e[i].name, strlen(e[i].name));
        pad(&o, 64);
        /* the padding is the local header's extra field */
        end = o.n - at - 30 - strlen(e[i].name);
        memcpy(o.p + at + 28, &end, 2);
        put(&o, e[i].data, e[i].n);
        put32(&dir, 0x02014b50);
        put(&dir, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16);
        put32(&dir, zip64 ? UINT32_MAX : (uint32_t)e[i].n);
        put32(&dir, zip64 ? UINT32_MAX : (uint32_t)e[i].n);
        put16(&dir, (uint32_t)strlen(e[i].name));
        put16(&dir, zip64 ? 28 : 0);
        put(&dir, "\0\0\0\0\0\0\0\0\0\0", 10);
        put32(&dir, zip64 ? UINT32_MAX : (uint32_t)at);
        put(&dir, e[i].name, strlen(e[i].name));
        if (zip64) {
            put16(&dir, 1);
            put16(&dir, 24);
            put64(&dir, e[i].n);
            put64(&dir, e[i].n);
            put64(&dir, at);
        }
    }
    at = o.n;
    put(&o, dir.p, dir.n);
    end = o.n;
    if (zip64) {
        put32(&o, 0x06064b50);
        put64(&o, 44);
        put(&o, "\0\0\0\0\0\0\0\0\0\0\0\0", 12);
        put64(&o, n);
        put64(&o, n);
        put64(&o, dir.n);
        put64(&o, at);
        put32(&o, 0x07064b50);
        put32(&o, 0);
        put64(&o, end);
        put32(&o, 1);
    }
    put32(&o, 0x06054b50);
    put32(&o, 0);
    put16(&o, (uint32_t)n);
    put16(&o, (uint32_t)n);
    put32(&o, zip64 ? UINT32_MAX : (uint32_t)dir.n);
    put32(&o, zip64 ? UINT32_MAX : (uint32_t)at);
    put16(&o, 0);
    free(dir.p);
    return o;
}

#define STORAGE(type, key, count) \
    "((X\7\0\0\0storagectorch\n" type "\nX\1\0\0\0" key "X\3\0\0\0cpuK" count "tQ"
#define TENSOR_AT(storage, first, size, stride)                                \
    "ctorch._utils\n_rebuild_tensor_v2\n" storage "K" first size stride "\x89" \
    "ccollections\nOrderedDict\n)RtR"
#define DICT "\x80\2ccollections\nOrderedDict\n)R("
#define NAME "X\1\0\0\0w"

/* [2, 3] of the six numbers of entry "0" */
#define SIX STORAGE("FloatStorage", "0", "\6")
#define SOUND DICT NAME TENSOR_AT(SIX, "\0", "K\2K\3\x86", "K\3K\1\x86") "u."

static const float six[6] = {1, 2, 3, 4, 5, 6};

static enum rc parse(struct mdl_file **f, struct out *keep, const char *pickle, size_t n,
                     struct rc_err *e)
{
    const struct entry entries[] = {
        {"a/data.pkl", pickle, n}, {"a/byteorder", "little", 6}, {"a/data/0", six, sizeof(six)}};

    *keep = zip(entries, 3, false);
    return mdl_torch_parse(f, keep->p, keep->n, e);
}

static void a_sound_file_is_read(void **state)
{
    const uint64_t dims[2] = {2, 3};
    const struct mdl_tensor *t = NULL;
    struct entry entries[] = {{"a/data.pkl", SOUND, sizeof(SOUND) - 1},
                              {"a/data/0", six, sizeof(six)}};
    int zip64;

    for (zip64 = 0; zip64 < 2; zip64++) {
        struct out o = zip(entries, 2, zip64);
        struct mdl_file *f = NULL;

        need_ok(mdl_torch_parse(&f, o.p, o.n, err));
        assert_int_equal(mdl_file_n_tensors(f), 1);
        need_ok(mdl_file_take(f, "w", 2, dims, &t, err));
        assert_int_equal(t->dtype, BE_F32);
        assert_memory_equal(t->data, six, sizeof(six));
        mdl_file_close(&f);
        free(o.p);
    }
}

static void views_are_read_where_they_begin(void **state)
{
    static const char p[] = DICT NAME TENSOR_AT(SIX, "\2", "K\3\x85", "K\1\x85") "u.";
    const uint64_t dims[1] = {3};
    const struct mdl_tensor *t = NULL;
    struct mdl_file *f = NULL;
    struct out o;

    need_ok(parse(&f, &o, p, sizeof(p) - 1, err));
    need_ok(mdl_file_take(f, "w", 1, dims, &t, err));
    assert_memory_equal(t->data, six + 2, 3 * sizeof(float));
    mdl_file_close(&f);
    free(o.p);
}

#define LIE(pickle, code, says)                \
    {                                          \
        pickle, sizeof(pickle) - 1, code, says \
    }

static void pickles_that_lie_are_refused_by_name(void **state)
{
    static const struct {
        const char *p;
        size_t n;
        enum rc rc;
        const char *says;
    } rows[] = {
        LIE("\x80\2cposix\nsystem\nX\2\0\0\0ls\x85R.", RC_UNSUPPORTED, "posix.system"),
        LIE("\x80\2c__builtin__\neval\n)R.", RC_UNSUPPORTED, "__builtin__.eval"),
        LIE("\x80\4.", RC_UNSUPPORTED, "protocol 4"),
        LIE("\x80\2]q\0.", RC_UNSUPPORTED, "0x5d"),
        LIE("\x80\2i.", RC_UNSUPPORTED, "0x69"),
        LIE("\x80\2\0", RC_UNSUPPORTED, "0x00"),
        LIE("\x80\2K\1.", RC_UNSUPPORTED, "holds a number"),
        LIE("\x80\2", RC_FORMAT, "cut short"),
        LIE("\x80\2X\xff\xff\xff\xff.", RC_FORMAT, "cut short"),
        LIE("\x80\2ctorch", RC_FORMAT, "cut short"),
        LIE("\x80\2.", RC_FORMAT, "more or less than a value"),
        LIE("\x80\2K\1K\2.", RC_FORMAT, "more or less than a value"),
        LIE("\x80\2t.", RC_FORMAT, "not begun"),
        LIE("\x80\2u.", RC_FORMAT, "not begun"),
        LIE("\x80\2(u.", RC_FORMAT, "not begun"),
        LIE("\x80\2s.", RC_FORMAT, "more than there is"),
        LIE("\x80\2K\1\x86.", RC_FORMAT, "more than there is"),
        LIE("\x80\2(\x85.", RC_FORMAT, "a mark into a tuple"),
        LIE("\x80\2R.", RC_FORMAT, "no function"),
        LIE("\x80\2Q.", RC_FORMAT, "storage"),
        LIE("\x80\2h\0.", RC_FORMAT, "not kept"),
        LIE("\x80\2K\1q\5.", RC_FORMAT, "does not follow"),
        LIE("\x80\2q\0.", RC_FORMAT, "keeps nothing"),
        LIE("\x80\2K\1(K\1K\2u.", RC_FORMAT, "no dict"),
        LIE("\x80\2K\1K\2b.", RC_FORMAT, "no dict"),
        LIE("\x80\2\x8a\x09\1\1\1\1\1\1\1\1\1.", RC_FORMAT, "64 bits"),
        LIE("\x80\2}(K\1K\2u.", RC_FORMAT, "no texts"),
        LIE("\x80\2}X\1\0\0\0wK\2s.", RC_UNSUPPORTED, "'w' is a number"),
        LIE("\x80\2}X\1\0\0\0w}s.", RC_UNSUPPORTED, "'w' is a dict"),
        LIE(DICT NAME "ctorch._utils\n_rebuild_parameter\nK\1\x85Ru.", RC_FORMAT, "no tensor"),
        LIE(DICT NAME TENSOR_AT(SIX, "\0", "K\2K\3\x86", "K\1K\2\x86") "u.", RC_UNSUPPORTED,
            "contiguous"),
        LIE(DICT NAME TENSOR_AT(SIX, "\1", "K\2K\3\x86", "K\3K\1\x86") "u.", RC_FORMAT,
            "6 numbers from number 1"),
        LIE(DICT NAME TENSOR_AT(SIX, "\0", "K\7\x85", "K\1\x85") "u.", RC_FORMAT, "7 numbers"),
        LIE(DICT NAME TENSOR_AT(STORAGE("FloatStorage", "0", "\7"), "\0", "K\7\x85",
                                "K\1\x85") "u.",
            RC_FORMAT, "24 bytes"),
        LIE(DICT NAME TENSOR_AT(STORAGE("FloatStorage", "9", "\6"), "\0", "K\6\x85",
                                "K\1\x85") "u.",
            RC_FORMAT, "not in the archive"),
        LIE(DICT NAME TENSOR_AT(SIX, "\0", "K\2K\3\x86", "K\1\x85") "u.", RC_FORMAT,
            "describes a tensor"),
        LIE(DICT NAME TENSOR_AT(SIX, "\0", "J\xff\xff\xff\xff\x85", "K\1\x85") "u.", RC_FORMAT,
            "whole number"),
        LIE(DICT NAME TENSOR_AT(SIX, "\0", "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7fK\3\x86",
                                "K\3K\1\x86") "u.",
            RC_FORMAT, "there can be"),
    };
    size_t i;

    for (i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        struct rc_err e = RC_ERR_INIT;
        struct mdl_file *f = NULL;
        struct out o;
        enum rc rc = parse(&f, &o, rows[i].p, rows[i].n, &e);

        if (rc != rows[i].rc || !strstr(e.msg, rows[i].says))
            fail_msg("pickle %zu: %s '%s', expected %s saying '%s'", i, rc_name(rc), e.msg,
                     rc_name(rows[i].rc), rows[i].says);
        assert_null(f);
        free(o.p);
    }
}

static void tensors_of_types_no_kernel_reads_are_kept_by_name(void **state)
{
    static const char p[] =
        DICT NAME TENSOR_AT(STORAGE("LongStorage", "0", "\3"), "\0", "K\3\x85", "K\1\x85") "u.";
    struct rc_err e = RC_ERR_INIT;
    struct mdl_file *f = NULL;
    int32_t ints[3];
    struct out o;

    need_ok(parse(&f, &o, p, sizeof(p) - 1, err));
    assert_int_equal(mdl_file_n_tensors(f), 0);
    assert_int_equal(mdl_file_ints(f, "w", 3, 10, ints, &e), RC_FORMAT); /* 1.f and 2.f, as I64 */
    mdl_file_close(&f);
    free(o.p);
}

static void archives_that_lie(void **state)
{
    static const char big[] = "big";
    struct entry e[] = {{"a/data.pkl", SOUND, sizeof(SOUND) - 1},
                        {"a/data/0", six, sizeof(six)},
                        {"a/byteorder", big, sizeof(big) - 1}};
    struct rc_err e2 = RC_ERR_INIT;
    struct mdl_file *f = NULL;
    struct out o = zip(e, 3, false);
    size_t end = o.n - 22, dir;

    assert_int_equal(mdl_torch_parse(&f, o.p, o.n, &e2), RC_UNSUPPORTED);
    assert_non_null(strstr(e2.msg, "little-endian"));
    free(o.p);
    o = zip(e, 2, false);
    end = o.n - 22;
    dir = (size_t)o.p[end + 16] | (size_t)o.p[end + 17] << 8;
    o.p[dir + 10] = 8; /* deflated */
    assert_int_equal(mdl_torch_parse(&f, o.p, o.n, &e2), RC_UNSUPPORTED);
    assert_non_null(strstr(e2.msg, "compressed"));
    o.p[dir + 10] = 0;
    o.p[dir + 8] = 1; /* encrypted */
    assert_int_equal(mdl_torch_parse(&f, o.p, o.n, &e2), RC_UNSUPPORTED);
    o.p[dir + 8] = 0;
    o.p[end + 4] = 1; /* the second of several parts */
    assert_int_equal(mdl_torch_parse(&f, o.p, o.n, &e2), RC_UNSUPPORTED);
    o.p[end + 4] = 0;
    o.p[end + 10] = 200; /* entries */
    assert_int_equal(mdl_torch_parse(&f, o.p, o.n, &e2), RC_FORMAT);
    o.p[end + 10] = 2;
    need_ok(mdl_torch_parse(&f, o.p, o.n, err));
    mdl_file_close(&f);
    free(o.p);
    e[1].name = "a/data.pkl";
    o = zip(e, 2, false);
    assert_int_equal(mdl_torch_parse(&f, o.p, o.n, &e2), RC_FORMAT);
    assert_non_null(strstr(e2.msg, "same name"));
    free(o.p);
    e[0].name = "a/other";
    e[1].name = "a/data/0";
    o = zip(e, 2, false);
    assert_int_equal(mdl_torch_parse(&f, o.p, o.n, &e2), RC_FORMAT);
    assert_non_null(strstr(e2.msg, "data.pkl"));
    free(o.p);
    assert_int_equal(mdl_torch_parse(&f, "\x80\2\x8a\x0al\xfc\x9c", 7, &e2), RC_UNSUPPORTED);
    assert_non_null(strstr(e2.msg, "1.6"));
}

static void whole(const char *path, struct out *o)
{
    char buf[4096];
    size_t n;
    FILE *f = fopen(path, "rb");

    assert_non_null(f);
    while ((n = fread(buf, 1, sizeof(buf), f)) > 0)
        put(o, buf, n);
    fclose(f);
}

/* Written by torch itself: the same numbers as in safetensors beside it. */
static void files_of_torch_hold_what_safetensors_hold(void **state)
{
    static const char *const names[] = {"colbert_linear", "sparse_linear"};
    size_t i, k;

    for (i = 0; i < 2; i++) {
        struct out a = {0}, b = {0};
        struct mdl_file *pt = NULL, *st = NULL;
        char path[512];

        snprintf(path, sizeof(path), "%s/%s.pt", BGE_DIR, names[i]);
        whole(path, &a);
        snprintf(path, sizeof(path), "%s/%s.safetensors", BGE_DIR, names[i]);
        whole(path, &b);
        need_ok(mdl_torch_parse(&pt, a.p, a.n, err));
        need_ok(mdl_safetensors_parse(&st, b.p, b.n, err));
        assert_int_equal(mdl_file_n_tensors(pt), 2);
        for (k = 0; k < mdl_file_n_tensors(st); k++) {
            const struct mdl_tensor *want = mdl_file_tensor(st, k), *got = NULL;

            need_ok(mdl_file_take(pt, want->name, want->n_dims, want->dims, &got, err));
            assert_int_equal(got->n_bytes, want->n_bytes);
            assert_memory_equal(got->data, want->data, want->n_bytes);
        }
        mdl_file_close(&pt);
        mdl_file_close(&st);
        free(a.p);
        free(b.p);
    }
}

static void cut_anywhere_or_changed_it_is_harmless(void **state)
{
    struct out o = {0};
    char path[512];
    size_t i, v;

    snprintf(path, sizeof(path), "%s/sparse_linear.pt", BGE_DIR);
    whole(path, &o);
    for (i = 0; i < o.n; i += 3) {
        struct mdl_file *f = NULL;
        uint8_t *exact = malloc(i + 1); /* the sanitizer sees every byte past the end */

        assert_non_null(exact);
        memcpy(exact, o.p, i);
        assert_int_not_equal(mdl_torch_parse(&f, exact, i, NULL), RC_OK);
        free(exact);
    }
    for (i = 0; i < o.n; i++)
        for (v = 0; v < 2; v++) {
            struct mdl_file *f = NULL;
            uint8_t old = o.p[i];

            o.p[i] = v ? (uint8_t)(old ^ 0x80) : (uint8_t)(old + 1);
            if (mdl_torch_parse(&f, o.p, o.n, NULL) == RC_OK && mdl_file_n_tensors(f) > 0) {
                const struct mdl_tensor *t = mdl_file_tensor(f, 0);

                assert_true((const uint8_t *)t->data >= o.p &&
                            (const uint8_t *)t->data + t->n_bytes <= o.p + o.n);
            }
            mdl_file_close(&f);
            o.p[i] = old;
        }
    free(o.p);
}

/* A folder without other weights; and where there are others, they are read. */
static void a_folder_may_hold_pytorch_model_bin(void **state)
{
    const struct entry entries[] = {{"archive/data.pkl", SOUND, sizeof(SOUND) - 1},
                                    {"archive/data/0", six, sizeof(six)}};
    struct out o = zip(entries, 2, false);
    struct mdl_file *f = NULL;
    struct rc_err e = RC_ERR_INIT;
    char dir[256], path[512];
    FILE *out;
    int fd;

    snprintf(dir, sizeof(dir), "%s/mdl-test-XXXXXX", TEST_BUILD);
    assert_non_null(mkdtemp(dir));
    fd = open_root(dir);
    assert_int_equal(mdl_file_open(&f, fd, &e), RC_NOT_FOUND);
    assert_non_null(strstr(e.msg, "pytorch_model.bin"));
    path_join(path, sizeof(path), dir, "pytorch_model.bin");
    assert_non_null(out = fopen(path, "wb"));
    assert_int_equal(fwrite(o.p, 1, o.n, out), o.n);
    fclose(out);
    need_ok(mdl_file_open(&f, fd, err));
    assert_int_equal(mdl_file_format(f), MDL_SAFETENSORS);
    assert_non_null(mdl_file_find(f, "w"));
    /* and another file joins it, under a prefix */
    close(fd);
    fd = open_root(BGE_DIR);
    need_ok(mdl_file_beside(f, fd, "sparse_linear.pt", "sparse_linear.", err));
    assert_int_equal(mdl_file_n_tensors(f), 3);
    assert_non_null(mdl_file_find(f, "w"));
    assert_non_null(mdl_file_find(f, "sparse_linear.weight"));
    assert_null(mdl_file_find(f, "weight"));
    assert_int_equal(mdl_file_beside(f, fd, "absent.pt", "x.", &e), RC_NOT_FOUND);
    assert_int_equal(mdl_file_n_tensors(f), 3);
    /* twice the same name */
    assert_int_equal(mdl_file_beside(f, fd, "sparse_linear.safetensors", "sparse_linear.", &e),
                     RC_FORMAT);
    close(fd);
    mdl_file_close(&f);
    tdir_rm(dir);
    free(o.p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sound_file_is_read),
        cmocka_unit_test(views_are_read_where_they_begin),
        cmocka_unit_test(pickles_that_lie_are_refused_by_name),
        cmocka_unit_test(tensors_of_types_no_kernel_reads_are_kept_by_name),
        cmocka_unit_test(archives_that_lie),
        cmocka_unit_test(files_of_torch_hold_what_safetensors_hold),
        cmocka_unit_test(a_folder_may_hold_pytorch_model_bin),
        cmocka_unit_test(cut_anywhere_or_changed_it_is_harmless),
    };

    need_dir(BGE_DIR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
