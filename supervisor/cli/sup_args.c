/* sup_args.c - words of a command line against a command's option table.
 *
 * Never guesses: an unknown or malformed word is an error that names it and the
 * nearest option. Pure but for memory. Tests: tests/supervisor/test_sup_cli_args.c
 */
#include "sup_cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sup_near.h"

static int find_opt(const struct sup_opt *opts, const char *name, size_t n)
{
    for (int i = 0; opts[i].name; i++)
        if (strlen(opts[i].name) == n && memcmp(opts[i].name, name, n) == 0)
            return i;
    return -1;
}

static int find_letter(const struct sup_opt *opts, const char *word)
{
    for (int i = 0; word[0] == '-' && word[1] && !word[2] && opts[i].name; i++)
        if (opts[i].letter == word[1])
            return i;
    return -1;
}

static enum rc unknown(const struct sup_opt *opts, const char *word, size_t n, struct rc_err *err)
{
    const char *best = NULL;
    size_t least = SIZE_MAX;

    for (int i = 0; opts[i].name; i++) {
        size_t d = sup_near(word + 2, n, opts[i].name);

        if (d < least) {
            least = d;
            best = opts[i].name;
        }
    }
    if (best && least <= 1 + n / 4)
        return rc_fail_what(err, RC_INVALID, word, "unknown option '%.*s'; did you mean '--%s'?",
                            (int)n + 2, word, best);
    return rc_fail_what(err, RC_INVALID, word, "unknown option '%.*s'", (int)n + 2, word);
}

static enum rc number(struct sup_args *a, int i, const char *s, struct rc_err *err)
{
    const struct sup_opt *o = &a->cmd->opts[i];
    char *end;
    double v;

    errno = 0;
    v = strtod(s, &end);
    if (!*s || strspn(s, "0123456789.-+eE") != strlen(s) || *end || errno || !isfinite(v) ||
        v < o->min || v > o->max || (o->kind == SUP_O_NUM && v != floor(v)))
        return rc_fail_what(err, RC_INVALID, o->name,
                            "option '--%s': value '%.60s': expected a %snumber from %.15g to %.15g",
                            o->name, s, o->kind == SUP_O_NUM ? "whole " : "", o->min, o->max);
    a->v[i].num = v;
    return RC_OK;
}

/* The option at argv[0]; *used = how many words it took. */
static enum rc option(struct sup_args *a, int argc, char **argv, int *used, struct rc_err *err)
{
    int i = find_letter(a->cmd->opts, argv[0]);
    const char *name = argv[0] + 2, *eq = i < 0 ? strchr(name, '=') : NULL, *value;
    size_t n = eq ? (size_t)(eq - name) : strlen(name);

    *used = 1;
    if (i < 0 && (i = find_opt(a->cmd->opts, name, n)) < 0)
        return unknown(a->cmd->opts, argv[0], n, err);
    const struct sup_opt *o = &a->cmd->opts[i];
    if (o->kind == SUP_O_FLAG && eq)
        return rc_fail_what(err, RC_INVALID, o->name, "option '--%s' takes no value", o->name);
    a->v[i].set = true;
    if (o->kind == SUP_O_FLAG)
        return RC_OK;
    if (!eq && argc < 2)
        return rc_fail_what(err, RC_INVALID, o->name, "option '--%s' needs a value: --%s %s",
                            o->name, o->name, o->arg);
    value = eq ? eq + 1 : argv[1];
    *used = eq ? 1 : 2;
    a->v[i].text = value;
    a->given[a->n_given++] = (struct sup_given){i, value};
    return o->kind == SUP_O_TEXT ? RC_OK : number(a, i, value, err);
}

enum rc sup_args_parse(struct sup_args *a, const struct sup_cmd *cmd, int argc, char **argv,
                       bool *help, struct rc_err *err)
{
    bool plain = false; /* behind "--" */
    int used;
    enum rc rc;

    memset(a, 0, sizeof(*a));
    a->cmd = cmd;
    a->argc = argc;
    a->argv = argv;
    *help = false;
    a->pos = calloc((size_t)argc + 1, sizeof(*a->pos));
    a->given = calloc((size_t)argc + 1, sizeof(*a->given));
    if (!a->pos || !a->given)
        return rc_fail(err, RC_NOMEM, "out of memory");
    for (int i = 0; i < argc; i++) {
        if (!plain && strcmp(argv[i], "--") == 0) {
            plain = true;
        } else if (!plain && (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)) {
            *help = true;
            return RC_OK;
        } else if (!plain &&
                   (strncmp(argv[i], "--", 2) == 0 || find_letter(cmd->opts, argv[i]) >= 0)) {
            if ((rc = option(a, argc - i, argv + i, &used, err)) != RC_OK)
                return rc;
            i += used - 1;
        } else if (!plain && argv[i][0] == '-' && argv[i][1]) {
            return rc_fail_what(err, RC_INVALID, argv[i],
                                "unknown option '%.60s' (a text that begins with '-' goes behind "
                                "'--')",
                                argv[i]);
        } else {
            a->pos[a->n_pos++] = argv[i];
            a->given[a->n_given++] = (struct sup_given){-1, argv[i]};
        }
    }
    if (a->n_pos < cmd->min_pos)
        return rc_fail(err, RC_INVALID, "missing argument: usage is inferd %s %s", cmd->name,
                       cmd->usage);
    if (a->n_pos > cmd->max_pos)
        return rc_fail_what(err, RC_INVALID, a->pos[cmd->max_pos],
                            "unexpected argument '%.60s': usage is inferd %s %s",
                            a->pos[cmd->max_pos], cmd->name, cmd->usage);
    return RC_OK;
}

void sup_args_deinit(struct sup_args *a)
{
    free(a->pos);
    free(a->given);
    a->pos = NULL;
    a->given = NULL;
    a->n_pos = a->n_given = 0;
}

const char *sup_env(char *const *envp, const char *name)
{
    size_t n = strlen(name);

    for (; envp && *envp; envp++)
        if (strncmp(*envp, name, n) == 0 && (*envp)[n] == '=')
            return *envp + n + 1;
    return NULL;
}
