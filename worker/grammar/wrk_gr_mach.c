/* wrk_gr_mach.c - sets of stacks and how bytes move them.
 *
 * A stack is a state and a chain of frames; frames and sets are stored once each, so a
 * move from a set by a byte is computed once and then looked up. Always true: the order
 * of a set's stacks depends on the grammar and the bytes alone, so leaving the last ones
 * out when a set is too large gives the same result everywhere; every stack kept can
 * still be completed (need, wrk_gr_check.c). Tables have a fixed size; a reset costs
 * nothing. Tests: tests/worker/test_wrk_gr.c
 */
#include "wrk_gr_impl.h"

#include <stdlib.h>
#include <string.h>

#define FRAME_SLOTS (2 * GR_FRAMES_CAP)
#define SET_SLOTS (2 * GR_SETS_CAP)
#define SEEN_SLOTS (4 * GR_VISITS)

enum rc gr_mach_init(struct gr_mach *m, struct rc_err *err)
{
    memset(m, 0, sizeof(*m));
    m->frame = malloc(GR_FRAMES_CAP * sizeof(*m->frame));
    m->number = malloc(GR_FRAMES_CAP * sizeof(*m->number));
    m->cfg = malloc(GR_CFG_CAP * sizeof(*m->cfg));
    m->set = malloc(GR_SETS_CAP * sizeof(*m->set));
    m->trans = malloc((size_t)GR_TRANS_CAP * 256 * sizeof(*m->trans));
    m->frame_hash = calloc(FRAME_SLOTS, sizeof(*m->frame_hash));
    m->set_hash = calloc(SET_SLOTS, sizeof(*m->set_hash));
    m->todo = malloc(GR_VISITS * sizeof(*m->todo));
    m->seen = malloc(GR_VISITS * sizeof(*m->seen));
    m->seen_hash = calloc(SEEN_SLOTS, sizeof(*m->seen_hash));
    if (m->frame == NULL || m->number == NULL || m->cfg == NULL || m->set == NULL ||
        m->trans == NULL || m->frame_hash == NULL || m->set_hash == NULL || m->todo == NULL ||
        m->seen == NULL || m->seen_hash == NULL) {
        gr_mach_deinit(m);
        return rc_fail(err, RC_NOMEM, "scratch of grammars");
    }
    return RC_OK;
}

void gr_mach_deinit(struct gr_mach *m)
{
    free(m->frame);
    free(m->number);
    free(m->cfg);
    free(m->set);
    free(m->trans);
    free(m->frame_hash);
    free(m->set_hash);
    free(m->todo);
    free(m->seen);
    free(m->seen_hash);
    memset(m, 0, sizeof(*m));
}

void gr_mach_reset(struct gr_mach *m, const struct wrk_gr_prog *p)
{
    m->prog = p;
    m->cut = false;
    m->n_cfg = m->n_trans = 0;
    m->work = 0;
    m->frame[0] = (struct gr_frame){.slot = GR_NONE};
    m->n_frames = 1;
    m->set[GR_DEAD] = (struct gr_set_at){.trans = GR_NONE, .slot = GR_NONE};
    m->n_sets = 1;
}

/* A slot counts only while what it names says so: a reset needs no clearing. */

static uint32_t mix(uint64_t h, uint32_t v)
{
    h = (h ^ v) * 0xff51afd7ed558ccdull;
    return (uint32_t)(h ^ h >> 29);
}

/* GR_NONE: the table is full. */
static uint32_t frame(struct gr_mach *m, uint32_t call, uint32_t count, uint32_t parent)
{
    uint32_t h = mix(mix(mix(1, call), count), parent) % FRAME_SLOTS, i;

    for (;; h = (h + 1) % FRAME_SLOTS) {
        i = m->frame_hash[h];
        if (i >= m->n_frames || m->frame[i].slot != h)
            break;
        if (m->frame[i].call == call && m->frame[i].count == count && m->frame[i].parent == parent)
            return i;
    }
    if (m->n_frames == GR_FRAMES_CAP) {
        m->cut = true;
        return GR_NONE;
    }
    i = m->n_frames++;
    m->frame[i] = (struct gr_frame){call, count, parent, m->frame[parent].depth + 1, h};
    m->frame_hash[h] = i;
    return i;
}

/* --------------------------------------------------------------------- closure */

static void begin(struct gr_mach *m)
{
    m->n_todo = m->n_seen = m->n_kept = 0;
    m->may_end = false;
}

