/* mdl.c - opening, asking and closing one model, whatever its family.
 *
 * Finds the family by the file's architecture word and drives its table through
 * the two phases of mdl_impl.h. Knows nothing of any family's arithmetic, of
 * requests or sockets; neither logs nor exits.
 * Always true: *out is written only after every weight was checked, built and one
 * token went through the whole model with finite numbers.
 * Tests: tests/models/test_mdl_open.c
 */
#include "mdl_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct mdl_family *const families[] = {&mdl_gemma3,
                                                    &mdl_gemma4,
                                                    &mdl_gemma4_drafter,
                                                    &mdl_bert,
                                                    &mdl_modernbert,
                                                    &mdl_nomic,
                                                    &mdl_eg1,
                                                    &mdl_eg2,
                                                    &mdl_deberta,
                                                    &mdl_gliner2,
                                                    NULL};

/* ------------------------------------------------------------------ families */

static bool listed(const char *const *list, const char *word, size_t n)
{
    for (; *list; list++)
        if (strlen(*list) == n && memcmp(*list, word, n) == 0)
            return true;
    return false;
}

static enum rc no_family(const char *word, int n, const char *where, bool gguf, struct rc_err *err)
{
    char known[400] = "";
    size_t used = 0, i;

    for (i = 0; families[i]; i++) {
        const char *const *a = gguf ? families[i]->gguf_archs : families[i]->hf_archs;

        for (; *a && !(gguf && families[i]->gguf_refusal); a++) {
            int w = snprintf(known + used, sizeof(known) - used, "%s%s", used ? ", " : "", *a);

            if (w > 0 && (size_t)w < sizeof(known) - used)
                used += (size_t)w;
        }
    }
    return rc_fail_what(err, RC_UNSUPPORTED, "architecture",
                        "architecture '%.*s' (%s) is not one of this build (%s)", n, word, where,
                        known);
}

static const struct mdl_family *family_of(const char *word, size_t n, bool gguf)
{
    size_t i;

    for (i = 0; families[i]; i++)
        if (listed(gguf ? families[i]->gguf_archs : families[i]->hf_archs, word, n))
            return families[i];
    return NULL;
}

static enum rc choose_gguf(struct mdl *m, struct rc_err *err)
{
    const char *arch;
    size_t n;

    if (!mdl_gguf_str(m->file, "general.architecture", &arch, &n))
        return rc_fail_what(err, RC_FORMAT, "general.architecture",
                            "GGUF metadata: 'general.architecture' is missing");
    if (n > 63)
        n = 63;
    if (!(m->fam = family_of(arch, n, true)))
        return no_family(arch, (int)n, "GGUF", true, err);
    if (m->fam->gguf_refusal)
        return rc_fail_what(err, RC_UNSUPPORTED, "architecture", "architecture '%.*s' (GGUF): %s",
                            (int)n, arch, m->fam->gguf_refusal);
    snprintf(m->info.arch, sizeof(m->info.arch), "%.*s", (int)n, arch);
    return RC_OK;
}

/* The class word decides; model_type only where a config names no class, because
 * a classifier and an encoder share a model_type but not an output. */
static enum rc choose_hf(struct mdl *m, const json_t *config, struct rc_err *err)
{
    const json_t *list = json_object_get(config, "architectures");
    const json_t *v = json_is_array(list) ? json_array_get(list, 0) : NULL;
    const char *word, *where = "config.json 'architectures'";

    if (!json_is_string(v)) {
        v = json_object_get(config, "model_type");
        where = "config.json 'model_type'";
    }
    if (!json_is_string(v))
        return rc_fail_what(err, RC_FORMAT, "architectures",
                            "config.json: neither 'architectures' nor 'model_type' names a model");
    word = json_string_value(v);
    if (!(m->fam = family_of(word, strlen(word), false)))
        return no_family(word, (int)strnlen(word, 63), where, false, err);
    snprintf(m->info.arch, sizeof(m->info.arch), "%s", word);
    return RC_OK;
}

/* ------------------------------------------------------------------ opening */

static enum rc load_tokenizer(struct mdl *m, int root_fd, struct rc_err *err)
{
    char *text = NULL;
    size_t n = 0;
    enum rc rc;

