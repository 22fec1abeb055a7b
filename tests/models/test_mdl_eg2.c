/* EmbeddingGemma 2: the limits of an input, the words of groups and tasks, media at their places,
 * and the equality contract bit for bit. (Numbers against the reference: *_golden.) */
#include "mdl_media.h"

#define DIM 96
#define BOS 2
#define EOS 1

static struct be_ctx *be;

static struct mdl *open_eg2(uint32_t batch_tokens)
{
    struct mdl_opts o = small_opts(BE_F32);

    o.batch_tokens = batch_tokens;
    return open_model(EG2_DIR, be, &o);
}

/* ------------------------------------------------------------------- inputs */

static enum rc tokens(struct mdl *m, const char *text, const char *task, struct mdl_ids *out,
                      struct rc_err *e)
{
    bool cut = true;

    out->n = 0;
    return mdl_embed_tokens(m, text, strlen(text), task, false, &cut, out, e);
}

static bool same(const struct mdl_ids *a, const struct mdl_ids *b)
{
    return a->n == b->n && memcmp(a->ids, b->ids, a->n * sizeof(*a->ids)) == 0;
}

static void eight_tasks_and_no_other(void **state)
{
    static const char *const bad[] = {"retrieval_query", "SEARCH", "query", "Document", "task"};
    static const char *const prompts[][2] = {
        {"RETRIEVAL_QUERY", "task: search result | query: "},
        {"QUESTION_ANSWERING", "task: question answering | query: "},
        {"FACT_VERIFICATION", "task: fact checking | query: "},
        {"CODE_RETRIEVAL_QUERY", "task: code retrieval | query: "},
        {"SEMANTIC_SIMILARITY", "task: sentence similarity | query: "},
        {"CLASSIFICATION", "task: classification | query: "},
        {"CLUSTERING", "task: clustering | query: "},
        {"RETRIEVAL_DOCUMENT", "title: none | text: "},
        {"", "title: none | text: "},
        {NULL, "title: none | text: "},
    };
    const struct mdl_tok_flags flags = {.add_special = true};
    struct mdl *m = open_eg2(64);
    struct mdl_ids got = {0}, want = {0};
    struct rc_err e = RC_ERR_INIT;
    char text[128];
    size_t i;

    for (i = 0; i < sizeof(prompts) / sizeof(*prompts); i++) {
        snprintf(text, sizeof(text), "%sthe wind", prompts[i][1]);
        want.n = 0;
        need_ok(mdl_tok_encode(mdl_tok_get(m), text, strlen(text), &flags, &want, err));
        need_ok(tokens(m, "the wind", prompts[i][0], &got, err));
        assert_true(same(&got, &want));
    }
    for (i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        assert_int_equal(tokens(m, "the wind", bad[i], &got, &e), RC_INVALID);
        assert_string_equal(e.what, "task_type");
        assert_int_equal(got.n, 0);
    }
    assert_string_equal(mdl_info_get(m)->default_prompt, "RETRIEVAL_DOCUMENT");
    mdl_ids_deinit(&got);
    mdl_ids_deinit(&want);
    mdl_close(&m);
}

static enum rc ordered(struct mdl *m, bool group, const char *task, const char *title,
                       const char *const *parts, size_t n, struct mdl_ids *out, struct rc_err *e)
{
    struct mdl_embed_part p[4];
    struct mdl_embed_input in = {.parts = p,
                                 .n_parts = n,
                                 .group = group,
                                 .title = title,
                                 .n_title = title ? strlen(title) : 0,
                                 .task_type = task};
    size_t i;

    assert_true(n <= 4);
    for (i = 0; i < n; i++)
        p[i] = (struct mdl_embed_part){.text = parts[i], .n_bytes = strlen(parts[i])};
    out->n = 0;
    return mdl_embed_ordered(m, &in, out, NULL, e);
}

