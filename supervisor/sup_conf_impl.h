/* sup_conf_impl.h - private to sup_conf*.c: the rows behind SUP_OPTIONS. */
#ifndef INFERD_SUP_CONF_IMPL_H
#define INFERD_SUP_CONF_IMPL_H

#include "sup_conf.h"

enum sup_conf_kind { STR, U64, BOOL, ENUM, LIST };

struct sup_conf_opt {
    const char *name;
    enum sup_conf_kind kind;
    size_t off;
    const char *def_s; /* STR, ENUM */
    const char *words; /* ENUM: allowed words separated by '|' */
    uint64_t def_u, min, max;
    bool def_b;
    const char *group, *help;
};

extern const struct sup_conf_opt sup_conf_opts[SUP_OPT_COUNT];

/* Where c keeps o: char **, uint64_t *, bool * or char *** by its kind. */
void *sup_conf_field(struct sup_conf *c, const struct sup_conf_opt *o);
const void *sup_conf_view(const struct sup_conf *c, const struct sup_conf_opt *o);
void sup_conf_value_free(struct sup_conf *c, const struct sup_conf_opt *o);
/* As a flag, a variable or a key. */
void sup_conf_spell(const struct sup_conf_opt *o, enum sup_conf_from from, char *out, size_t cap);
/* Defaults and then a JSON object of options, as in a file. Rules between options are not checked.
 * Errors: RC_INVALID, RC_NOMEM; then *out is as it was. */
enum rc sup_conf_parse(struct sup_conf *out, const char *json, size_t n, struct rc_err *err);
/* sup_conf_check.c: rules between options. RC_INVALID, err->what = the option. */
enum rc sup_conf_check(const struct sup_conf *c, struct rc_err *err);

#endif
