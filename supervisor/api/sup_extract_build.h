/* sup_extract_build.h - between the files that read a schema of /ai/v1/extract.
 *
 * sup_extract_schema.c has the whole, labels and classes; sup_extract_relations.c relations,
 * sup_extract_fields.c structures. What is made is of the call's memory, texts are borrowed from
 * the tree. Tests: tests/supervisor/test_sup_api_extract.c
 */
#ifndef INFERD_SUP_EXTRACT_BUILD_H
#define INFERD_SUP_EXTRACT_BUILD_H

#include "sup_extract.h"

#define SUP_BUILD_NAME 160 /* of a field's name in messages, with its end */

struct sup_build {
    struct sup_call *c;
    struct sup_fail *f;
    Ipc__ExtractSchema *msg;
    json_t *plan;
    bool strict;
    const char *labels_field; /* where labels of entities are given, for messages */
    uint32_t n_names;
};

struct sup_word {
    const char *s; /* NULL = none */
    size_t n;
};

/* false, with *f filled. */
bool sup_build_wrong(struct sup_build *b, const char *field, const char *why);
bool sup_build_bad(struct sup_build *b, const char *field, const json_t *got, const char *want);

/* Names of what is inside a field, for messages; a field "" has no name itself. */
void sup_build_at(char out[SUP_BUILD_NAME], const char *field, size_t i);
void sup_build_in(char out[SUP_BUILD_NAME], const char *field, const char *key);

ProtobufCBinaryData sup_build_bytes(struct sup_word t);
struct sup_word sup_build_text(const struct sup_val *v);
bool sup_build_blank(struct sup_word t);
/* Rows of a message in one piece, and the list of pointers to them. NULL: *f. */
void *sup_build_rows(struct sup_build *b, size_t n, size_t size, void ***list);
/* n more names of the schema. */
bool sup_build_counted(struct sup_build *b, const char *field, size_t n);
/* A name that is there, and for the first time in `seen` (an object). */
bool sup_build_fresh(struct sup_build *b, json_t *seen, struct sup_word name, const char *field);
bool sup_build_object(struct sup_build *b, const struct sup_field *rows, size_t n, json_t *obj,
                      const char *field, struct sup_val *v);

/* A new list or object of the plan, below key of an object or at the end of a list. */
json_t *sup_build_plan(struct sup_build *b, json_t *in, const char *key, json_t *made);
/* A key's text into the plan, where it is set. */
bool sup_build_plan_text(struct sup_build *b, json_t *in, const char *key, struct sup_word t);

/* The field relations, behind entities. */
bool sup_build_relations(struct sup_build *b, json_t *list, const char *field);
/* The field structures. */
bool sup_build_records(struct sup_build *b, json_t *map, const char *field);

#endif
