/* Eyes and ears against what transformers computed: patches and mel features of every picture and
 * sound, the stream behind every module of both towers, soft tokens; clipped and unclipped,
 * standardized and not; what is refused. Provenance: tests/golden/README.md */
#include "mdl_media.h"

#include "../../models/gemma/mdl_g4_towers.h"

#define MM TEST_GOLDEN "/gemma4_mm" /* with the media of EG2_DIR */
#define TOL 2e-5 /* of a value relative to the largest; sums by as much of all values */

static struct be_ctx *be;

/* ---------------------------------------------------------------------- rig */

struct rig {
    struct mdl_file *file;
    struct mdl_plan plan;
    struct mdl_g4_vision *eyes;
    struct mdl_g4_audio *ears;
    json_t *config, *processor;
};

static uint32_t d_text(const struct rig *r)
{
    return (uint32_t)json_integer_value(
        json_object_get(json_object_get(r->config, "text_config"), "hidden_size"));
}

static void rig_open(struct rig *r, const char *dir, const char *prefix, struct be_ctx *ctx)
{
    const struct mdl_opts o = {.batch_tokens = 1};
    char tower[64], embed[64];
    int fd = open_root(dir);

    memset(r, 0, sizeof(*r));
    need_ok(mdl_file_open(&r->file, fd, err));
    close(fd);
    r->config = load_json(dir, "config.json");
    r->processor = load_json(EG2_DIR, "processor_config.json");
    r->plan.file = r->file;
    r->plan.be = ctx;
    need_ok(mdl_g4_vision_config(&r->eyes, json_object_get(r->config, "vision_config"),
                                 r->processor, d_text(r), err));
    need_ok(mdl_g4_audio_config(&r->ears, json_object_get(r->config, "audio_config"), r->processor,
                                d_text(r), err));
    snprintf(tower, sizeof(tower), "%svision_tower.", prefix);
    snprintf(embed, sizeof(embed), "%sembed_vision.", prefix);
    need_ok(mdl_g4_vision_plan(r->eyes, &r->plan, tower, embed, err));
    snprintf(tower, sizeof(tower), "%saudio_tower.", prefix);
    snprintf(embed, sizeof(embed), "%sembed_audio.", prefix);
    need_ok(mdl_g4_audio_plan(r->ears, &r->plan, tower, embed, err));
    need_ok(mdl_g4_vision_fit(r->eyes, &r->plan, err));
    need_ok(mdl_g4_audio_fit(r->ears, &r->plan, err));
    if (ctx) {
        need_ok(mdl_plan_build_weights(&r->plan, &o, err));
        need_ok(mdl_plan_build_tensors(&r->plan, err));
    }
}

static void rig_close(struct rig *r)
{
    struct be_ctx *ctx = r->plan.be;

    mdl_plan_free(&r->plan); /* whose slots are the towers' */
    mdl_g4_vision_free(&r->eyes, ctx);
    mdl_g4_audio_free(&r->ears, ctx);
    mdl_file_close(&r->file);
    json_decref(r->config);
    json_decref(r->processor);
}

static struct mdl_media *rig_see(const struct rig *r, const char *name)
{
    struct mdl_media *m = NULL;
    struct mdl_image img;

    picture(name, &img);
    need_ok(mdl_g4_vision_media(r->eyes, &img, &m, err));
    free((void *)(uintptr_t)img.pixels);
    return m;
}

static struct mdl_media *rig_hear(const struct rig *r, const char *name)
{
    struct mdl_media *m = NULL;
    struct mdl_sound snd;

    sound(name, &snd);
    need_ok(mdl_g4_audio_media(r->ears, &snd, &m, err));
    free((void *)(uintptr_t)snd.pcm);
    return m;
}

static double number(const json_t *obj, const char *key)
{
    const json_t *v = json_object_get(obj, key);

    if (!json_is_number(v))
        fail_msg("golden file: no number '%s'", key);
    return json_number_value(v);
}

