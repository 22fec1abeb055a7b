/* EmbeddingGemma 2 against the reference (tests/golden/embeddinggemma2): ids, the residual stream
 * after each layer, unit vectors at every size; each text by its task type as a request names it.
 * Provenance: tests/golden/README.md */
#include "mdl_media.h"

/* These weights amplify rounding: what is asked (oracles/README.md); the towers' part is in it. */
#define TOL 3e-4
#define TOL_NORM 1e-4 /* relative, of the residual stream */

static struct be_ctx *be;

/* The task type that means the checkpoint's prompt of this name. */
static const struct {
    const char *name, *task;
} task_of[] = {
    {"SearchQuery", "RETRIEVAL_QUERY"},
    {"QuestionAnswering", "QUESTION_ANSWERING"},
    {"FactChecking", "FACT_VERIFICATION"},
    {"CodeRetrieval", "CODE_RETRIEVAL_QUERY"},
    {"SentenceSimilarity", "SEMANTIC_SIMILARITY"},
    {"Classification", "CLASSIFICATION"},
    {"Clustering", "CLUSTERING"},
    {"Document", "RETRIEVAL_DOCUMENT"},
    {"Document_titled", "RETRIEVAL_DOCUMENT"},
    {"multilingual", NULL},
    {"long", ""},
};

struct stream {
    const json_t *layers; /* of the case, or NULL */
    const char *name;
    uint32_t d, seen;
};

static void check_layer(void *user, uint32_t layer, const struct be_tensor *x, uint32_t n)
{
    struct stream *s = user;
    const json_t *want = json_array_get(s->layers, layer), *first;
    float *got = malloc((size_t)n * s->d * sizeof(float));
    double sum = 0, norm = json_number_value(json_object_get(want, "norm"));
    size_t i;

    assert_non_null(got);
    need_ok(be_tensor_read(be, x, 0, n, got, err));
    for (i = 0; i < (size_t)n * s->d; i++)
        sum += (double)got[i] * got[i];
    if (!(fabs(sqrt(sum) - norm) <= TOL_NORM * norm))
        fail_msg("%s, layer %u: norm %.7g, expected %.7g", s->name, layer, sqrt(sum), norm);
    first = json_object_get(want, "last_pos_first");
    for (i = 0; i < json_array_size(first); i++) {
        double w = json_number_value(json_array_get(first, i));
        double g = got[(size_t)(n - 1) * s->d + i];

        if (!(fabs(g - w) <= 20 * TOL_NORM))
            fail_msg("%s, layer %u, last row, value %zu: %.7g, expected %.7g", s->name, layer, i, g,
                     w);
    }
    s->seen++;
    free(got);
}

/* The first dim numbers of v, normalised again, against the case's. */
static void check_dim(const float *v, uint32_t dim, const json_t *want, const char *name)
{
    double sum = 0;
    uint32_t i;

    assert_int_equal(json_array_size(want), dim);
    for (i = 0; i < dim; i++)
        sum += (double)v[i] * v[i];
    for (i = 0; i < dim; i++) {
        double w = json_number_value(json_array_get(want, i)), g = v[i] / sqrt(sum);

        if (!(fabs(g - w) <= TOL))
            fail_msg("%s at %u, value %u: %.7f, expected %.7f", name, dim, i, g, w);
    }
}

static void check_vector(struct mdl *m, const float *v, const json_t *c, const json_t *dims)
{
    const json_t *e = json_object_get(c, "embedding");
    const char *name = json_string_value(json_object_get(c, "name"));
    uint32_t full = mdl_info_get(m)->embed_dim;
    double sum = 0;
    char key[16];
    size_t i;

    for (i = 0; i < full; i++)
        sum += (double)v[i] * v[i];
    assert_true(fabs(sqrt(sum) - 1) < 1e-6);
    check_dim(v, full, json_object_get(e, "full"), name);
    for (i = 0; i < json_array_size(dims); i++) {
        uint32_t d = (uint32_t)json_integer_value(json_array_get(dims, i));

        need_ok(mdl_dims_check(m, d, err));
        snprintf(key, sizeof(key), "dim%u", d);
        check_dim(v, d, json_object_get(e, key), name);
    }
}

