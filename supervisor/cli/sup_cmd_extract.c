/* sup_cmd_extract.c - `inferd extract`: what a schema names, found in texts.
 *
 * Small schemas are options, large ones a file, which is sent as it is. The server checks; here a
 * request is made and its answer shown. Tests: tests/e2e/cli_texts.py
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sup_common.h"
#include "sup_file.h"
#include "sup_progress.h"
#include "sup_term.h"

#define PATH "/ai/v1/extract"
#define FILE_BYTES (16u << 20)

enum {
    O_SERVER,
    O_MODELS_DIR,
    O_JSON,
    O_FILE,
    O_ENTITIES,
    O_RELATION,
    O_CLASSIFY,
    O_STRUCTURE,
    O_SCHEMA,
    O_THRESHOLD,
    O_BYTES
};

const struct sup_opt sup_opts_extract[] = {
    {"server", SUP_O_TEXT, "URL", "http://HOST:PORT or unix:PATH (default " SUP_SERVER_DEFAULT ")",
     0, 0},
    {"models-dir", SUP_O_TEXT, "DIR", "start a private server for this folder", 0, 0},
    {"json", SUP_O_FLAG, NULL, "print the answer as the server gave it", 0, 0},
    {"file", SUP_O_TEXT, "FILE", "a whole file is a text; '-' is stdin; may be repeated", 0, 0},
    {"entities", SUP_O_TEXT, "A,B", "labels to find; may be repeated", 0, 0},
    {"relation", SUP_O_TEXT, "A::R::B",
     "a relation R, or with the labels of its ends; may be repeated", 0, 0},
    {"classify", SUP_O_TEXT, "NAME=A,B", "choose one of these labels; may be repeated", 0, 0},
    {"structure", SUP_O_TEXT, "NAME=F,G",
     "records of these fields (name::str, ...); may be repeated", 0, 0},
    {"schema", SUP_O_TEXT, "FILE", "the schema's JSON instead", 0, 0},
    {"threshold", SUP_O_REAL, "X", "least score, 0 to 1 (default 0.3)", 0, 1},
    {"bytes", SUP_O_FLAG, NULL, "count offsets in bytes instead of characters", 0, 0},
    {0},
};

/* -------------------------------------------------------------------- schema */

/* "a, b" to its parts, appended. */
static enum rc add_parts(json_t *list, const char *text, struct rc_err *err)
{
    for (const char *p = text; *p;) {
        size_t len = strcspn(p, ","), from = strspn(p, " ");
        size_t n = len;
        char *part;
        int failed;

        while (n > from && p[n - 1] == ' ')
            n--;
        if (n > from) {
            part = sup_valid_dup(p + from, n - from);
            failed = part ? json_array_append_new(list, json_string(part)) : -1;
            free(part);
            if (failed)
                return rc_fail(err, RC_NOMEM, "out of memory");
        }
        p += len + (p[len] == ',');
    }
    return RC_OK;
}

/* NAME=A,B: the name, and its parts in a new list. */
static enum rc named_parts(const char *text, const char *opt, char **name, json_t **parts,
                           struct rc_err *err)
{
    const char *sep = strchr(text, '=');

    if (!sep || sep == text)
        return rc_fail(err, RC_INVALID, "--%s: got '%.80s', expected NAME=A,B", opt, text);
    *parts = json_array();
    *name = sup_valid_dup(text, (size_t)(sep - text));
    if (!*parts || !*name)
        return rc_fail(err, RC_NOMEM, "out of memory");
    return add_parts(*parts, sep + 1, err);
}

/* The list below key, made when it is not there. */
static json_t *list_in(json_t *schema, const char *key)
{
    if (!json_object_get(schema, key))
        json_object_set_new(schema, key, json_array());
    return json_object_get(schema, key);
}

static enum rc add_named(json_t *schema, const char *text, bool classes, struct rc_err *err)
{
    json_t *parts = NULL, *made = NULL;
    char *name = NULL;
    enum rc rc = named_parts(text, classes ? "classify" : "structure", &name, &parts, err);
    int failed = 0;