/* A digest of the reference: shape, first values, sum, sum of squares, largest. */
static void digest(const char *what, const json_t *d, const float *x, size_t rows, size_t cols,
                   double tol)
{
    const json_t *shape = json_object_get(d, "shape"), *first = json_object_get(d, "first");
    double sum = 0, sq = 0, max = 0, big = number(d, "absmax"), size = number(d, "sumsq");

    assert_int_equal(json_integer_value(json_array_get(shape, 0)), rows);
    assert_int_equal(json_integer_value(json_array_get(shape, 1)), cols);
    for (size_t i = 0; i < json_array_size(first); i++) {
        double want = json_number_value(json_array_get(first, i));

        if (!(fabs(x[i] - want) <= tol * big))
            fail_msg("%s: value %zu is %.7g, expected %.7g", what, i, (double)x[i], want);
    }
    for (size_t i = 0; i < rows * cols; i++) {
        sum += x[i];
        sq += (double)x[i] * x[i];
        max = fabs(x[i]) > max ? fabs(x[i]) : max;
    }
    if (!(fabs(sum - number(d, "sum")) <= tol * sqrt(size * (double)(rows * cols))) ||
        !(fabs(sq - size) <= tol * size) || !(fabs(max - big) <= tol * big))
        fail_msg("%s: sum %.7g, squares %.7g, largest %.7g; expected %.7g, %.7g, %.7g", what, sum,
                 sq, max, number(d, "sum"), size, big);
}

/* ------------------------------------------------------------------- media */

static void check_picture(const struct rig *r, const json_t *p)
{
    char name[64];
    const json_t *s = json_object_get(p, "samples");
    struct mdl_media *m;

    snprintf(name, sizeof(name), "%s", json_string_value(json_object_get(p, "file")));
    *strchr(name, '.') = '\0';
    m = rig_see(r, name);
    assert_int_equal(m->n_rows, number(p, "patches"));
    assert_int_equal(m->n_tokens, number(p, "soft_tokens"));
    assert_int_equal(m->grid_w, number(p, "grid_w"));
    assert_int_equal(m->grid_h, number(p, "grid_h"));
    assert_int_equal(m->n_cols,
                     json_integer_value(json_array_get(json_object_get(p, "padded_shape"), 2)));
    assert_int_equal(mdl_g4_vision_max_tokens(r->eyes) * 9,
                     json_integer_value(json_array_get(json_object_get(p, "padded_shape"), 1)));
    assert_true(json_array_size(s) > 0);
    for (size_t i = 0; i < json_array_size(s); i++) {
        const json_t *one = json_array_get(s, i);
        size_t row = (size_t)json_integer_value(json_array_get(one, 0));
        size_t col = (size_t)json_integer_value(json_array_get(one, 1));
        double got = m->x[row * m->n_cols + col] * 255.0;

        /* equal bytes: 7 digits of v / 255 tell them apart */
        assert_true(lround(got) == lround(json_number_value(json_array_get(one, 2)) * 255));
    }
    digest(name, json_object_get(p, "patches_digest"), m->x, m->n_rows, m->n_cols, 1e-6);
    mdl_media_free(&m);
}

/* The towers of real models have patches of 16: only how pictures are cut is asked here. */
static void reshape(struct rig *r, uint32_t patch, uint32_t budget)
{
    json_t *c = json_copy(json_object_get(r->config, "vision_config"));
    json_t *p = json_pack("{s:i, s:i}", "max_soft_tokens", budget, "patch_size", patch);

    json_object_set_new(c, "patch_size", json_integer(patch));
    json_object_set_new(c, "position_embedding_size", json_integer(10240));
    mdl_plan_free(&r->plan);
    mdl_g4_vision_free(&r->eyes, NULL);
    need_ok(mdl_g4_vision_config(&r->eyes, c, p, 48, err));
    json_decref(c);
    json_decref(p);
}

