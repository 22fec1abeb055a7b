/* Metal text of every library, on machines without Metal: brackets, buffers, function constants,
 * threads, threadgroup memory, address spaces, no word of CUDA's, one library per family with
 * just its kernels. Then the host's C++ compiler reads all of it (metal/metal_stdlib stands in for
 * Metal's), and kernels of which every thread works alone are run under the
 * conformance cases: same bits as the executor. */
#include "be_test.h"

#include <ctype.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "be_kargs.h"
#include "be_kart.h"
#include "be_kconf.h"
#include "kx_tower_args.h"

#define MAX_LIBS 64
#define MAX_BUFFERS 31 /* of a kernel's argument table */
#define MAX_SHARED (32 * 1024)

struct lib {
    const char *name;
    const struct be_kfamily *fam;
    char *text; /* as rendered */
    char *code; /* the same without comments and the contents of strings */
    void *dl;
};
static struct lib libs[MAX_LIBS];
static uint32_t n_libs;

/* ------------------------------------------------------------------- text */

static char *without_comments(const char *s)
{
    size_t n = strlen(s);
    char *out = xcalloc(n + 1, 1), *p = out;

    while (*s) {
        if (s[0] == '/' && s[1] == '*') {
            const char *end = strstr(s + 2, "*/");

            if (!end)
                fail_msg("a comment has no end: %.60s", s);
            s = end + 2;
        } else if (s[0] == '/' && s[1] == '/') {
            s += strcspn(s, "\n");
        } else if (*s == '"') {
            *p++ = *s++;
            while (*s && *s != '"')
                s += *s == '\\' && s[1] ? 2 : 1;
            if (*s)
                *p++ = *s++;
        } else {
            *p++ = *s++;
        }
    }
    return out;
}

/* Takes out what stands between "#ifndef __METAL_VERSION__" and its #else or #endif: text for other
 * devices in files they share. */
static void without_other_devices(char *s)
{
    char *out = s;
    int depth = 0, hidden = 0; /* of conditionals; where hiding began */

    while (*s) {
        size_t n = strcspn(s, "\n") + (s[strcspn(s, "\n")] == '\n');

        if (strncmp(s, "#if", 3) == 0) {
            depth++;
            if (!hidden && strncmp(s, "#ifndef __METAL_VERSION__", 25) == 0)
                hidden = depth;
        } else if (depth == hidden && hidden && strncmp(s, "#else", 5) == 0) {
            hidden = 0;
        } else if (strncmp(s, "#endif", 6) == 0) {
            if (depth == hidden)
                hidden = 0;
            depth--;
        }
        if (!hidden && *s != '#') {
            memmove(out, s, n);
            out += n;
        }
        s += n;
    }
    *out = '\0';
}

static void setup(void)
{
    for (size_t f = 0; be_kfamilies[f]; f++)
        for (uint32_t i = 0; i < be_kfamilies[f]->count(); i++) {
            const char *name = be_kfamilies[f]->at(i)->lib;
            struct be_ktext t = {0};
            uint32_t k = 0;

            while (k < n_libs && strcmp(libs[k].name, name) != 0)
                k++;
            if (k < n_libs) {
                assert_ptr_equal(libs[k].fam, be_kfamilies[f]); /* one library, one family */
                continue;
            }
            assert_true(n_libs < MAX_LIBS);
            OK(be_kmetal_text(name, &t, err));
            libs[n_libs++] = (struct lib){
                .name = name, .fam = be_kfamilies[f], .text = t.p, .code = without_comments(t.p)};
            without_other_devices(libs[n_libs - 1].code);
        }
    assert_true(n_libs > 0);
}

static bool word_at(const char *text, const char *p, const char *w)
{
    size_t n = strlen(w);

    return strncmp(p, w, n) == 0 &&
           (p == text || !(isalnum((unsigned char)p[-1]) || p[-1] == '_')) &&
           !(isalnum((unsigned char)p[n]) || p[n] == '_');
}

static const char *find_word(const char *text, const char *from, const char *w)
{
    const char *p = from;

    while ((p = strstr(p, w)) && !word_at(text, p, w))
        p++;
    return p;
}

