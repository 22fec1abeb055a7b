#!/usr/bin/env python3
"""device_emulated.py - backend cuda through a running server on the emulated driver (tests/cuda_emu): the worker's sandbox with
a device, answers, streams, embeddings, telemetry, a worker that is killed, and what a machine without a driver says. The same
as a client sees it on a real GPU: tests/device/serve.py.
"""
import json
import os
import signal
import subprocess
import tempfile

from inferd_test import (BIN, SLOW, TINY_BERT, TINY_GEMMA, Server, Skip, case, check, copy_model, equal, golden_cases, main,
                         wait_for)

EMU = os.path.join(BIN, "tests", "cuda_emu", "libcuda_emu.so")
ROUTES = ("jit", "exact", "bucket", "library", "hand", "reference")


def gemma(d):
    copy_model(TINY_GEMMA, d)


def bert(d):
    copy_model(TINY_BERT, d)


def server(fill=gemma, ctx_tokens=256, **args):
    if not os.path.exists(EMU):
        raise Skip(f"the emulated driver is not built ({EMU})")
    return Server(fill=fill, backend="cuda", cuda_library=EMU, kv_mb=16, batch_tokens=64, max_seqs=4, ctx_tokens=ctx_tokens,
                  **args)


def complete(s, n=6, **more):
    r = s.post("/v1/completions", {"model": TINY_GEMMA, "prompt": [2, 300, 301, 302], "max_tokens": n, "temperature": 0,
                                   "ignore_eos": True, "return_token_ids": True, **more}, timeout=120 * SLOW)
    equal(r.status, 200, f"{r.body[:400]!r}")
    return r.json["choices"][0]


def info(s, model):
    return next(m for m in s.get("/v1/models").json["data"] if m["id"] == model)


