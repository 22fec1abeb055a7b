/* sup_cmd_chat.c - `inferd chat`: reads questions until the person has enough.
 *
 * On a terminal: a prompt, editing, history, Ctrl-C for the answer only. Without
 * one: each line is a question, the first failure ends with status 1.
 * Tests: tests/e2e/cli_chat.py (under a pty and without)
 */
#include "sup_cmd_chat.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sup_edit.h"
#include "sup_history.h"
#include "sup_term.h"

enum {
    O_SERVER,
    O_MODELS_DIR,
    O_SYSTEM,
    O_JSON,
    O_QUIET,
    O_MODEL,
    O_FILE,
    O_NO_HISTORY,
    O_SETTINGS
};

const struct sup_opt sup_opts_chat[] = {
    {"server", SUP_O_TEXT, "URL", "http://HOST:PORT or unix:PATH (default http://127.0.0.1:8090)",
     0, 0},
    {"models-dir", SUP_O_TEXT, "DIR", "start a private server for this folder", 0, 0},
    {"system", SUP_O_TEXT, "TEXT", "what the model is told first", 0, 0},
    {"json", SUP_O_FLAG, NULL, "print each answer as one JSON object", 0, 0},
    {"quiet", SUP_O_FLAG, NULL, "no statistics", 0, 0},
    {"model", SUP_O_TEXT, "MODEL", "the same as the word MODEL", 0, 0, 'm'},
    {"file", SUP_O_TEXT, "PATH", "a text that goes in front of the first question", 0, 0},
    {"no-history", SUP_O_FLAG, NULL, "neither read nor keep the lines typed", 0, 0},
#define SUP_KIND_O_REAL SUP_O_REAL
#define SUP_KIND_O_NUM SUP_O_NUM
#define SUP_KIND_O_FLAG SUP_O_FLAG
#define SUP_KIND_O_LIST SUP_O_TEXT
#define SUP_KIND_O_BIAS SUP_O_TEXT
#define SUP_KIND_O_FORMAT SUP_O_TEXT
#define SUP_KIND_O_FILE SUP_O_TEXT
#define SUP_KIND_O_TEXT SUP_O_TEXT
#define X(f, flag, kind, arg, min, max, help) {flag, SUP_KIND_O_##kind, arg, help, min, max},
    SUP_CHAT_SETTINGS(X)
#undef X
        {0},
};
_Static_assert(O_SETTINGS + SUP_SET_COUNT <= SUP_OPTS_MAX, "struct sup_args holds them all");

struct input {
    struct sup_lines lines;
    struct sup_edit *edit; /* NULL without a terminal that moves its cursor */
    struct sup_history history;
    bool prompt; /* a dumb terminal: the kernel edits the line, we only ask */
};

/* 1 a line, 0 the end, -1 Ctrl-C, -2 too long, -3 failure. */
static int read_line(struct input *in, const char *prompt, char **out)
{
    char *raw = NULL;
    int got;

    if (in->prompt) {
        fputs(prompt, stderr);
        (void)fflush(stderr);
    }
    got = in->edit ? sup_edit_line(in->edit, prompt, &raw) : sup_line_read(&in->lines, &raw);

    if (got == 1) {
        *out = sup_valid_dup(raw, strlen(raw));
        got = *out ? 1 : -3;
        if (in->edit && *out)
            sup_history_add(&in->history, *out);
    }
    free(raw);
    return got;
}

/* Reads until a line of three double quotes; *text grows by each line. */
static int read_block(struct input *in, char **text)
{
    char *line = NULL, *grown;
    int got;

    while ((got = read_line(in, "... ", &line)) == 1) {
        char *end = strstr(line, "\"\"\"");
        size_t n = strlen(*text), add;

        if (end)
            *end = '\0';
        add = strlen(line);
        if (n + add > SUP_TALK_MAX_BYTES / 2)
            got = -2;
        else if (!(grown = realloc(*text, n + add + 2)))
            got = -3;
        else {
            *text = grown;
            snprintf(grown + n, add + 2, "%s%s", n ? "\n" : "", line);
        }
        free(line);
        if (end || got != 1)
            break;
    }
    return got;
}

/* A line that ends with one backslash goes on in the next; *line grows. */
static int read_more(struct input *in, char **line)
{
    int got = 1;
    size_t n;

    while (got == 1 && (n = strlen(*line)) > 0 && (*line)[n - 1] == '\\' &&
           (n == 1 || (*line)[n - 2] != '\\')) {
        char *next = NULL, *grown;

        if ((got = read_line(in, "... ", &next)) == 1) {
            grown = n + strlen(next) > SUP_TALK_MAX_BYTES / 2
                        ? NULL
                        : realloc(*line, n + strlen(next) + 1);
            got = grown ? 1 : -2;
            if (grown) {
                grown[n - 1] = '\n';
                memcpy(grown + n, next, strlen(next) + 1);
                *line = grown;
            }
        }
        free(next);
    }
    return got == 0 ? 1 : got; /* the end of input ends the line too */
}