/* A place to look at, if the rule can still be ended from there. */
static void visit(struct gr_mach *m, uint32_t state, uint32_t f)
{
    uint32_t h = mix(mix(7, state), f) % SEEN_SLOTS;
    const struct gr_state *s = &m->prog->state[state];

    /* f is GR_NONE when there was no room for the frame */
    if (f == GR_NONE || s->need == GR_NONE || m->frame[f].depth + s->need > GR_DEPTH)
        return;
    for (;; h = (h + 1) % SEEN_SLOTS) {
        uint32_t i = m->seen_hash[h];

        if (i >= m->n_seen || m->seen[i].slot != h)
            break;
        if (m->seen[i].state == state && m->seen[i].frame == f)
            return;
    }
    if (m->n_seen == GR_VISITS || m->n_todo == GR_VISITS) {
        m->cut = true;
        return;
    }
    m->seen[m->n_seen] = (struct gr_seen){state, f, h};
    m->seen_hash[h] = m->n_seen++;
    m->todo[m->n_todo++] = (struct gr_config){state, f};
}

/* A rule was ended: once more, or on behind its call. */
static void pop(struct gr_mach *m, uint32_t f)
{
    struct gr_frame fr = m->frame[f];
    const struct gr_call *c;
    uint32_t count;

    if (f == 0) {
        m->may_end = true;
        return;
    }
    c = &m->prog->call[fr.call];
    count = fr.count + 1;
    if (c->max == GR_INF || count < c->max)
        visit(m, m->prog->rule[c->rule].start,
              frame(m, fr.call, c->max == GR_INF && count > c->min ? c->min : count, fr.parent));
    if (count >= c->min)
        visit(m, c->to, fr.parent);
}

static void enter(struct gr_mach *m, uint32_t call, uint32_t f)
{
    const struct gr_call *c = &m->prog->call[call];
    uint32_t start = m->prog->rule[c->rule].start, back = m->prog->state[c->to].need;

    if (back == GR_NONE || m->frame[f].depth + back > GR_DEPTH ||
        m->prog->state[start].need == GR_NONE)
        return;
    visit(m, start, c->tail ? f : frame(m, call, 0, f));
}

/* Follows everything that reads nothing; keeps the places that read. */
static void close_over(struct gr_mach *m)
{
    while (m->n_todo > 0) {
        struct gr_config at = m->todo[--m->n_todo];
        const struct gr_state *s = &m->prog->state[at.state];

        if (s->n_edges > 0) {
            if (m->n_kept < GR_CONFIGS)
                m->kept[m->n_kept++] = at;
            else
                m->cut = true;
        }
        if (s->final)
            pop(m, at.frame);
        for (uint32_t i = 0; i < s->n_calls; i++)
            enter(m, s->call0 + i, at.frame);
        m->work += s->n_calls;
    }
}

static uint32_t intern(struct gr_mach *m)
{
    uint32_t h = mix(3, m->may_end), i;

    if (m->n_kept == 0 && !m->may_end)
        return GR_DEAD;
    for (uint32_t k = 0; k < m->n_kept; k++)
        h = mix(mix(h, m->kept[k].state), m->kept[k].frame);
    for (h %= SET_SLOTS;; h = (h + 1) % SET_SLOTS) {
        const struct gr_set_at *s;

        i = m->set_hash[h];
        if (i >= m->n_sets || m->set[i].slot != h)
            break;
        s = &m->set[i];
        if (s->n == m->n_kept && s->may_end == m->may_end &&
            memcmp(m->cfg + s->first, m->kept, m->n_kept * sizeof(*m->kept)) == 0)
            return i;
    }
    if (m->n_sets == GR_SETS_CAP || m->n_cfg + m->n_kept > GR_CFG_CAP) {
        m->cut = true;
        return GR_DEAD;
    }
    i = m->n_sets++;
    m->set[i] = (struct gr_set_at){m->n_cfg, m->n_kept, GR_NONE, h, m->may_end};
    memcpy(m->cfg + m->n_cfg, m->kept, m->n_kept * sizeof(*m->kept));
    m->n_cfg += m->n_kept;
    m->set_hash[h] = i;
    return i;
}

uint32_t gr_mach_start(struct gr_mach *m)
{
    const struct gr_prule *root = &m->prog->rule[0];

    begin(m);
    m->may_end = root->nullable;
    if (m->prog->state[root->start].need != GR_NONE)
        visit(m, root->start, 0);
    close_over(m);
    return intern(m);
}