static void pictures_become_the_patches_of_the_reference(void **state)
{
    json_t *j = load_json(EG2_DIR, "cases.json"), *k = load_json(MM, "cases.json");
    const json_t *list = json_object_get(json_object_get(j, "media"), "pictures");
    const json_t *more = json_object_get(k, "media_patch16");
    struct rig r;

    rig_open(&r, EG2_DIR, "", NULL);
    assert_int_equal(json_array_size(list), 3);
    for (size_t i = 0; i < json_array_size(list); i++)
        check_picture(&r, json_array_get(list, i));
    assert_int_equal(json_array_size(more), 6);
    for (size_t i = 0; i < json_array_size(more); i++) {
        const json_t *p = json_array_get(more, i);

        reshape(&r, 16, (uint32_t)number(p, "max_soft_tokens"));
        check_picture(&r, p);
    }
    rig_close(&r);
    json_decref(j);
    json_decref(k);
}

/* Sides of the grid for every size the reference was asked about; the pixels are grey. */
static void sizes_are_chosen_as_by_the_reference(void **state)
{
    json_t *k = load_json(MM, "cases.json");
    const json_t *list = json_object_get(k, "target_sizes");
    uint8_t *grey = calloc(4000 * 3, 1);
    size_t checked = 0;
    struct rig r;

    rig_open(&r, EG2_DIR, "", NULL);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_int_t v[6];
        struct mdl_media *m = NULL;
        struct mdl_image img = {.n_channels = 3, .stride = 0, .pixels = grey};

        for (size_t n = 0; n < 6; n++)
            v[n] = json_integer_value(json_array_get(json_array_get(list, i), n));
        if (v[3] > 280) /* big pictures, the same rule */
            continue;
        img.height = (uint32_t)v[0];
        img.width = (uint32_t)v[1];
        img.stride = (size_t)img.width * 3;
        if (v[0] > 1000 && v[1] > 1000) /* one row, seen again and again, would be no picture */
            continue;
        free(grey);
        img.pixels = grey = calloc((size_t)img.height, img.stride);
        reshape(&r, (uint32_t)v[2], (uint32_t)v[3]);
        need_ok(mdl_g4_vision_media(r.eyes, &img, &m, err));
        if (m->grid_h * v[2] != v[4] || m->grid_w * v[2] != v[5])
            fail_msg("%d x %d: %u x %u patches of %d, expected %d x %d pixels", (int)v[0],
                     (int)v[1], m->grid_h, m->grid_w, (int)v[2], (int)v[4], (int)v[5]);
        mdl_media_free(&m);
        checked++;
    }
    assert_true(checked >= 40);
    free(grey);
    rig_close(&r);
    json_decref(k);
}

static void sounds_become_the_features_of_the_reference(void **state)
{
    json_t *j = load_json(EG2_DIR, "cases.json");
    const json_t *list = json_object_get(json_object_get(j, "media"), "sounds");
    struct rig r;

    rig_open(&r, EG2_DIR, "", NULL);
    assert_int_equal(json_array_size(list), 3);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *p = json_array_get(list, i), *s = json_object_get(p, "samples");
        char name[64];
        struct mdl_media *m;

        snprintf(name, sizeof(name), "%s", json_string_value(json_object_get(p, "file")));
        *strchr(name, '.') = '\0';
        m = rig_hear(&r, name);
        assert_int_equal(m->n_rows, number(p, "valid_frames"));
        assert_int_equal(m->n_tokens, number(p, "soft_tokens"));
        assert_true(json_array_size(s) > 0);
        for (size_t n = 0; n < json_array_size(s); n++) {
            const json_t *one = json_array_get(s, n);
            size_t row = (size_t)json_integer_value(json_array_get(one, 0));
            size_t col = (size_t)json_integer_value(json_array_get(one, 1));
            double want = json_number_value(json_array_get(one, 2));

            if (!(fabs(m->x[row * 128 + col] - want) <= 1e-4 * fmax(1, fabs(want))))
                fail_msg("%s: frame %zu, band %zu is %.7g, expected %.7g", name, row, col,
                         (double)m->x[row * 128 + col], want);
        }
        digest(name, json_object_get(p, "digest"), m->x, m->n_rows, 128, 1e-4);
        mdl_media_free(&m);
    }
    rig_close(&r);
    json_decref(j);
}

