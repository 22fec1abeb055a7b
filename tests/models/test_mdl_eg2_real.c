/* EmbeddingGemma 2 at its published size against what the reference computed: texts of up to
 * 8,192 tokens, tasks, titles, groups, pictures, sounds, each at every size of vector.
 *
 * Needs a folder that tests/golden/embeddinggemma2/oracle.py wrote, named by INFERD_EG2_REAL, and
 * the checkpoint it was made from, named by INFERD_EG2_MODEL; skipped without them. With
 * INFERD_EG2_ONLY=NAME only that case. Minutes for the long texts. */
#include "mdl_test.h"

#define TOL 1e-5
#define TOL_LAYER 1e-4 /* relative, where a failure is looked for */
#define MAX_PARTS 16

static struct be_ctx *be;
static const char *dir;
static json_t *oracle;
static struct mdl *m;

static const char *str(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

static uint8_t *load_file(const char *name, const char *end, size_t *n)
{
    char path[512];
    uint8_t *data;
    long size;
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s%s", dir, name, end);
    if (!(f = fopen(path, "rb")))
        fail_msg("cannot open %s: %s", path, strerror(errno));
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    assert_true((size = ftell(f)) > 0);
    rewind(f);
    assert_non_null(data = malloc((size_t)size));
    assert_int_equal(fread(data, 1, (size_t)size, f), size);
    fclose(f);
    *n = (size_t)size;
    return data;
}

/* "wide.png": its pixels lie in wide.raw */
static struct mdl_media *picture(const char *file)
{
    char name[64];
    struct mdl_media *out = NULL;
    const json_t *p;
    uint8_t *pixels;
    size_t n;

    snprintf(name, sizeof(name), "%.*s", (int)strcspn(file, "."), file);
    assert_non_null(p = json_object_get(json_object_get(oracle, "pictures"), name));
    pixels = load_file(name, ".raw", &n);
    struct mdl_image img = {
        .width = (uint32_t)json_integer_value(json_object_get(p, "width")),
        .height = (uint32_t)json_integer_value(json_object_get(p, "height")),
        .n_channels = (uint32_t)json_integer_value(json_object_get(p, "channels")),
        .pixels = pixels,
    };
    img.stride = (size_t)img.width * img.n_channels;
    assert_int_equal(n, img.stride * img.height);
    need_ok(mdl_media_image(m, &img, &out, err));
    free(pixels);
    return out;
}

/* a header of 44 bytes, then 16-bit samples of one channel */
static struct mdl_media *sound(const char *file)
{
    struct mdl_media *out = NULL;
    size_t n, i;
    uint8_t *data = load_file(file, "", &n);
    float *pcm;

    assert_true(n > 44 && memcmp(data, "RIFF", 4) == 0);
    n = (n - 44) / 2;
    assert_non_null(pcm = malloc(n * sizeof(*pcm)));
    for (i = 0; i < n; i++)
        pcm[i] = (float)(int16_t)(data[44 + 2 * i] | data[45 + 2 * i] << 8) / 32768;
    need_ok(mdl_media_sound(m, &(struct mdl_sound){.rate = 16000, .n = n, .pcm = pcm}, &out, err));
    free(pcm);
    free(data);
    return out;
}

/* One case made ready for mdl_encode_with. */
struct input {
    struct mdl_media *held[MAX_PARTS];
    struct mdl_encode_media media[MAX_PARTS];
    struct mdl_ids ids;
    uint32_t n_media;
};

static void input_open(struct input *in, const json_t *c)
{
    const json_t *parts = json_object_get(c, "parts");
    size_t i, n = json_array_size(parts);
    struct mdl_embed_part part[MAX_PARTS];
    const char *title = str(c, "title");
    uint32_t rows[MAX_PARTS];

    memset(in, 0, sizeof(*in));
    assert_true(n >= 1 && n <= MAX_PARTS);
    for (i = 0; i < n; i++) {
        const json_t *p = json_array_get(parts, i), *text = json_object_get(p, "text");

        part[i] = (struct mdl_embed_part){.text = json_string_value(text),
                                          .n_bytes = json_string_length(text)};
        if (!text)
            part[i].media = in->held[in->n_media++] =
                str(p, "image") ? picture(str(p, "image")) : sound(str(p, "audio"));
    }
    need_ok(mdl_embed_ordered(
        m,
        &(struct mdl_embed_input){.parts = part,
                                  .n_parts = n,
                                  .group = json_is_true(json_object_get(c, "group")),
                                  .title = title,
                                  .n_title = title ? strlen(title) : 0,
                                  .task_type = str(c, "task_type")},
        &in->ids, rows, err));
    for (i = 0; i < in->n_media; i++)
        in->media[i] = (struct mdl_encode_media){rows[i], in->held[i]};
}

static void input_close(struct input *in)
{
    uint32_t i;

    for (i = 0; i < in->n_media; i++)
        mdl_media_free(&in->held[i]);
    mdl_ids_deinit(&in->ids);
}

static void encode(struct input *in, float *out)
{
    uint32_t offsets[2] = {0, (uint32_t)in->ids.n};

    need_ok(mdl_encode_with(m, 1, in->ids.ids, offsets, in->media, in->n_media, out, err));
}

static double worst_of(const float *v, uint32_t n, const json_t *want)
{
    double worst = 0, norm = 0;
    uint32_t i;

    assert_int_equal(json_array_size(want), n);
    for (i = 0; i < n; i++)
        norm += (double)v[i] * v[i];
    assert_true(norm > 0);
    for (i = 0; i < n; i++) {
        double d = fabs(v[i] / sqrt(norm) - json_number_value(json_array_get(want, i)));

        if (!(d <= worst)) /* a NaN stays */
            worst = d;
    }
    return worst;
}

/* ------------------------------------------------- the first wrong layer */

struct look {
    const json_t *layers;
    bool found;
};

static void on_layer(void *user, uint32_t layer, const struct be_tensor *x, uint32_t n)
{
    struct look *l = user;
    uint32_t d = mdl_info_get(m)->d_model, i;
    double sum = 0,
           want = json_number_value(json_object_get(json_array_get(l->layers, layer), "norm"));
    float *buf = malloc((size_t)n * d * sizeof(*buf));

    assert_non_null(buf);
    need_ok(be_tensor_read(be, x, 0, n, buf, err));
    for (i = 0; i < n * d; i++)
        sum += (double)buf[i] * buf[i];
    if (!l->found && !(fabs(sqrt(sum) - want) <= TOL_LAYER * want)) {
        print_message("layer %u is the first that differs: norm %.7g, expected %.7g\n", layer,
                      sqrt(sum), want);
        l->found = true;
    }
    free(buf);
}

static void say_where(const json_t *c, struct input *in, float *out)
{
    struct look l = {.layers = json_object_get(c, "layers")};

    if (!l.layers)
        return;
    m->trace = on_layer;
    m->trace_user = &l;
    encode(in, out);
    m->trace = NULL;
}

/* ------------------------------------------------------------------ tests */

static void vectors_agree(void **s)
{
    const json_t *list = json_object_get(oracle, "cases"), *dims = json_object_get(oracle, "dims");
    const char *only = getenv("INFERD_EG2_ONLY");
    uint32_t d = mdl_info_get(m)->embed_dim, n_ids;
    float *out = malloc(d * sizeof(*out));
    size_t i, k, done = 0;
    double worst = 0;

    assert_non_null(out);
    assert_int_equal(d, json_integer_value(json_object_get(oracle, "dim")));
    for (i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i);
        const char *name = str(c, "name");
        int32_t *ids = ids_of(json_object_get(c, "ids"), &n_ids);
        struct input in;
        double off;

        if (only && strcmp(only, name) != 0) {
            free(ids);
            continue;
        }
        input_open(&in, c);
        if (in.ids.n != n_ids || memcmp(in.ids.ids, ids, n_ids * sizeof(*ids)) != 0)
            fail_msg("case '%s': other tokens than the reference's %u", name, n_ids);
        encode(&in, out);
        off = worst_of(out, d, json_object_get(c, "vector"));
        print_message("%s: %u tokens, off by %.2g\n", name, n_ids, off);
        if (!(off <= TOL)) {
            say_where(c, &in, out);
            fail_msg("case '%s': off by %.2g, allowed %.2g", name, off, TOL);
        }
        worst = off > worst ? off : worst;
        for (k = 0; k < json_array_size(dims); k++) {
            uint32_t cut = (uint32_t)json_integer_value(json_array_get(dims, k));
            char key[16];

            snprintf(key, sizeof(key), "%u", cut);
            need_ok(mdl_dims_check(m, cut, err));
            off = worst_of(out, cut, json_object_get(json_object_get(c, "reduced"), key));
            if (!(off <= TOL))
                fail_msg("case '%s', %u numbers: off by %.2g, allowed %.2g", name, cut, off, TOL);
            worst = off > worst ? off : worst;
        }
        input_close(&in);
        free(ids);
        done++;
    }
    assert_true(done > 0);
    print_message("%zu cases, largest difference %.2g\n", done, worst);
    free(out);
}