static uint32_t move(struct gr_mach *m, uint32_t set, uint8_t byte)
{
    struct gr_set_at at = m->set[set];
    uint64_t looked = 0;

    begin(m);
    for (uint32_t k = 0; k < at.n; k++) {
        struct gr_config c = m->cfg[at.first + k];
        const struct gr_state *s = &m->prog->state[c.state];

        for (uint32_t i = 0; i < s->n_edges; i++) {
            const struct gr_edge *e = &m->prog->edge[s->edge0 + i];

            looked++;
            if (e->lo > byte)
                break;
            if (e->hi >= byte)
                visit(m, e->to, c.frame);
        }
    }
    close_over(m);
    m->work += 4 * m->n_seen + looked / 8; /* looking around costs more than looking up */
    return intern(m);
}

uint32_t gr_mach_move(struct gr_mach *m, uint32_t set, uint8_t byte)
{
    struct gr_set_at *s = &m->set[set];
    uint32_t *row;

    if (s->n == 0)
        return GR_DEAD;
    if (s->trans == GR_NONE) {
        if (m->n_trans == GR_TRANS_CAP)
            return move(m, set, byte);
        s->trans = m->n_trans++;
        memset(m->trans + (size_t)s->trans * 256, 0xff, 256 * sizeof(*m->trans));
    }
    row = m->trans + (size_t)s->trans * 256;
    if (row[byte] == GR_UNKNOWN)
        row[byte] = move(m, set, byte);
    return row[byte];
}

/* --------------------------------------------------------------- flat and back
 * words: frames, 1 if an answer may end here + 2 * stacks; call, count, parent of each
 * frame, parents first, numbered from 1; state, frame of each stack. */

/* A repetition ends at a character's end, and takes its shortest text at least. */
static uint32_t clamped(const struct gr_mach *m, const struct gr_call *c, uint32_t count,
                        uint32_t bytes, uint32_t chars)
{
    uint32_t least = m->prog->rule[c->rule].least,
             far = bytes == GR_INF ? GR_INF : bytes / (least > 0 ? least : 1);
    uint32_t missing = c->min > count ? c->min - count : 0,
             room = c->max == GR_INF ? GR_INF : c->max - count;

    if (far != GR_INF)
        far = (far < chars ? far : chars) + 1;
    if (missing > far)
        return 0;
    return missing == 0 && room > far ? c->min : count;
}

uint32_t gr_mach_save(struct gr_mach *m, uint32_t set, uint32_t bytes, uint32_t chars,
                      uint32_t *out)
{
    struct gr_set_at s = m->set[set];
    uint32_t n = 0, n_cfg = 0, chain[GR_DEPTH + 1];
    struct gr_config *cfg = m->kept;

    memset(m->number, 0, m->n_frames * sizeof(*m->number));
    for (uint32_t k = 0; k < s.n; k++) {
        struct gr_config c = m->cfg[s.first + k];
        uint32_t len = 0;

        for (uint32_t f = c.frame; f != 0 && m->number[f] == 0; f = m->frame[f].parent)
            chain[len++] = f;
        if (n + len > GR_SAVED_FRAMES) {
            m->cut = true;
            break;
        }
        while (len > 0) {
            uint32_t f = chain[--len];
            struct gr_frame fr = m->frame[f];

            m->number[f] = ++n;
            out[3 * n - 1] = fr.call;
            out[3 * n] = clamped(m, &m->prog->call[fr.call], fr.count, bytes, chars);
            out[3 * n + 1] = m->number[fr.parent];
        }
        cfg[n_cfg++] = (struct gr_config){c.state, m->number[c.frame]};
    }
    out[0] = n;
    out[1] = (uint32_t)s.may_end | n_cfg << 1;
    for (uint32_t k = 0; k < n_cfg; k++) {
        out[2 + 3 * n + 2 * k] = cfg[k].state;
        out[2 + 3 * n + 2 * k + 1] = cfg[k].frame;
    }
    return 2 + 3 * n + 2 * n_cfg;
}

uint32_t gr_mach_load(struct gr_mach *m, const uint32_t *words)
{
    uint32_t n = words[0], n_cfg = words[1] >> 1;
    const uint32_t *p = words + 2;

    m->number[0] = 0;
    for (uint32_t i = 1; i <= n; i++, p += 3)
        m->number[i] = frame(m, p[0], p[1], m->number[p[2]]);
    begin(m);
    m->may_end = (words[1] & 1) != 0;
    for (uint32_t k = 0; k < n_cfg; k++, p += 2)
        m->kept[m->n_kept++] = (struct gr_config){p[0], m->number[p[1]]};
    return intern(m);
}