@case
def the_ledger_counts_the_devices_memory_apart():
    def both(d):
        gemma(d)
        bert(d)

    with server(fill=both, workspace_mb=64) as s:
        complete(s)
        m = info(s, TINY_GEMMA)

        def tier(name, *kinds):
            return sum(s.metric("inferd_ledger_bytes", kind=k, tier=name) for k in kinds or ("weights", "kv", "workspace"))

        check(tier("device") >= m["device_bytes"] > 0, f"{tier('device')} of the ledger, {m['device_bytes']} of the device")
        equal(tier("host", "weights", "kv"), 0, "weights and caches of the host")
        equal(tier("device", "limit"), (1 << 30) // 10 * 9, "nine tenths of the device's memory")
        equal(s.post("/ai/v1/models/unload", {"model": TINY_GEMMA}).status, 200, "unload")
        wait_for(lambda: tier("device") + tier("host") == 0, "an empty ledger")
    with server(fill=both, workspace_mb=64, device_memory_mb=100) as s:  # one of them at a time
        complete(s)
        r = s.post("/v1/embeddings", {"model": TINY_BERT, "input": "a"}, timeout=120 * SLOW)
        equal(r.status, 200, r.body.decode()[:300])
        equal(s.metric("inferd_model_unloads_total", model=TINY_GEMMA, reason="evicted"), 1, "evictions")
    with server(device_memory_mb=20) as s:
        r = s.post("/v1/completions", {"model": TINY_GEMMA, "prompt": "a", "max_tokens": 1})
        equal(r.json["error"]["code"], "MODEL_RESOURCE_LIMIT", r.body.decode()[:300])
        check("device_memory_mb" in r.json["error"]["message"], r.json["error"]["message"])


@case
def completions_equal_the_reference_drawn_on_the_device_or_not():
    with server(sandbox="strict") as s:
        c = min(golden_cases(TINY_GEMMA)["logits"], key=lambda g: len(g["ids"]))
        want = c["greedy"][:8]
        for more in ({}, {"logprobs": 2}):  # on the device; by the host
            got = complete(s, len(want), prompt=c["ids"], **more)["token_ids"]
            for k, (g, w) in enumerate(zip(got, want)):
                if g != w:
                    check(c["greedy_gap"][k] < 2e-2, f"{more}: token {k} is {g}, expected {w}, gap {c['greedy_gap'][k]}")
                    break
        m = info(s, TINY_GEMMA)
        equal((m["backend"], m["compute"]), ("cuda", "exact_f32"), "what serves")
        check("sm_" in m["device"] and m["device_bytes"] > 0, f"{m['device']} {m['device_bytes']}")
        check(s.get("/ai/v1/models").json["backends"]["cuda"] is True, "backends of this build")
        layers = [e for e in s.log() if e.get("event") == "worker_sandboxed"]
        check(layers and layers[-1]["missing"] in ("", "namespaces"), f"layers: {layers}")


@case
def the_smallest_workspace_gives_the_same_tokens():
    """Attention's scratch takes what is left of it; more than 256 keys are taken in splits."""
    ids = [2] + [300 + i % 200 for i in range(330)]
    got = []
    for more in ({}, {"workspace_mb": 16}):
        with server(ctx_tokens=512, **more) as s:
            got.append(complete(s, 6, prompt=ids)["token_ids"])
    equal(got[1], got[0], "tokens in 16 MiB of workspace")


@case
def warm_answers_repeat_with_their_seed_and_stream_as_they_are():
    with server() as s:
        ask = {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 5}
        a, b = complete(s, 8, **ask), complete(s, 8, **ask)
        equal(b["token_ids"], a["token_ids"], "the same seed")
        text = ""
        for _, e in s.sse("/v1/completions", {"model": TINY_GEMMA, "prompt": [2, 300, 301, 302], "max_tokens": 8,
                                              "ignore_eos": True, "stream": True, **ask}, timeout=120 * SLOW):
            if e != "[DONE]":
                text += e["choices"][0]["text"]
        equal(text, a["text"], "streamed")


@case
def metrics_tell_how_operations_reached_the_device():
    with server() as s:
        complete(s, 8)
        complete(s, 2, logprobs=1)
        wait_for(lambda: (s.metric("inferd_device_sampled_tokens_total", model=TINY_GEMMA) or 0) == 8, "8 tokens drawn there", 20)
        d = {r: s.metric("inferd_kernel_dispatches_total", model=TINY_GEMMA, route=r) or 0 for r in ROUTES}
        check(d["exact"] + d["bucket"] > 0, f"dispatches {d}")
        equal(d["reference"], 0, "operations by the processor")
        for kind in ("missing_artifact", "wiring", "decode", "slow"):
            equal(s.metric("inferd_kernel_fallbacks_total", model=TINY_GEMMA, kind=kind) or 0, 0, kind)
        check((s.metric("inferd_device_syncs_total", model=TINY_GEMMA) or 0) > 0, "waits")
        check((s.metric("inferd_device_copy_bytes_total", model=TINY_GEMMA, direction="from_device") or 0) > 0, "copies")
        equal(s.metric("inferd_hot_allocations_total", model=TINY_GEMMA) or 0, 0, "allocations in steps")
        equal(s.metric("inferd_jit_total", model=TINY_GEMMA, result="hot_compile") or 0, 0, "compilations in steps")


@case
def embeddings_equal_the_processors():
    with Server(fill=bert) as s:
        want = s.post("/v1/embeddings", {"model": TINY_BERT, "input": ["a text", "and another one"]}).json["data"]
    with server(fill=bert) as s:
        r = s.post("/v1/embeddings", {"model": TINY_BERT, "input": ["a text", "and another one"]}, timeout=120 * SLOW)
        equal(r.status, 200, f"{r.body[:300]!r}")
        for w, g in zip(want, r.json["data"]):
            worst = max(abs(a - b) for a, b in zip(w["embedding"], g["embedding"]))
            check(worst < 1e-4, f"largest difference {worst}")


@case
def a_pass_on_a_device_takes_far_more_rows_than_batch_tokens():
    texts = [f"text {i} of a batch that is longer than a chunk of a prompt" for i in range(60)]  # some 900 rows

    def passes(s):
        return sum(s.metric("inferd_embed_passes_total", model=TINY_BERT, wait=w) or 0 for w in ("none", "some"))

    with server(fill=bert) as s:
        r = s.post("/v1/embeddings", {"model": TINY_BERT, "input": texts}, timeout=300 * SLOW)
        equal(r.status, 200, f"{r.body[:300]!r}")
        check(r.json["usage"]["total_tokens"] > 600, f"tokens {r.json['usage']}")
        wait_for(lambda: passes(s) > 0, "passes counted", 20 * SLOW)
        equal(passes(s), 1, "passes")


@case
def answers_from_the_prompt_cache_are_those_computed_cold():
    def ask(s, prompt, **more):
        r = s.post("/v1/completions", {"model": TINY_GEMMA, "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True,
                                       "return_token_ids": True, "logprobs": 2, **more}, timeout=120 * SLOW)
        equal(r.status, 200, f"{r.body[:400]!r}")
        return r.json["choices"], r.json["usage"]["cached_prompt_tokens"]

    prompt = [4 + i * i % 690 for i in range(120)]
    with server() as s:
        for p, cached in ((prompt, 0), (prompt, 96), (prompt + [9] * 20, 96)):
            got = ask(s, p)
            equal(got[1], cached, "tokens from the cache")
            equal(got[0], ask(s, p, prompt_cache=False)[0], "the answer")


@case
def a_worker_that_is_killed_is_started_again():
    with server() as s:
        first = complete(s)["token_ids"]
        pid = info(s, TINY_GEMMA)["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: info(s, TINY_GEMMA)["pid"] != pid, "the worker is gone", 20)
        equal(complete(s)["token_ids"], first, "after the kill")


@case
def a_device_that_cannot_be_had_fails_the_load_with_the_reason():
    for args, words in (({"cuda_library": "/nonexistent/libcuda.so.1"}, ("no CUDA driver", "nvidia")),
                        ({"cuda_library": EMU, "device": 63}, ("63",))):
        if args["cuda_library"] == EMU and not os.path.exists(EMU):
            continue
        with Server(fill=gemma, backend="cuda", **args) as s:
            r = s.post("/v1/completions", {"model": TINY_GEMMA, "prompt": "x", "max_tokens": 1}, timeout=60 * SLOW)
            check(r.status >= 400 and all(w in r.body.decode() for w in words), f"{args}: {r.status} {r.body[:400]!r}")
            check(all(w in info(s, TINY_GEMMA)["last_error"] for w in words), "last_error")
            equal(s.get("/readyz").status, 200, "the server lives")


@case
def words_for_another_backend_are_refused():
    for flags in (["--kv-dtype=q8_0"], ["--jit=guarded"], ["--compute=f16"], ["--device=1"]):
        r = subprocess.run([os.path.join(BIN, "inferd"), "serve", "--models-dir=/tmp", "--port=0", *flags],
                           capture_output=True, timeout=60, check=False)
        check(r.returncode == 2 and b"backend cuda" in r.stderr, f"{flags}: {r.returncode} {r.stderr[:300]!r}")


@case
def a_q8_0_cache_that_does_not_fit_the_heads_is_refused_by_name():
    with server(kv_dtype="q8_0") as s:  # heads of 16 values; blocks have 32
        r = s.post("/v1/completions", {"model": TINY_GEMMA, "prompt": "x", "max_tokens": 1}, timeout=60 * SLOW)
        check(r.status >= 400 and "multiple of 32" in r.body.decode(), f"{r.status} {r.body[:300]!r}")
        equal(s.get("/readyz").status, 200, "the server lives")


@case
def bench_tells_what_ran():
    if not os.path.exists(EMU):
        raise Skip("the emulated driver is not built")
    with tempfile.TemporaryDirectory(prefix="inferd-test-") as d:
        gemma(d)
        r = subprocess.run([os.path.join(BIN, "inferd"), "bench", "--json", "--only=prompt,decode", "--backend=cuda",
                            f"--cuda-library={EMU}", "--prompt=16", "--gen=4", "--runs=1", "--kv-mb=16", "--batch-tokens=64",
                            os.path.join(d, TINY_GEMMA)], capture_output=True, timeout=300 * SLOW, check=False)
        equal(r.returncode, 0, f"{r.stderr[:400]!r}")
        o = json.loads(r.stdout)
        equal(o["backend"], "cuda", "backend")
        check(sum(o["kernels"]["dispatch"].values()) > 0 and o["kernels"]["dispatch"]["reference"] == 0, f"{o['kernels']}")
        equal((o["kernels"]["hot_compiles"], o["hot_allocs"]), (0, 0), "hot compilations and allocations")


@case
def doctor_tries_the_device_in_its_sandbox():
    if not os.path.exists(EMU):
        raise Skip("the emulated driver is not built")
    r = subprocess.run([os.path.join(BIN, "inferd-worker"), "--doctor", "--backend=cuda", f"--cuda-library={EMU}"],
                       capture_output=True, timeout=120 * SLOW, check=False)
    lines = [json.loads(x) for x in r.stdout.splitlines()]
    checks = {x["check"]: x for x in lines if "check" in x}
    check(checks["gpu driver"]["ok"] and "sm_" in checks["gpu 0"]["detail"], f"{checks}")
    check(checks["gpu sandbox"]["ok"], f"{checks['gpu sandbox']}")
    check("ioctl" in checks["gpu seccomp"]["detail"], f"{checks['gpu seccomp']}")


main()
