/* sup_metrics.h - counters, gauges and histograms, Prometheus text on demand.
 *
 * SUP_METRICS is the table of every metric: name, type, up to two label names,
 * help. A series is made on first use and kept; per metric at most
 * SUP_SERIES_MAX series exist, later label values share the series "other".
 * Updated in place by the front's one thread; text is made when scraped.
 * Add a row for a new metric and its line in docs/operations.md.
 * Tests: tests/supervisor/test_sup_metrics.c
 */
#ifndef INFERD_SUP_METRICS_H
#define INFERD_SUP_METRICS_H

#include <stddef.h>

#define SUP_SERIES_MAX 512

/* X(id, name, kind, label1, label2, help) */
#define SUP_METRICS(X)                                                                             \
    X(HTTP_REQUESTS, "inferd_http_requests_total", COUNTER, "route", "status", "finished requests")\
    X(AUTH_RESULTS, "inferd_auth_results_total", COUNTER, "result", NULL, "requests by whether "    \
      "their sender was known: ok, no_key, bad_key, expired, scope, busy")                          \
    X(AUTH_CACHE, "inferd_auth_cache_total", COUNTER, "outcome", NULL, "keys looked up in the "     \
      "front's cache: hit, miss")                                                                   \
    X(VAULT_KEYS, "inferd_vault_keys", GAUGE, NULL, NULL, "keys the vault has loaded")              \
    X(VAULT_SECRETS, "inferd_vault_credentials", GAUGE, NULL, NULL, "credentials the vault has "    \
      "loaded")                                                                                     \
    X(VAULT_RELOADS, "inferd_vault_reloads_total", COUNTER, "outcome", NULL, "times the vault read "\
      "its files: ok, failed (the old state goes on)")                                              \
    X(CONF_RELOADS, "inferd_config_reloads_total", COUNTER, "outcome", NULL, "times the "           \
      "configuration was read again after SIGHUP: ok, refused (the old one goes on)")               \
    X(CONF_TIME, "inferd_config_last_reload_timestamp_seconds", GAUGE, NULL, NULL, "when the "      \
      "configuration that holds was read, Unix time")                                               \
    X(HTTP_SECONDS, "inferd_http_request_seconds", HISTOGRAM, "route", NULL, "time from the first "\
      "byte of a request to the last of its answer")                                               \
    X(HTTP_CONNS, "inferd_http_connections", GAUGE, NULL, NULL, "open client connections")         \
    X(HTTP_REFUSED, "inferd_http_refused_total", COUNTER, "reason", NULL, "requests and "          \
      "connections cut by a limit")                                                                \
    X(HTTP_STREAMS_PAUSED, "inferd_http_streams_paused_total", COUNTER, NULL, NULL, "streams "     \
      "paused because the client reads slowly")                                                    \
    X(FETCHES, "inferd_fetches_total", COUNTER, "kind", "result", "errands on the network that "    \
      "ended: media, pull, by status (OK, CONFLICT = not allowed, IO, ...)")                        \
    X(FETCH_BYTES, "inferd_fetch_bytes_total", COUNTER, "kind", NULL, "bytes they brought")         \
    X(FETCH_ACTIVE, "inferd_fetches_active", GAUGE, NULL, NULL, "errands on the network in work or "\
      "waiting")                                                                                    \
    X(HELD_BYTES, "inferd_request_held_bytes", GAUGE, NULL, NULL, "files inside requests in work, "\
      "and bodies that wait for a look at the disk")                                               \
    X(TASKS, "inferd_tasks_total", COUNTER, "model", "result", "tasks ended: ok, error, cancelled, "\
      "deadline, crashed, poisoned, refused")                                                      \
    X(TASKS_ACTIVE, "inferd_tasks_active", GAUGE, "model", NULL, "tasks in work or waiting")       \
    X(TASK_RETRIES, "inferd_task_retries_total", COUNTER, "model", NULL, "tasks sent again after " \
      "a worker died before their first byte")                                                     \
    X(TOKENS, "inferd_tokens_total", COUNTER, "model", "kind", "tokens: prompt, completion, embed")\
    X(TTFT, "inferd_time_to_first_token_seconds", HISTOGRAM, "model", NULL, "request to first token")\
    X(TENANTS, "inferd_tenants", GAUGE, NULL, NULL, "tenants whose use is remembered")             \
    X(TENANT_REQUESTS, "inferd_tenant_requests_total", COUNTER, "tenant", NULL, "requests that "   \
      "were let in; tenants beyond 200 are other")                                                 \
    X(TENANT_TOKENS, "inferd_tenant_tokens_total", COUNTER, "tenant", "kind", "tokens used: "      \
      "prompt (or input), answer")                                                                 \
    X(TENANT_REFUSED, "inferd_tenant_refused_total", COUNTER, "tenant", NULL, "requests refused "  \
      "by a limit of the tenant, of the server or of a model's queue")                             \
    X(ADMISSION_REFUSED, "inferd_admission_refused_total", COUNTER, "reason", NULL, "the same by " \
      "reason: server, concurrency, requests, tokens, day, never (larger than a limit), tenants "  \
      "(too many at once), queue")                                                                 \
    X(WORKERS, "inferd_workers", GAUGE, "state", NULL, "workers by state")                         \
    X(WORKER_DEATHS, "inferd_worker_deaths_total", COUNTER, "model", "cause", "workers that ended "\
      "unasked: exit, signal, hang, protocol, oom")                                                \
    X(MODEL_LOADS, "inferd_model_loads_total", COUNTER, "model", "result", "loads: ok, failed, "   \
      "timeout")                                                                                   \
    X(MODEL_LOAD_SECONDS, "inferd_model_load_seconds", HISTOGRAM, "model", NULL, "time to load")   \
    X(MODEL_UNLOADS, "inferd_model_unloads_total", COUNTER, "model", "reason", "idle, evicted, "   \
      "asked, changed, shutdown")                                                                  \
    X(LOAD_WAITERS, "inferd_load_waiters", GAUGE, "model", NULL, "tasks waiting in the server: "   \
      "for a load, or for their turn in the worker")                                               \
    X(LEDGER_BYTES, "inferd_ledger_bytes", GAUGE, "kind", "tier", "bytes reserved: weights, kv, "  \
      "workspace; and limit")                                                                      \
    X(PROCESSES, "inferd_worker_processes", GAUGE, NULL, NULL, "worker processes that hold "       \
      "memory, those on their way out included")                                                   \
    X(RETRY_WAIT, "inferd_model_retry_wait_seconds", GAUGE, "model", NULL, "wait that the last "   \
      "failed load or death was given; 0 once it is loaded")                                       \
    X(KV_USED, "inferd_kv_used_bytes", GAUGE, "model", NULL, "KV cache bytes in use")              \
    X(SEQS, "inferd_sequences", GAUGE, "model", "state", "sequences running and waiting")          \
    X(PARKED, "inferd_sequences_parked_total", COUNTER, "model", NULL, "sequences that gave up "   \
      "their KV pages for older ones and were continued later")                                    \
    X(CACHE_TOKENS, "inferd_prompt_cache_tokens_total", COUNTER, "model", "result", "prompt tokens "\
      "looked up: hit (not computed), miss")                                                       \
    X(CACHE_LOOKUPS, "inferd_prompt_cache_lookups_total", COUNTER, "model", "result", "prompts "   \
      "looked up: all, and of them hit")                                                           \
    X(CACHE_WINDOW, "inferd_prompt_cache_window_tokens_total", COUNTER, "model", NULL, "missed "   \
      "tokens that were known, but whose sliding window was not kept")                             \
    X(CACHE_PAGES, "inferd_prompt_cache_pages_total", COUNTER, "model", "event", "pages inserted, "\
      "denied (no room in the budget), evicted_space (a sequence needed it), evicted_budget, "     \
      "evicted_window (of sliding layers, the prefix stays)")                                      \
    X(CACHE_BYTES, "inferd_prompt_cache_bytes", GAUGE, "model", "kind", "KV bytes of the prompt "  \
      "cache: used, held (of those, by running sequences), budget")                                \
    X(STEPS, "inferd_steps_total", COUNTER, "model", NULL, "batch steps")                          \
    X(HOT_ALLOCS, "inferd_hot_allocations_total", COUNTER, "model", NULL, "allocations inside "    \
      "decode steps; anything but 0 is a defect")                                                  \
    X(KERNEL_DISPATCHES, "inferd_kernel_dispatches_total", COUNTER, "model", "route", "operations "\
      "given to a device: jit, exact, bucket, library, hand, reference (the processor: a fallback)")\
    X(KERNEL_PRODUCTS, "inferd_kernel_products_total", COUNTER, "model", "format", "matrix "       \
      "products on a device by number format of the weight")                                       \
    X(KERNEL_FALLBACKS, "inferd_kernel_fallbacks_total", COUNTER, "model", "kind", "planned "      \
      "kernels that did not run: missing_artifact, wiring, decode, slow; anything but 0 is a defect")\
    X(KERNEL_FUSED, "inferd_kernel_fused_total", COUNTER, "model", NULL, "operations that a "      \
      "fusion saved")                                                                              \
    X(DEVICE_STEPS, "inferd_device_steps_total", COUNTER, "model", "how", "lists of operations "   \
      "sent to a device: captured as a graph, replayed, streamed one by one")                      \
    X(DEVICE_GRAPH_EVICTIONS, "inferd_device_graph_evictions_total", COUNTER, "model", NULL,       \
      "captured graphs that made room for others")                                                 \
    X(DEVICE_SYNCS, "inferd_device_syncs_total", COUNTER, "model", NULL, "waits for a device")     \
    X(DEVICE_COPIES, "inferd_device_copy_bytes_total", COUNTER, "model", "direction", "bytes "     \
      "copied: to_device, from_device")                                                            \
    X(DEVICE_TOKENS, "inferd_device_sampled_tokens_total", COUNTER, "model", NULL, "tokens drawn " \
      "on a device instead of the processor")                                                      \
    X(JIT, "inferd_jit_total", COUNTER, "model", "result", "run-time compilations: compiled, "     \
      "failed, and hot_compile (asked for after the load; anything but 0 is a defect)")            \
    X(JIT_CACHE, "inferd_jit_cache_total", COUNTER, "model", "event", "kernel cache: hit, miss, "  \
      "corrupt, store, eviction")                                                                  \
    X(JIT_KERNELS, "inferd_jit_kernels", GAUGE, "model", "state", "run-time compiled kernels: "    \
      "active, quarantined")                                                                       \
    X(GRAMMARS, "inferd_grammars_total", COUNTER, "model", "result", "grammars of answers: "       \
      "compiled, cached, refused")                                                                 \
    X(GRAMMAR_SECONDS, "inferd_grammar_compile_seconds_total", COUNTER, "model", NULL, "time "     \
      "spent compiling grammars")                                                                  \
    X(GRAMMAR_MASKS, "inferd_grammar_masks_total", COUNTER, "model", "result", "token masks: hit " \
      "(found), miss (computed), cut (computed with some tokens left out)")                        \
    X(GRAMMAR_MASK_SECONDS, "inferd_grammar_mask_seconds_total", COUNTER, "model", NULL, "time "   \
      "spent computing token masks")                                                               \
    X(GRAMMAR_BYTES, "inferd_grammar_bytes", GAUGE, "model", NULL, "memory of grammars, masks "    \
      "and the vocabulary's trie")                                                                 \
    X(DECISIONS, "inferd_decisions_total", COUNTER, "model", "result", "decisions by similarity: "  \
      "selected, empty (multi_choice: nothing accepted), tie, min_similarity, min_margin "         \
      "(abstained)")                                                                               \
    X(PROTO_SETS, "inferd_prototype_sets", GAUGE, "model", NULL, "sets of prototypes kept for "    \
      "decisions")                                                                                 \
    X(PROTO_BYTES, "inferd_prototype_bytes", GAUGE, "model", NULL, "memory of those sets")         \
    X(PROTO_EVENTS, "inferd_prototype_sets_total", COUNTER, "model", "event", "sets of "           \
      "prototypes asked for: hit (kept), fill (computed), wait (another request computed it)")     \
    X(SPEC_PASSES, "inferd_speculation_passes_total", COUNTER, "model", NULL, "passes that "       \
      "verified tokens guessed ahead")                                                             \
    X(SPEC_TOKENS, "inferd_speculation_tokens_total", COUNTER, "model", "result", "tokens guessed "\
      "ahead: accepted, rejected")                                                                 \
    X(SPEC_RESTING, "inferd_speculation_resting", GAUGE, "model", NULL, "1 = switched itself off: "\
      "plain decoding is faster now")                                                              \
    X(SPEC_GAIN, "inferd_speculation_gain_ratio", GAUGE, "model", NULL, "time of a token without " \
      "guesses over the time with them; 0 = not known yet")                                        \
    X(EXTRACT, "inferd_extract_total", COUNTER, "model", "what", "extraction: windows of texts, "    \
      "passes they shared, tokens (schemas included), spans found")                                \
    X(EMBED_PASSES, "inferd_embed_passes_total", COUNTER, "model", "wait", "passes of an "         \
      "encoder: at once, or after a wait for more texts")                                          \
    X(EMBED_WAIT_SECONDS, "inferd_embed_wait_seconds_total", COUNTER, "model", NULL, "time that "  \
      "passes waited for more texts")                                                              \
    X(MEDIA, "inferd_media_files_total", COUNTER, "model", "result", "pictures and sounds: "        \
      "decoded, refused (broken, too large or of another type)")                                   \
    X(MEDIA_SECONDS, "inferd_media_decode_seconds_total", COUNTER, "model", NULL, "time spent "    \
      "decoding them")                                                                             \
    X(MEDIA_BYTES, "inferd_media_bytes", GAUGE, "model", NULL, "pictures and sounds made ready "   \
      "and not yet encoded")                                                                       \
    X(REQ_WAITING, "inferd_requests_waiting", GAUGE, "model", NULL, "requests in work that do not " \
      "run yet: queued, or waiting for a load")                                                    \
    X(REQ_RUNNING, "inferd_requests_running", GAUGE, "model", NULL, "requests that run: of a "     \
      "generator, that decode")                                                                    \
    X(KV_RATIO, "inferd_kv_used_ratio", GAUGE, "model", NULL, "KV cache in use, 0 to 1")           \
    X(VLLM_WAITING, "vllm:num_requests_waiting", GAUGE, NULL, NULL, "inferd_requests_waiting of "  \
      "all models, under the name that endpoint pickers look for")                                 \
    X(VLLM_RUNNING, "vllm:num_requests_running", GAUGE, NULL, NULL, "inferd_requests_running of "  \
      "all models, likewise")                                                                      \
    X(VLLM_KV, "vllm:kv_cache_usage_perc", GAUGE, NULL, NULL, "the largest inferd_kv_used_ratio, " \
      "likewise; 1 = full")                                                                        \
    X(VLLM_KV_OLD, "vllm:gpu_cache_usage_perc", GAUGE, NULL, NULL, "the same, under the name that " \
      "older endpoint pickers look for")                                                           \
    X(PROBE_PASSES, "inferd_probe_passes_total", COUNTER, "model", "result", "forward passes that " \
      "readiness probes of a model started: ok, failed, refused")                                  \
    X(LOOP_LAG, "inferd_event_loop_lag_seconds", GAUGE, NULL, NULL, "worst lag of the last second")\
    X(SPANS, "inferd_spans_total", COUNTER, "result", NULL, "spans of requests: exported, dropped " \
      "(no room), failed (the collector did not take them)")                                        \
    X(LOG_DROPPED, "inferd_log_lines_dropped_total", COUNTER, NULL, NULL, "log lines not written") \
    X(RSS, "inferd_resident_bytes", GAUGE, "process", NULL, "resident memory of front and workers")

enum sup_metric {
#define X(id, name, kind, l1, l2, help) SUP_M_##id,
    SUP_METRICS(X)
#undef X
    SUP_M_COUNT
};

struct sup_metrics;
struct sup_series;

struct sup_metrics *sup_metrics_new(void); /* NULL when out of memory */
void sup_metrics_free(struct sup_metrics **m);
/* Finds or makes; never NULL (falls back to "other", then a static sink). Labels
 * the metric does not have are NULL. */
struct sup_series *sup_series(struct sup_metrics *m, enum sup_metric id,
                              const char *l1, const char *l2);
void sup_series_add(struct sup_series *s, double v);     /* counter, gauge */
void sup_series_set(struct sup_series *s, double v);     /* gauge, counter */
void sup_series_observe(struct sup_series *s, double v); /* histogram, seconds */
double sup_series_value(const struct sup_series *s);
/* Prometheus text format 0.0.4; caller frees; NULL when out of memory. */
char *sup_metrics_text(const struct sup_metrics *m, size_t *n_bytes);

#endif