static void same_ids(const json_t *c, const struct mdl_ids *got)
{
    uint32_t n;
    int32_t *want = ids_of(json_object_get(c, "ids"), &n);

    assert_int_equal(got->n, n);
    assert_memory_equal(got->ids, want, n * sizeof(*want));
    free(want);
}

/* Ids of a case as a request would have them made; false: no request gives this one. */
static bool request_ids(struct mdl *m, const json_t *c, struct mdl_ids *out)
{
    const char *name = json_string_value(json_object_get(c, "name"));
    const json_t *text = json_object_get(c, "text");
    const char *s = json_string_value(text);
    size_t i, n = json_string_length(text);
    struct mdl_embed_part part = {.text = s, .n_bytes = n};
    struct mdl_embed_input in = {.parts = &part, .n_parts = 1};
    bool cut = true;

    for (i = 0; i < sizeof(task_of) / sizeof(*task_of); i++)
        if (strcmp(task_of[i].name, name) == 0)
            break;
    if (i == sizeof(task_of) / sizeof(*task_of))
        return false;
    if (strcmp(name, "Document_titled") == 0) {
        in.title = " The harbour\n";
        in.n_title = strlen(in.title);
    } else {
        need_ok(mdl_embed_tokens(m, s, n, task_of[i].task, false, &cut, out, err));
        assert_false(cut);
        same_ids(c, out);
        out->n = 0;
    }
    in.task_type = task_of[i].task;
    need_ok(mdl_embed_ordered(m, &in, out, NULL, err));
    return true;
}

static void texts(const char *dir, const json_t *dims)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m = open_model(dir, be, &o);
    json_t *cases = load_json(dir, "cases.json"), *list = json_object_get(cases, "text");
    float *v = malloc(mdl_info_get(m)->embed_dim * sizeof(float));
    size_t i, n_requests = 0;

    assert_non_null(v);
    assert_true(json_array_size(list) >= 4);
    for (i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i), *layers = json_object_get(c, "layers");
        struct stream s = {.layers = layers,
                           .name = json_string_value(json_object_get(c, "name")),
                           .d = mdl_info_get(m)->d_model};
        struct mdl_ids ids = {0};
        uint32_t offsets[2] = {0, 0};
        uint32_t n;
        int32_t *want = ids_of(json_object_get(c, "ids"), &n);

        m->trace = layers ? check_layer : NULL;
        m->trace_user = &s;
        if (request_ids(m, c, &ids)) {
            same_ids(c, &ids);
            n_requests++;
        }
        offsets[1] = n;
        need_ok(mdl_encode(m, 1, want, offsets, v, err));
        assert_int_equal(s.seen, layers ? mdl_info_get(m)->n_layers : 0);
        check_vector(m, v, c, dims);
        mdl_ids_deinit(&ids);
        free(want);
    }
    assert_true(n_requests >= 4);
    free(v);
    json_decref(cases);
    mdl_close(&m);
}

static void f32_texts_agree(void **state)
{
    json_t *cases = load_json(EG2_DIR, "cases.json");

    texts(EG2_DIR, json_object_get(cases, "mrl_dims"));
    json_decref(cases);
}

static void bf16_texts_agree(void **state)
{
    json_t *cases = load_json(EG2_DIR, "cases.json");

    texts(EG2_BF16_DIR, json_object_get(cases, "mrl_dims"));
    json_decref(cases);
}

/* ------------------------------------------------------------------- media */

#define MOST_MEDIA 2

/* The media of a case, in its order, and where their first rows are. */
static uint32_t media_of(struct mdl *m, const json_t *c, const struct mdl_ids *ids,
                         struct mdl_encode_media *out)
{
    const json_t *parts = json_object_get(c, "parts"), *frames = json_object_get(c, "frames");
    const json_t *list = parts ? parts : frames;
    int32_t image = mdl_tok_find(mdl_tok_get(m), "<|image|>", 9);
    int32_t audio = mdl_tok_find(mdl_tok_get(m), "<|audio|>", 9);
    uint32_t n = 0, r = 0;
    size_t i;

    for (i = 0; i < json_array_size(list); i++) {
        const json_t *p = json_array_get(list, i);
        const char *img = json_string_value(frames ? p : json_object_get(p, "image"));
        const char *snd = json_string_value(json_object_get(p, "audio"));
        struct mdl_media *media;

        if (!img && !snd)
            continue;
        assert_true(n < MOST_MEDIA);
        media = img ? see(m, img) : hear(m, snd);
        while (r < ids->n && ids->ids[r] != (img ? image : audio))
            r++;
        out[n++] = (struct mdl_encode_media){.row = r, .media = media};
        r += mdl_media_tokens(media);
        assert_true(r < ids->n);
    }
    return n;
}