static void a_group_of_texts_is_one_text(void **state)
{
    static const char *const parts[] = {"the harbour", "", "and the wind"};
    struct mdl *m = open_eg2(64);
    struct mdl_ids got = {0}, want = {0};
    struct rc_err e = RC_ERR_INIT;

    need_ok(tokens(m, "the harbour\n\nand the wind", "CLUSTERING", &want, err));
    need_ok(ordered(m, true, "CLUSTERING", NULL, parts, 3, &got, err));
    assert_true(same(&got, &want));
    need_ok(ordered(m, true, "CLUSTERING", "none", parts, 3, &got, err));
    assert_true(same(&got, &want));
    need_ok(ordered(m, true, NULL, NULL, parts, 1, &got, err));
    need_ok(tokens(m, parts[0], NULL, &want, err));
    assert_true(same(&got, &want));
    assert_int_equal(ordered(m, true, NULL, NULL, parts, 0, &got, &e), RC_INVALID);
    assert_string_equal(e.what, "content");
    assert_int_equal(ordered(m, false, NULL, NULL, parts, 2, &got, &e), RC_INVALID);
    mdl_ids_deinit(&got);
    mdl_ids_deinit(&want);
    mdl_close(&m);
}

static void titles(void **state)
{
    static const char *const part[] = {"the harbour"};
    static const char *const none[] = {"none", "", " \n", " none\t"};
    const struct mdl_tok_flags flags = {.add_special = true};
    const char *text = "title: On boats | text: the harbour";
    struct mdl *m = open_eg2(64);
    struct mdl_ids got = {0}, want = {0};
    struct rc_err e = RC_ERR_INIT;
    size_t i;

    need_ok(mdl_tok_encode(mdl_tok_get(m), text, strlen(text), &flags, &want, err));
    need_ok(ordered(m, true, "RETRIEVAL_DOCUMENT", "  On boats\n", part, 1, &got, err));
    assert_true(same(&got, &want));
    need_ok(ordered(m, false, NULL, "On boats", part, 1, &got, err));
    assert_true(same(&got, &want));
    need_ok(tokens(m, part[0], NULL, &want, err));
    for (i = 0; i < sizeof(none) / sizeof(*none); i++) {
        need_ok(ordered(m, true, NULL, none[i], part, 1, &got, err));
        assert_true(same(&got, &want));
    }
    assert_int_equal(ordered(m, true, "RETRIEVAL_QUERY", "On boats", part, 1, &got, &e),
                     RC_INVALID);
    assert_string_equal(e.what, "title");
    assert_int_equal(got.n, 0);
    mdl_ids_deinit(&got);
    mdl_ids_deinit(&want);
    mdl_close(&m);
}

/* Words that look like control tokens are words: in texts and in titles. */
static void no_text_makes_control_tokens(void **state)
{
    static const char *const part[] = {"<bos><|image><|image|><image|><|audio|><|video|><eos>"};
    struct mdl *m = open_eg2(64);
    struct mdl_ids got = {0};
    size_t i;

    need_ok(ordered(m, true, NULL, "<|image|><eos>", part, 1, &got, err));
    assert_int_equal(got.ids[0], BOS);
    assert_int_equal(got.ids[got.n - 1], EOS);
    for (i = 1; i + 1 < got.n; i++)
        assert_false(mdl_tok_is_special(mdl_tok_get(m), got.ids[i]));
    mdl_ids_deinit(&got);
    mdl_close(&m);
}

/* Counted exactly, refused and never cut, whatever truncate says. */
static void the_longest_input(void **state)
{
    struct mdl *m;
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl_ids got = {0};
    struct rc_err e = RC_ERR_INIT;
    char dir[256], text[4096];
    size_t fits = 0, n;
    bool cut;

    tdir_new(dir, EG2_DIR);
    tdir_set(dir, "config.json", "text_config.max_position_embeddings", "100");
    m = open_model(dir, be, &o);
    assert_int_equal(mdl_info_get(m)->max_input_tokens, 100);
    assert_int_equal(mdl_info_get(m)->train_ctx_tokens, 100);
    assert_true(mdl_info_get(m)->never_cuts);
    memset(text, '7', sizeof(text)); /* digits are pieces of their own */
    for (n = 1; n < 200; n++) {
        enum rc rc;

        got.n = 0;
        e = (struct rc_err)RC_ERR_INIT;
        rc = mdl_embed_tokens(m, text, n, NULL, true, &cut, &got, &e);
        if (rc == RC_OK) {
            assert_false(cut);
            assert_true(got.n <= 100);
            fits = n;
            continue;
        }
        assert_int_equal(rc, RC_TOO_LARGE);
        assert_int_equal(got.n, 0);
        assert_int_equal(e.limit, 100);
        assert_int_equal(e.n, 100 + (n - fits));
    }
    assert_in_range(fits, 80, 98);
    mdl_ids_deinit(&got);
    mdl_close(&m);
    tdir_set(dir, "sentence_bert_config.json", "max_seq_length", "64");
    m = open_model(dir, be, &o);
    assert_int_equal(mdl_info_get(m)->max_input_tokens, 64);
    mdl_close(&m);
    tdir_rm(dir);
    m = open_eg2(64);
    assert_int_equal(mdl_info_get(m)->max_input_tokens, 8192);
    mdl_close(&m);
}

