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
#include "sup_term.h"

enum { O_SERVER, O_MODELS_DIR, O_SYSTEM, O_JSON, O_QUIET, O_SETTINGS };

const struct sup_opt sup_opts_chat[] = {
    {"server", SUP_O_TEXT, "URL", "http://HOST:PORT or unix:PATH (default http://127.0.0.1:8090)",
     0, 0},
    {"models-dir", SUP_O_TEXT, "DIR", "start a private server for this folder", 0, 0},
    {"system", SUP_O_TEXT, "TEXT", "what the model is told first", 0, 0},
    {"json", SUP_O_FLAG, NULL, "print each answer as one JSON object", 0, 0},
    {"quiet", SUP_O_FLAG, NULL, "no statistics", 0, 0},
    {"temperature", SUP_O_REAL, "X", "0 = always the likeliest token (default 0.7)", 0, 2},
    {"top-p", SUP_O_REAL, "X", "keep the likeliest tokens up to this sum", 0, 1},
    {"top-k", SUP_O_NUM, "N", "keep this many likeliest tokens; 0 = off", 0, 1000000},
    {"min-p", SUP_O_REAL, "X", "drop tokens below this share of the likeliest", 0, 1},
    {"repetition-penalty", SUP_O_REAL, "X", "above 1 makes repeats rarer", 0.01, 10},
    {"seed", SUP_O_NUM, "N", "the same seed gives the same answer", 0, 9007199254740991},
    {"max-tokens", SUP_O_NUM, "N", "longest answer (default 512)", 1, 1048576},
    {0},
};
_Static_assert(sizeof(sup_opts_chat) / sizeof(sup_opts_chat[0]) == O_SETTINGS + SUP_SET_COUNT + 1,
               "the settings' flags are in the order of SUP_CHAT_SETTINGS");

struct input {
    struct sup_lines lines;
    struct sup_edit *edit; /* NULL without a terminal */
};

/* 1 a line, 0 the end, -1 Ctrl-C, -2 too long, -3 failure. */
static int read_line(struct input *in, const char *prompt, char **out)
{
    char *raw = NULL;
    int got = in->edit ? sup_edit_line(in->edit, prompt, &raw) : sup_line_read(&in->lines, &raw);

    if (got == 1) {
        *out = sup_valid_dup(raw, strlen(raw));
        got = *out ? 1 : -3;
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
    *out = line;
    return 1;
}

static void learn(struct sup_chat *c)
{
    struct sup_listing l = {0};
    const struct sup_model *m = NULL;

    if (sup_listing_get(c->client, &l, NULL) != RC_OK)
        return;
    if (sup_listing_pick(&l, c->model, false, &m, NULL) == RC_OK && m->ctx_tokens)
        c->ctx_tokens = m->ctx_tokens;
    sup_listing_deinit(&l);
}

/* One question; returns the exit status to end with, or -1 to go on. */
static int ask(struct sup_chat *c, const char *text)
{
    struct rc_err err = RC_ERR_INIT;
    bool stopped = false;

    if (!sup_talk_add(&c->talk, true, text)) {
        rc_fail(&err, RC_NOMEM, "out of memory");
        return sup_fail(c->args->cmd, &err);
    }
    (void)sup_cli_interrupted(true);
    if (sup_chat_ask(c, &stopped, &err) != RC_OK) {
        (void)sup_fail(c->args->cmd, &err);
        if (c->tty)
            fputs("[the question was taken back; the conversation goes on]\n", stderr);
        return c->tty ? -1 : SUP_EXIT_FAIL;
    }
    if (stopped && !c->tty)
        return SUP_EXIT_INT;
    (void)sup_cli_interrupted(true);
    if (c->ctx_tokens == 0)
        learn(c);
    return -1;
}

static int converse(struct sup_chat *c, struct input *in)
{
    int status = -1;

    while (status < 0 && !c->quit) {
        char *line = NULL;
        int got = read_question(c, in, &line);

        if (got == -1 && c->tty) {
            fputs("(Ctrl-C stops an answer; Ctrl-D or /quit ends)\n", stderr);
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
            sup_chat_slash(c, line);
        } else if (line[strspn(line, " \t\n")]) {
            status = ask(c, line);
        }
        free(line);
    }
    return status < 0 ? SUP_EXIT_OK : status;
}

/* Chooses the model and says hello. */
static enum rc begin(struct sup_chat *c, struct rc_err *err)
{
    const struct sup_args *a = c->args;
    struct sup_listing l = {0};
    const struct sup_model *m = NULL;
    enum rc rc = sup_listing_choose(c->client, &l, a->n_pos ? a->pos[0] : NULL, false, &m, err);

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

int sup_cmd_chat(const struct sup_args *a)
{
    struct sup_chat c = {.args = a};
    struct sup_session s = {0};
    struct input in = {.lines = {.fd = STDIN_FILENO}};
    struct rc_err err = RC_ERR_INIT;
    int status;

    c.tty = isatty(STDIN_FILENO) == 1;
    c.quiet = a->v[O_QUIET].set;
    c.json = a->v[O_JSON].set;
    for (int i = 0; i < SUP_SET_COUNT; i++) {
        c.set[i].set = a->v[O_SETTINGS + i].set;
        c.set[i].value = a->v[O_SETTINGS + i].num;
    }
    sup_cli_catch_int();
    if (sup_session_open(&s, a, a->v[O_SERVER].text, a->v[O_MODELS_DIR].text, &err) != RC_OK) {
        status = err.code == RC_INVALID || err.code == RC_CONFLICT
                     ? sup_usage_error(a->cmd, "%s", err.msg)
                     : sup_fail(a->cmd, &err);
        goto out;
    }
    c.client = s.client;
    if (begin(&c, &err) != RC_OK || (c.tty && !(in.edit = sup_edit_new()))) {
        status = sup_fail(a->cmd, &err);
        goto out;
    }
    status = converse(&c, &in);
out:
    sup_edit_free(&in.edit);
    sup_talk_deinit(&c.talk);
    free(c.model);
    sup_session_close(&s);
    return status;
}