static void brackets_are_balanced(void **s)
{
    for (uint32_t i = 0; i < n_libs; i++) {
        char open[256];
        size_t depth = 0, line = 1;

        for (const char *p = libs[i].code; *p; p++) {
            line += *p == '\n';
            if (strchr("([{", *p)) {
                assert_true(depth < sizeof(open));
                open[depth++] = *p;
            } else if (strchr(")]}", *p)) {
                char want = *p == ')' ? '(' : *p == ']' ? '[' : '{';

                if (depth == 0 || open[depth - 1] != want)
                    fail_msg("%s: '%c' in line %zu closes nothing", libs[i].name, *p, line);
                depth--;
            }
        }
        if (depth)
            fail_msg("%s: '%c' is never closed", libs[i].name, open[depth - 1]);
    }
}

static void no_word_of_cuda_or_of_a_type_metal_lacks(void **s)
{
    static const char *const words[] = {
        "__global__",      "__device__",    "__shared__",
        "__constant__",    "__syncthreads", "__syncwarp",
        "threadIdx",       "blockIdx",      "gridDim",
        "blockDim",        "asm",           "extern",
        "__ldg",           "__shfl_sync",   "__dp4a",
        "__byte_perm",     "__fmaf_rn",     "double",
        "KX_KERNEL",       "KX_SHARED",     "KX_DYN_SHARED",
        "kx_sync",         "kx_ldg16",      "kx_cp16",
        "kx_mma_s8_16832", "kx_ldm4",       "__launch_bounds__",
        "__half",          "cudaStream",    "size_t",
    };

    for (uint32_t i = 0; i < n_libs; i++)
        for (size_t k = 0; k < sizeof(words) / sizeof(words[0]); k++) {
            const char *p = find_word(libs[i].code, libs[i].code, words[k]);

            if (p)
                fail_msg("%s: '%s' in '%.*s'", libs[i].name, words[k], (int)strcspn(p, "\n"), p);
        }
}

/* Every pointer and reference says where it points: Metal has no other kind. */
static void pointers_name_their_address_space(void **s)
{
    static const char *const types[] = {"float", "int",   "uint", "uchar", "ushort",
                                        "char",  "ulong", "kx_u", "half",  "short",
                                        "bool",  "void",  "kx_p", "long"};
    static const char *const spaces[] = {"device", "constant", "thread", "threadgroup"};

    for (uint32_t i = 0; i < n_libs; i++) {
        const char *code = libs[i].code;

        for (const char *p = code; *p; p++) {
            const char *from = p, *last;
            bool is_type = false, has_space = false;
            char decl[200];

            if (*p != '*' && *p != '&')
                continue;
            while (from > code && !strchr("(,;{}<>=+-/|&*?:[]!\n", from[-1]))
                from--;
            snprintf(decl, sizeof(decl), "%.*s", (int)(p - from < 199 ? p - from : 199), from);
            for (last = decl + strlen(decl); last > decl && isspace((unsigned char)last[-1]);)
                last--;
            while (last > decl && (isalnum((unsigned char)last[-1]) || last[-1] == '_'))
                last--;
            for (size_t k = 0; k < sizeof(types) / sizeof(types[0]); k++)
                is_type = is_type || word_at(decl, last, types[k]);
            for (size_t k = 0; k < 4; k++)
                has_space = has_space || find_word(decl, decl, spaces[k]);
            if (is_type && !has_space)
                fail_msg("%s: '%s%c' names no address space", libs[i].name, decl, *p);
        }
    }
}

/* ---------------------------------------------------------------- kernels */

/* The next "kernel void NAME(" from p on; its name and parameters. */
static const char *next_kernel(const char *text, const char *p, char name[80], char *args,
                               size_t cap)
{
    const char *open, *end;
    int depth = 0;

    if (!(p = find_word(text, p, "kernel")))
        return NULL;
    if (sscanf(p, "kernel void %79[a-z0-9_]", name) != 1 || !(open = strchr(p, '(')))
        fail_msg("'%.60s': expected 'kernel void name('", p);
    for (end = open; *end; end++) {
        depth += (*end == '(') - (*end == ')');
        if (depth == 0)
            break;
    }
    assert_true((size_t)(end - open) < cap);
    snprintf(args, cap, "%.*s", (int)(end - open - 1), open + 1);
    return end;
}

static const struct be_kentry *entry_in(const struct lib *l, const char *name)
{
    const struct be_kentry *e = be_kcat_find(name);

    return e && strcmp(e->lib, l->name) == 0 ? e : NULL;
}