/* Sequences of many lengths in one call are the bytes that each gives alone. */
static void packed_is_alone(void **s)
{
    const json_t *list = json_object_get(oracle, "cases");
    uint32_t d = mdl_info_get(m)->embed_dim, offsets[9] = {0}, n = 0, n_media = 0, i;
    struct mdl_encode_media media[8 * MAX_PARTS];
    float *one = malloc(d * sizeof(*one)), *all = malloc(8 * d * sizeof(*all));
    int32_t *ids = malloc(8192 * sizeof(*ids));
    struct input in[8];
    size_t k;

    assert_true(one && all && ids);
    for (k = 0; k < json_array_size(list) && n < 8; k++) {
        const json_t *c = json_array_get(list, k);
        size_t len = json_array_size(json_object_get(c, "ids"));

        if (len > 600 || offsets[n] + len > 8192 || k % 2)
            continue;
        input_open(&in[n], c);
        memcpy(ids + offsets[n], in[n].ids.ids, len * sizeof(*ids));
        for (i = 0; i < in[n].n_media; i++) {
            media[n_media] = in[n].media[i];
            media[n_media++].row += offsets[n];
        }
        offsets[n + 1] = offsets[n] + (uint32_t)len;
        n++;
    }
    if (n < 2)
        skip();
    need_ok(mdl_encode_with(m, n, ids, offsets, media, n_media, all, err));
    for (i = 0; i < n; i++) {
        encode(&in[i], one);
        assert_memory_equal(one, all + (size_t)i * d, d * sizeof(*one));
        input_close(&in[i]);
    }
    free(ids);
    free(all);
    free(one);
}

static int open_all(void **s)
{
    struct mdl_opts o = {
        .batch_tokens = 8192, .max_seqs = 8, .kv_bytes = 8u << 20, .kv_dtype = BE_F32};

    oracle = load_json(dir, "oracle.json");
    be = test_ctx(2);
    m = open_model(getenv("INFERD_EG2_MODEL"), be, &o);
    return 0;
}

static int close_all(void **s)
{
    mdl_close(&m);
    be_ctx_free(&be);
    json_decref(oracle);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_agree),
        cmocka_unit_test(packed_is_alone),
    };

    dir = getenv("INFERD_EG2_REAL");
    if (!dir || !getenv("INFERD_EG2_MODEL")) {
        fprintf(stderr,
                "skipped: INFERD_EG2_REAL (a folder of oracle.py) and INFERD_EG2_MODEL (its "
                "checkpoint) are not set\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, open_all, close_all);
}