    if (mdl_file_format(m->file) == MDL_GGUF)
        return mdl_tok_from_gguf(&m->tok, m->file, err);
    rc = mdl_side_read(root_fd, "tokenizer.json", MDL_MAX_TOKENIZER_BYTES, &text, &n, err);
    if (rc == RC_NOT_FOUND)
        return rc_fail_what(err, RC_FORMAT, "tokenizer.json",
                            "tokenizer.json is missing from the model's folder");
    if (rc != RC_OK)
        return rc;
    rc = mdl_tok_from_json(&m->tok, text, n, err);
    free(text);
    if (rc != RC_OK)
        rc_wrap(err, "tokenizer.json");
    return rc;
}

/* Phase one: files, family, numbers, tokenizer, every weight's place and shape. */
static enum rc look(struct mdl *m, int root_fd, struct rc_err *err)
{
    struct mdl_src src = {.root_fd = root_fd};
    enum rc rc;

    if ((rc = mdl_file_open(&m->file, root_fd, err)) != RC_OK)
        return rc;
    if (mdl_file_format(m->file) == MDL_GGUF)
        rc = choose_gguf(m, err);
    else if ((rc = mdl_cfg_load(root_fd, "config.json", true, &src.config, err)) == RC_OK)
        rc = choose_hf(m, src.config, err);
    if (rc != RC_OK)
        goto out;
    snprintf(m->info.family, sizeof(m->info.family), "%s", m->fam->name);
    m->plan.file = m->file;
    m->plan.be = m->be;
    if (!m->fam->is_drafter && (rc = load_tokenizer(m, root_fd, err)) != RC_OK)
        goto out;
    if (m->be && m->fam->is_drafter != (m->target != NULL)) {
        rc = rc_fail_what(err, RC_UNSUPPORTED, "architecture",
                          m->target ? "'%s' is no drafter: it opens as a model of its own"
                                    : "'%s' is a drafter: it opens beside the model it drafts for",
                          m->info.arch);
        goto out;
    }
    if ((rc = m->fam->config(m, &src, err)) != RC_OK || (rc = m->fam->plan(m, err)) != RC_OK)
        goto out;
    m->info.n_params = m->plan.n_params;
    m->info.weight_bytes = m->plan.weight_bytes;
    mdl_plan_quant(&m->plan, m->info.quant, sizeof(m->info.quant));
    if (m->opts.kv_auto)
        m->opts.kv_dtype = mdl_plan_is_quantized(&m->plan) ? BE_F16 : BE_F32;
out:
    json_decref(src.config);
    return rc;
}

static enum rc over(const char *what, uint64_t need, uint64_t allowed, struct rc_err *err)
{
    return rc_bound(rc_fail_what(err, RC_LIMIT, what,
                                 "%s: %" PRIu64 " bytes are needed, %" PRIu64 " are allowed", what,
                                 need, allowed),
                    need, allowed, err);
}

/* What an encoder's workspace is worth, and that it is too small for the longest inputs. */
static void tell_workspace(struct mdl *m)
{
    struct mdl_info *i = &m->info;
    size_t n = strlen(i->note);

    if (m->passes.max_rows == 0)
        return;
    i->token_work_bytes = m->plan.tensor_bytes / m->passes.max_rows;
    i->work_bytes_allowed = m->opts.workspace_bytes;
    if (i->max_input_tokens < i->full_input_tokens)
        snprintf(i->note + n, sizeof(i->note) - n,
                 "%sthe workspace holds inputs of %u tokens, the model takes %u", n > 0 ? "; " : "",
                 i->max_input_tokens, i->full_input_tokens);
}

/* Activations at the size the family wants, or smaller where the workspace is and
 * the family can work in smaller passes. */
static enum rc build_activations(struct mdl *m, struct rc_err *err)
{
    const struct mdl_opts *o = &m->opts;
    struct rc_err e = RC_ERR_INIT;
    uint64_t most;
    bool more;
    enum rc rc;

