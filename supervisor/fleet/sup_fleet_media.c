/* sup_fleet_media.c - what a worker tells of the files it decodes, of its passes over texts and of
 * what it extracts, as metrics.
 *
 * Counters are what came since the last Stats of the same worker, so a restart is no
 * step back. Page: docs/media.md. Tests: tests/supervisor/test_sup_fleet_kernels.c
 */
#include "sup_fleet_impl.h"

void worker_passes(struct worker *w, const char *id, const Ipc__Stats *s)
{
    struct sup_metrics *m = w->f->metrics;
    Ipc__Stats *old = &w->last_stats;

    if (s->embed_passes == 0 || s->embed_waits > s->embed_passes)
        return;
    worker_rise(m, SUP_M_EMBED_PASSES, id, "some", s->embed_waits, &old->embed_waits);
    worker_rise(m, SUP_M_EMBED_PASSES, id, "none", s->embed_passes - s->embed_waits,
                &old->embed_passes); /* kept as those that did not wait */
    if (s->embed_wait_us > old->embed_wait_us)
        sup_series_add(sup_series(m, SUP_M_EMBED_WAIT_SECONDS, id, NULL),
                       (double)(s->embed_wait_us - old->embed_wait_us) * 1e-6);
    old->embed_wait_us = s->embed_wait_us;
}

void worker_media(struct worker *w, const char *id, const Ipc__Stats *s)
{
    struct sup_metrics *m = w->f->metrics;
    Ipc__Stats *old = &w->last_stats;

    worker_rise(m, SUP_M_MEDIA, id, "decoded", s->media_decoded, &old->media_decoded);
    worker_rise(m, SUP_M_MEDIA, id, "refused", s->media_refused, &old->media_refused);
    if (s->media_decode_us > old->media_decode_us)
        sup_series_add(sup_series(m, SUP_M_MEDIA_SECONDS, id, NULL),
                       (double)(s->media_decode_us - old->media_decode_us) * 1e-6);
    old->media_decode_us = s->media_decode_us;
    sup_series_set(sup_series(m, SUP_M_MEDIA_BYTES, id, NULL), (double)s->media_bytes);
    old->media_bytes = s->media_bytes;
    worker_rise(m, SUP_M_EXTRACT, id, "windows", s->extract_windows, &old->extract_windows);
    worker_rise(m, SUP_M_EXTRACT, id, "passes", s->extract_passes, &old->extract_passes);
    worker_rise(m, SUP_M_EXTRACT, id, "tokens", s->extract_tokens, &old->extract_tokens);
    worker_rise(m, SUP_M_EXTRACT, id, "spans", s->extract_spans, &old->extract_spans);
}

void worker_media_none(struct worker *w, const char *id)
{
    if (w->last_stats.media_bytes)
        sup_series_set(sup_series(w->f->metrics, SUP_M_MEDIA_BYTES, id, NULL), 0);
    w->last_stats.media_bytes = 0;
}
