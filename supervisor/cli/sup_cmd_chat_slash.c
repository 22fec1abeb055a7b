/* sup_cmd_chat_slash.c - the commands inside a conversation, as a table.
 * Talks to the person on stderr. Tests: tests/e2e/cli_chat.py */
#include "sup_cmd_chat.h"

#include <stdlib.h>
#include <string.h>

#include "sup_file.h"
#include "sup_term.h"

static bool on_help(struct sup_chat *c, const char *rest);

static bool on_clear(struct sup_chat *c, const char *rest)
{
    sup_talk_clear(&c->talk);
    fputs("forgot the conversation\n", stderr);
    return true;
}

static bool on_system(struct sup_chat *c, const char *rest)
{
    if (!sup_talk_set_system(&c->talk, rest)) {
        fputs("out of memory\n", stderr);
        return false;
    }
    sup_talk_clear(&c->talk);
    fputs(*rest ? "system text set; the conversation begins anew\n"
                : "system text removed; the conversation begins anew\n",
          stderr);
    return true;
}

static bool on_stats(struct sup_chat *c, const char *rest)
{
    char line[160];

    fprintf(stderr, "model    %s\nserver   %s\n", c->model, sup_client_server(c->client));
    fprintf(stderr, "context  %llu tokens in use", (unsigned long long)sup_talk_tokens(&c->talk));
    if (c->ctx_tokens)
        fprintf(stderr, " of %llu", (unsigned long long)c->ctx_tokens);
    fprintf(stderr, "\nturns    %llu, %llu prompt + %llu answer tokens in all\n",
            (unsigned long long)c->n_turns, (unsigned long long)c->sum_prompt,
            (unsigned long long)c->sum_completion);
    if (c->n_turns) {
        sup_chat_stats_line(&c->last, line, sizeof(line));
        fprintf(stderr, "last     %s\n", line);
    }
    return true;
}

static bool complain(const struct rc_err *err)
{
    sup_print_clean(stderr, err->msg, false);
    putc('\n', stderr);
    return false;
}

static void show_setting(const struct sup_chat *c, int i)
{
    char v[64];

    fprintf(stderr, "  %-20s%-10s %s\n", sup_chat_rows[i].name, sup_chat_set_text(&c->set, i, v),
            sup_chat_rows[i].help);
}

/* NAME VALUE, NAME=VALUE or NAME = VALUE; blanks at the end are part of a text only. */
static bool on_set(struct sup_chat *c, const char *rest)
{
    struct rc_err err = RC_ERR_INIT;
    size_t n = strcspn(rest, " \t="), blank = strspn(rest + n, " \t");
    const char *value = rest + n + blank;
    char *mine, v[64];
    enum rc rc;
    int i;

    for (i = 0; !*rest && i < SUP_SET_COUNT; i++)
        show_setting(c, i);
    if (!*rest)
        return true;
    if ((i = sup_chat_set_find(rest, n, &err)) < 0)
        return complain(&err);
    if (!*value) {
        show_setting(c, i);
        return true;
    }
    if (*value == '=' && (blank == 0 || strchr(" \t", value[1])))
        value += 1 + strspn(value + 1, " \t");
    if (!(mine = strdup(value))) {
        fputs("out of memory\n", stderr);
        return false;
    }
    if (sup_chat_rows[i].kind != SUP_KIND_TEXT && sup_chat_rows[i].kind != SUP_KIND_LIST)
        for (n = strlen(mine); n > 0 && strchr(" \t", mine[n - 1]); n--)
            mine[n - 1] = '\0';
    rc = sup_chat_set_put(&c->set, i, mine, &err);
    free(mine);
    if (rc != RC_OK)
        return complain(&err);
    fprintf(stderr, "%s = %s\n", sup_chat_rows[i].name, sup_chat_set_text(&c->set, i, v));
    return true;
}

static bool on_quit(struct sup_chat *c, const char *rest)
{
    c->quit = true;
    return true;
}