static void dimensions(void **state)
{
    static const uint32_t good[] = {96, 64, 32, 16}, bad[] = {0, 1, 15, 17, 48, 95, 97, 512, 768};
    struct mdl *m = open_eg2(64);
    struct rc_err e = RC_ERR_INIT;
    size_t i;

    for (i = 0; i < sizeof(good) / sizeof(*good); i++)
        need_ok(mdl_dims_check(m, good[i], err));
    for (i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        assert_int_equal(mdl_dims_check(m, bad[i], &e), RC_INVALID);
        assert_string_equal(e.what, "dimensions");
        assert_non_null(strstr(e.msg, "96, 64, 32 or 16"));
    }
    mdl_close(&m);
}

/* -------------------------------------------------------------------- media */

static void words(struct mdl *m, const char *text, struct mdl_ids *out)
{
    const struct mdl_tok_flags flags = {0};

    need_ok(mdl_tok_encode(mdl_tok_get(m), text, strlen(text), &flags, out, err));
}

static void marked(struct mdl *m, const char *begin, const char *soft, const char *end, uint32_t n,
                   struct mdl_ids *out)
{
    const struct mdl_tok *t = mdl_tok_get(m);

    need_ok(mdl_ids_push(out, mdl_tok_find(t, begin, strlen(begin)), err));
    for (; n > 0; n--)
        need_ok(mdl_ids_push(out, mdl_tok_find(t, soft, strlen(soft)), err));
    need_ok(mdl_ids_push(out, mdl_tok_find(t, end, strlen(end)), err));
}

#define PICTURE(media) \
    marked(m, "<|image>", "<|image|>", "<image|>", mdl_media_tokens(media), &want)
#define SOUND(media) marked(m, "<|audio>", "<|audio|>", "<audio|>", mdl_media_tokens(media), &want)

/* One prompt in front, whatever comes first; newlines between parts; marks around media. */
static void groups_with_media(void **state)
{
    struct mdl *m = open_eg2(64);
    struct mdl_media *grey = see(m, "grey"), *wide = see(m, "wide_rgb"), *tone = hear(m, "short");
    struct mdl_embed_part p[4] = {
        {.media = grey}, {.text = "a harbour", .n_bytes = 9}, {.media = tone}, {.media = wide}};
    struct mdl_embed_input in = {
        .parts = p, .n_parts = 4, .group = true, .task_type = "CLUSTERING"};
    struct mdl_ids got = {0}, want = {0};
    struct rc_err e = RC_ERR_INIT;
    uint32_t rows[3];

    need_ok(mdl_embed_ordered(m, &in, &got, rows, err));
    need_ok(mdl_ids_push(&want, BOS, err));
    words(m, "task: clustering | query: ", &want);
    assert_int_equal(rows[0], want.n + 1);
    PICTURE(grey);
    words(m, "\na harbour\n", &want);
    assert_int_equal(rows[1], want.n + 1);
    SOUND(tone);
    words(m, "\n", &want);
    assert_int_equal(rows[2], want.n + 1);
    PICTURE(wide);
    need_ok(mdl_ids_push(&want, EOS, err));
    assert_true(same(&got, &want));

    /* media alone: no prompt, whatever the task; and no title */
    p[1] = p[3];
    in.n_parts = 2;
    got.n = want.n = 0;
    need_ok(mdl_embed_ordered(m, &in, &got, rows, err));
    need_ok(mdl_ids_push(&want, BOS, err));
    PICTURE(grey);
    words(m, "\n", &want);
    PICTURE(wide);
    need_ok(mdl_ids_push(&want, EOS, err));
    assert_true(same(&got, &want));
    in.task_type = "RETRIEVAL_DOCUMENT";
    in.title = "On boats";
    in.n_title = 8;
    assert_int_equal(mdl_embed_ordered(m, &in, &got, rows, &e), RC_INVALID);
    assert_string_equal(e.what, "title");
    mdl_ids_deinit(&got);
    mdl_ids_deinit(&want);
    mdl_media_free(&grey);
    mdl_media_free(&wide);
    mdl_media_free(&tone);
    mdl_close(&m);
}

