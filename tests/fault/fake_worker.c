/* fake_worker.c - a worker that does what the test tells it, good or bad.
 *
 * Descriptors as sup_launcher.h says: 3 channel, 4 model root (a file, or a folder
 * whose config.json is read). The root's text commands the load:
 *   load-ok (or anything else), load-ms=N, load-fail=CODE, load-crash, load-hang,
 *   load-garbage, no-ready, bad-version, bad-loaded, weights=N (bytes it reports),
 *   probe-fail=CODE, stderr=N (lines written at start), count=PATH (one byte is
 *   appended per real load), ignore-drain, beats (it says it sends Beat)
 * The text of a task commands the task; a task "X @PATH" does X only while PATH
 * does not exist, and creates it first (so it happens once):
 *   crash, sigbus, exit, hang, garbage, half-frame, huge-frame, no-memfd,
 *   unknown-frame, wrong-kind, foreign-task, short-vectors, nan-vectors, bad-utf8,
 *   bad-index, bad-token, error=CODE, worker-error=CODE, crash-mid, forever,
 *   ms=N (answers after N ms), stream=N,
 *   pass=N (works N ms without reading, and sends Beat), stuck (the same, for ever, and its
 *   count does not rise)
 * Anything else is answered like a good worker would. Never sandboxed. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ipc.h"

#define CH 3
#define ROOT 4
#define PENDING_MAX 4096
#define BEAT_MS 200

static char root_text[4096];

struct pending {
    uint64_t task, due_ms;
    uint32_t kind; /* body case of the request */
    int left;      /* deltas to go; -1 forever */
    uint32_t n;    /* choices, inputs */
    char echo[256];
    size_t n_echo;
};
static struct pending pend[PENDING_MAX];
static size_t n_pend;
static bool draining, ignore_drain;

static uint64_t now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static bool has(const char *word)
{
    return strstr(root_text, word) != NULL;
}

static long num(const char *text, const char *key, long otherwise)
{
    const char *p = strstr(text, key);

    return p ? strtol(p + strlen(key), NULL, 10) : otherwise;
}

static void send_frame(Ipc__Frame *f)
{
    if (ipc_send(CH, &f->base, NULL, 0, NULL) != RC_OK)
        _exit(0); /* the supervisor is gone */
}

#define FRAME(f, id, CASE, field, value)   \
    Ipc__Frame f = IPC__FRAME__INIT;       \
    f.task = (id);                         \
    f.body_case = IPC__FRAME__BODY_##CASE; \
    f.field = (value)

static void send_error(uint64_t task, int code, const char *msg)
{
    Ipc__Error e = IPC__ERROR__INIT;

    e.code = (uint32_t)code;
    e.message.data = (uint8_t *)msg;
    e.message.len = strlen(msg);
    e.what = (char *)"blk.0.attn_q.weight";
    e.item = -1;
    FRAME(f, task, ERROR, error, &e);
    send_frame(&f);
}

static void garbage(void)
{
    if (write(CH, "garbage", 7) != 7)
        _exit(0);
}

/* A frame whose head says `body` bytes, and which has `n`. */
static void bad_head(uint32_t flags, uint64_t body, size_t n)
{
    uint8_t b[1024] = {0};
    const uint32_t head[2] = {IPC_MAGIC, flags};

    memcpy(b, head, sizeof(head));
    memcpy(b + 8, &body, sizeof(body));
    if (write(CH, b, IPC_HEAD_BYTES + n) != (ssize_t)(IPC_HEAD_BYTES + n))
        _exit(0);
}

static void read_root(void)
{
    struct stat st;
    int fd = ROOT;

    if (fstat(ROOT, &st) == 0 && S_ISDIR(st.st_mode))
        fd = openat(ROOT, "config.json", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? pread(fd, root_text, sizeof(root_text) - 1, 0) : 0;
    root_text[n > 0 ? n : 0] = '\0';
}

/* ------------------------------------------------------------------- load */

static void count_load(void)
{
    char path[1024];
    const char *p = strstr(root_text, "count=");
    int fd;

    if (!p || sscanf(p, "count=%1000s", path) != 1)
        return;
    fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, "L", 1) != 1)
        _exit(9);
    close(fd);
}

