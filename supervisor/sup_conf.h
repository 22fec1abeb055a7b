/* sup_conf.h - every option of the server, in one table.
 *
 * SUP_OPTIONS is the single source of the config file's keys, the INFERD_*
 * environment names, the --flags, their defaults, ranges and help. Precedence:
 * flag > environment > file > default. An unknown key, a wrong type or a value
 * out of range is an error that names key, value and expectation.
 * Every room borrows it and reads it at the moment of use; after the load only the live options
 * change (sup_conf_take), between two turns of the front's loop.
 * Tests: tests/supervisor/test_sup_conf.c, test_sup_conf_live.c
 */
#ifndef INFERD_SUP_CONF_H
#define INFERD_SUP_CONF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "rc.h"

/* X(field, kind, default, min, max, group, help)
 * key in the file = field; environment = INFERD_ + upper case field; flag =
 * --field with '-' for '_'. kinds: STR (char *), U64 (uint64_t), BOOL, ENUM (char
 * *, min = allowed words separated by '|'), LIST (char **, NULL-ended; flag may
 * repeat, environment splits at ','). For STR/LIST/BOOL min and max are unused. */
#define SUP_OPTIONS(X)                                                                             \
    X(host, STR, "127.0.0.1", 0, 0, "listen", "address to listen on; empty = none, only "          \
      "unix_socket; a public one needs keys (vault_dir), or allow_insecure_public_bind")                                                                \
    X(port, U64, 8090, 0, 65535, "listen", "TCP port; 0 picks a free one and logs it")             \
    X(unix_socket, STR, "", 0, 0, "listen", "also listen on this Unix socket path")                \
    X(allow_insecure_public_bind, BOOL, false, 0, 0, "listen", "permit a host that is not "        \
      "loopback though no API keys are asked for (there is no TLS either way: put a proxy in front)")                                          \
    X(allowed_origins, LIST, NULL, 0, 0, "listen", "web pages whose requests are taken, like "     \
      "https://chat.example.com; * = all; always taken: pages of this server's own address, and "  \
      "whatever is no browser")                                                                    \
    X(max_connections, U64, 4096, 1, 100000, "listen", "open client connections; more are "        \
      "accepted and closed with 503")                                                              \
    X(max_body_bytes, U64, 16777216, 1024, 1073741824, "listen", "largest request body")           \
    X(max_header_bytes, U64, 32768, 1024, 1048576, "listen", "request line and headers together")  \
    X(header_timeout_ms, U64, 10000, 100, 600000, "listen", "time to send a whole request head")   \
    X(body_timeout_ms, U64, 60000, 100, 3600000, "listen", "time to send a whole request body")    \
    X(idle_timeout_ms, U64, 300000, 1000, 86400000, "listen", "keep-alive time of a quiet "        \
      "connection")                                                                                \
    X(write_timeout_ms, U64, 60000, 100, 3600000, "listen", "time a client may take no byte of an "\
      "answer before it is cut")                                                                   \
    X(stream_buffer_bytes, U64, 1048576, 16384, 67108864, "listen", "unsent bytes of one stream "  \
      "before it is paused; at four times this the client is cut")                                 \
    X(models_dir, STR, "models", 0, 0, "models", "folder whose subfolders and .gguf files are "    \
      "the models")                                                                                \
    X(preload, LIST, NULL, 0, 0, "models", "models to load at start")                              \
    X(pin, LIST, NULL, 0, 0, "models", "models to load at start that are neither evicted nor "     \
      "unloaded when idle")                                                                        \
    X(max_loaded_models, U64, 10, 1, 1000, "models", "workers kept; an idle one is evicted for a " \
      "new one")                                                                                   \
    X(keep_alive_s, U64, 300, 0, 31536000, "models", "idle time after which a model is unloaded; " \
      "0 = never")                                                                                 \
    X(keep_alive_max_s, U64, 86400, 0, 31536000, "models", "most that a request may ask for with " \
      "keep_alive")                                                                                \
    X(load_timeout_s, U64, 600, 1, 86400, "models", "time a load may take")                        \
    X(ctx_tokens, U64, 0, 0, 4194304, "models", "context length, refused when kv_mb cannot "   \
      "hold it; 0 = the model's own, lowered to fit kv_mb")                                                                                 \
    X(max_seqs, U64, 8, 1, 256, "models", "sequences one worker decodes together")                 \
    X(embed_wait_ms, U64, 2, 0, 50, "models", "ms that a pass over texts waits, under load, for "  \
      "the next ones of clients just answered; 0 = never")                                         \
    X(batch_tokens, U64, 512, 16, 8192, "models", "rows of one prefill chunk")                     \
    X(kv_mb, U64, 1024, 1, 1048576, "models", "MiB of KV cache per worker")                        \
    X(prompt_cache, BOOL, true, 0, 0, "models", "keep the KV pages of prompts and answers, so "    \
      "that a prompt that begins alike is not computed again")                                     \
    X(prompt_cache_mb, U64, 0, 0, 16777216, "models", "MiB the prompt caches of all workers may "  \
      "keep together, dealt out by use; 0 = all of each kv_mb that sequences leave")               \
    X(prompt_cache_min_tokens, U64, 64, 1, 1048576, "models", "prompts below this length are "     \
      "neither looked up nor kept")                                                                \
    X(speculation, ENUM, "auto", "auto|off|lookup|mtp", 0, "models", "guess tokens ahead and check " \
      "several in one pass, while that is faster: mtp = the drafter in the model's folder "         \
      "'assistant', lookup = what followed the same tokens before, auto = mtp where there is one, " \
      "else lookup; answers are the same")                                                         \
    X(speculation_tokens, U64, 4, 1, 8, "models", "tokens guessed ahead for one answer")           \
    X(workspace_mb, U64, 512, 16, 1048576, "models", "MiB of activations and scratch per worker")  \
    X(memory_mb, U64, 0, 0, 16777216, "models", "MiB all workers together may use; 0 = 80 % of "   \
      "the machine or cgroup; of the host: with a device see device_memory_mb")                    \
    X(kv_dtype, ENUM, "auto", "auto|f16|f32|q8_0", 0, "models", "number format of the KV cache; "  \
      "auto = f16 for quantized checkpoints, f32 for float ones; q8_0 is for backend cuda")        \
    X(threads, U64, 0, 0, 1024, "models", "compute threads per worker; 0 = what the cgroup allows")\
    X(cpu_level, ENUM, "auto", "auto|c|avx2|avx512", 0, "models", "CPU kernels to use")            \
    X(f32_gemm, ENUM, "auto", "auto|own|openblas", 0, "models", "who multiplies f32 matrices")     \
    X(backend, ENUM, "cpu", "cpu|cuda", 0, "device", "what runs the models: the processor, or an " \
      "NVIDIA GPU (needs only its driver)")                                                        \
    X(device, U64, 0, 0, 63, "device", "which of the backend's devices")                           \
    X(device_memory_mb, U64, 0, 0, 16777216, "device", "MiB of that device all workers together "  \
      "may use; 0 = 90 % of what it has")                                                          \
    X(compute, ENUM, "exact_f32", "exact_f32|tf32|f16", 0, "device", "products of float weights: " \
      "full f32, or faster and coarser: tf32 rounds factors of f32 weights to 10 bits (sm_80 and "   \
      "newer), f16 also keeps activations in f16")                                                 \
    X(jit, ENUM, "off", "off|guarded|exact|profile", 0, "device", "compile kernels for a model's " \
      "own shapes while it loads (needs NVRTC): guarded = use those that are right and faster, "   \
      "exact = fail the load without them, profile = only report")                                 \
    X(jit_cache_dir, STR, "", 0, 0, "device", "folder that keeps compiled kernels, made with mode "\
      "0700; empty = compile at every load")                                                       \
    X(jit_cache_bytes, U64, 1073741824, 1048576, 1099511627776, "device", "largest size of that "  \
      "folder; the longest unused go first")                                                       \
    X(cuda_library, STR, "", 0, 0, "device", "the GPU driver's library; empty = libcuda.so.1")     \
    X(nvrtc_library, STR, "", 0, 0, "device", "the run-time compiler's library; empty = "          \
      "libnvrtc.so of CUDA 13, 12 or 11")                                                          \
    X(max_concurrent_requests, U64, 1024, 0, 100000, "admission", "requests in work or waiting in "\
      "the whole server; 0 = no limit")                                                            \
    X(max_queue, U64, 1024, 1, 100000, "admission", "requests in work or waiting per model")       \
    X(request_timeout_ms, U64, 600000, 0, 86400000, "admission", "total time of one request; 0 = " \
      "no limit")                                                                                  \
    X(max_tokens_default, U64, 256, 1, 1048576, "admission", "max_tokens of a request that names " \
      "none")                                                                                      \
    X(max_embed_inputs, U64, 2048, 1, 65536, "admission", "inputs of one embedding request")       \
    X(max_media_bytes, U64, 104857600, 0, 104857600, "admission", "bytes of all files inside one " \
      "request; 0 = no files are taken")                                                           \
    X(vault_dir, STR, "", 0, 0, "safety", "folder of the API keys and "  \
      "credentials (inferd keys, inferd credentials); empty = none are "\
      "known")                          \
    X(vault_key_file, STR, "", 0, 0, "safety", "file with the master key of the credentials: 32 "  \
      "bytes, or those in hex or base64; empty = $CREDENTIALS_DIRECTORY/inferd-vault-key")          \
    X(require_auth, ENUM, "auto", "auto|on|off", 0, "safety", "refuse requests without an API "    \
      "key; auto = when vault_dir is set, off = a key is checked when one is sent")                \
    X(media_hosts, LIST, NULL, 0, 0, "fetch", "hosts whose files requests may name by URL, like "      \
      "img.example.com, *.example.com or *; empty = remote files are refused")                       \
    X(media_private_hosts, LIST, NULL, 0, 0, "fetch", "of those, hosts that may be at an address "     \
      "that is not of the public internet")                                                          \
    X(media_fetch_bytes, U64, 20971520, 1024, 104857600, "fetch", "largest remote file")              \
    X(media_fetch_timeout_ms, U64, 30000, 100, 600000, "fetch", "time for one remote file, "          \
      "redirects included")                                                                          \
    X(allow_pull, BOOL, false, 0, 0, "fetch", "let administrators fetch models with POST "            \
      "/ai/v1/models/pull")                                                                          \
    X(hub_endpoint, STR, "https://huggingface.co", 0, 0, "fetch", "the hub that models are pulled "   \
      "from")                                                                                        \
    X(pull_file_bytes, U64, 68719476736, 1, 1099511627776, "fetch", "largest file of a pulled model") \
    X(pull_model_bytes, U64, 137438953472, 1, 1099511627776, "fetch", "largest pulled model")         \
    X(sandbox, ENUM, "strict", "strict|permissive|off", 0, "safety", "what to do when a sandbox "  \
      "layer cannot be had")                                                                       \
    X(worker, STR, "", 0, 0, "safety", "path of inferd-worker; default beside inferd")             \
    X(hang_timeout_s, U64, 120, 1, 86400, "safety", "a worker whose work has not moved on for so "  \
      "long is killed")                                                                            \
    X(silence_timeout_ms, U64, 4000, 2000, 600000, "safety", "a worker without a sign of life for " \
      "so long, while it loads or has work, is killed; it gives one a second, however long a pass "\
      "takes")                                                                                     \
    X(drain_grace_ms, U64, 30000, 0, 3600000, "safety", "time streams get to finish after SIGTERM")\
    X(log_level, ENUM, "info", "debug|info|warn|error", 0, "watch", "least level written to "      \
      "stderr")                                                                                    \
    X(otlp_endpoint, STR, "", 0, 0, "watch", "http://HOST:PORT of an OpenTelemetry collector that "\
      "gets a span for each request (OTLP/HTTP JSON); empty = no spans")                           \
    X(trace_percent, U64, 100, 0, 100, "watch", "of the requests that come without a trace, how "  \
      "many begin one; a caller's own choice is followed")                                         \
    X(usage_log, BOOL, true, 0, 0, "watch", "one log line with the tokens of each request that "   \
      "used a model, by tenant and key")                                                           \
    X(access_log, BOOL, true, 0, 0, "watch", "one log line per finished request")