/* ------------------------------------------------------------------- towers */

struct look {
    const json_t *towers;
    const char *kind; /* "vision." */
    size_t seen;
};

static void look_at(void *user, const char *name, const struct be_tensor *x, uint32_t n)
{
    struct look *l = user;
    char key[64];
    const json_t *d;
    uint32_t cols;
    float *rows;

    snprintf(key, sizeof(key), "%s%s", l->kind, name);
    if (!(d = json_object_get(l->towers, key)))
        return;
    cols = (uint32_t)json_integer_value(json_array_get(json_object_get(d, "shape"), 1));
    assert_non_null(rows = malloc((size_t)n * cols * sizeof(*rows)));
    need_ok(be_tensor_read(be, x, 0, n, rows, err));
    digest(key, d, rows, n, cols, TOL);
    free(rows);
    l->seen++;
}

static size_t check_tower(struct rig *r, const json_t *towers, const char *kind, const char *name)
{
    struct look l = {.towers = towers, .kind = kind};
    const struct mdl_g4_trace t = {.fn = look_at, .user = &l};
    bool eyes = kind[0] == 'v';
    struct mdl_media *m = eyes ? rig_see(r, name) : rig_hear(r, name);
    float *soft = calloc((size_t)m->n_tokens * d_text(r), sizeof(*soft));

    assert_non_null(soft);
    mdl_g4_vision_trace(r->eyes, &t);
    mdl_g4_audio_trace(r->ears, &t);
    if (eyes)
        need_ok(mdl_g4_vision_pass(r->eyes, be, m, soft, NULL, NULL, err));
    else
        need_ok(mdl_g4_audio_pass(r->ears, be, m, soft, NULL, NULL, err));
    assert_true(l.seen >= 4);
    free(soft);
    mdl_media_free(&m);
    return l.seen;
}

static void check_towers(const char *dir, const char *prefix, const char *list_name,
                         size_t want_seen)
{
    json_t *j = load_json(dir, "cases.json");
    const json_t *list = json_object_get(j, list_name);
    size_t seen = 0;
    struct rig r;

    rig_open(&r, dir, prefix, be);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i), *towers = json_object_get(c, "towers");
        const json_t *parts = json_object_get(c, "parts");

        for (size_t p = 0; towers && p < json_array_size(parts); p++) {
            const json_t *part = json_array_get(parts, p);
            const char *img = json_string_value(json_object_get(part, "image"));
            const char *snd = json_string_value(json_object_get(part, "audio"));

            if (img)
                seen += check_tower(&r, towers, "vision.", img);
            if (snd)
                seen += check_tower(&r, towers, "audio.", snd);
        }
    }
    assert_int_equal(seen, want_seen);
    rig_close(&r);
    json_decref(j);
}

static void towers_of_embeddinggemma2_agree(void **state)
{
    check_towers(EG2_DIR, "", "mixed", 4 * 5 + 3 * 4);
}

/* Every linear clipped, pictures standardized; what is projected is told too. */
static void towers_of_gemma4_agree(void **state)
{
    check_towers(MM, "model.", "logits", 3 * 7 + 2 * 5);
}

