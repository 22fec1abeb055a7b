/* sup_embed_in.c - the field `input` of an embedding request to the worker's message.
 *
 * Two forms that are never mixed: flat (a string, a part or a list of token ids makes a
 * vector) and groups ({"title", "content"} makes one vector of all its parts). Texts,
 * ids and files are borrowed from the JSON tree or the frame until the message is
 * packed; files are not looked into. Change with care: the rules of groups are public
 * (docs/api.md). Tests: tests/supervisor/test_sup_api_embed.c, test_sup_api_embed_media.c
 */
#include "sup_embed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sup_conf.h"
#include "sup_front.h"
#include "sup_media.h"

#define NAME_BYTES 96
#define FLAT_WANT "a non-empty string or a non-empty array"

static bool bad(struct sup_fail *f, const char *name, const char *what)
{
    sup_fail_set(f, SUP_E_INVALID_REQUEST, name, "field '%s': %s", name, what);
    return false;
}

static bool cannot(struct sup_embed *e, bool can, const char *what, const char *name,
                   struct sup_fail *f)
{
    if (!e->call.known || can)
        return false; /* not probed yet: the worker will say */
    sup_fail_set(f, SUP_E_UNSUPPORTED_FEATURE, name, "field '%s': model '%.100s' takes no %s", name,
                 e->call.model, what);
    return true;
}

/* -------------------------------------------------------------------- parts */

static bool text_read(json_t *t, const char *name, ProtobufCBinaryData *out, struct sup_fail *f)
{
    if (!json_is_string(t) || json_string_length(t) == 0) {
        sup_field_bad(f, name, t, "a non-empty string");
        return false;
    }
    out->data = (uint8_t *)(uintptr_t)json_string_value(t);
    out->len = json_string_length(t);
    return true;
}

/* Only keys of `words` ("|a|b|"): a mistyped title must not vanish from a vector. */
static bool only_keys(json_t *o, const char *words, const char *name, const char *what,
                      struct sup_fail *f)
{
    char word[40], list[80];
    const char *key;
    json_t *j;

    json_object_foreach(o, key, j)
    {
        int n = snprintf(word, sizeof(word), "|%s|", key);

        if (n > 2 && (size_t)n < sizeof(word) && !strchr(key, '|') && strstr(words, word) != NULL)
            continue;
        snprintf(list, sizeof(list), "%.*s", (int)strlen(words) - 2, words + 1);
        for (char *p = list; *p; p++)
            if (*p == '|')
                *p = ' ';
        sup_fail_set(f, SUP_E_INVALID_REQUEST, name,
                     "field '%s': key \"%.40s\" is unknown, %s has only: %s", name, key, what,
                     list);
        return false;
    }
    return true;
}

/* The file's own type against the declared one; the plain type into mime. */
static bool mime_agrees(json_t *declared, struct sup_media *m, const char *name, struct sup_fail *f)
{
    char want[SUP_MIME_BYTES];

    if (!declared || json_is_null(declared)) {
        if (m->mime[0])
            return true;
        return bad(f, name, "'mime_type' is missing, expected a type like \"image/png\"");
    }
    if (!json_is_string(declared) ||
        !sup_mime_plain(json_string_value(declared), json_string_length(declared), want)) {
        char field[NAME_BYTES + 16];

        snprintf(field, sizeof(field), "%s.mime_type", name);
        sup_field_bad(f, field, declared, "a type like \"image/png\"");
        return false;
    }
    if (m->mime[0] && strcmp(m->mime, want) != 0) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, name,
                     "field '%s': 'mime_type' is \"%.60s\", but the file comes as \"%.60s\"", name,
                     want, m->mime);
        return false;
    }
    memcpy(m->mime, want, sizeof(want));
    return true;
}

/* What may be embedded at all, and what this model can. */
static bool media_fits(struct sup_embed *e, const struct sup_media *m, const char *name,
                       struct sup_fail *f)
{
    const uint64_t max = e->call.front->conf->max_media_bytes;
    bool image = strncmp(m->mime, "image/", 6) == 0;