static bool on_undo(struct sup_chat *c, const char *rest)
{
    if (c->talk.n < 2) {
        fputs("nothing was asked yet\n", stderr);
        return false;
    }
    sup_talk_pop(&c->talk);
    sup_talk_pop(&c->talk);
    fputs("took back the last question and its answer\n", stderr);
    return true;
}

static bool on_retry(struct sup_chat *c, const char *rest)
{
    if (c->talk.n < 2) {
        fputs("nothing was asked yet\n", stderr);
        return false;
    }
    c->again = strdup(c->talk.msg[c->talk.n - 2].text);
    c->again_answer = strdup(c->talk.msg[c->talk.n - 1].text);
    if (!c->again || !c->again_answer) {
        fputs("out of memory\n", stderr);
        return false;
    }
    sup_talk_pop(&c->talk);
    sup_talk_pop(&c->talk);
    return true;
}

static bool on_file(struct sup_chat *c, const char *rest)
{
    return sup_chat_attach(c, rest);
}

static bool on_save(struct sup_chat *c, const char *rest)
{
    struct rc_err err = RC_ERR_INIT;
    char *s = sup_talk_text(&c->talk, c->model);
    enum rc rc = s ? sup_file_write(rest, s, strlen(s), 0600, &err)
                   : rc_fail(&err, RC_NOMEM, "out of memory");

    free(s);
    if (rc != RC_OK)
        return complain(&err);
    fprintf(stderr, "saved %zu messages\n", c->talk.n);
    return true;
}

static bool on_load(struct sup_chat *c, const char *rest)
{
    struct rc_err err = RC_ERR_INIT;
    char *s = NULL;
    size_t n = 0;
    enum rc rc = sup_file_read(rest, 2 * SUP_TALK_MAX_BYTES, true, &s, &n, &err);

    if (rc == RC_OK)
        rc = sup_talk_parse(&c->talk, s, n, &err);
    free(s);
    if (rc != RC_OK)
        return complain(&err);
    fprintf(stderr, "loaded %zu messages\n", c->talk.n);
    return true;
}

static const struct {
    const char *name, *arg, *help;
    bool (*run)(struct sup_chat *c, const char *rest);
} commands[] = {
    {"/help", "", "this list", on_help},
    {"/clear", "", "forget the conversation, keep the system text", on_clear},
    {"/system", "TEXT", "set what the model is told first; empty removes it", on_system},
    {"/set", "NAME VALUE", "change a setting (VALUE default: reset it); alone: show all", on_set},
    {"/file", "PATH", "put a text file in front of the next question", on_file},
    {"/retry", "", "ask the last question again", on_retry},
    {"/undo", "", "take back the last question and its answer", on_undo},
    {"/save", "PATH", "write the conversation as JSON", on_save},
    {"/load", "PATH", "go on with a saved conversation", on_load},
    {"/stats", "", "tokens and speed so far", on_stats},
    {"/quit", "", "end (also /exit, /bye, Ctrl-D)", on_quit},
    {"/exit", NULL, NULL, on_quit},
    {"/bye", NULL, NULL, on_quit},
};

static bool on_help(struct sup_chat *c, const char *rest)
{
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (commands[i].help) {
            char left[40];

            snprintf(left, sizeof(left), "%s %s", commands[i].name, commands[i].arg);
            fprintf(stderr, "  %-20s%s\n", left, commands[i].help);
        }
    fputs("  \"\"\"                 begins and ends a text of several lines\n"
          "  \\ at a line's end    goes on with another line\n"
          "  Ctrl-C              stops an answer; twice at the prompt ends\n",
          stderr);
    return true;
}

bool sup_chat_slash(struct sup_chat *c, const char *line)
{
    size_t n = strcspn(line, " \t");
    const char *rest = line + n + strspn(line + n, " \t");

    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (strlen(commands[i].name) == n && memcmp(commands[i].name, line, n) == 0)
            return commands[i].run(c, rest);
    fputs("no command '", stderr);
    char word[40];
    snprintf(word, sizeof(word), "%.*s", (int)(n < 39 ? n : 39), line);
    sup_print_clean(stderr, word, false);
    fputs("'; these exist:\n", stderr);
    (void)on_help(c, "");
    return false;
}