static void a_pass_gives_the_same_bytes_whatever_came_before_and_on_any_threads(void **state)
{
    struct be_ctx *one = NULL;
    const struct be_opts o = {.backend = "cpu", .n_threads = 1};
    struct rig r, s;
    struct mdl_media *m, *other, *h;
    size_t n, k;
    float *a, *b;

    need_ok(be_ctx_new(&one, &o, err));
    rig_open(&r, EG2_DIR, "", be);
    rig_open(&s, EG2_DIR, "", one);
    m = rig_see(&r, "wide_rgb");
    other = rig_see(&r, "grey");
    h = rig_hear(&r, "short");
    n = (size_t)m->n_tokens * d_text(&r);
    k = (size_t)h->n_tokens * d_text(&r);
    a = calloc((size_t)other->n_tokens * d_text(&r) + n + k, sizeof(*a));
    b = calloc((size_t)other->n_tokens * d_text(&r) + n + k, sizeof(*b));
    assert_true(a && b);
    need_ok(mdl_g4_vision_pass(r.eyes, be, other, a, NULL, NULL, err));
    need_ok(mdl_g4_vision_pass(r.eyes, be, m, a, NULL, NULL, err));
    need_ok(mdl_g4_vision_pass(s.eyes, one, m, b, NULL, NULL, err));
    assert_memory_equal(a, b, n * sizeof(*a));
    need_ok(mdl_g4_audio_pass(r.ears, be, h, a, NULL, NULL, err));
    need_ok(mdl_g4_audio_pass(s.ears, one, h, b, NULL, NULL, err));
    assert_memory_equal(a, b, k * sizeof(*a));
    free(a);
    free(b);
    mdl_media_free(&m);
    mdl_media_free(&other);
    mdl_media_free(&h);
    rig_close(&r);
    rig_close(&s);
    be_ctx_free(&one);
}

static bool stop_at_two(void *user)
{
    return ++*(int *)user == 2;
}

static void a_pass_stops_between_layers_and_the_next_one_is_whole(void **state)
{
    struct rc_err e = RC_ERR_INIT;
    struct mdl_media *m, *h;
    struct rig r;
    float *a, *b;
    int asked = 0;

    rig_open(&r, EG2_DIR, "", be);
    m = rig_see(&r, "grey");
    h = rig_hear(&r, "short");
    a = calloc((size_t)m->n_tokens * d_text(&r), sizeof(*a));
    b = calloc((size_t)m->n_tokens * d_text(&r), sizeof(*b));
    assert_true(a && b);
    need_ok(mdl_g4_vision_pass(r.eyes, be, m, a, NULL, NULL, err));
    assert_int_equal(mdl_g4_vision_pass(r.eyes, be, m, b, stop_at_two, &asked, &e), RC_CANCELLED);
    assert_int_equal(asked, 2);
    need_ok(mdl_g4_vision_pass(r.eyes, be, m, b, NULL, NULL, err));
    assert_memory_equal(a, b, (size_t)m->n_tokens * d_text(&r) * sizeof(*a));
    asked = 0;
    assert_int_equal(mdl_g4_audio_pass(r.ears, be, h, b, stop_at_two, &asked, &e), RC_CANCELLED);
    /* and media of the other kind are refused */
    assert_int_equal(mdl_g4_vision_pass(r.eyes, be, h, b, NULL, NULL, &e), RC_INVALID);
    assert_int_equal(mdl_g4_audio_pass(r.ears, be, m, b, NULL, NULL, &e), RC_INVALID);
    free(a);
    free(b);
    mdl_media_free(&m);
    mdl_media_free(&h);
    rig_close(&r);
}

/* ------------------------------------------------------------------ refusals */

static void pictures_and_sounds_that_cannot_be_taken_are_refused(void **state)
{
    uint8_t px[4 * 4] = {0};
    float *pcm = calloc(480001, sizeof(*pcm));
    struct mdl_image img = {.width = 0, .height = 1, .stride = 12, .n_channels = 3, .pixels = px};
    struct mdl_sound snd = {.rate = 16000, .n = 160, .pcm = pcm};
    struct rc_err e = RC_ERR_INIT;
    struct mdl_media *m = NULL;
    struct rig r;

    assert_non_null(pcm);
    rig_open(&r, EG2_DIR, "", NULL);
    assert_int_equal(mdl_g4_vision_media(r.eyes, &img, &m, &e), RC_INVALID);
    img.width = UINT32_MAX;
    assert_int_equal(mdl_g4_vision_media(r.eyes, &img, &m, &e), RC_INVALID);
    img.width = 4;
    img.stride = 11;
    assert_int_equal(mdl_g4_vision_media(r.eyes, &img, &m, &e), RC_INVALID);
    img.stride = 16;
    img.n_channels = 2;
    assert_int_equal(mdl_g4_vision_media(r.eyes, &img, &m, &e), RC_INVALID);
    assert_int_equal(mdl_g4_audio_media(r.ears, &snd, &m, &e), RC_INVALID);
    assert_non_null(strstr(e.msg, "161"));
    snd.rate = 44100;
    snd.n = 16000;
    assert_int_equal(mdl_g4_audio_media(r.ears, &snd, &m, &e), RC_INVALID);
    snd.rate = 16000;
    snd.n = 480001;
    assert_int_equal(mdl_g4_audio_media(r.ears, &snd, &m, &e), RC_TOO_LARGE);
    assert_int_equal(e.limit, 30000);
    assert_int_equal(e.n, 30001);
    assert_null(m);
    /* and the longest that is heard: 30 s are 750 tokens */
    snd.n = 480000;
    need_ok(mdl_g4_audio_media(r.ears, &snd, &m, err));
    assert_int_equal(m->n_tokens, 750);
    assert_int_equal(mdl_g4_audio_max_tokens(r.ears), 750);
    mdl_media_free(&m);
    free(pcm);
    rig_close(&r);
}