    m->info.full_input_tokens = m->info.max_input_tokens;
    while ((rc = m->fam->fit(m, &e)) == RC_OK) {
        /* rows that are only wished for leave the backend's scratch its room, and the machine's
         * memory to those who need it */
        more = mdl_passes_more(m);
        most = more ? o->workspace_bytes / 2 : o->workspace_bytes;
        if (o->workspace_bytes && m->plan.tensor_bytes > most)
            rc = over("workspace_bytes", m->plan.tensor_bytes, most, &e);
        else
            rc = mdl_plan_build_tensors(&m->plan, &e);
        /* be.h: RC_NOMEM about "workspace" is the configured bound, not the machine */
        if (rc == RC_NOMEM && (more || strcmp(e.what, "workspace") == 0))
            rc = e.code = RC_LIMIT;
        if (rc != RC_LIMIT || !m->fam->shrink || !m->fam->shrink(m))
            break;
        mdl_plan_free_tensors(&m->plan);
    }
    if (rc == RC_OK)
        tell_workspace(m);
    else if (err)
        *err = e;
    return rc;
}

/* A context that was asked for is kept or refused; one nobody asked for was lowered. */
static enum rc check_context(struct mdl *m, struct rc_err *err)
{
    uint32_t want = m->opts.ctx_tokens;
    uint64_t need;

    if (m->geo.n_classes == 0)
        return RC_OK;
    m->info.kv_ctx_bytes = mdl_kv_need_bytes(&m->geo, m->info.ctx_tokens);
    if (want > m->info.train_ctx_tokens)
        want = m->info.train_ctx_tokens;
    if (want <= m->info.ctx_tokens)
        return RC_OK;
    need = mdl_kv_need_bytes(&m->geo, want);
    return rc_bound(rc_fail_what(err, RC_LIMIT, "kv_bytes",
                                 "a context of %u tokens needs %" PRIu64
                                 " bytes of KV cache, %" PRIu64 " are allowed: %u tokens fit",
                                 want, need, m->opts.kv_bytes, m->info.ctx_tokens),
                    need, m->opts.kv_bytes, err);
}

/* Phase two: budgets, then memory, then one token through everything. */
static enum rc build(struct mdl *m, struct rc_err *err)
{
    const struct mdl_opts *o = &m->opts;
    struct be_stats before, after;
    enum rc rc;

    if (o->weight_bytes && m->plan.weight_bytes > o->weight_bytes)
        return over("weight_bytes", m->plan.weight_bytes, o->weight_bytes, err);
    be_ctx_stats(m->be, &before);
    if ((rc = build_activations(m, err)) != RC_OK || (rc = check_context(m, err)) != RC_OK ||
        (rc = mdl_plan_build_weights(&m->plan, o, err)) != RC_OK)
        return rc;
    if (o->progress)
        o->progress(o->progress_user, "self-test", 0, 1);
    if ((rc = m->fam->self_test(m, err)) != RC_OK) {
        rc_wrap(err, "self-test");
        return rc;
    }
    if (o->progress)
        o->progress(o->progress_user, "self-test", 1, 1);
    be_ctx_stats(m->be, &after);
    m->info.weight_bytes = m->plan.resident_bytes;
    m->info.kv_bytes = after.kv_bytes - before.kv_bytes;
    m->info.workspace_bytes = after.workspace_bytes - before.workspace_bytes;
    return RC_OK;
}

void mdl_close(struct mdl **mp)
{
    struct mdl *m = *mp;

    if (!m)
        return;
    if (m->kv)
        be_kv_free(m->be, &m->kv);
    mdl_plan_free(&m->plan); /* slots lie in the state: before the state */
    if (m->fam && m->state)
        m->fam->free(m);
    mdl_passes_deinit(&m->passes);
    mdl_tok_free(&m->tok);
    mdl_file_close(&m->file);
    free(m);
    *mp = NULL;
}

static struct mdl *mdl_new(struct be_ctx *be, const struct mdl_opts *o, struct rc_err *err)
{
    struct mdl *m = calloc(1, sizeof(*m));

    if (!m) {
        rc_fail(err, RC_NOMEM, "no memory for a model");
        return NULL;
    }
    m->be = be;
    if (o)
        m->opts = *o;
    return m;
}

enum rc mdl_probe(struct mdl_info *out, int root_fd, struct rc_err *err)
{
    struct mdl *m = mdl_new(NULL, NULL, err);
    enum rc rc;

    if (!m)
        return RC_NOMEM;
    if ((rc = look(m, root_fd, err)) == RC_OK)
        *out = m->info;
    mdl_close(&m);
    return rc;
}

enum rc mdl_open(struct mdl **out, int root_fd, struct be_ctx *be, const struct mdl_opts *o,
                 struct rc_err *err)
{
    struct mdl *m;
    enum rc rc;