static void on_load(const Ipc__Load *l)
{
    Ipc__Progress pr = IPC__PROGRESS__INIT;
    Ipc__Loaded ld = IPC__LOADED__INIT;
    long code;

    if (l->probe_only && (code = num(root_text, "probe-fail=", 0)) != 0) {
        send_error(0, (int)code, "the probe was told to fail");
        return;
    }
    if (!l->probe_only) {
        count_load();
        if (has("load-crash"))
            raise(SIGSEGV);
        if (has("load-garbage"))
            garbage();
        while (has("load-hang"))
            pause();
        if ((code = num(root_text, "load-fail=", 0)) != 0) {
            send_error(0, (int)code, "the load was told to fail");
            return;
        }
        pr.stage = (char *)"weights";
        pr.done = 1;
        pr.total = 2;
        FRAME(p, 0, PROGRESS, progress, &pr);
        send_frame(&p);
        usleep((useconds_t)num(root_text, "load-ms=", 0) * 1000);
    }
    ld.family = (char *)"fake";
    ld.arch = (char *)"fake";
    ld.backend = (char *)"cpu";
    ld.kernels = (char *)"c";
    ld.quant = has("bad-loaded") ? (char *)"\xFF" : (char *)"F32";
    ld.default_prompt = (char *)"";
    ld.can_generate = ld.can_embed = true;
    ld.ctx_tokens = ld.train_ctx_tokens = 1024;
    ld.embed_dim = 4;
    ld.vocab_size = 100;
    ld.n_params = 1;
    ld.weight_bytes = (uint64_t)num(root_text, "weights=", 1000);
    ld.kv_bytes = 1000;
    ld.workspace_bytes = 1000;
    ld.max_seqs = 4;
    ld.threads = 1;
    ld.probe_only = l->probe_only;
    FRAME(f, 0, LOADED, loaded, &ld);
    send_frame(&f);
}

/* ------------------------------------------------------------------ answers */

static void send_delta(uint64_t task, uint32_t index, const char *text, uint32_t token,
                       uint32_t finish)
{
    Ipc__Delta d = IPC__DELTA__INIT;

    d.index = index;
    d.text.data = (uint8_t *)text;
    d.text.len = strlen(text);
    d.tokens = &token;
    d.n_tokens = 1;
    d.finish = finish;
    FRAME(f, task, DELTA, delta, &d);
    send_frame(&f);
}

static void send_done(const struct pending *p)
{
    Ipc__Done dn = IPC__DONE__INIT;

    dn.prompt_tokens = 3;
    dn.completion_tokens = 2;
    FRAME(f, p->task, DONE, done, &dn);
    send_frame(&f);
}

static void send_vectors(uint64_t task, uint32_t n, float value, size_t cut)
{
    Ipc__Vectors v = IPC__VECTORS__INIT;
    float *data = calloc(n * 4 + 1, sizeof(float));
    uint32_t *counts = calloc(n + 1, sizeof(uint32_t));

    for (uint32_t i = 0; i < n * 4; i++)
        data[i] = value;
    v.n = n;
    v.dim = 4;
    v.data.data = (uint8_t *)data;
    v.data.len = n * 16 - cut;
    v.n_tokens = counts;
    v.n_n_tokens = n;
    FRAME(f, task, VECTORS, vectors, &v);
    send_frame(&f);
    free(data);
    free(counts);
}

static void send_echo(uint64_t task, const void *data, size_t n)
{
    Ipc__Echo e = IPC__ECHO__INIT;

    e.data.data = (uint8_t *)data;
    e.data.len = n;
    FRAME(f, task, ECHOED, echoed, &e);
    send_frame(&f);
}

static void send_tokens(uint64_t task, size_t n_text)
{
    Ipc__Tokens t = IPC__TOKENS__INIT;
    uint32_t ids[2] = {1, 2}, offsets[4] = {0, 1, 1, (uint32_t)n_text};
    ProtobufCBinaryData pieces[2] = {{1, (uint8_t *)"a"}, {1, (uint8_t *)"b"}};

    t.ids = ids;
    t.n_ids = 2;
    t.pieces = pieces;
    t.n_pieces = 2;
    t.offsets = offsets;
    t.n_offsets = 4;
    FRAME(f, task, TOKENS, tokens, &t);
    send_frame(&f);
}

/* One step of a pending task; true when it has ended. */
static bool step(struct pending *p)
{
    Ipc__Text t = IPC__TEXT__INIT;

    switch (p->kind) {
    case IPC__FRAME__BODY_ECHO:
        send_echo(p->task, p->echo, p->n_echo);
        return true;
    case IPC__FRAME__BODY_EMBED:
        send_vectors(p->task, p->n, 0.5f, 0);
        return true;
    case IPC__FRAME__BODY_TOKENIZE:
        send_tokens(p->task, p->n_echo);
        return true;
    case IPC__FRAME__BODY_DETOKENIZE: {
        t.text.data = (uint8_t *)"ab";
        t.text.len = 2;
        FRAME(f, p->task, TEXT, text, &t);
        send_frame(&f);
        return true;
    }
    default:
        for (uint32_t c = 0; c < p->n; c++)
            send_delta(p->task, c, "ab ", 7, p->left == 1 ? 1 : 0);
        if (p->left == 1) {
            send_done(p);
            return true;
        }
        if (p->left > 0)
            p->left--;
        p->due_ms = now_ms() + 2;
        return false;
    }
}