/* A panorama of 1 x 100,000 pixels is a strip of 1 x N soft tokens, by the rule for thin ones. */
static void a_thin_panorama_becomes_a_strip(void **state)
{
    const uint32_t n = 100000;
    uint8_t *px = malloc((size_t)n * 3);
    struct mdl_image img = {
        .width = n, .height = 1, .stride = (size_t)n * 3, .n_channels = 3, .pixels = px};
    struct mdl_media *m = NULL;
    struct rig r;

    assert_non_null(px);
    memset(px, 200, (size_t)n * 3);
    rig_open(&r, EG2_DIR, "", NULL);
    reshape(&r, 16, 280);
    need_ok(mdl_g4_vision_media(r.eyes, &img, &m, err));
    assert_int_equal(m->grid_w, 840);
    assert_int_equal(m->grid_h, 3);
    assert_int_equal(m->n_tokens, 280);
    for (size_t i = 0; i < (size_t)m->n_rows * m->n_cols; i++)
        assert_true(m->x[i] == (float)(200 * 0.00392156862745098));
    mdl_media_free(&m);
    img.width = 1;
    img.height = n;
    img.stride = 3;
    need_ok(mdl_g4_vision_media(r.eyes, &img, &m, err));
    assert_int_equal(m->grid_h, 840);
    mdl_media_free(&m);
    free(px);
    rig_close(&r);
}

static void numbers_of_a_config_are_checked(void **state)
{
    static const struct {
        bool eyes;
        const char *key, *value;
        enum rc want;
    } bad[] = {
        {true, "hidden_size", "0", RC_FORMAT},
        {true, "hidden_size", "null", RC_FORMAT},
        {true, "head_dim", "6", RC_FORMAT},
        {true, "num_key_value_heads", "2", RC_FORMAT},
        {true, "num_hidden_layers", "1000000", RC_FORMAT},
        {true, "patch_size", "8", RC_UNSUPPORTED}, /* not what the processor says */
        {true, "patch_size", "-4", RC_FORMAT},
        {true, "position_embedding_size", "4294967296", RC_FORMAT},
        {true, "hidden_activation", "\"relu\"", RC_UNSUPPORTED},
        {true, "attention_bias", "true", RC_UNSUPPORTED},
        {true, "rms_norm_eps", "0", RC_FORMAT},
        {true, "use_clipped_linears", "3", RC_FORMAT},
        {false, "hidden_size", "2", RC_FORMAT},
        {false, "num_attention_heads", "3", RC_FORMAT},
        {false, "subsampling_conv_channels", "[128]", RC_FORMAT},
        {false, "subsampling_conv_channels", "[128, -4]", RC_FORMAT},
        {false, "attention_context_left", "1", RC_FORMAT},
        {false, "attention_context_right", "2", RC_UNSUPPORTED},
        {false, "attention_logit_cap", "0", RC_FORMAT},
        {false, "conv_kernel_size", "65", RC_FORMAT},
        {false, "hidden_act", "\"gelu\"", RC_UNSUPPORTED},
        {false, "output_proj_dims", "1e9", RC_FORMAT},
    };
    json_t *config = load_json(EG2_DIR, "config.json");
    json_t *processor = load_json(EG2_DIR, "processor_config.json");

    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        json_t *c =
            json_deep_copy(json_object_get(config, bad[i].eyes ? "vision_config" : "audio_config"));
        struct mdl_g4_vision *v = NULL;
        struct mdl_g4_audio *a = NULL;
        struct rc_err e = RC_ERR_INIT;
        enum rc rc;

        json_object_set_new(c, bad[i].key, json_loads(bad[i].value, JSON_DECODE_ANY, NULL));
        rc = bad[i].eyes ? mdl_g4_vision_config(&v, c, processor, 48, &e)
                         : mdl_g4_audio_config(&a, c, processor, 48, &e);
        if (rc != bad[i].want || (strcmp(e.what, bad[i].key) != 0 && !strstr(e.msg, bad[i].key)) ||
            v || a)
            fail_msg("%s = %s: %s (%s)", bad[i].key, bad[i].value, rc_name(rc), e.msg);
        json_decref(c);
    }
    json_decref(config);
    json_decref(processor);
}