static void free_media(struct mdl_encode_media *media, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct mdl_media *mut = (struct mdl_media *)(uintptr_t)media[i].media;

        mdl_media_free(&mut);
    }
}

static struct mdl_ids case_ids(struct mdl *m, const json_t *c)
{
    int32_t image = mdl_tok_find(mdl_tok_get(m), "<|image|>", 9);
    int32_t video = mdl_tok_find(mdl_tok_get(m), "<|video|>", 9);
    struct mdl_ids v = {0};
    uint32_t n;

    v.ids = ids_of(json_object_get(c, "ids"), &n);
    v.n = v.cap = n;
    /* frames of a video are pictures: a placeholder's own id is never looked up */
    for (size_t i = 0; i < v.n; i++)
        if (v.ids[i] == video)
            v.ids[i] = image;
    return v;
}

/* Pictures, sounds and texts between them, one by one; then all of them in one call, and each
 * medium alone as a flat input makes its ids. */
static void mixed_agree(void **state)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl *m = open_model(EG2_DIR, be, &o);
    json_t *cases = load_json(EG2_DIR, "cases.json"), *list = json_object_get(cases, "mixed");
    uint32_t dim = mdl_info_get(m)->embed_dim, offsets[16] = {0}, n_all = 0;
    size_t i, n = json_array_size(list);
    struct mdl_encode_media all[16];
    struct mdl_ids joined = {0};
    float *one = malloc(n * dim * sizeof(float));
    float *batch = malloc(n * dim * sizeof(float));

    assert_true(one && batch && n == 7);
    for (i = 0; i < n; i++) {
        const json_t *c = json_array_get(list, i), *layers = json_object_get(c, "layers");
        struct mdl_ids ids = case_ids(m, c);
        const uint32_t two[2] = {0, (uint32_t)ids.n};
        struct stream s = {.layers = layers,
                           .name = json_string_value(json_object_get(c, "name")),
                           .d = mdl_info_get(m)->d_model};
        uint32_t k, n_media = media_of(m, c, &ids, all + n_all);

        assert_true(n_media > 0);
        m->trace = layers ? check_layer : NULL;
        m->trace_user = &s;
        need_ok(mdl_encode_with(m, 1, ids.ids, two, all + n_all, n_media, one + i * dim, err));
        assert_int_equal(s.seen, layers ? mdl_info_get(m)->n_layers : 0);
        check_vector(m, one + i * dim, c, json_object_get(cases, "mrl_dims"));
        if (n_media == 1 && !strstr(s.name, "text")) {
            const struct mdl_embed_part part = {.media = all[n_all].media};
            const struct mdl_embed_input in = {.parts = &part, .n_parts = 1};
            struct mdl_ids made = {0};
            uint32_t row = 0;

            need_ok(mdl_embed_ordered(m, &in, &made, &row, err));
            same_ids(c, &made);
            assert_int_equal(row, all[n_all].row);
            mdl_ids_deinit(&made);
        }
        for (k = 0; k < n_media; k++)
            all[n_all + k].row += (uint32_t)joined.n;
        n_all += n_media;
        for (k = 0; k < ids.n; k++)
            need_ok(mdl_ids_push(&joined, ids.ids[k], err));
        offsets[i + 1] = (uint32_t)joined.n;
        mdl_ids_deinit(&ids);
    }
    m->trace = NULL;
    need_ok(mdl_encode_with(m, (uint32_t)n, joined.ids, offsets, all, n_all, batch, err));
    assert_memory_equal(one, batch, n * dim * sizeof(float));
    free_media(all, n_all);
    mdl_ids_deinit(&joined);
    free(one);
    free(batch);
    json_decref(cases);
    mdl_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_texts_agree),
        cmocka_unit_test(bf16_texts_agree),
        cmocka_unit_test(mixed_agree),
    };
    int rc;

    need_dir(EG2_DIR);
    need_dir(EG2_BF16_DIR);
    be = test_ctx(2);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    be_ctx_free(&be);
    return rc;
}
