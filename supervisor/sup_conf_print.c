/* sup_conf_print.c - the options as people read them: help, the page docs/configuration.md, JSON.
 * Tests: tests/supervisor/test_sup_conf.c, tests/e2e/cli_docs.py */
#include "sup_conf_impl.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *key, *title;
} groups[] = {
    {"listen", "Listening"},    {"models", "Models"},  {"device", "Device"},
    {"admission", "Admission"}, {"fetch", "Fetching"}, {"safety", "Safety"},
    {"watch", "Watching"},
};

const char *sup_conf_name(enum sup_option o)
{
    return sup_conf_opts[o].name;
}

const char *sup_conf_origin(const struct sup_conf *c, enum sup_option o)
{
    static const char *const words[] = {"default", "file", "environment", "flag"};

    return words[c->from[o]];
}

static char *json_of(const struct sup_conf *c, bool live)
{
    json_t *root = json_object();
    char *text;

    for (size_t i = 0; root && i < SUP_OPT_COUNT; i++) {
        if (live && !sup_conf_is_live((enum sup_option)i))
            continue;
        const void *f = sup_conf_view(c, &sup_conf_opts[i]);
        json_t *v = NULL;

        switch (sup_conf_opts[i].kind) {
        case STR:
        case ENUM:
            v = json_string(*(char *const *)f);
            break;
        case U64:
            v = json_integer((json_int_t) * (const uint64_t *)f);
            break;
        case BOOL:
            v = json_boolean(*(const bool *)f);
            break;
        case LIST:
            v = json_array();
            for (char **l = *(char **const *)f; l && *l; l++)
                json_array_append_new(v, json_string(*l));
            break;
        }
        /* a path that is no UTF-8 cannot be a JSON string */
        json_object_set_new(root, sup_conf_opts[i].name, v ? v : json_string("(not UTF-8)"));
    }
    text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}

char *sup_conf_json(const struct sup_conf *c)
{
    return json_of(c, false);
}

char *sup_conf_live_json(const struct sup_conf *c)
{
    return json_of(c, true);
}

static void default_text(const struct sup_conf_opt *o, char *out, size_t cap)
{
    if (o->kind == U64)
        snprintf(out, cap, "%" PRIu64, o->def_u);
    else if (o->kind == BOOL)
        snprintf(out, cap, "%s", o->def_b ? "true" : "false");
    else
        snprintf(out, cap, "%s", o->def_s && *o->def_s ? o->def_s : "none");
}

/* Words of text in lines of at most width, each new line indented. */
static void wrap(FILE *to, const char *text, size_t indent, size_t width)
{
    size_t col = indent;

    while (*text) {
        size_t n = strcspn(text, " ");

        if (col > indent && col + 1 + n > width) {
            fprintf(to, "\n%*s", (int)indent, "");
            col = indent;
        } else if (col > indent) {
            putc(' ', to);
            col++;
        }
        fprintf(to, "%.*s", (int)n, text);
        col += n;
        text += n + (text[n] == ' ');
    }
    putc('\n', to);
}

static void help_row(FILE *to, const struct sup_conf_opt *o)
{
    static const char *const arg[] = {" TEXT", " N", "", " WORD", " TEXT (may repeat)"};
    char spelt[64], def[64], line[512];

    sup_conf_spell(o, SUP_FROM_FLAG, spelt, sizeof(spelt));
    default_text(o, def, sizeof(def));
    fprintf(to, "  %s%s\n      ", spelt, arg[o->kind]);
    if (o->kind == U64)
        snprintf(line, sizeof(line), "%s [%" PRIu64 "..%" PRIu64 ", default %s]", o->help, o->min,
                 o->max, def);
    else if (o->kind == ENUM)
        snprintf(line, sizeof(line), "%s [%s, default %s]", o->help, o->words, def);
    else
        snprintf(line, sizeof(line), "%s [default %s]", o->help, def);
    if (sup_conf_is_live((enum sup_option)(o - sup_conf_opts)))
        snprintf(line + strlen(line) - 1, sizeof(line) - strlen(line), ", live]");
    wrap(to, line, 6, 78);
}