    if (rc == RC_OK && classes) {
        made = json_pack("{s:s, s:O}", "name", name, "labels", parts);
        failed = json_array_append_new(list_in(schema, "classifications"), made);
    } else if (rc == RC_OK) {
        if (!json_object_get(schema, "structures"))
            json_object_set_new(schema, "structures", json_object());
        failed = json_object_set(json_object_get(schema, "structures"), name, parts);
    }
    free(name);
    json_decref(parts);
    return failed ? rc_fail(err, RC_NOMEM, "out of memory") : rc;
}

static enum rc schema_of_options(const struct sup_args *a, json_t *schema, struct rc_err *err)
{
    enum rc rc = RC_OK;

    for (int i = 0; i < a->n_given && rc == RC_OK; i++) {
        const char *text = a->given[i].text;

        switch (a->given[i].opt) {
        case O_ENTITIES:
            rc = add_parts(list_in(schema, "entities"), text, err);
            break;
        case O_RELATION:
            rc = add_parts(list_in(schema, "relations"), text, err);
            break;
        case O_CLASSIFY:
        case O_STRUCTURE:
            rc = add_named(schema, text, a->given[i].opt == O_CLASSIFY, err);
            break;
        default:
            break;
        }
    }
    if (rc == RC_OK && json_object_size(schema) == 0)
        return rc_fail(err, RC_INVALID,
                       "nothing to find: give --entities, --relation, --classify, --structure or "
                       "--schema");
    return rc;
}

static enum rc read_schema(const struct sup_args *a, json_t **out, struct rc_err *err)
{
    if (a->v[O_SCHEMA].set)
        return sup_file_json(a->v[O_SCHEMA].text, FILE_BYTES, out, err);
    if (!(*out = json_object()))
        return rc_fail(err, RC_NOMEM, "out of memory");
    return schema_of_options(a, *out, err);
}

/* -------------------------------------------------------------------- inputs */

static enum rc add_text(json_t *inputs, const char *text, size_t n, struct rc_err *err)
{
    char *valid = sup_valid_dup(text, n);
    json_t *o = valid ? json_pack("{s:s}", "content", valid) : NULL;
    int failed = json_array_append_new(inputs, o);

    free(valid);
    return failed ? rc_fail(err, RC_NOMEM, "out of memory") : RC_OK;
}

static enum rc add_file(json_t *inputs, const char *path, struct rc_err *err)
{
    char *text = NULL;
    size_t n = 0;
    enum rc rc = sup_file_input(path, FILE_BYTES, &text, &n, err);

    if (rc == RC_OK)
        rc = add_text(inputs, text, n, err);
    free(text);
    return rc;
}

static enum rc add_inputs(const struct sup_args *a, json_t *inputs, struct rc_err *err)
{
    enum rc rc = RC_OK;
    bool model = false;

    for (int i = 0; i < a->n_given && rc == RC_OK; i++) {
        if (a->given[i].opt == O_FILE)
            rc = add_file(inputs, a->given[i].text, err);
        else if (a->given[i].opt < 0 && model)
            rc = add_text(inputs, a->given[i].text, strlen(a->given[i].text), err);
        else if (a->given[i].opt < 0)
            model = true;
    }
    return rc == RC_OK && json_array_size(inputs) == 0 ? add_file(inputs, "-", err) : rc;
}

/* ------------------------------------------------------------------- showing */

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s ? s : "?";
}

static double score_of(const json_t *o)
{
    return json_number_value(json_object_get(o, "score"));
}

static void show_entities(const json_t *list)
{
    static const char *const columns[] = {"LABEL", "TEXT", ">START", ">END", ">SCORE"};
    size_t n = json_array_size(list), i;
    const char **cells = calloc(n + 1, 5 * sizeof(*cells));
    char(*num)[3][24] = calloc(n + 1, sizeof(*num));
    const json_t *e;

    json_array_foreach(cells && num ? list : NULL, i, e)
    {
        const char **row = cells + i * 5;

        snprintf(num[i][0], 24, "%lld", (long long)json_integer_value(json_object_get(e, "start")));
        snprintf(num[i][1], 24, "%lld", (long long)json_integer_value(json_object_get(e, "end")));
        snprintf(num[i][2], 24, "%.4f", score_of(e));
        row[0] = text_of(e, "label");
        row[1] = text_of(e, "text");
        for (int k = 0; k < 3; k++)
            row[2 + k] = num[i][k];
    }
    if (cells && num && n)
        sup_table(stdout, columns, 5, cells, n);
    free(cells);
    free(num);
}