/* The next question or command. As read_line; blank lines are passed over. */
static int read_question(struct sup_chat *c, struct input *in, char **out)
{
    char *line = NULL, *at, *block;
    int got = read_line(in, ">>> ", &line);

    if (got != 1)
        return got;
    at = line + strspn(line, " \t");
    if (strncmp(at, "\"\"\"", 3) == 0) {
        char *end = strstr(at + 3, "\"\"\"");

        if (end)
            *end = '\0';
        block = strdup(at + 3);
        if (!block)
            got = -3;
        else if (!end)
            got = read_block(in, &block);
        free(line);
        if (got != 1)
            free(block);
        else
            *out = block;
        return got;
    }
    if ((got = read_more(in, &line)) == 1)
        *out = line;
    else
        free(line);
    return got;
}

static void learn(struct sup_chat *c)
{
    struct sup_listing l = {0};
    const struct sup_model *m = NULL;

    if (sup_listing_get(c->client, &l, NULL) != RC_OK)
        return;
    if (sup_listing_pick(&l, c->model, SUP_KIND_GENERATE, &m, NULL) == RC_OK && m->ctx_tokens)
        c->ctx_tokens = m->ctx_tokens;
    sup_listing_deinit(&l);
}

static void drop_files(struct sup_chat *c)
{
    free(c->files.text);
    c->files = (struct sup_chat_files){0};
}

/* One question; returns the exit status to end with, or -1 to go on. */
static int ask(struct sup_chat *c, const char *text)
{
    struct rc_err err = RC_ERR_INIT;
    bool stopped = false, added;
    const char *files = c->files.text;
    char *whole = NULL;

    if (files && (whole = malloc(strlen(files) + strlen(text) + 1)))
        memcpy(stpcpy(whole, files), text, strlen(text) + 1);
    added = (whole || !files) && sup_talk_add(&c->talk, true, whole ? whole : text);
    free(whole);
    if (!added) {
        rc_fail(&err, RC_NOMEM, "out of memory");
        return sup_fail(c->args->cmd, &err);
    }
    (void)sup_cli_interrupted(true);
    if (sup_chat_ask(c, &stopped, &err) != RC_OK) {
        (void)sup_fail(c->args->cmd, &err);
        if (c->again_answer && (!sup_talk_add(&c->talk, true, text) ||
                                !sup_talk_add(&c->talk, false, c->again_answer)))
            sup_talk_clear(&c->talk); /* half a turn would be out of order */
        if (c->tty)
            fputs("[the question was taken back; the conversation goes on]\n", stderr);
        return c->tty ? -1 : SUP_EXIT_FAIL;
    }
    drop_files(c);
    if (stopped && !c->tty)
        return SUP_EXIT_INT;
    (void)sup_cli_interrupted(true);
    if (c->ctx_tokens == 0)
        learn(c);
    return -1;
}

/* A command, and the question that /retry asks again. As ask. */
static int obey(struct sup_chat *c, const char *line)
{
    int status = sup_chat_slash(c, line) || c->tty ? -1 : SUP_EXIT_FAIL;
    struct sup_chat_files files = c->files;

    if (c->again && c->again_answer) {
        c->files = (struct sup_chat_files){0}; /* they are for the next new question */
        status = ask(c, c->again);
        c->files = files;
    }
    free(c->again);
    free(c->again_answer);
    c->again = c->again_answer = NULL;
    return status;
}

static int converse(struct sup_chat *c, struct input *in)
{
    int status = -1, n_int = 0; /* Ctrl-C at the prompt, in a row */

    while (status < 0 && !c->quit) {
        char *line = NULL;
        int got = read_question(c, in, &line);

        n_int = got == -1 ? n_int + 1 : 0;
        if (got == -1 && c->tty && n_int < 2) {
            fputs("(Ctrl-C stops an answer; once more, Ctrl-D or /quit ends)\n", stderr);
            (void)sup_cli_interrupted(true);
        } else if (got == -1) {
            status = SUP_EXIT_INT;
        } else if (got == 0) {
            if (c->tty)
                fputs("\n", stderr);
            status = SUP_EXIT_OK;
        } else if (got < 0) {
            fputs(got == -2 ? "inferd chat: a question is longer than this program takes\n"
                            : "inferd chat: stdin cannot be read\n",
                  stderr);
            status = SUP_EXIT_FAIL;
        } else if (line[0] == '/') {
            status = obey(c, line);
        } else if (line[strspn(line, " \t\n")]) {
            status = ask(c, line);
        }
        free(line);
    }
    return status < 0 ? SUP_EXIT_OK : status;
}