static void later(uint64_t task, uint32_t kind, uint32_t n, uint64_t in_ms, int left,
                  const void *echo, size_t n_echo)
{
    struct pending *p = &pend[n_pend];

    if (n_pend == PENDING_MAX || n_echo > sizeof(p->echo)) {
        send_error(task, RC_BUSY, "the fake worker is full");
        return;
    }
    *p = (struct pending){.task = task, .kind = kind, .n = n, .left = left};
    p->due_ms = now_ms() + in_ms;
    p->n_echo = n_echo;
    if (n_echo)
        memcpy(p->echo, echo, n_echo);
    n_pend++;
}

/* --------------------------------------------------------------- misbehaviour */

/* A pass: the channel is not read meanwhile. for_ms 0: it never ends, and nothing moves. */
static void pass(uint64_t for_ms)
{
    Ipc__Beat b = IPC__BEAT__INIT;

    for (uint64_t end = now_ms() + for_ms; for_ms == 0 || now_ms() < end;) {
        FRAME(f, 0, BEAT, beat, &b);
        send_frame(&f);
        b.moved += for_ms != 0;
        usleep(BEAT_MS * 1000);
    }
}

static void wrong_kind(uint64_t task, uint32_t kind)
{
    if (kind == IPC__FRAME__BODY_ECHO)
        send_vectors(task, 1, 0.5f, 0);
    else
        send_echo(task, "x", 1);
}

static bool misbehave(uint64_t task, uint32_t kind, const char *text)
{
    Ipc__Drain drain = IPC__DRAIN__INIT;
    long code;

    if (strncmp(text, "crash-mid", 9) == 0) {
        send_delta(task, 0, "one ", 1, 0);
        send_delta(task, 0, "two ", 2, 0);
        usleep(20000); /* let the front see them as apart from the death */
        raise(SIGSEGV);
    } else if (strncmp(text, "crash", 5) == 0) {
        raise(SIGSEGV);
    } else if (strncmp(text, "sigbus", 6) == 0) {
        raise(SIGBUS);
    } else if (strncmp(text, "exit", 4) == 0) {
        _exit(3);
    } else if (strncmp(text, "pass=", 5) == 0) {
        pass((uint64_t)atol(text + 5));
        return false;
    } else if (strncmp(text, "stuck", 5) == 0) {
        pass(0);
    } else if (strncmp(text, "hang", 4) == 0) {
        for (;;)
            pause();
    } else if (strncmp(text, "garbage", 7) == 0) {
        garbage();
    } else if (strncmp(text, "half-frame", 10) == 0) {
        bad_head(0, 1000, 500);
    } else if (strncmp(text, "huge-frame", 10) == 0) {
        bad_head(0, 1ull << 40, 100);
    } else if (strncmp(text, "no-memfd", 8) == 0) {
        bad_head(IPC_F_MEMFD, 1 << 20, 0);
    } else if (strncmp(text, "unknown-frame", 13) == 0) {
        FRAME(f, task, DRAIN, drain, &drain);
        send_frame(&f);
    } else if (strncmp(text, "wrong-kind", 10) == 0) {
        wrong_kind(task, kind);
    } else if (strncmp(text, "foreign-task", 12) == 0) {
        send_echo(task + 0x1000000000ull, "x", 1); /* never issued: dropped */
        return false;
    } else if (strncmp(text, "short-vectors", 13) == 0) {
        send_vectors(task, 1, 0.5f, 4);
    } else if (strncmp(text, "nan-vectors", 11) == 0) {
        send_vectors(task, 1, NAN, 0);
    } else if (strncmp(text, "bad-utf8", 8) == 0) {
        send_delta(task, 0, "\xC3\x28", 1, 0);
    } else if (strncmp(text, "bad-index", 9) == 0) {
        send_delta(task, 50, "x", 1, 0);
    } else if (strncmp(text, "bad-token", 9) == 0) {
        send_delta(task, 0, "x", 100, 0);
    } else if ((code = strncmp(text, "error=", 6) ? 0 : atol(text + 6)) != 0) {
        send_error(task, (int)code, "told to fail");
    } else if ((code = strncmp(text, "worker-error=", 13) ? 0 : atol(text + 13)) != 0) {
        send_error(0, (int)code, "told to fail");
    } else {
        return false;
    }
    return true;
}