static void each_library_has_just_its_kernels(void **s)
{
    for (uint32_t i = 0; i < n_libs; i++) {
        const char *p = libs[i].code;
        char name[80], args[2048];
        uint32_t want = 0, got = 0;

        for (uint32_t k = 0; k < libs[i].fam->count(); k++) {
            const struct be_kentry *e = libs[i].fam->at(k);
            char head[96];

            if (strcmp(e->lib, libs[i].name) != 0)
                continue;
            want++;
            snprintf(head, sizeof(head), "kernel void %s(", e->name);
            if (!strstr(libs[i].code, head))
                fail_msg("%s: kernel '%s' is missing", libs[i].name, e->name);
        }
        while ((p = next_kernel(libs[i].code, p, name, args, sizeof(args)))) {
            got++;
            if (!entry_in(&libs[i], name))
                fail_msg("%s: '%s' is none of its kernels", libs[i].name, name);
        }
        assert_int_equal(got, want);
    }
}

static void buffers_are_bound_once_each(void **s)
{
    for (uint32_t i = 0; i < n_libs; i++) {
        const char *p = libs[i].code;
        char name[80], args[2048];

        while ((p = next_kernel(libs[i].code, p, name, args, sizeof(args)))) {
            bool used[MAX_BUFFERS] = {false};
            unsigned n = 0, params = 1, attributes = 0, at;

            for (const char *q = args; *q; q++)
                params += *q == ',';
            for (const char *q = args; (q = strstr(q, "[[")); q += 2) {
                attributes++;
                if (sscanf(q, "[[buffer(%u)]]", &at) != 1)
                    continue;
                if (at >= MAX_BUFFERS || used[at])
                    fail_msg("%s: buffer %u is bound twice or out of range", name, at);
                used[at] = true;
                n++;
            }
            if (n == 0 || attributes != params)
                fail_msg("%s: %u parameters, %u of them bound, %u to buffers", name, params,
                         attributes, n);
            assert_true(used[0]); /* the argument struct */
        }
    }
}

/* "constant T name [[function_constant(i)]];" declared once each, and used. */
static void function_constants_are_declared_once_and_used(void **s)
{
    for (uint32_t i = 0; i < n_libs; i++) {
        bool used[256] = {false};

        for (const char *p = libs[i].code; (p = strstr(p, "[[function_constant(")); p += 2) {
            const char *end = p, *start;
            char name[64];
            unsigned at = 0, n = 0;

            assert_int_equal(sscanf(p, "[[function_constant(%u)]]", &at), 1);
            assert_true(at < 256 && !used[at]);
            used[at] = true;
            while (end > libs[i].code && isspace((unsigned char)end[-1]))
                end--;
            for (start = end; isalnum((unsigned char)start[-1]) || start[-1] == '_';)
                start--;
            snprintf(name, sizeof(name), "%.*s", (int)(end - start), start);
            for (const char *q = libs[i].code; (q = find_word(libs[i].code, q, name)); q++)
                n++;
            if (n < 2)
                fail_msg("%s: function constant '%s' is never used", libs[i].name, name);
        }
    }
}

static size_t bytes_of_type(const char *decl)
{
    return find_word(decl, decl, "float") || find_word(decl, decl, "int") ||
                   find_word(decl, decl, "uint") || find_word(decl, decl, "kx_u")
               ? 4
           : find_word(decl, decl, "half") || find_word(decl, decl, "ushort") ? 2
           : find_word(decl, decl, "uchar") || find_word(decl, decl, "char")  ? 1
                                                                              : 0;
}

/* Threadgroup memory of a kernel's text, "threadgroup T name[N];". */
static size_t shared_of(const char *lib, const char *body, size_t n)
{
    size_t sum = 0;

    for (const char *p = body; (p = find_word(body, p, "threadgroup")) && p < body + n; p++) {
        size_t len = strcspn(p, ";,)");
        char decl[160];
        const char *b;
        unsigned count = 0;

        snprintf(decl, sizeof(decl), "%.*s", (int)(len < 159 ? len : 159), p);
        if (strchr(decl, '*') || strchr(decl, '&') || !(b = strchr(decl, '[')))
            continue; /* a pointer, not an array */
        if (sscanf(b, "[%u]", &count) != 1 || bytes_of_type(decl) == 0)
            fail_msg("%s: '%s' has no plain size", lib, decl);
        sum += count * bytes_of_type(decl);
    }
    return sum;
}