static const char *end_text(const json_t *item, const json_t *relation, const char *end)
{
    const json_t *at = json_object_get(json_object_get(relation, end), "entity_index");

    return text_of(
        json_array_get(json_object_get(item, "entities"), (size_t)json_integer_value(at)), "text");
}

static void show_relations(const json_t *item)
{
    const json_t *r;
    size_t i;

    json_array_foreach(json_object_get(item, "relations"), i, r)
    {
        sup_print_clean(stdout, end_text(item, r, "source"), false);
        fputs("  ", stdout);
        sup_print_clean(stdout, text_of(r, "type"), false);
        fputs("  ", stdout);
        sup_print_clean(stdout, end_text(item, r, "target"), false);
        printf("  %.4f\n", score_of(r));
    }
}

static void show_classes(const json_t *item)
{
    const json_t *c;
    size_t i;

    json_array_foreach(json_object_get(item, "classifications"), i, c)
    {
        sup_print_clean(stdout, text_of(c, "name"), false);
        fputs(": ", stdout);
        sup_print_clean(stdout, text_of(c, "label"), false);
        printf("  %.4f\n", score_of(c));
    }
}

static void show_value(const json_t *v)
{
    const json_t *one;
    size_t i;

    if (json_is_object(v))
        sup_print_clean(stdout, text_of(v, "value"), false);
    else if (!json_is_array(v))
        putchar('-');
    json_array_foreach(json_is_array(v) ? v : NULL, i, one)
    {
        fputs(i ? ", " : "", stdout);
        sup_print_clean(stdout, text_of(one, "value"), false);
    }
    putchar('\n');
}

static void show_structures(json_t *map)
{
    const char *name, *field;
    json_t *records, *record, *v;
    size_t i;

    json_object_foreach(map, name, records) json_array_foreach(records, i, record)
    {
        sup_print_clean(stdout, name, false);
        printf(" %zu\n", i + 1);
        json_object_foreach(record, field, v)
        {
            fputs("  ", stdout);
            sup_print_clean(stdout, field, false);
            fputs(": ", stdout);
            show_value(v);
        }
    }
}

static void show(const json_t *answer)
{
    const json_t *data = json_object_get(answer, "data"), *item;
    size_t i;

    json_array_foreach(data, i, item)
    {
        if (json_array_size(data) > 1)
            printf("%s[%zu]\n", i ? "\n" : "", i);
        show_entities(json_object_get(item, "entities"));
        show_relations(item);
        show_classes(item);
        show_structures(json_object_get(item, "structures"));
    }
}

/* --------------------------------------------------------------------- whole */

static enum rc run(const struct sup_args *a, struct sup_client *client, struct sup_listing *l,
                   struct rc_err *err)
{
    const struct sup_model *m = NULL;
    json_t *inputs = json_array(), *schema = NULL, *body = NULL, *answer = NULL;
    enum rc rc;

    if ((rc = read_schema(a, &schema, err)) == RC_OK &&
        (rc = sup_listing_choose(client, l, a->pos[0], SUP_KIND_EXTRACT, &m, err)) == RC_OK &&
        (rc = add_inputs(a, inputs, err)) == RC_OK) {
        body = json_pack("{s:s, s:O, s:O, s:{s:f, s:s}}", "model", m->id, "inputs", inputs,
                         "schema", schema, "options", "threshold",
                         a->v[O_THRESHOLD].set ? a->v[O_THRESHOLD].num : 0.3, "offsets",
                         a->v[O_BYTES].set ? "bytes" : "codepoints");
        rc = sup_progress_call(client, m, PATH, body, &answer, err);
    }
    if (rc == RC_OK && a->v[O_JSON].set)
        sup_print_json(answer);
    else if (rc == RC_OK)
        show(answer);
    json_decref(inputs);
    json_decref(schema);
    json_decref(body);
    json_decref(answer);
    return rc;
}

int sup_cmd_extract(const struct sup_args *a)
{
    return sup_session_run(a, a->v[O_SERVER].text, a->v[O_MODELS_DIR].text, run);
}