/* Where a value came from, least to strongest. */
enum sup_conf_from { SUP_FROM_DEFAULT, SUP_FROM_FILE, SUP_FROM_ENV, SUP_FROM_FLAG };

enum sup_option {
#define X(field, kind, def, min, max, group, help) SUP_OPT_##field,
    SUP_OPTIONS(X)
#undef X
    SUP_OPT_COUNT
};

struct sup_conf {
#define SUP_T_STR char *
#define SUP_T_ENUM char *
#define SUP_T_U64 uint64_t
#define SUP_T_BOOL bool
#define SUP_T_LIST char **
#define X(field, kind, def, min, max, group, help) SUP_T_##kind field;
    SUP_OPTIONS(X)
#undef X
    unsigned char from[SUP_OPT_COUNT]; /* enum sup_conf_from of each option */
};

/* INFERD_* names that are no options: read by the commands, not by the server.
 * Names that begin with INFERD_TEST_ or INFERD_BENCH_ are left to the tests. NULL-ended. */
extern const char *const sup_conf_env_exempt[];

/* Fills *out from defaults, then the file (config_path, NULL = none), then the
 * environment (envp), then flags. argv holds only options; on success *n_used is
 * how many words were read (stops at the first word that is no option).
 * Errors: RC_INVALID / RC_IO / RC_NOT_FOUND, err->what = the key. */