/* Chooses the model and says hello. */
static enum rc begin(struct sup_chat *c, const char *wanted, struct rc_err *err)
{
    const struct sup_args *a = c->args;
    struct sup_listing l = {0};
    const struct sup_model *m = NULL;
    enum rc rc = sup_listing_choose(c->client, &l, wanted, SUP_KIND_GENERATE, &m, err);

    if (rc == RC_NOT_FOUND && wanted)
        fputs("inferd chat: a model must lie in the server's models folder (inferd list shows it); "
              "for a file elsewhere: inferd chat ./FILE.gguf\n",
              stderr);

    if (rc == RC_OK && m->known && !m->can_generate)
        rc = rc_fail(err, RC_INVALID,
                     "model '%.100s' (%s) does not generate text; try: inferd embed", m->id,
                     m->family);
    if (rc == RC_OK) {
        c->model = strdup(m->id);
        c->ctx_tokens = m->ctx_tokens;
        c->warm = strcmp(m->state, "ready") == 0 || strcmp(m->state, "busy") == 0;
        if (!c->model)
            rc = rc_fail(err, RC_NOMEM, "out of memory");
    }
    if (rc == RC_OK && a->v[O_SYSTEM].set) {
        char *s = sup_valid_dup(a->v[O_SYSTEM].text, strlen(a->v[O_SYSTEM].text));

        if (!s || !sup_talk_set_system(&c->talk, s))
            rc = rc_fail(err, RC_NOMEM, "out of memory");
        free(s);
    }
    if (rc == RC_OK && c->tty && !c->quiet) {
        fputs("talking to ", stderr);
        sup_print_clean(stderr, c->model, false);
        fputs("; /help lists the commands\n", stderr);
    }
    sup_listing_deinit(&l);
    return rc;
}

/* A word that is a path (/..., ./..., ../...) means a private server for its folder:
 * *word and *dir point into path then. */
static void split_path(char path[4096], const char **word, const char **dir)
{
    char *slash;

    if (!*word || *dir || strlen(*word) >= 4096 ||
        (**word != '/' && strncmp(*word, "./", 2) && strncmp(*word, "../", 3)))
        return;
    snprintf(path, 4096, "%s", *word);
    while ((slash = strrchr(path, '/')) && slash > path && !slash[1])
        *slash = '\0';
    if (!slash || !slash[1])
        return;
    *slash = '\0';
    *word = slash + 1;
    *dir = slash > path ? path : "/";
}

static bool take_settings(struct sup_chat *c, struct rc_err *err)
{
    for (int i = 0; i < SUP_SET_COUNT; i++) {
        const char *value = c->args->v[O_SETTINGS + i].text;

        if (c->args->v[O_SETTINGS + i].set &&
            sup_chat_set_put(&c->set, i, value ? value : "on", err) != RC_OK)
            return false;
    }
    return true;
}

int sup_cmd_chat(const struct sup_args *a)
{
    struct sup_chat c = {.args = a};
    struct sup_session s = {0};
    struct input in = {.lines = {.fd = STDIN_FILENO}};
    struct rc_err err = RC_ERR_INIT;
    const char *word = a->n_pos ? a->pos[0] : a->v[O_MODEL].text, *dir = a->v[O_MODELS_DIR].text;
    char path[4096];
    int status;

    if (a->n_pos && a->v[O_MODEL].set)
        return sup_usage_error(a->cmd, "the model is named twice: '%.80s' and --model %.80s",
                               a->pos[0], a->v[O_MODEL].text);
    split_path(path, &word, &dir);
    c.tty = isatty(STDIN_FILENO) == 1;
    c.quiet = a->v[O_QUIET].set;
    c.json = a->v[O_JSON].set;
    if (!take_settings(&c, &err)) {
        status = err.code == RC_INVALID ? sup_usage_error(a->cmd, "%s", err.msg)
                                        : sup_fail(a->cmd, &err);
        goto out;
    }
    sup_cli_catch_int();
    if (sup_session_open(&s, a, a->v[O_SERVER].text, dir, &err) != RC_OK) {
        status = sup_session_fail(a->cmd, &err);
        goto out;
    }
    c.client = s.client;
    in.prompt = c.tty && sup_term_dumb();
    if (begin(&c, word, &err) != RC_OK || (c.tty && !in.prompt && !(in.edit = sup_edit_new()))) {
        status = sup_fail(a->cmd, &err);
        goto out;
    }
    if (a->v[O_FILE].set && !sup_chat_attach(&c, a->v[O_FILE].text)) {
        status = SUP_EXIT_FAIL;
        goto out;
    }
    if (in.edit && !a->v[O_NO_HISTORY].set)
        sup_history_open(&in.history, in.edit, a->envp);
    status = converse(&c, &in);
out:
    sup_edit_free(&in.edit);
    sup_talk_deinit(&c.talk);
    drop_files(&c);
    sup_chat_set_deinit(&c.set);
    free(c.model);
    sup_session_close(&s);
    return status;
}