static void threads_and_threadgroup_memory_fit(void **s)
{
    for (uint32_t i = 0; i < n_libs; i++) {
        const char *p = libs[i].code, *next;
        char name[80], args[2048], other[80], more[2048];

        p = next_kernel(libs[i].code, p, name, args, sizeof(args));
        while (p) {
            const char *attr, *before;
            size_t n, shared;
            unsigned threads = 0;
            const struct be_kentry *e = entry_in(&libs[i], name);

            next = next_kernel(libs[i].code, p, other, more, sizeof(more));
            n = next ? (size_t)(next - p) : strlen(p);
            shared = shared_of(name, p, n);
            if (shared > MAX_SHARED)
                fail_msg("%s: %zu bytes of threadgroup memory, at most %d", name, shared,
                         MAX_SHARED);
            /* the attribute stands in front of the kernel */
            before = strstr(libs[i].code, name);
            for (attr = before; attr > libs[i].code && attr[-1] != '}' && attr[-1] != ';';)
                attr--;
            attr = strstr(attr, "[[max_total_threads_per_threadgroup(");
            if (attr && attr < before) {
                assert_int_equal(
                    sscanf(attr, "[[max_total_threads_per_threadgroup(%u)]]", &threads), 1);
                if (threads > 1024 || threads % 32 || threads != e->sched.threads)
                    fail_msg("%s: %u threads, its schedule has %u", name, threads,
                             e->sched.threads);
            } else if (shared) {
                fail_msg("%s: threadgroup memory without a number of threads", name);
            }
            memcpy(name, other, sizeof(name));
            p = next;
        }
    }
}

/* ------------------------------------------- compiled and run on the host */