void sup_conf_help(FILE *to)
{
    for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++) {
        fprintf(to, "%s%s:\n", g ? "\n" : "", groups[g].title);
        for (size_t i = 0; i < SUP_OPT_COUNT; i++)
            if (strcmp(sup_conf_opts[i].group, groups[g].key) == 0)
                help_row(to, &sup_conf_opts[i]);
    }
}

/* '|' would end a cell. */
static void cell(FILE *to, const char *s)
{
    for (; *s; s++) {
        if (*s == '|')
            putc('\\', to);
        putc(*s, to);
    }
}

static void markdown_row(FILE *to, const struct sup_conf_opt *o)
{
    static const char *const kinds[] = {"text", "number", "true or false", "word", "list"};
    char def[64], range[128];

    default_text(o, def, sizeof(def));
    if (o->kind == U64)
        snprintf(range, sizeof(range), "number, %" PRIu64 " to %" PRIu64, o->min, o->max);
    else if (o->kind == ENUM)
        snprintf(range, sizeof(range), "%s", o->words);
    else
        snprintf(range, sizeof(range), "%s", kinds[o->kind]);
    fprintf(to, "| `%s` | ", o->name);
    cell(to, range);
    fprintf(to, " | %s%s%s | ", strcmp(def, "none") ? "`" : "", def,
            strcmp(def, "none") ? "`" : "");
    cell(to, o->help);
    fputs(sup_conf_is_live((enum sup_option)(o - sup_conf_opts)) ? " | yes |\n" : " | |\n", to);
}

void sup_conf_markdown(FILE *to)
{
    fputs(
        "# Configuration\n\n"
        "Made by `inferd help config --markdown` from the table in `supervisor/sup_conf.h`; a "
        "test fails when\nthis page is old. Do not edit it by hand.\n\n"
        "One option has one name, spelt three ways. For `max_body_bytes`:\n\n"
        "| where | spelling |\n|---|---|\n"
        "| flag of `inferd serve` | `--max-body-bytes=N` or `--max-body-bytes N` |\n"
        "| environment | `INFERD_MAX_BODY_BYTES=N` |\n"
        "| JSON file (`--config FILE` or `INFERD_CONFIG`) | `{\"max_body_bytes\": N}` |\n\n"
        "A flag beats the environment, the environment beats the file, the file beats the "
        "default. An option that is\ntrue or false is turned on by `--name` and off by "
        "`--no-name`. A list is a JSON array in the file, is split at\ncommas in the "
        "environment, and its flag may be repeated. An unknown name, a wrong type, a value out "
        "of range and\na key given twice in the file are errors, and nothing is started.\n\n"
        "SIGHUP makes a running server read the file again (the flags and the environment stay "
        "those it was started with). "
        "What\nis \"live\" below then changes for what comes after: requests, or loads of models. "
        "Other changes are named in "
        "the log\n(`conf_needs_restart`) and wait for a restart. A file with a mistake "
        "changes nothing "
        "(`conf_refused`).\n\n"
        "Other names in the environment: `INFERD_SERVER` (server the client commands talk to) and "
        "`INFERD_CONFIG` (the\nfile); `INFERD_BIN`, `INFERD_PRESET` and all that begin with "
        "`INFERD_TEST_` or `INFERD_BENCH_` belong to the tests.\nAny other name that begins with "
        "`INFERD_` is an error too: it is most likely a misspelt option.\n",
        to);
    for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++) {
        fprintf(
            to,
            "\n## %s\n\n| option | values | default | meaning | live |\n|---|---|---|---|---|\n",
            groups[g].title);
        for (size_t i = 0; i < SUP_OPT_COUNT; i++)
            if (strcmp(sup_conf_opts[i].group, groups[g].key) == 0)
                markdown_row(to, &sup_conf_opts[i]);
    }
}
