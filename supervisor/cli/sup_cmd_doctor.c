/* sup_cmd_doctor.c - `inferd doctor`: runs the checks, prints, gives a verdict.
 * Changes nothing. Tests: tests/e2e/cli_doctor.py */
#include "sup_doctor.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sup_cli.h"
#include "sup_serve_args.h"
#include "sup_term.h"

static const char *const words[] = {"ok", "note", "warn", "FAIL"};

void sup_doctor_group(struct sup_doctor *d, const char *title)
{
    d->group = title;
    if (!d->json)
        printf("\n%s\n", title);
}

void sup_doctor_say(struct sup_doctor *d, enum sup_finding f, const char *name, const char *fmt,
                    ...)
{
    static const char *const colour[] = {"\x1b[32m", "", "\x1b[33m", "\x1b[31m"};
    bool paint = !d->json && isatty(STDOUT_FILENO) == 1;
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    d->n[f]++;
    if (d->json) {
        json_t *detail = json_string(text);

        json_array_append_new(d->list,
                              json_pack("{s:s, s:s, s:s, s:o}", "group", d->group, "name", name,
                                        "status", f == SUP_FOUND_FAIL ? "fail" : words[f], "detail",
                                        detail ? detail : json_string("(not UTF-8)")));
        return;
    }
    printf("  %s%-5s%s ", paint ? colour[f] : "", words[f], paint && *colour[f] ? "\x1b[0m" : "");
    sup_print_clean(stdout, name, false);
    printf("%*s ", strlen(name) < 18 ? (int)(18 - strlen(name)) : 0, "");
    sup_print_clean(stdout, text, false);
    putchar('\n');
}

/* {"port": {"value": 8090, "from": "default"}, ...} */
static json_t *config_json(const struct sup_conf *c)
{
    char *text = sup_conf_json(c);
    json_t *values = text ? json_loads(text, 0, NULL) : NULL, *out = json_object();

    for (int i = 0; values && i < SUP_OPT_COUNT; i++) {
        const char *name = sup_conf_name((enum sup_option)i);

        json_object_set_new(out, name,
                            json_pack("{s:O, s:s}", "value", json_object_get(values, name), "from",
                                      sup_conf_origin(c, (enum sup_option)i)));
    }
    json_decref(values);
    free(text);
    return out;
}

static void print_config(const struct sup_conf *c)
{
    json_t *all = config_json(c), *one;
    const char *name;

    puts("\nConfiguration in force");
    json_object_foreach(all, name, one)
    {
        char *v = json_dumps(json_object_get(one, "value"), JSON_ENCODE_ANY | JSON_COMPACT);
        const char *from = json_string_value(json_object_get(one, "from"));

        printf("  %-28s", name);
        sup_print_clean(stdout, v ? v : "?", false);
        if (strcmp(from, "default") != 0)
            printf("  (%s)", from);
        putchar('\n');
        free(v);
    }
    puts("  (values without a remark are defaults)");
    json_decref(all);
}

static void verdict(const struct sup_doctor *d)
{
    if (d->n[SUP_FOUND_FAIL])
        printf("\nverdict: %u thing%s that 'inferd serve' needs %s missing here\n",
               d->n[SUP_FOUND_FAIL], d->n[SUP_FOUND_FAIL] == 1 ? "" : "s",
               d->n[SUP_FOUND_FAIL] == 1 ? "is" : "are");
    else if (d->n[SUP_FOUND_WARN])
        printf("\nverdict: 'inferd serve' can run here; %u warning%s above\n", d->n[SUP_FOUND_WARN],
               d->n[SUP_FOUND_WARN] == 1 ? "" : "s");
    else
        puts("\nverdict: 'inferd serve' can run here");
}

/* A configuration that cannot be read is a finding; the rest is checked with the
 * defaults. */
static enum rc read_conf(struct sup_doctor *d, struct sup_conf *c, struct sup_serve_args *s,
                         const struct sup_args *a, struct rc_err *err)
{
    struct rc_err why = RC_ERR_INIT;
    enum rc rc = sup_serve_args_read(s, c, a, true, &why);

    d->json = s->json;
    if (s->help || (d->json && !(d->list = json_array())))
        return s->help ? RC_OK : rc_fail(err, RC_NOMEM, "out of memory");
    sup_doctor_group(d, "Configuration");
    if (rc == RC_OK) {
        sup_doctor_say(d, SUP_FOUND_OK, "options",
                       s->config ? "read from '%s', environment and "
                                   "flags"
                                 : "read from environment and flags%s",
                       s->config ? s->config : "");
        return RC_OK;
    }
    sup_doctor_say(d, SUP_FOUND_FAIL, "options", "%s", why.msg);
    return sup_conf_load(c, NULL, NULL, 0, NULL, NULL, err);
}

static void doctor_help(void)
{
    sup_cmd_help(stdout, sup_cmd_find("doctor"));
    puts("\nOptions of its own:\n"
         "  --json                    print one JSON object\n"
         "  --server URL              the running server to look at\n"
         "  --config FILE             and every other option of 'inferd serve'");
}

int sup_cmd_doctor(const struct sup_args *a)
{
    struct sup_doctor d = {0};
    struct sup_serve_args s = {0};
    struct sup_conf c = {0};
    struct rc_err err = RC_ERR_INIT;
    bool good;

    if (read_conf(&d, &c, &s, a, &err) != RC_OK)
        return sup_fail(a->cmd, &err);
    if (s.help) {
        doctor_help();
        return SUP_EXIT_OK;
    }
    sup_doctor_machine(&d, &c);
    sup_doctor_worker(&d, &c);
    sup_doctor_models(&d, &c);
    sup_doctor_vault(&d, &c);
    sup_doctor_network(&d, &c, s.server ? s.server : sup_env(a->envp, "INFERD_SERVER"));
    good = d.n[SUP_FOUND_FAIL] == 0;
    if (d.json) {
        json_t *o =
            json_pack("{s:s, s:s, s:i, s:i, s:o, s:o}", "version", INFERD_VERSION, "verdict",
                      good ? "ok" : "fail", "failures", (int)d.n[SUP_FOUND_FAIL], "warnings",
                      (int)d.n[SUP_FOUND_WARN], "checks", d.list, "config", config_json(&c));

        (void)json_dumpf(o, stdout, JSON_INDENT(2));
        puts("");
        json_decref(o);
    } else {
        print_config(&c);
        verdict(&d);
    }
    sup_conf_deinit(&c);
    return good ? SUP_EXIT_OK : SUP_EXIT_FAIL;
}