    if (!be || o->batch_tokens == 0 || o->max_seqs == 0)
        return rc_fail(err, RC_INVALID,
                       "a model needs a backend, batch_tokens and max_seqs of at least 1");
    if (!(m = mdl_new(be, o, err)))
        return RC_NOMEM;
    if ((rc = look(m, root_fd, err)) == RC_OK && (rc = build(m, err)) == RC_OK && m->fam->recipe &&
        m->info.can_embed)
        rc = mdl_identity(m, root_fd, m->fam->recipe, m->info.identity, err);
    if (rc == RC_OK) {
        *out = m;
        m = NULL;
    }
    mdl_close(&m);
    return rc;
}

enum rc mdl_open_drafter(struct mdl **out, int root_fd, struct mdl *target,
                         const struct mdl_opts *o, struct rc_err *err)
{
    struct mdl_opts own = *o;
    struct mdl *m;
    enum rc rc;

    if (!target->fam->hidden || !target->opts.drafted)
        return rc_fail_what(err, RC_UNSUPPORTED, "model", "a %s model (%s) opened %s drafts",
                            target->info.family, target->info.arch,
                            target->fam->hidden ? "without opts.drafted takes no"
                                                : "here cannot be given");
    if (o->max_seqs == 0)
        return rc_fail(err, RC_INVALID, "a drafter needs max_seqs of at least 1");
    own.ctx_tokens = 0; /* it has no cache to size */
    own.kv_auto = false;
    if (!(m = mdl_new(target->be, &own, err)))
        return RC_NOMEM;
    m->target = target;
    if ((rc = look(m, root_fd, err)) == RC_OK && (rc = build(m, err)) == RC_OK) {
        *out = m;
        m = NULL;
    }
    mdl_close(&m);
    return rc;
}

/* ------------------------------------------------------------------- asking */

const struct mdl_info *mdl_info_get(const struct mdl *m)
{
    return &m->info;
}

const struct mdl_tok *mdl_tok_get(const struct mdl *m)
{
    return m->tok;
}

void mdl_set_stop(struct mdl *m, const struct mdl_tok_stop *stop)
{
    m->stop = stop;
}

const struct mdl_tok_stop *mdl_stop(const struct mdl *m)
{
    return m->stop;
}

const struct mdl_kv_geometry *mdl_kv(const struct mdl *m)
{
    return &m->geo;
}

enum rc mdl_guard(const struct mdl *m, struct rc_err *err)
{
    return mdl_file_guard(m->file, err);
}

void mdl_eos_add(struct mdl *m, int64_t id)
{
    size_t i;

    if (id < 0 || id >= (int64_t)m->info.vocab_size || m->n_eos == MDL_MAX_EOS)
        return;
    for (i = 0; i < m->n_eos; i++)
        if (m->eos[i] == (int32_t)id)
            return;
    m->eos[m->n_eos++] = (int32_t)id;
}

const int32_t *mdl_eos(const struct mdl *m, size_t *n)
{
    *n = m->n_eos;
    return m->eos;
}

static enum rc cannot(const struct mdl *m, const char *verb, struct rc_err *err)
{
    return rc_fail_what(err, RC_UNSUPPORTED, "model", "a %s model (%s) cannot %s", m->info.family,
                        m->info.arch, verb);
}

enum rc mdl_decode(struct mdl *m, const struct mdl_batch *b, const float **logits,
                   struct rc_err *err)
{
    enum rc rc;

    if (!m->fam->decode)
        return cannot(m, "generate text", err);
    m->n_out = 0;
    if ((rc = m->fam->decode(m, b, logits, err)) == RC_OK)
        m->n_out = b->n_out;
    return rc;
}

uint64_t mdl_kv_read_bytes(const struct mdl *m, uint32_t pos)
{
    return m->fam->kv_read ? m->fam->kv_read(m, pos) : 0;
}

enum rc mdl_kv_fill(struct mdl *m, const struct be_seq *seqs, uint32_t n_seqs, uint32_t n_rows,
                    struct rc_err *err)
{
    return m->fam->kv_fill ? m->fam->kv_fill(m, seqs, n_seqs, n_rows, err)
                           : cannot(m, "generate text", err);
}

bool mdl_can_sample(const struct mdl *m)
{
    return m->fam->decode && be_can_sample(m->be);
}