    if (strncmp(m->mime, "video/", 6) == 0)
        return bad(f, name, "video is not supported, expected image/* or audio/*");
    if (!image && strncmp(m->mime, "audio/", 6) != 0) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, name,
                     "field '%s': the file's type is \"%.60s\", expected image/* or audio/*", name,
                     m->mime);
        return false;
    }
    if (image ? cannot(e, e->call.can_embed_image, "pictures", name, f)
              : cannot(e, e->call.can_embed_sound, "sound", name, f))
        return false;
    if (m->n == 0)
        return bad(f, name, "the file is empty");
    if (m->n > max || e->media_bytes > max - m->n) {
        sup_fail_set(f, SUP_E_CONTENT_TOO_LARGE, name,
                     "field '%s': the file has %zu bytes, with those before it %llu: the limit of "
                     "a request is %llu (max_media_bytes)",
                     name, m->n, (unsigned long long)e->media_bytes + m->n,
                     (unsigned long long)max);
        return false;
    }
    e->media_bytes += m->n;
    e->has_media = true;
    return true;
}

static bool media_out(struct sup_embed *e, const struct sup_media *m, Ipc__EmbedPart *out,
                      struct sup_fail *f)
{
    out->is_media = true;
    out->data.data = (uint8_t *)(uintptr_t)m->data;
    out->data.len = m->n;
    out->mime = sup_call_alloc(&e->call, strlen(m->mime) + 1);
    if (!out->mime)
        return sup_fail_no_memory(f);
    memcpy(out->mime, m->mime, strlen(m->mime) + 1);
    return true;
}

/* {"type": "image_url", "image_url": URL or {"url": URL}} */
static bool image_part(struct sup_embed *e, json_t *o, bool strict, const char *name,
                       Ipc__EmbedPart *out, struct sup_fail *f)
{
    json_t *j = json_object_get(o, "image_url");
    struct sup_media m;
    char field[NAME_BYTES + 16];

    if (cannot(e, e->call.can_embed_image, "pictures", name, f))
        return false;
    snprintf(field, sizeof(field), "%s.image_url", name);
    if (json_is_object(j)) {
        if (strict && !only_keys(j, "|url|detail|", field, "image_url", f))
            return false;
        snprintf(field, sizeof(field), "%s.image_url.url", name);
        j = json_object_get(j, "url");
    }
    if (!sup_media_read(j, true, field, &e->call.frame, &m, f))
        return false;
    if (strncmp(m.mime, "image/", 6) != 0 && strncmp(m.mime, "video/", 6) != 0) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, field,
                     "field '%s': the file's type is \"%.60s\", expected image/*", field, m.mime);
        return false;
    }
    return media_fits(e, &m, field, f) && media_out(e, &m, out, f);
}

/* {"type": "media", "data": ..., "mime_type": ...} or {"type": "media", "url": ...} */
static bool media_part(struct sup_embed *e, json_t *o, const char *name, Ipc__EmbedPart *out,
                       struct sup_fail *f)
{
    json_t *data = json_object_get(o, "data"), *url = json_object_get(o, "url");
    struct sup_media m;
    char field[NAME_BYTES + 16];

    data = json_is_null(data) ? NULL : data;
    url = json_is_null(url) ? NULL : url;
    if (!data == !url)
        return bad(f, name,
                   data ? "a media part has both 'data' and 'url', expected exactly one"
                        : "a media part has neither 'data' nor 'url', expected exactly one");
    snprintf(field, sizeof(field), "%s.%s", name, data ? "data" : "url");
    return sup_media_read(data ? data : url, !data, field, &e->call.frame, &m, f) &&
           mime_agrees(json_object_get(o, "mime_type"), &m, name, f) &&
           media_fits(e, &m, name, f) && media_out(e, &m, out, f);
}

/* strict: no keys but those of the part's type. */
static bool part_read(struct sup_embed *e, json_t *o, bool strict, const char *name,
                      Ipc__EmbedPart *out, struct sup_fail *f)
{
    const char *type = json_string_value(json_object_get(o, "type"));
    char field[NAME_BYTES + 8];

    ipc__embed_part__init(out);
    if (!json_is_object(o)) {
        sup_field_bad(f, name, o, "a content part: an object with \"type\"");
        return false;
    }
    if (type && strcmp(type, "text") == 0) {
        snprintf(field, sizeof(field), "%s.text", name);
        return (!strict || only_keys(o, "|type|text|", name, "a text part", f)) &&
               text_read(json_object_get(o, "text"), field, &out->text, f);
    }
    if (type && strcmp(type, "image_url") == 0)
        return (!strict || only_keys(o, "|type|image_url|", name, "an image_url part", f)) &&
               image_part(e, o, strict, name, out, f);
    if (type && strcmp(type, "media") == 0)
        return (!strict || only_keys(o, "|type|data|mime_type|url|", name, "a media part", f)) &&
               media_part(e, o, name, out, f);
    if (type && strstr(type, "video"))
        return bad(f, name, "video is not supported, expected a text, image_url or media part");
    sup_fail_set(f, SUP_E_INVALID_REQUEST, name,
                 "field '%s': content part of type \"%.40s\" is not supported, expected text, "
                 "image_url or media",
                 name, type ? type : "");
    return false;
}

