/* sup_content.c - strings and content parts to one text (see sup_content.h). */
#include "sup_content.h"

#include <stdio.h>
#include <string.h>

#define WANT "a non-empty string or text parts"

static bool no_text(const char *type, const char *name, enum sup_code media, struct sup_fail *f)
{
    if (strcmp(type, "image_url") == 0 || strcmp(type, "media") == 0 ||
        strcmp(type, "input_audio") == 0 || strcmp(type, "image") == 0)
        sup_fail_set(f, media, name,
                     "field '%s': a part of type \"%s\" is no text; pictures and sounds are not "
                     "taken here",
                     name, type);
    else
        sup_fail_set(f, SUP_E_INVALID_REQUEST, name,
                     "field '%s': content part of type \"%.40s\" is not supported, expected text",
                     name, type);
    return false;
}

/* The string of a string or a part; NULL: *f. */
static json_t *one_text(json_t *j, const char *name, enum sup_code media, struct sup_fail *f)
{
    const char *type = json_string_value(json_object_get(j, "type"));
    json_t *text = json_is_object(j) ? json_object_get(j, "text") : j;
    char field[160];

    if (type && strcmp(type, "text") != 0) {
        no_text(type, name, media, f);
        return NULL;
    }
    if (json_string_length(text) > 0)
        return text;
    snprintf(field, sizeof(field), "%s%s", name, json_is_object(j) ? ".text" : "");
    sup_field_bad(f, field, text, WANT);
    return NULL;
}

bool sup_content_text(struct sup_call *c, json_t *j, const char *name, enum sup_code media,
                      ProtobufCBinaryData *out, struct sup_fail *f)
{
    size_t n = json_is_array(j) ? json_array_size(j) : 1, bytes = 0;
    char field[160];
    uint8_t *to;

    if (n == 0) {
        sup_field_bad(f, name, j, WANT);
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        json_t *part = json_is_array(j) ? json_array_get(j, i) : j, *text;

        snprintf(field, sizeof(field), json_is_array(j) ? "%s[%zu]" : "%s", name, i);
        if (!(text = one_text(part, field, media, f)))
            return false;
        bytes += json_string_length(text) + 1;
        if (n == 1) {
            out->data = (uint8_t *)(uintptr_t)json_string_value(text);
            out->len = json_string_length(text);
            return true;
        }
    }
    if (!(to = sup_call_alloc(c, bytes)))
        return sup_fail_no_memory(f);
    out->data = to;
    out->len = bytes - 1; /* the last text has no newline behind it */
    for (size_t i = 0; i < n; i++) {
        json_t *text = one_text(json_array_get(j, i), name, media, f);

        memcpy(to, json_string_value(text), json_string_length(text));
        to += json_string_length(text);
        if (i + 1 < n)
            *to++ = '\n';
    }
    return true;
}