enum rc mdl_sample(struct mdl *m, const struct be_sample_row *rows, uint32_t n, int32_t *out_ids,
                   struct rc_err *err)
{
    struct be_sample_args a = {.n = n, .rows = rows, .out_ids = out_ids};

    if (!mdl_can_sample(m))
        return cannot(m, "draw tokens on this backend", err);
    if (n != m->n_out)
        return rc_fail(err, RC_INVALID, "%u rows to draw from, the last pass had %u", n, m->n_out);
    if (n == 0)
        return RC_OK;
    a.x = m->fam->logits(m, NULL);
    return be_sample(m->be, &a, err);
}

enum rc mdl_logits(struct mdl *m, uint32_t row, const float **out, struct rc_err *err)
{
    const struct be_tensor *t;
    float *host = NULL;
    enum rc rc;

    if (row >= m->n_out)
        return rc_fail(err, RC_INVALID, "row %u of logits, the last pass had %u", row, m->n_out);
    t = m->fam->logits(m, &host);
    if (!host) {
        *out = be_tensor_view(m->be, t) + (size_t)row * m->info.vocab_size;
        return RC_OK;
    }
    if ((rc = be_tensor_read(m->be, t, row, 1, host, err)) == RC_OK)
        *out = host;
    return rc;
}

enum rc mdl_hidden(struct mdl *m, uint32_t row, float *out, struct rc_err *err)
{
    if (!m->fam->hidden)
        return cannot(m, "show its hidden rows", err);
    if (row >= m->n_out)
        return rc_fail(err, RC_INVALID, "hidden row %u, the last pass had %u", row, m->n_out);
    return be_tensor_read(m->be, m->fam->hidden(m), row, 1, out, err);
}

enum rc mdl_draft(struct mdl *m, const struct mdl_draft_seq *seqs, uint32_t n, uint32_t k,
                  int32_t *out_ids, struct rc_err *err)
{
    uint32_t i;

    if (!m->fam->draft || !m->target)
        return cannot(m, "draft", err);
    if (k < 1 || k > MDL_DRAFT_MAX || n < 1 || n > m->opts.max_seqs)
        return rc_fail(err, RC_INVALID, "%u drafts for %u sequences; expected 1 to %d for 1 to %u",
                       k, n, MDL_DRAFT_MAX, m->opts.max_seqs);
    for (i = 0; i < n; i++)
        if (seqs[i].out_row >= m->target->n_out || seqs[i].n_cached < 1 ||
            seqs[i].n_cached > m->target->info.ctx_tokens || seqs[i].token < 0 ||
            seqs[i].token >= (int32_t)m->target->info.vocab_size)
            return rc_fail(err, RC_INVALID,
                           "sequence %u: token %d behind %u cached ones, from row %u of the "
                           "target's %u",
                           i, seqs[i].token, seqs[i].n_cached, seqs[i].out_row, m->target->n_out);
    return m->fam->draft(m, seqs, n, k, out_ids, err);
}

enum rc mdl_chat(const struct mdl *m, const struct mdl_chat_msg *msgs, size_t n,
                 const struct mdl_chat_opts *opts, struct mdl_ids *out, struct rc_err *err)
{
    if (!m->fam->chat)
        return cannot(m, "chat", err);
    if (opts->n_tools && !m->info.can_call_tools)
        return cannot(m, "call tools", err);
    if (opts->thinking && !m->info.can_think)
        return cannot(m, "show what it thinks", err);
    return m->fam->chat(m, msgs, n, opts, out, err);
}

enum rc mdl_embed_tokens(const struct mdl *m, const char *text, size_t n_bytes,
                         const char *task_type, bool truncate, bool *truncated, struct mdl_ids *out,
                         struct rc_err *err)
{
    return m->fam->embed_tokens && m->info.can_embed
               ? m->fam->embed_tokens(m, text, n_bytes, task_type, truncate, truncated, out, err)
               : cannot(m, "embed", err);
}

enum rc mdl_encode(struct mdl *m, uint32_t n_seqs, const int32_t *ids, const uint32_t *offsets,
                   float *out, struct rc_err *err)
{
    return mdl_encode_with(m, n_seqs, ids, offsets, NULL, 0, out, err);
}

