/* mdl_test.h - what the tests of models/ share: golden folders, throw-away copies
 * of them, page tables as a worker would keep them, GGUF files made by script.
 * Included once per test program. */
#ifndef INFERD_MDL_TEST_H
#define INFERD_MDL_TEST_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "mdl_impl.h"

#define GEMMA_DIR TEST_GOLDEN "/gemma3_text"
#define GEMMA_BF16_DIR TEST_GOLDEN "/gemma3_text-bf16"
#define BERT_DIR TEST_GOLDEN "/minilm"
#define EG2_DIR TEST_GOLDEN "/embeddinggemma2"
#define EG2_BF16_DIR TEST_GOLDEN "/embeddinggemma2-bf16"

#define need_ok(call)                                             \
    do {                                                          \
        struct rc_err e_ = RC_ERR_INIT;                           \
        struct rc_err *err = &e_;                                 \
        enum rc rc_ = (call);                                     \
        if (rc_ != RC_OK)                                         \
            fail_msg("%s: %s (%s)", #call, e_.msg, rc_name(rc_)); \
    } while (0)

/* Exits 77 (skipped) when a golden folder is not there. */
static inline void need_dir(const char *path)
{
    if (access(path, R_OK) != 0) {
        fprintf(stderr, "skipped: no golden files at %s\n", path);
        exit(77);
    }
}

static inline int open_root(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        fail_msg("cannot open %s: %s", path, strerror(errno));
    return fd;
}

static inline const char *test_backend(void)
{
    const char *name = getenv("INFERD_TEST_BACKEND");

    return name && *name ? name : "cpu";
}

/* A context of the backend INFERD_TEST_BACKEND (default cpu) computing as INFERD_TEST_COMPUTE.
 * A device that is not there skips the program. */
static inline struct be_ctx *test_ctx(unsigned n_threads)
{
    struct be_opts o = {.backend = test_backend(),
                        .n_threads = n_threads,
                        .compute = getenv("INFERD_TEST_COMPUTE")};
    struct rc_err e = RC_ERR_INIT;
    struct be_ctx *be = NULL;
    enum rc rc = be_ctx_new(&be, &o, &e);

    if (strcmp(o.backend, "cpu") != 0 && (rc == RC_NOT_FOUND || rc == RC_UNSUPPORTED)) {
        fprintf(stderr, "skipped: %s\n", e.msg);
        exit(77);
    }
    if (rc != RC_OK)
        fail_msg("be_ctx_new(%s): %s (%s)", o.backend, e.msg, rc_name(rc));
    return be;
}

/* The bound f32 where products are exact, else that of tf32 (factors of products rounded to 11
 * bits) or of f16 (and what is kept between operations too). Both: twice what
 * tests/golden/compute_bounds.py says of the reference itself in that arithmetic. */
static inline double test_tol(double f32, double tf32, double f16)
{
    const char *c = getenv("INFERD_TEST_COMPUTE");

    return c && strcmp(c, "f16") == 0 ? f16 : c && strcmp(c, "tf32") == 0 ? tf32 : f32;
}

static inline struct mdl_opts small_opts(enum be_dtype kv)
{
    return (struct mdl_opts){
        .batch_tokens = 128, .max_seqs = 8, .kv_bytes = 8u << 20, .kv_dtype = kv};
}

static inline struct mdl *open_model(const char *path, struct be_ctx *be, const struct mdl_opts *o)
{
    int fd = open_root(path);
    struct mdl *m = NULL;

    need_ok(mdl_open(&m, fd, be, o, err));
    close(fd);
    return m;
}

static inline json_t *load_json(const char *dir, const char *name)
{
    char path[512];
    json_error_t e;
    json_t *j;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (!(j = json_load_file(path, JSON_ALLOW_NUL, &e)))
        fail_msg("%s: %s", path, e.text);
    return j;
}

/* ids of a JSON list; caller frees */
static inline int32_t *ids_of(const json_t *list, uint32_t *n)
{
    size_t i, len = json_array_size(list);
    int32_t *ids = malloc((len + 1) * sizeof(*ids));

    assert_non_null(ids);
    for (i = 0; i < len; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    *n = (uint32_t)len;
    return ids;
}

/* -------------------------------------------------------- packed sequences */

#define TBATCH 40

/* TBATCH sequences, the first of 1, the second of 64, others of 1 to 64 tokens below vocab. */
struct tbatch {
    int32_t ids[TBATCH * 64];
    uint32_t offsets[TBATCH + 1];
};

static inline void tbatch_make(struct tbatch *b, uint32_t vocab)
{
    uint32_t s, i, x = 99, n = 0;

    b->offsets[0] = 0;
    for (s = 0; s < TBATCH; s++) {
        uint32_t len = s == 0 ? 1 : s == 1 ? 64 : 1 + (x >> 9) % 64;

        for (i = 0; i < len; i++) {
            x = x * 1664525u + 1013904223u;
            b->ids[n++] = (int32_t)((x >> 8) % vocab);
        }
        b->offsets[s + 1] = n;
    }
}

/* Sequence s alone. */
static inline void tbatch_encode_one(struct mdl *m, const struct tbatch *b, uint32_t s, float *out)
{
    uint32_t offsets[2] = {0, b->offsets[s + 1] - b->offsets[s]};

    need_ok(mdl_encode(m, 1, b->ids + b->offsets[s], offsets, out, err));
}

/* ---------------------------------------------------------- page tables */

#define TPAGES 256

/* One sequence's pages. Windowed classes give back what lies behind the window,
 * as the worker does, and get -1 there. */
struct tseq {
    uint32_t n; /* tokens written */
    int32_t pages[BE_KV_CLASSES][TPAGES];
};
struct tpool {
    const struct mdl_kv_geometry *geo;
    bool used[BE_KV_CLASSES][4096];
};

static inline void tpool_init(struct tpool *p, const struct mdl *m)
{
    memset(p, 0, sizeof(*p));
    p->geo = mdl_kv(m);
}

static inline void tseq_init(struct tseq *s)
{
    memset(s, 0xFF, sizeof(*s));
    s->n = 0;
}

/* Pages for n more tokens; takes from the top so that a page is rarely its own
 * index, which would hide a mix-up. */
static inline void tseq_extend(struct tpool *p, struct tseq *s, uint32_t n)
{
    uint32_t c, pg, pt = p->geo->page_tokens;

    for (c = 0; c < p->geo->n_classes; c++) {
        uint32_t w = p->geo->cls[c].window, total = p->geo->cls[c].n_pages;

        if (total > 4096)
            total = 4096;
        for (pg = 0; w && (pg + 1) * pt + w <= s->n + 1; pg++) /* last key < n - (w - 1) */
            if (s->pages[c][pg] >= 0) {
                p->used[c][s->pages[c][pg]] = false;
                s->pages[c][pg] = -1;
            }
        for (pg = s->n / pt; pg * pt < s->n + n; pg++) {
            uint32_t k = total;

            assert_true(pg < TPAGES);
            if (s->pages[c][pg] >= 0)
                continue;
            while (k > 0 && p->used[c][k - 1])
                k--;
            if (k == 0)
                fail_msg("class %u: no page left of %u", c, total);
            p->used[c][k - 1] = true;
            s->pages[c][pg] = (int32_t)(k - 1);
        }
    }
}

static inline void tseq_free(struct tpool *p, struct tseq *s)
{
    uint32_t c, pg;

    for (c = 0; c < p->geo->n_classes; c++)
        for (pg = 0; pg < TPAGES; pg++)
            if (s->pages[c][pg] >= 0)
                p->used[c][s->pages[c][pg]] = false;
    tseq_init(s);
}

/* Feeds n tokens of one sequence in one pass; logits of the last n_out rows are
 * copied to out (or NULL). */
static inline enum rc feed_try(struct mdl *m, struct tpool *p, struct tseq *s, const int32_t *ids,
                               uint32_t n, uint32_t n_out, float *out, struct rc_err *err)
{
    int32_t pos[512], rows[512];
    struct be_seq q = {.n_rows = n, .pos0 = s->n};
    struct mdl_batch b = {.n_rows = n,
                          .n_seqs = 1,
                          .n_out = n_out,
                          .ids = ids,
                          .pos = pos,
                          .seqs = &q,
                          .out_rows = rows};
    const float *logits = NULL;
    enum rc rc;
    uint32_t i;

    assert_true(n <= 512);
    tseq_extend(p, s, n);
    for (i = 0; i < BE_KV_CLASSES; i++)
        q.pages[i] = s->pages[i];
    for (i = 0; i < n; i++)
        pos[i] = (int32_t)(s->n + i);
    for (i = 0; i < n_out; i++)
        rows[i] = (int32_t)(n - n_out + i);
    if ((rc = mdl_decode(m, &b, &logits, err)) != RC_OK)
        return rc;
    s->n += n;
    if (out && n_out)
        memcpy(out, logits, (size_t)n_out * mdl_info_get(m)->vocab_size * sizeof(float));
    return RC_OK;
}

static inline void feed(struct mdl *m, struct tpool *p, struct tseq *s, const int32_t *ids,
                        uint32_t n, uint32_t n_out, float *out)
{
    need_ok(feed_try(m, p, s, ids, n, n_out, out, err));
}

/* Logits of every row, in passes of at most chunk tokens. */
static inline void feed_all(struct mdl *m, const int32_t *ids, uint32_t n, uint32_t chunk,
                            float *out)
{
    static struct tpool p;
    static struct tseq s;
    size_t v = mdl_info_get(m)->vocab_size;
    uint32_t i, k;

    tpool_init(&p, m);
    tseq_init(&s);
    for (i = 0; i < n; i += k) {
        k = n - i < chunk ? n - i : chunk;
        feed(m, &p, &s, ids + i, k, k, out + i * v);
    }
}

static inline int32_t argmax_of(const float *x, uint32_t n)
{
    uint32_t i, best = 0;

    for (i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return (int32_t)best;
}

/* --------------------------------------------------- throw-away copies */

static inline void copy_file(const char *from, const char *to)
{
    char buf[65536];
    ssize_t k;
    int in = open(from, O_RDONLY | O_CLOEXEC);
    int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

    if (in < 0 || out < 0)
        fail_msg("cannot copy %s to %s: %s", from, to, strerror(errno));
    while ((k = read(in, buf, sizeof(buf))) > 0)
        assert_int_equal(write(out, buf, (size_t)k), k);
    close(in);
    close(out);
}

static inline void path_join(char *out, size_t cap, const char *dir, const char *name)
{
    int n = snprintf(out, cap, "%s/%s", dir, name);

    assert_true(n > 0 && (size_t)n < cap);
}

static inline void copy_tree(const char *from, const char *to)
{
    DIR *d = opendir(from);
    struct dirent *e;
    char a[1024], b[1024];
    struct stat st;

    assert_non_null(d);
    while ((e = readdir(d))) {
        if (e->d_name[0] == '.')
            continue;
        path_join(a, sizeof(a), from, e->d_name);
        path_join(b, sizeof(b), to, e->d_name);
        assert_int_equal(stat(a, &st), 0);
        if (S_ISDIR(st.st_mode)) {
            assert_int_equal(mkdir(b, 0755), 0);
            copy_tree(a, b);
        } else {
            copy_file(a, b);
        }
    }
    closedir(d);
}

/* A copy of a model folder; path is written to dir (>= 256 bytes). */
static inline void tdir_new(char *dir, const char *from)
{
    snprintf(dir, 256, "%s/mdl-test-XXXXXX", TEST_BUILD);
    assert_non_null(mkdtemp(dir));
    copy_tree(from, dir);
}

static inline void tdir_rm(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    char a[1024];

    assert_non_null(d);
    while ((e = readdir(d))) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        path_join(a, sizeof(a), dir, e->d_name);
        if (unlink(a) != 0)
            tdir_rm(a);
    }
    closedir(d);
    rmdir(dir);
}

static inline void tdir_put(const char *dir, const char *name, const char *text)
{
    char path[512];
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* Sets (json text value) or deletes (NULL) one key of a JSON file; "a.b": b of its object a. */
static inline void tdir_set(const char *dir, const char *name, const char *key, const char *value)
{
    const char *dot = strchr(key, '.');
    char path[512];
    json_t *j = load_json(dir, name), *at = j;

    if (dot) {
        assert_non_null(at = json_object_getn(j, key, (size_t)(dot - key)));
        key = dot + 1;
    }
    if (value) {
        json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);

        assert_non_null(v);
        json_object_set_new(at, key, v);
    } else {
        json_object_del(at, key);
    }
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    assert_int_equal(json_dump_file(j, path, 0), 0);
    json_decref(j);
}

/* Rewrites model.safetensors with `edit` applied to its header object. */
static inline void tdir_header(const char *dir, void (*edit)(json_t *header, const void *arg),
                               const void *arg)
{
    char path[512], *text;
    uint64_t n;
    FILE *f;
    long end;
    char *head, *body;
    json_t *j;
    size_t n_body;

    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    assert_non_null(f = fopen(path, "rb"));
    assert_int_equal(fread(&n, 8, 1, f), 1);
    assert_non_null(head = malloc(n));
    assert_int_equal(fread(head, 1, n, f), n);
    fseek(f, 0, SEEK_END);
    end = ftell(f);
    n_body = (size_t)end - 8 - n;
    assert_non_null(body = malloc(n_body));
    fseek(f, (long)(8 + n), SEEK_SET);
    assert_int_equal(fread(body, 1, n_body, f), n_body);
    fclose(f);
    assert_non_null(j = json_loadb(head, n, 0, NULL));
    edit(j, arg);
    assert_non_null(text = json_dumps(j, JSON_COMPACT | JSON_PRESERVE_ORDER));
    n = (strlen(text) + 7) & ~(uint64_t)7;
    assert_non_null(f = fopen(path, "wb"));
    fwrite(&n, 8, 1, f);
    fprintf(f, "%-*s", (int)n, text);
    fwrite(body, 1, n_body, f);
    fclose(f);
    json_decref(j);
    free(text);
    free(head);
    free(body);
}

/* ------------------------------------------------------------ GGUF files */

/* Where files made by tests lie: each set of tests that runs beside another has its own. */
static inline const char *test_dir(void)
{
    const char *d = getenv("INFERD_TEST_DIR");

    return d && *d ? d : TEST_BUILD;
}

/* Path of a GGUF made by gguf_from_safetensors.py out of `from`, made now unless a
 * newer one is there. args: NULL-ended, after IN and OUT. Exits 77 without python3. */
static inline void gguf_make(char *path, size_t cap, const char *from, const char *name,
                             const char *const *args)
{
    const char *argv[16] = {"python3", TEST_SOURCE "/tests/models/gguf_from_safetensors.py", from};
    struct stat script, made;
    int status, n = 4;
    pid_t pid;

    snprintf(path, cap, "%s/gguf-%s", test_dir(), name);
    if (stat(argv[1], &script) == 0 && stat(path, &made) == 0 && made.st_mtime > script.st_mtime)
        return;
    argv[3] = path;
    for (; args && *args && n < 15; args++)
        argv[n++] = *args;
    assert_true((pid = fork()) >= 0);
    if (pid == 0) {
        execvp(argv[0], (char *const *)(uintptr_t)argv);
        _exit(77);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        fprintf(stderr, "skipped: no python3 to make a GGUF file with\n");
        exit(77);
    }
    if (status != 0)
        fail_msg("gguf_from_safetensors.py failed (%d)", status);
}

#endif