static void what_a_processor_does_otherwise_is_refused(void **state)
{
    static const struct {
        const char *part, *key, *value;
    } bad[] = {
        {"image_processor", "max_soft_tokens", "0"},
        {"image_processor", "do_normalize", "true"},
        {"image_processor", "rescale_factor", "0.5"},
        {"image_processor", "resample", "2"},
        {"feature_extractor", "sampling_rate", "8000"},
        {"feature_extractor", "preemphasis", "0.97"},
        {"feature_extractor", "mel_floor", "1e-5"},
        {"feature_extractor", "per_bin_mean", "[1]"},
    };
    json_t *config = load_json(EG2_DIR, "config.json");
    json_t *processor = load_json(EG2_DIR, "processor_config.json");

    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        json_t *p = json_deep_copy(processor);
        struct mdl_g4_vision *v = NULL;
        struct mdl_g4_audio *a = NULL;
        struct rc_err e = RC_ERR_INIT;
        enum rc rc;

        json_object_set_new(json_object_get(p, bad[i].part), bad[i].key,
                            json_loads(bad[i].value, JSON_DECODE_ANY, NULL));
        rc = bad[i].part[0] == 'i'
                 ? mdl_g4_vision_config(&v, json_object_get(config, "vision_config"), p, 48, &e)
                 : mdl_g4_audio_config(&a, json_object_get(config, "audio_config"), p, 48, &e);
        if ((rc != RC_FORMAT && rc != RC_UNSUPPORTED) ||
            (strcmp(e.what, bad[i].key) != 0 && !strstr(e.msg, bad[i].key)) || v || a)
            fail_msg("%s = %s: %s (%s)", bad[i].key, bad[i].value, rc_name(rc), e.msg);
        json_decref(p);
    }
    json_decref(config);
    json_decref(processor);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pictures_become_the_patches_of_the_reference),
        cmocka_unit_test(sizes_are_chosen_as_by_the_reference),
        cmocka_unit_test(sounds_become_the_features_of_the_reference),
        cmocka_unit_test(towers_of_embeddinggemma2_agree),
        cmocka_unit_test(towers_of_gemma4_agree),
        cmocka_unit_test(a_pass_gives_the_same_bytes_whatever_came_before_and_on_any_threads),
        cmocka_unit_test(a_pass_stops_between_layers_and_the_next_one_is_whole),
        cmocka_unit_test(pictures_and_sounds_that_cannot_be_taken_are_refused),
        cmocka_unit_test(a_thin_panorama_becomes_a_strip),
        cmocka_unit_test(numbers_of_a_config_are_checked),
        cmocka_unit_test(what_a_processor_does_otherwise_is_refused),
    };
    int rc;

    need_dir(EG2_DIR);
    need_dir(MM);
    be = test_ctx(2);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    be_ctx_free(&be);
    return rc;
}