enum rc mdl_encode_with(struct mdl *m, uint32_t n_seqs, const int32_t *ids, const uint32_t *offsets,
                        const struct mdl_encode_media *media, uint32_t n_media, float *out,
                        struct rc_err *err)
{
    if (!m->fam->encode || (n_media > 0 && !m->fam->check_media))
        return cannot(m, n_media > 0 ? "embed pictures or sounds" : "embed", err);
    return mdl_passes_run(m, n_seqs, ids, offsets, media, n_media, out, NULL, NULL, err);
}

enum rc mdl_encode_tokens(struct mdl *m, uint32_t n_seqs, const int32_t *ids,
                          const uint32_t *offsets, float *out, float *weights, float *vectors,
                          struct rc_err *err)
{
    if (!m->fam->encode)
        return cannot(m, "embed", err);
    if (weights && !m->info.can_sparse)
        return cannot(m, "give lexical weights", err);
    if (vectors && m->info.token_dim == 0)
        return cannot(m, "give a vector for each token", err);
    return mdl_passes_run(m, n_seqs, ids, offsets, NULL, 0, out, weights, vectors, err);
}

enum rc mdl_extract(struct mdl *m, uint32_t n, const struct mdl_extract_in *in,
                    const struct mdl_extract_out *out, struct rc_err *err)
{
    return m->fam->extract ? mdl_passes_extract(m, n, in, out, err)
                           : cannot(m, "extract by schema", err);
}

uint32_t mdl_encode_rows(const struct mdl *m)
{
    return m->passes.max_rows;
}

uint32_t mdl_encode_dim(const struct mdl *m)
{
    return m->info.can_rerank ? 1 : m->info.embed_dim;
}

enum rc mdl_pair_tokens(const struct mdl *m, const char *query, size_t n_query, const char *doc,
                        size_t n_doc, bool truncate, bool *truncated, struct mdl_ids *out,
                        struct rc_err *err)
{
    return m->fam->pair_tokens && m->info.can_rerank
               ? m->fam->pair_tokens(m, query, n_query, doc, n_doc, truncate, truncated, out, err)
               : cannot(m, "score pairs of texts", err);
}

enum rc mdl_embed_ordered(const struct mdl *m, const struct mdl_embed_input *in,
                          struct mdl_ids *out, uint32_t *rows, struct rc_err *err)
{
    return m->fam->embed_ordered ? m->fam->embed_ordered(m, in, out, rows, err)
                                 : cannot(m, "embed groups", err);
}

bool mdl_is_placeholder(const struct mdl *m, int32_t id)
{
    return m->fam->is_placeholder && m->fam->is_placeholder(m, id);
}

enum rc mdl_media_image(const struct mdl *m, const struct mdl_image *img, struct mdl_media **out,
                        struct rc_err *err)
{
    return m->fam->media_image ? m->fam->media_image(m, img, out, err)
                               : cannot(m, "look at pictures", err);
}

enum rc mdl_media_sound(const struct mdl *m, const struct mdl_sound *snd, struct mdl_media **out,
                        struct rc_err *err)
{
    return m->fam->media_sound ? m->fam->media_sound(m, snd, out, err)
                               : cannot(m, "listen to sounds", err);
}

void mdl_media_free(struct mdl_media **media)
{
    if (*media)
        free((*media)->x);
    free(*media);
    *media = NULL;
}

uint32_t mdl_media_tokens(const struct mdl_media *media)
{
    return media->n_tokens;
}

uint64_t mdl_media_bytes(const struct mdl_media *media)
{
    return (uint64_t)media->n_rows * media->n_cols * sizeof(float);
}

void mdl_set_encode_stop(struct mdl *m, bool (*stop)(void *user), void *user)
{
    m->encode_stop = stop;
    m->encode_stop_user = user;
}

enum rc mdl_encode_stopped(const struct mdl *m, struct rc_err *err)
{
    if (m->encode_stop && m->encode_stop(m->encode_stop_user))
        return rc_fail(err, RC_CANCELLED, "stopped between two layers of an encoding pass");
    return RC_OK;
}

uint32_t mdl_encode_max_seqs(const struct mdl *m)
{
    return m->passes.max_seqs;
}

enum rc mdl_dims_check(const struct mdl *m, uint32_t dims, struct rc_err *err)
{
    return m->fam->dims_check && m->info.can_embed ? m->fam->dims_check(m, dims, err)
                                                   : cannot(m, "embed", err);
}