enum rc sup_conf_load(struct sup_conf *out, const char *config_path,
                      char *const *envp, int argc, char *const *argv,
                      int *n_used, struct rc_err *err);
void sup_conf_deinit(struct sup_conf *c);
/* The options as --help shows them, grouped, with defaults and ranges. */
void sup_conf_help(FILE *to);
/* The same table as the page docs/configuration.md (a test compares the two). */
void sup_conf_markdown(FILE *to);
/* "port", "default|file|environment|flag" of one option. */
const char *sup_conf_name(enum sup_option o);
const char *sup_conf_origin(const struct sup_conf *c, enum sup_option o);
/* Whether a request without an API key is refused. */
bool sup_conf_auth_required(const struct sup_conf *c);
/* True for 127.0.0.0/8, ::1, their mapped forms and "localhost". */
bool sup_conf_is_loopback(const char *host);
/* ---- a new configuration for a running server (sup_conf_live.c) */
struct sup_conf_changes {
    enum sup_option taken[SUP_OPT_COUNT], kept[SUP_OPT_COUNT]; /* kept: they need a restart */
    size_t n_taken, n_kept;
};
bool sup_conf_is_live(enum sup_option o);
bool sup_conf_same(const struct sup_conf *a, const struct sup_conf *b, enum sup_option o);
/* Takes the live values of *fresh that differ and gives it the old ones; the caller deinits it.
 * Errors: RC_INVALID, the two together break a rule between options: then nothing has changed. */
enum rc sup_conf_take(struct sup_conf *c, struct sup_conf *fresh, struct sup_conf_changes *out,
                      struct rc_err *err);
/* The live options as JSON (caller frees; NULL: no memory), and taking them from it in another
 * process. c's strings must be its own. Errors: RC_INVALID, RC_NOMEM; then nothing has changed. */
char *sup_conf_live_json(const struct sup_conf *c);
enum rc sup_conf_take_live(struct sup_conf *c, const char *json, size_t n,
                           struct sup_conf_changes *out, struct rc_err *err);
/* Their names with commas between them, cut at cap. */
void sup_conf_names(const enum sup_option *o, size_t n, char *out, size_t cap);

/* The effective configuration as JSON (for doctor and the start-up log). Caller
 * frees. */
char *sup_conf_json(const struct sup_conf *c);

#endif