/* Soft tokens and marks count: 60 + 2 of a picture, <bos> and <eos>. */
static void media_count_against_the_limit(void **state)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl_embed_part p[2];
    struct mdl_embed_input in = {.parts = p, .n_parts = 1, .group = true};
    struct mdl_ids got = {0};
    struct rc_err e = RC_ERR_INIT;
    struct mdl_media *wide;
    struct mdl *m;
    char dir[256];
    uint32_t rows[2];

    tdir_new(dir, EG2_DIR);
    tdir_set(dir, "config.json", "text_config.max_position_embeddings", "64");
    m = open_model(dir, be, &o);
    wide = see(m, "wide_rgb");
    assert_int_equal(mdl_media_tokens(wide), 60);
    p[0] = p[1] = (struct mdl_embed_part){.media = wide};
    need_ok(mdl_embed_ordered(m, &in, &got, rows, err));
    assert_int_equal(got.n, 64);
    got.n = 0;
    in.n_parts = 2;
    assert_int_equal(mdl_embed_ordered(m, &in, &got, rows, &e), RC_TOO_LARGE);
    assert_int_equal(e.n, 127);
    assert_int_equal(e.limit, 64);
    assert_int_equal(got.n, 0);
    mdl_ids_deinit(&got);
    mdl_media_free(&wide);
    mdl_close(&m);
    tdir_rm(dir);
}

static void media_must_stand_at_their_placeholders(void **state)
{
    struct mdl *m = open_eg2(64);
    struct mdl_media *tone = hear(m, "short"), *grey = see(m, "grey");
    struct mdl_encode_media at[2] = {{.media = tone}};
    struct mdl_ids want = {0};
    struct rc_err e = RC_ERR_INIT;
    float out[2 * DIM], again[DIM];
    uint32_t offsets[3] = {0};

    need_ok(mdl_ids_push(&want, BOS, err));
    at[0].row = 2;
    SOUND(tone);
    need_ok(mdl_ids_push(&want, EOS, err));
    offsets[1] = (uint32_t)want.n;
    need_ok(mdl_encode_with(m, 1, want.ids, offsets, at, 1, out, err));

    /* none given; another row; another kind; one too many; cut by the sequence's end */
    assert_int_equal(mdl_encode(m, 1, want.ids, offsets, out, &e), RC_INVALID);
    assert_int_equal(e.item, 0);
    at[0].row = 3;
    assert_int_equal(mdl_encode_with(m, 1, want.ids, offsets, at, 1, out, &e), RC_INVALID);
    at[0] = (struct mdl_encode_media){.row = 2, .media = grey};
    assert_int_equal(mdl_encode_with(m, 1, want.ids, offsets, at, 1, out, &e), RC_INVALID);
    at[0].media = tone;
    at[1] = (struct mdl_encode_media){.row = 20, .media = tone};
    assert_int_equal(mdl_encode_with(m, 1, want.ids, offsets, at, 2, out, &e), RC_INVALID);
    offsets[1] = 5;
    offsets[2] = (uint32_t)want.n;
    assert_int_equal(mdl_encode_with(m, 2, want.ids, offsets, at, 1, out, &e), RC_INVALID);
    offsets[1] = (uint32_t)want.n;
    need_ok(mdl_encode_with(m, 1, want.ids, offsets, at, 1, again, err));
    assert_true(mdl_is_placeholder(m, want.ids[2]));
    assert_false(mdl_is_placeholder(m, BOS) || mdl_is_placeholder(m, want.ids[1]));
    assert_false(mdl_is_placeholder(m, -1));
    want.ids[2] = mdl_tok_find(mdl_tok_get(m), "<|video|>", 9);
    assert_true(mdl_is_placeholder(m, want.ids[2]));
    assert_int_equal(mdl_encode_with(m, 1, want.ids, offsets, at, 1, out, &e), RC_INVALID);
    mdl_ids_deinit(&want);
    mdl_media_free(&tone);
    mdl_media_free(&grey);
    mdl_close(&m);
}