/* ------------------------------------------------------------------- groups */

static bool is_group(const json_t *j)
{
    return json_object_get(j, "content") ||
           (json_object_get(j, "title") && !json_object_get(j, "type"));
}

static bool title_read(struct sup_embed *e, json_t *o, const char *name, Ipc__EmbedInput *in,
                       struct sup_fail *f)
{
    json_t *t = json_object_get(o, "title");
    char field[NAME_BYTES + 8];
    bool text = false;

    if (!t || json_is_null(t) || (json_is_string(t) && json_string_length(t) == 0))
        return true;
    snprintf(field, sizeof(field), "%s.title", name);
    if (!text_read(t, field, &in->title, f))
        return false;
    if (*e->task && strcmp(e->task, "RETRIEVAL_DOCUMENT") != 0) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, field,
                     "field '%s': only documents have a title, task_type is %s, expected "
                     "RETRIEVAL_DOCUMENT",
                     field, e->task);
        return false;
    }
    for (size_t i = 0; i < in->n_parts; i++)
        text |= !in->parts[i]->is_media;
    return text || bad(f, field, "a group without a text part has no title");
}

static bool group_input(struct sup_embed *e, json_t *o, const char *name, Ipc__EmbedInput *in,
                        struct sup_fail *f)
{
    json_t *list = json_object_get(o, "content");
    size_t n = json_array_size(list);
    Ipc__EmbedPart *parts;
    char field[NAME_BYTES];

    if (cannot(e, e->call.can_embed_groups, "groups", name, f) ||
        !only_keys(o, "|title|content|", name, "a group", f))
        return false;
    if (n == 0 || n > SUP_GROUP_PARTS_MAX) {
        snprintf(field, sizeof(field), "%s.content", name);
        sup_field_bad(f, field, list, "an array of 1 to 64 content parts");
        return false;
    }
    parts = sup_call_alloc(&e->call, n * sizeof(*parts));
    in->parts = sup_call_alloc(&e->call, n * sizeof(*in->parts));
    if (!parts || !in->parts)
        return sup_fail_no_memory(f);
    in->is_group = true;
    for (size_t i = 0; i < n; i++) {
        snprintf(field, sizeof(field), "%s.content[%zu]", name, i);
        if (!part_read(e, json_array_get(list, i), true, field, &parts[i], f))
            return false;
        in->parts[i] = &parts[i];
    }
    in->n_parts = n;
    return title_read(e, o, name, in, f);
}

/* --------------------------------------------------------------------- flat */

static bool part_input(struct sup_embed *e, json_t *o, const char *name, Ipc__EmbedInput *in,
                       struct sup_fail *f)
{
    Ipc__EmbedPart *part = sup_call_alloc(&e->call, sizeof(*part));

    in->parts = sup_call_alloc(&e->call, sizeof(*in->parts));
    if (!part || !in->parts)
        return sup_fail_no_memory(f);
    if (!part_read(e, o, false, name, part, f))
        return false;
    if (part->is_media) {
        in->parts[0] = part;
        in->n_parts = 1;
    } else {
        in->text = part->text;
    }
    return true;
}

/* ids of an input live in the call's memory until the frame is packed. */
static bool ids_input(struct sup_embed *e, json_t *list, const char *name, Ipc__EmbedInput *in,
                      struct sup_fail *f)
{
    size_t n;
    uint32_t *ids = sup_ids_read(list, name, e->call.vocab_size, &n, f), *mine;

    if (!ids)
        return false;
    mine = sup_call_alloc(&e->call, n * sizeof(*ids));
    if (mine)
        memcpy(mine, ids, n * sizeof(*ids));
    free(ids);
    if (!mine)
        return sup_fail_no_memory(f);
    in->is_tokens = true;
    in->tokens = mine;
    in->n_tokens = n;
    return true;
}

