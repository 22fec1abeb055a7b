/* sup_ref.h - what a person names when a model is to be fetched.
 *
 *   [hf:]owner/name[:variant][@revision]   a repository of the hub
 *   https://host/path/file.gguf            one file (http only from this machine itself)
 *   file:/path/file.gguf or file:/folder   one that is on this machine already
 *   a short name of sup_ref_aliases
 *
 * Always true of a parsed reference: every part is printable ASCII without spaces, no part is "."
 * or ".." or begins with a dot, and dest is a path below the models folder that sup_id_valid
 * accepts. Tests: tests/supervisor/test_sup_ref.c, tests/fuzz/fuzz_ref.c
 */
#ifndef INFERD_SUP_REF_H
#define INFERD_SUP_REF_H

#include <stdbool.h>
#include <stddef.h>

#include "rc.h"
#include "sup_secret_limits.h"

#define SUP_HUB_DEFAULT "https://huggingface.co"
#define SUP_REF_MAX 4096
#define SUP_REF_PART 97 /* an owner, a name, a variant: at most 96 bytes */

enum sup_ref_kind { SUP_REF_HUB, SUP_REF_URL, SUP_REF_FILE };

struct sup_ref {
    enum sup_ref_kind kind;
    char owner[SUP_REF_PART], name[SUP_REF_PART];
    char variant[SUP_REF_PART]; /* "auto" when none was named */
    char revision[256];         /* "main" when none was named */
    char target[SUP_REF_MAX];   /* of SUP_REF_URL the URL, of SUP_REF_FILE the path */
    char dest[2 * SUP_REF_PART + SUP_REF_PART]; /* below the models folder */
    char text[SUP_REF_MAX + 8];                 /* as it would be written in full */
};

/* Names of one word. */
struct sup_ref_alias {
    const char *name, *means;
};
extern const struct sup_ref_alias sup_ref_aliases[]; /* ended by {0} */

/* variant and revision: from options, NULL = as in the text; the text's own must not differ.
 * Errors: RC_INVALID with the part at fault in err->what ("reference", "owner", "name", "variant",
 * "revision", "url", "path"), RC_TOO_LARGE. */
enum rc sup_ref_parse(struct sup_ref *out, const char *text, const char *variant,
                      const char *revision, struct rc_err *err);

/* An origin: scheme://host:port, all three written out, lower case. false: no http(s) URL, or one
 * with a user name in it. */
bool sup_ref_origin(const char *url, char out[SUP_ORIGIN_MAX]);
/* True for https, and for http to this machine itself. */
bool sup_ref_origin_safe(const char *origin);

#endif