struct stop {
    unsigned asked, at;
};

static bool ask(void *user)
{
    struct stop *s = user;

    return ++s->asked == s->at;
}

/* A stop within a tower ends the call, and the next one is as if it had not been. */
static void stopped_within_a_tower(void **state)
{
    struct mdl *m = open_eg2(64);
    struct mdl_media *grey = see(m, "grey");
    struct mdl_encode_media at = {.row = 2, .media = grey};
    struct mdl_ids want = {0};
    struct rc_err e = RC_ERR_INIT;
    struct stop s = {.at = 2};
    float first[DIM], again[DIM];
    uint32_t offsets[2] = {0};

    need_ok(mdl_ids_push(&want, BOS, err));
    PICTURE(grey);
    need_ok(mdl_ids_push(&want, EOS, err));
    offsets[1] = (uint32_t)want.n;
    need_ok(mdl_encode_with(m, 1, want.ids, offsets, &at, 1, first, err));
    mdl_set_encode_stop(m, ask, &s);
    assert_int_equal(mdl_encode_with(m, 1, want.ids, offsets, &at, 1, again, &e), RC_CANCELLED);
    assert_int_equal(s.asked, 2);
    mdl_set_encode_stop(m, NULL, NULL);
    need_ok(mdl_encode_with(m, 1, want.ids, offsets, &at, 1, again, err));
    assert_memory_equal(first, again, sizeof(first));
    mdl_ids_deinit(&want);
    mdl_media_free(&grey);
    mdl_close(&m);
}

/* A text-only checkpoint is one; it says so when it is shown something. */
static void checkpoints_without_towers(void **state)
{
    struct mdl_opts o = small_opts(BE_F32);
    struct mdl_image img;
    struct mdl_sound snd;
    struct mdl_media *media = NULL;
    struct rc_err e = RC_ERR_INIT;
    const struct mdl_info *info;
    struct mdl *m;
    char dir[256];

    tdir_new(dir, EG2_DIR);
    tdir_set(dir, "config.json", "vision_config", "null");
    tdir_set(dir, "config.json", "audio_config", NULL);
    m = open_model(dir, be, &o);
    info = mdl_info_get(m);
    assert_true(info->can_embed && info->can_embed_groups);
    assert_false(info->can_embed_image || info->can_embed_sound);
    assert_int_equal(info->image_pixels, 0);
    assert_int_equal(info->sound_rate, 0);
    picture("grey", &img);
    sound("short", &snd);
    assert_int_equal(mdl_media_image(m, &img, &media, &e), RC_UNSUPPORTED);
    assert_int_equal(mdl_media_sound(m, &snd, &media, &e), RC_UNSUPPORTED);
    assert_null(media);
    free((void *)(uintptr_t)img.pixels);
    free((void *)(uintptr_t)snd.pcm);
    mdl_close(&m);
    tdir_rm(dir);
    m = open_eg2(64);
    info = mdl_info_get(m);
    assert_true(info->can_embed_image && info->can_embed_sound);
    assert_int_equal(info->sound_rate, 16000);
    assert_int_equal(info->sound_ms, 30000);
    assert_true(info->image_pixels >= 1u << 20);
    mdl_close(&m);
}

/* ----------------------------------------------------------------- contract */

#define N_SEQS 12 /* of the batch's */

/* max_input_tokens 64, so that a pass may hold as few rows */
static void alone_in_a_batch_in_several_passes(void **state)
{
    static const uint32_t rows[] = {64, 100, 4096};
    struct mdl_opts o = small_opts(BE_F32);
    struct be_ctx *one = test_ctx(1);
    static float first[N_SEQS * DIM], alone[N_SEQS * DIM], all[N_SEQS * DIM];
    static struct tbatch b;
    char dir[256];
    uint32_t s;
    size_t i;

    tbatch_make(&b, 690);
    tdir_new(dir, EG2_BF16_DIR);
    tdir_set(dir, "config.json", "text_config.max_position_embeddings", "64");
    for (i = 0; i < 3; i++) {
        struct mdl *m;

        o.batch_tokens = rows[i];
        m = open_model(dir, i % 2 ? one : be, &o);
        for (s = 0; s < N_SEQS; s++)
            tbatch_encode_one(m, &b, s, alone + s * DIM);
        need_ok(mdl_encode(m, N_SEQS, b.ids, b.offsets, all, err));
        assert_memory_equal(alone, all, sizeof(all));
        if (i == 0)
            memcpy(first, all, sizeof(all));
        assert_memory_equal(first, all, sizeof(all));
        mdl_close(&m);
    }
    be_ctx_free(&one);
    tdir_rm(dir);
}