static bool one_input(struct sup_embed *e, json_t *j, bool tokens_only, const char *name,
                      Ipc__EmbedInput *in, struct sup_fail *f)
{
    ipc__embed_input__init(in);
    if (json_is_array(j))
        return ids_input(e, j, name, in, f);
    if (tokens_only) {
        sup_field_bad(f, name, j, "an array of token ids");
        return false;
    }
    if (is_group(j))
        return group_input(e, j, name, in, f);
    if (json_is_object(j))
        return part_input(e, j, name, in, f);
    return text_read(j, name, &in->text, f);
}

/* --------------------------------------------------------------------- list */

static bool one_form(struct sup_embed *e, json_t *list, const char *field, struct sup_fail *f)
{
    size_t groups = 0, i;
    json_t *j;

    json_array_foreach(list, i, j)
    {
        groups += is_group(j);
        if (groups && groups != i + 1) {
            sup_fail_set(f, SUP_E_INVALID_REQUEST, field,
                         "field '%s': [%zu] is %s group, [0] is %s: groups and flat inputs are "
                         "not mixed in one request",
                         field, i, is_group(j) ? "a" : "no",
                         is_group(json_array_get(list, 0)) ? "one" : "none");
            return false;
        }
    }
    e->groups = groups > 0;
    if (groups > SUP_GROUPS_MAX) {
        sup_fail_set(f, SUP_E_INVALID_REQUEST, field,
                     "field '%s': got %zu groups, expected at most %u", field, groups,
                     SUP_GROUPS_MAX);
        return false;
    }
    return true;
}

static bool count_inputs(struct sup_embed *e, json_t *input, const char *field, struct sup_fail *f)
{
    const uint64_t max = e->call.front->conf->max_embed_inputs;
    size_t n = json_array_size(input);

    if (!json_is_array(input) || (n && json_is_number(json_array_get(input, 0)))) {
        e->n_inputs = 1;
        return true;
    }
    if (n == 0) {
        sup_field_bad(f, field, input, FLAT_WANT);
        return false;
    }
    if (!one_form(e, input, field, f))
        return false;
    if (n > max) {
        sup_fail_set(f, SUP_E_CONTENT_TOO_LARGE, field,
                     "field '%s': got %zu inputs, expected at most %llu", field, n,
                     (unsigned long long)max);
        return false;
    }
    e->n_inputs = (uint32_t)n;
    return true;
}

/* A file that no input names is a mistake of the client's. After a bad input some may
 * stand unnamed behind it. */
static bool all_used(const struct sup_embed *e, struct sup_fail *f)
{
    const struct sup_api_frame *fr = &e->call.frame;

    for (uint32_t i = 0; i < fr->n_att && e->errors.n == 0; i++)
        if (!fr->att[i].used) {
            sup_fail_set(f, SUP_E_INVALID_REQUEST, "input",
                         "field 'input': no part names attachment:%u of the %u that came", i,
                         fr->n_att);
            return false;
        }
    return true;
}

bool sup_embed_inputs(struct sup_embed *e, json_t *input, bool tokens_only, Ipc__Embed *q,
                      struct sup_fail *f)
{
    const char *field = tokens_only ? "input_tokens" : "input";
    bool one = !json_is_array(input) || json_is_number(json_array_get(input, 0));
    Ipc__EmbedInput *rows;
    char name[48];

    if (!count_inputs(e, input, field, f))
        return false;
    rows = sup_call_alloc(&e->call, e->n_inputs * sizeof(*rows));
    q->inputs = sup_call_alloc(&e->call, e->n_inputs * sizeof(*q->inputs));
    e->at = calloc(e->n_inputs, sizeof(*e->at));
    if (!rows || !q->inputs || !e->at)
        return sup_fail_no_memory(f);
    for (uint32_t i = 0; i < e->n_inputs; i++) {
        json_t *j = one ? input : json_array_get(input, i);
        uint64_t media_bytes = e->media_bytes;

        snprintf(name, sizeof(name), one ? "%s" : "%s[%u]", field, i);
        if (one_input(e, j, tokens_only, name, &rows[i], f)) {
            q->inputs[e->n_sent] = &rows[i];
            e->at[e->n_sent++] = i;
        } else if (sup_item_bad(&e->errors, e->per_item, i,
                                f->code == SUP_E_CONTENT_NOT_ALLOWED ? IPC_STAGE_FETCH
                                                                     : IPC_STAGE_PARSE,
                                f)) {
            e->media_bytes = media_bytes;
        } else {
            return false;
        }
    }
    q->n_inputs = e->n_sent;
    return all_used(e, f);
}
