/* sup_talk.c - see sup_talk.h. Knows nothing of terminals or HTTP.
 * Always true: messages alternate user, assistant, user, ...; n_bytes is the sum of
 * their lengths. Tests: tests/supervisor/test_sup_cli_talk.c */
#include "sup_talk.h"

#include <stdlib.h>
#include <string.h>

#include "sup_fields.h"

/* Before the server has told: about three bytes a token and a template's frame. */
static uint64_t estimate(const char *s)
{
    return strlen(s) / 3 + 8;
}

static void drop(struct sup_talk *t, size_t at, size_t n)
{
    for (size_t i = at; i < at + n; i++) {
        t->n_bytes -= strlen(t->msg[i].text);
        free(t->msg[i].text);
    }
    memmove(&t->msg[at], &t->msg[at + n], (t->n - at - n) * sizeof(*t->msg));
    t->n -= n;
}

void sup_talk_clear(struct sup_talk *t)
{
    if (t->n)
        drop(t, 0, t->n);
}

void sup_talk_deinit(struct sup_talk *t)
{
    sup_talk_clear(t);
    free(t->msg);
    free(t->system);
    memset(t, 0, sizeof(*t));
}

bool sup_talk_set_system(struct sup_talk *t, const char *text)
{
    char *copy = text && *text ? strdup(text) : NULL;

    if (text && *text && !copy)
        return false;
    free(t->system);
    t->system = copy;
    t->system_tok = copy ? estimate(copy) : 0;
    return true;
}

bool sup_talk_add(struct sup_talk *t, bool user, const char *text)
{
    char *copy = strdup(text);

    if (copy && t->n == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 16;
        struct sup_talk_msg *grown = realloc(t->msg, cap * sizeof(*grown));

        if (!grown) {
            free(copy);
            return false;
        }
        t->msg = grown;
        t->cap = cap;
    }
    if (!copy)
        return false;
    t->msg[t->n++] = (struct sup_talk_msg){copy, user, estimate(copy)};
    t->n_bytes += strlen(copy);
    return true;
}

void sup_talk_pop(struct sup_talk *t)
{
    if (t->n)
        drop(t, t->n - 1, 1);
}

void sup_talk_settle(struct sup_talk *t, uint64_t prompt_tokens, uint64_t completion_tokens)
{
    uint64_t before = t->system_tok;

    if (t->n < 2)
        return;
    for (size_t i = 0; i + 2 < t->n; i++)
        before += t->msg[i].n_tok;
    /* what the earlier estimates missed is put on the newest question */
    t->msg[t->n - 2].n_tok = prompt_tokens > before ? prompt_tokens - before : 1;
    t->msg[t->n - 1].n_tok = completion_tokens + 4; /* end of turn and its frame */
}

uint64_t sup_talk_tokens(const struct sup_talk *t)
{
    uint64_t sum = t->system_tok;

    for (size_t i = 0; i < t->n; i++)
        sum += t->msg[i].n_tok;
    return sum;
}

bool sup_talk_drop_oldest(struct sup_talk *t)
{
    if (t->n < 3)
        return false;
    drop(t, 0, 2);
    return true;
}

unsigned sup_talk_fit(struct sup_talk *t, uint64_t ctx_tokens, uint64_t max_tokens)
{
    unsigned n = 0;

    while (((ctx_tokens && sup_talk_tokens(t) + max_tokens > ctx_tokens) ||
            t->n_bytes > SUP_TALK_MAX_BYTES) &&
           sup_talk_drop_oldest(t))
        n++;
    return n;
}

static int push(json_t *list, const char *role, const char *text)
{
    /* a person's terminal may send what is no UTF-8; json_string then gives NULL */
    json_t *m = json_pack("{s:s, s:o*}", "role", role, "content", json_string(text));

    if (!m || !json_object_get(m, "content")) {
        json_decref(m);
        return -1;
    }
    return json_array_append_new(list, m);
}

json_t *sup_talk_json(const struct sup_talk *t)
{
    json_t *list = json_array();
    int bad = list ? 0 : -1;

    if (!bad && t->system)
        bad = push(list, "system", t->system);
    for (size_t i = 0; !bad && i < t->n; i++)
        bad = push(list, t->msg[i].user ? "user" : "assistant", t->msg[i].text);
    if (bad) {
        json_decref(list);
        return NULL;
    }
    return list;
}

/* One saved message: {"role": ..., "content": ...}. system may only be the first. */
static enum rc take(struct sup_talk *t, size_t i, const json_t *m, struct rc_err *err)
{
    const char *role = json_string_value(json_object_get(m, "role"));
    const json_t *content = json_object_get(m, "content");
    const char *want = t->n % 2 == 0 ? "user" : "assistant";
    bool ok;

    if (!role || !json_is_string(content))
        return rc_fail(err, RC_FORMAT,
                       "messages[%zu]: expected an object with the texts 'role' and 'content'", i);
    if (strlen(json_string_value(content)) != json_string_length(content))
        return rc_fail(err, RC_FORMAT, "messages[%zu]: content holds a zero character", i);
    if (json_string_length(content) > SUP_TALK_MAX_BYTES - t->n_bytes)
        return rc_fail(err, RC_TOO_LARGE, "messages[%zu]: more than %u bytes of text in all", i,
                       SUP_TALK_MAX_BYTES);
    if (i == 0 && strcmp(role, "system") == 0) {
        ok = sup_talk_set_system(t, json_string_value(content));
    } else if (strcmp(role, want) != 0) {
        return rc_fail(err, RC_FORMAT, "messages[%zu]: role '%.20s', expected '%s'", i, role, want);
    } else {
        ok = sup_talk_add(t, t->n % 2 == 0, json_string_value(content));
    }
    return ok ? RC_OK : rc_fail(err, RC_NOMEM, "out of memory");
}

enum rc sup_talk_parse(struct sup_talk *t, const char *s, size_t n, struct rc_err *err)
{
    struct sup_talk new = {0};
    struct sup_fail f = {0};
    json_t *o = sup_body_parse(s, n, &f), *list = json_object_get(o, "messages");
    enum rc rc = RC_OK;

    if (!o)
        rc = rc_fail(err, RC_FORMAT, "%s", f.err.msg);
    else if (json_integer_value(json_object_get(o, "inferd_chat")) != 1)
        rc = rc_fail(err, RC_FORMAT, "no saved conversation: expected \"inferd_chat\": 1");
    else if (!json_is_array(list))
        rc = rc_fail(err, RC_FORMAT, "'messages': expected a list");
    else if (json_array_size(list) > SUP_TALK_MAX_MESSAGES)
        rc = rc_fail(err, RC_TOO_LARGE, "'messages' has %zu entries, at most %d",
                     json_array_size(list), SUP_TALK_MAX_MESSAGES);
    for (size_t i = 0; rc == RC_OK && i < json_array_size(list); i++)
        rc = take(&new, i, json_array_get(list, i), err);
    if (rc == RC_OK && new.n % 2)
        rc = rc_fail(err, RC_FORMAT, "the last question has no answer");
    if (rc == RC_OK) {
        struct sup_talk old = *t;

        *t = new;
        new = old;
    }
    sup_talk_deinit(&new);
    json_decref(o);
    return rc;
}

char *sup_talk_text(const struct sup_talk *t, const char *model)
{
    json_t *list = sup_talk_json(t);
    json_t *o =
        list ? json_pack("{s:i, s:s, s:o}", "inferd_chat", 1, "model", model, "messages", list)
             : NULL;
    char *s = o ? json_dumps(o, JSON_INDENT(2)) : NULL;

    json_decref(o);
    return s;
}