static void bad_batches_name_the_sequence(void **state)
{
    struct mdl *m = open_eg2(64);
    int32_t ids[4] = {BOS, 7, 8, EOS};
    uint32_t empty[3] = {0, 2, 2}, back[3] = {0, 3, 1}, ok[3] = {0, 2, 4};
    float out[2 * DIM];
    struct rc_err e = RC_ERR_INIT;

    assert_int_equal(mdl_encode(m, 2, ids, empty, out, &e), RC_INVALID);
    assert_int_equal(e.item, 1);
    assert_int_equal(mdl_encode(m, 2, ids, back, out, &e), RC_INVALID);
    ids[2] = 704;
    assert_int_equal(mdl_encode(m, 2, ids, ok, out, &e), RC_INVALID);
    assert_int_equal(e.item, 1);
    ids[2] = -1;
    assert_int_equal(mdl_encode(m, 2, ids, ok, out, &e), RC_INVALID);
    ids[2] = 8;
    need_ok(mdl_encode(m, 2, ids, ok, out, err));
    mdl_close(&m);
}

/* Stopped between any two layers, and before the first: nothing is left behind. */
static void stopped_between_layers(void **state)
{
    static const char *const dirs[] = {EG2_DIR, BERT_DIR};
    static const int32_t ids[] = {BOS, 20, 85, 28, 101, 89, EOS};
    const uint32_t offsets[2] = {0, 7};
    struct mdl_opts o = small_opts(BE_F32);
    size_t i;

    for (i = 0; i < 2; i++) {
        struct mdl *m = open_model(dirs[i], be, &o);
        uint32_t n_layers = mdl_info_get(m)->n_layers, at;
        float want[512], got[512] = {0};
        struct stop never = {0};

        assert_true(mdl_info_get(m)->embed_dim <= 512);
        need_ok(mdl_encode(m, 1, ids, offsets, want, err));
        mdl_set_encode_stop(m, ask, &never);
        need_ok(mdl_encode(m, 1, ids, offsets, got, err));
        assert_int_equal(never.asked, n_layers);
        for (at = 1; at <= n_layers; at++) {
            struct stop s = {.at = at};
            struct be_stats before, after;
            struct rc_err e = RC_ERR_INIT;

            be_ctx_stats(be, &before);
            mdl_set_encode_stop(m, ask, &s);
            assert_int_equal(mdl_encode(m, 1, ids, offsets, got, &e), RC_CANCELLED);
            assert_int_equal(s.asked, at);
            be_ctx_stats(be, &after);
            assert_int_equal(after.workspace_bytes, before.workspace_bytes);
            mdl_set_encode_stop(m, NULL, NULL);
            memset(got, 0, sizeof(got));
            need_ok(mdl_encode(m, 1, ids, offsets, got, err));
            assert_memory_equal(got, want, mdl_info_get(m)->embed_dim * sizeof(float));
        }
        mdl_close(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eight_tasks_and_no_other),
        cmocka_unit_test(a_group_of_texts_is_one_text),
        cmocka_unit_test(titles),
        cmocka_unit_test(no_text_makes_control_tokens),
        cmocka_unit_test(the_longest_input),
        cmocka_unit_test(dimensions),
        cmocka_unit_test(groups_with_media),
        cmocka_unit_test(media_count_against_the_limit),
        cmocka_unit_test(media_must_stand_at_their_placeholders),
        cmocka_unit_test(stopped_within_a_tower),
        cmocka_unit_test(checkpoints_without_towers),
        cmocka_unit_test(alone_in_a_batch_in_several_passes),
        cmocka_unit_test(bad_batches_name_the_sequence),
        cmocka_unit_test(stopped_between_layers),
    };
    int rc;

    need_dir(EG2_DIR);
    need_dir(EG2_BF16_DIR);
    be = test_ctx(2);
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    be_ctx_free(&be);
    return rc;
}