/* 0, or why the compiler refused. */
static int compile(struct lib *l, char *log, size_t cap)
{
    char src[512], so[512];
    const char *argv[] = {"c++",
                          "-x",
                          "c++",
                          "-std=c++17",
                          "-w",
                          "-O0",
                          "-fPIC",
                          "-shared",
                          "-ffp-contract=off",
                          "-fno-strict-aliasing",
                          "-D__METAL_VERSION__=310",
                          "-I" TEST_SOURCE "/tests/backends/metal",
                          "-I" TEST_SOURCE "/backends",
                          src,
                          "-o",
                          so,
                          NULL};
    int fds[2], status = -1;
    ssize_t k;
    size_t n = 0;
    FILE *f;
    pid_t pid;

    snprintf(src, sizeof(src), "%s/kmetal-%s-%d.metal", TEST_BUILD, l->name, (int)getpid());
    snprintf(so, sizeof(so), "%s/kmetal-%s-%d.so", TEST_BUILD, l->name, (int)getpid());
    assert_non_null(f = fopen(src, "w"));
    assert_true(fputs(l->text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(pipe(fds), 0);
    if ((pid = fork()) == 0) {
        dup2(fds[1], 2);
        close(fds[0]);
        execvp(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    assert_true(pid > 0);
    close(fds[1]);
    while (n + 1 < cap && (k = read(fds[0], log + n, cap - 1 - n)) > 0)
        n += (size_t)k;
    log[n] = '\0';
    close(fds[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (status == 0) {
        l->dl = dlopen(so, RTLD_NOW);
        if (!l->dl)
            fail_msg("%s", dlerror());
    }
    unlink(src);
    unlink(so);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void the_compiler_takes_every_library(void **s)
{
    char log[2000];

    for (uint32_t i = 0; i < n_libs; i++) {
        int status = compile(&libs[i], log, sizeof(log));

        if (status == 127) {
            print_message("skipped: no C++ compiler here\n");
            skip();
        }
        if (status != 0)
            fail_msg("%s: %.1500s", libs[i].name, log);
    }
}

struct uint2 {
    kx_u x, y;
};

static enum rc d_alloc(void *user, size_t n, uint64_t *out, struct rc_err *err)
{
    void *p = aligned_alloc(256, (n + 255) / 256 * 256);

    *out = (uint64_t)(uintptr_t)p;
    return p ? RC_OK : rc_fail(err, RC_NOMEM, "no memory");
}

static void d_free(void *user, uint64_t p)
{
    free((void *)(uintptr_t)p);
}

static enum rc d_upload(void *user, uint64_t dst, const void *src, size_t n, struct rc_err *err)
{
    memcpy((void *)(uintptr_t)dst, src, n);
    return RC_OK;
}

static enum rc d_download(void *user, void *dst, uint64_t src, size_t n, struct rc_err *err)
{
    memcpy(dst, (const void *)(uintptr_t)src, n);
    return RC_OK;
}

/* Threads along x and y, as the heads of be_kmetal_linear.c, kx_rows.metal and kx_tower.metal say;
 * 0: threads work together, or the result is meant to differ (rotation without f64, draws with sums
 * in f32). */
static struct uint2 threads_of(const struct be_kentry *e, const void *args)
{
    const struct kx_linear *l = args;
    const struct kx_repack *p = args;
    const struct kx_quant *q = args;
    const struct kx_norm *n = args;
    const struct kx_kv_write *kv = args;
    const struct kx_gather *g = args;
    const struct kx_softcap *sc = args;
    const struct kx_convert *cv = args;
    const struct kx_mul *mu = args;
    const struct kx_pool *po = args;
    const struct kx_argmax *am = args;
    const struct kx_embed *em = args;
    const struct kx_scale *sca = args;
    const struct kx_act *ac = args;
    const struct kx_glu *gl = args;
    const struct kx_affine *af = args;
    const struct kx_unfold *un = args;
    const struct kx_conv1d *co = args;
    const struct kx_attn_local *lo = args;
    kx_u x = 0;

    switch (e->desc.op) {
    case BE_KOP_LINEAR:
        for (kx_u i = 0; i < (l->epi == KX_EPI_GEGLU ? 1 : l->n_parts); i++)
            x += l->n_out[i];
        return (struct uint2){x, l->n};
    case BE_KOP_REPACK:
        return (struct uint2){p->k / 32, p->n_rows};
    case BE_KOP_QUANT:
        return (struct uint2){q->k / (q->enc == KX_ENC_Q8_K ? 256 : 32), q->n};
    case BE_KOP_RMS_NORM:
    case BE_KOP_LAYER_NORM:
        return (struct uint2){n->n, 1};
    case BE_KOP_KV_WRITE:
        return (struct uint2){kv->kv.n_kv_heads, kv->n};
    case BE_KOP_GATHER:
        return (struct uint2){g->k, g->n};
    case BE_KOP_SCALE:
        return (struct uint2){sca->k, sca->n};
    case BE_KOP_SOFTCAP:
        return (struct uint2){sc->n * sc->k, 1};
    case BE_KOP_CONVERT:
        return (struct uint2){(kx_u)cv->n, 1};
    case BE_KOP_MUL:
        return (struct uint2){(kx_u)mu->n, 1};
    case BE_KOP_POOL:
        return (struct uint2){po->k, po->n_seqs};
    case BE_KOP_ARGMAX_PART:
        return (struct uint2){am->parts, am->n};
    case BE_KOP_ARGMAX:
        return (struct uint2){am->n, 1};
    case BE_KOP_EMBED:
        return (struct uint2){em->k, em->n};
    case BE_KOP_ACT:
        return (struct uint2){ac->k, ac->n};
    case BE_KOP_GLU:
        return (struct uint2){gl->k, gl->n};
    case BE_KOP_AFFINE:
        return (struct uint2){af->k, af->n};
    case BE_KOP_UNFOLD:
        return (struct uint2){un->k, un->n};
    case BE_KOP_CONV1D:
        return (struct uint2){co->k, co->n};
    case BE_KOP_ATTN_LOCAL:
        return (struct uint2){lo->n_heads, lo->n};
    default:
        return (struct uint2){0, 0};
    }
}

static enum rc d_launch(void *user, const struct be_kentry *e, const struct be_kgrid *g,
                        const void *args, size_t n, struct rc_err *err)
{
    void (*fn)(const void *, struct uint2) = NULL;
    struct uint2 t = threads_of(e, args);

    for (uint32_t i = 0; i < n_libs; i++)
        if (strcmp(libs[i].name, e->lib) == 0 && libs[i].dl)
            *(void **)&fn = dlsym(libs[i].dl, e->name);
    if (!fn || t.x == 0)
        return rc_fail(err, RC_UNSUPPORTED, "threads of this kernel work together");
    /* one text for all classes of rows, and one for tf32 */
    if (e->desc.op == BE_KOP_LINEAR && !strstr(e->name, "_mv") && !strstr(e->name, "_tf32_few"))
        return rc_fail(err, RC_UNSUPPORTED, "the text of another kernel");
    for (kx_u y = 0; y < t.y; y++) /* a launch covers whole groups: some threads have no work */
        for (kx_u x = 0; x < (t.x + 31) / 32 * 32; x++)
            fn(args, (struct uint2){x, y});
    return RC_OK;
}

static void kernels_of_single_threads_give_the_executors_bits(void **s)
{
    const struct be_kconf_dev dev = {.name = "Metal text on the host",
                                     .arch = 90,
                                     .alloc = d_alloc,
                                     .free = d_free,
                                     .upload = d_upload,
                                     .download = d_download,
                                     .launch = d_launch};
    struct be_kconf_opts o = {.dev = &dev, .level = BE_KCONF_QUICK};
    struct be_kconf_report r;
    char sum[128];
    uint32_t ran = 0;

    if (!libs[0].dl)
        skip();
    OK(be_kconf_run(&o, &r, err));
    be_kconf_summary(&r, sum, sizeof(sum));
    print_message("%s\n", sum);
    for (uint32_t i = 0; i < r.n_kernels; i++) {
        ran += !r.rows[i].skipped;
        if (r.rows[i].n_failed)
            fail_msg("%s", r.rows[i].why);
    }
    assert_true(ran > 0);
    be_kconf_report_deinit(&r);
}

/* Rotation takes its angles in f32 where there is no f64: 60 rad are then known to 4e-6. */
static void rotation_by_two_positions_is_near_the_executors(void **s)
{
    enum { ROWS = 9, HEADS = 3, DIM = 16, ALL = ROWS * HEADS * DIM };
    float x[ALL], want[ALL];
    double freq[DIM / 4];
    int32_t px[ROWS], py[ROWS];
    struct kx_rope2d a = {.pos_x = (kx_p)(uintptr_t)px,
                          .pos_y = (kx_p)(uintptr_t)py,
                          .freq = (kx_p)(uintptr_t)freq,
                          .n = ROWS,
                          .n_heads = HEADS,
                          .head_dim = DIM};
    void (*fn)(const void *, struct uint2) = NULL;
    struct be_kir ir;

    if (!libs[0].dl)
        skip();
    for (uint32_t i = 0; i < n_libs; i++)
        if (strcmp(libs[i].name, "tower") == 0)
            *(void **)&fn = dlsym(libs[i].dl, "kx_rope2d");
    assert_non_null(fn);
    fill(x, ALL, 2);
    memcpy(want, x, sizeof(want));
    for (uint32_t i = 0; i < DIM / 4; i++)
        freq[i] = (double)powf(100, -(float)i / (DIM / 4));
    for (uint32_t r = 0; r < ROWS; r++) {
        px[r] = (int32_t)(rnd() % 60);
        py[r] = (int32_t)(rnd() % 60);
    }
    OK(be_kfam_tower.build(be_kcat_find("kx_rope2d"), &ir, err));
    a.x = (kx_p)(uintptr_t)want;
    OK(be_kfam_tower.run(&ir, &a, err));
    a.x = (kx_p)(uintptr_t)x;
    for (kx_u r = 0; r < ROWS; r++)
        for (kx_u p = 0; p < HEADS * DIM / 2 + 5; p++)
            fn(&a, (struct uint2){p, r});
    assert_near("rope2d", x, want, ALL, 2e-5, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(brackets_are_balanced),
        cmocka_unit_test(no_word_of_cuda_or_of_a_type_metal_lacks),
        cmocka_unit_test(pointers_name_their_address_space),
        cmocka_unit_test(each_library_has_just_its_kernels),
        cmocka_unit_test(buffers_are_bound_once_each),
        cmocka_unit_test(function_constants_are_declared_once_and_used),
        cmocka_unit_test(threads_and_threadgroup_memory_fit),
        cmocka_unit_test(the_compiler_takes_every_library),
        cmocka_unit_test(kernels_of_single_threads_give_the_executors_bits),
        cmocka_unit_test(rotation_by_two_positions_is_near_the_executors),
    };
    int rc;

    setup();
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    for (uint32_t i = 0; i < n_libs; i++) {
        free(libs[i].text);
        free(libs[i].code);
        if (libs[i].dl)
            dlclose(libs[i].dl);
    }
    return rc;
}