/* "X @PATH": X once. */
static bool spent(const char *text)
{
    const char *at = strstr(text, " @");
    int fd;

    if (!at)
        return false;
    fd = open(at + 2, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd);
    return fd < 0;
}

static void on_task(const Ipc__Frame *f)
{
    char text[512] = "";
    ProtobufCBinaryData b = {0, NULL};
    uint32_t n = 1;
    int left = 3;

    if (f->body_case == IPC__FRAME__BODY_ECHO)
        b = f->echo->data;
    else if (f->body_case == IPC__FRAME__BODY_TOKENIZE)
        b = f->tokenize->text;
    else if (f->body_case == IPC__FRAME__BODY_EMBED && (n = (uint32_t)f->embed->n_inputs) > 0)
        b = f->embed->inputs[0]->text;
    else if (f->body_case == IPC__FRAME__BODY_GENERATE) {
        b = f->generate->kind == 1 && f->generate->n_messages
                ? f->generate->messages[f->generate->n_messages - 1]->content
                : f->generate->prompt;
        n = f->generate->n;
    }
    if (b.len < sizeof(text))
        memcpy(text, b.data ? b.data : (uint8_t *)"", b.len);
    if (!spent(text) && misbehave(f->task, f->body_case, text))
        return;
    if (strncmp(text, "stream=", 7) == 0)
        left = atoi(text + 7);
    if (strncmp(text, "forever", 7) == 0)
        left = -1;
    if (b.len > 256 && f->body_case == IPC__FRAME__BODY_ECHO) {
        send_echo(f->task, b.data, b.len);
        return;
    }
    later(f->task, f->body_case, n, (uint64_t)(strncmp(text, "ms=", 3) ? 0 : atol(text + 3)), left,
          b.len <= 256 ? b.data : NULL, b.len <= 256 ? b.len : 0);
}

static void on_cancel(uint64_t task)
{
    for (size_t i = 0; i < n_pend; i++)
        if (pend[i].task == task) {
            pend[i] = pend[--n_pend];
            send_error(task, RC_CANCELLED, "cancelled");
            return;
        }
}

static void on_frame(const Ipc__Frame *f)
{
    switch (f->body_case) {
    case IPC__FRAME__BODY_HELLO:
        break;
    case IPC__FRAME__BODY_LOAD:
        on_load(f->load);
        break;
    case IPC__FRAME__BODY_CANCEL:
        on_cancel(f->task);
        break;
    case IPC__FRAME__BODY_DRAIN:
        draining = true;
        break;
    default:
        on_task(f);
    }
}

int main(void)
{
    Ipc__Ready r = IPC__READY__INIT;
    Ipc__Layer layer = IPC__LAYER__INIT, *layers[1] = {&layer};

    signal(SIGSEGV, SIG_DFL); /* a sanitizer would turn the death into an exit */
    signal(SIGBUS, SIG_DFL);
    read_root();
    for (long i = 0; i < num(root_text, "stderr=", 0); i++)
        fprintf(stderr, "line %ld of the fake worker \xFF\x01\n", i);
    while (has("no-ready"))
        pause();
    ignore_drain = has("ignore-drain");
    r.version = has("bad-version") ? IPC_VERSION + 1 : IPC_VERSION;
    r.pid = (uint32_t)getpid();
    r.beat_ms = has("beats") ? BEAT_MS : 0;
    layer.name = (char *)"none";
    layer.detail = (char *)"a fake has no sandbox";
    r.sandbox = layers;
    r.n_sandbox = 1;
    FRAME(ready, 0, READY, ready, &r);
    send_frame(&ready);
    for (;;) {
        struct pollfd p = {.fd = CH, .events = POLLIN};
        uint64_t now = now_ms();
        int wait = -1;

        for (size_t i = 0; i < n_pend;) {
            if (pend[i].due_ms <= now && step(&pend[i])) {
                memmove(&pend[i], &pend[i + 1], (n_pend - i - 1) * sizeof(pend[0]));
                n_pend--;
            } else {
                int ms = pend[i].due_ms > now ? (int)(pend[i].due_ms - now) : 0;

                wait = wait < 0 || ms < wait ? ms : wait;
                i++;
            }
        }
        if (draining && !ignore_drain && n_pend == 0)
            _exit(0);
        if (poll(&p, 1, wait) > 0) {
            ProtobufCMessage *m = NULL;

            if (ipc_recv(CH, &ipc__frame__descriptor, &m, NULL, NULL, NULL) != RC_OK)
                _exit(0);
            on_frame((Ipc__Frame *)m);
            protobuf_c_message_free_unpacked(m, NULL);
        }
    }
}
