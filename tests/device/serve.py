"""serve.py - backend cuda through a running server on loopback, in the strict sandbox. Run by tests/device/run.

The equality contract as a client sees it (alone = in company, after a restart the same bits, cached or not the same), what
the telemetry must say after a decode, and how the first request compares with the tenth.
"""
import os
import shutil
import statistics
import threading
import time

from inferd_test import (Server, Skip, case, check, copy_model, equal, golden_cases, main, wait_for, TINY_BERT, TINY_GEMMA)

BACKEND = os.environ.get("INFERD_TEST_BACKEND", "cuda")  # cpu: these cases tried where there is no device
MODELS = os.environ.get("INFERD_TEST_DEVICE_MODELS", "")
TINY_Q4 = "gemma-tiny-q4.gguf"
REAL_SIZE = "gemma-270m.gguf"
ROUTES = ("jit", "exact", "bucket", "library")  # what may run on a device; hand and reference may not


def put(src, dst):
    """The server follows no symbolic links: a hard link, or where that cannot be a copy."""
    try:
        os.link(src, dst)
    except OSError:
        shutil.copyfile(src, dst)


def fill(to_dir, *more):
    for name in (TINY_GEMMA, TINY_BERT):
        copy_model(name, to_dir)
    for name in more:
        if not os.path.exists(os.path.join(MODELS, name)):
            raise Skip(f"{name} was not made")
        put(os.path.join(MODELS, name), os.path.join(to_dir, name))


def server(*more, **args):
    return Server(fill=lambda d: fill(d, *more), backend=BACKEND, sandbox="strict", kv_mb=64, **args)


def generate(s, model, ids, n=24, **more):
    r = s.post("/v1/completions", {"model": model, "prompt": ids, "max_tokens": n, "temperature": 0, "ignore_eos": True,
                                   "return_token_ids": True, "logprobs": 5, **more}, timeout=120)
    equal(r.status, 200, f"{model}: {r.body[:300]!r}")
    c = r.json["choices"][0]
    return c["token_ids"], c["logprobs"] and c["logprobs"]["top_token_ids"]


def only_on_a_device():
    if BACKEND == "cpu":
        raise Skip("backend cpu")


def prompts(n, length):
    return [[2] + [300 + (i * 7919 + k * 104729) % 380 for k in range(length + 3 * i)] for i in range(n)]


def embed(s, texts):
    r = s.post("/v1/embeddings", {"model": TINY_BERT, "input": texts})
    equal(r.status, 200, f"{r.body[:300]!r}")
    return [d["embedding"] for d in r.json["data"]]


@case
def greedy_runs_equal_the_reference():
    with server() as s:
        for c in golden_cases(TINY_GEMMA)["logits"]:
            got = generate(s, TINY_GEMMA, c["ids"], len(c["greedy"]))[0]
            for k, (g, w) in enumerate(zip(got, c["greedy"])):
                if g != w:
                    check(c["greedy_gap"][k] < 2e-2, f"{c['name']}: token {k} is {g}, expected {w}, gap {c['greedy_gap'][k]}")
                    break


@case
def alone_equals_in_company():
    """Token ids and log probabilities, to the last digit, of 8 requests one by one and all at once."""
    for model in (TINY_GEMMA, TINY_Q4):
        with server(*([TINY_Q4] if model == TINY_Q4 else [])) as s:
            asked = prompts(8, 20)
            alone = [generate(s, model, p) for p in asked]
            company = [None] * len(asked)

            def ask(i):
                company[i] = generate(s, model, asked[i])

            threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(asked))]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            for i, (a, b) in enumerate(zip(alone, company)):
                equal(b, a, f"{model}: request {i} in company")


@case
def prefill_in_chunks_equals_whole():
    long = prompts(1, 200)[0]
    got = []
    for tokens in (512, 32):
        with server(TINY_Q4, batch_tokens=tokens) as s:
            got.append([generate(s, m, long) for m in (TINY_GEMMA, TINY_Q4)])
    equal(got[1], got[0], "prompt of 201 tokens in passes of 32 against one of 512")


@case
def a_restart_changes_nothing():
    got = []
    for _ in range(2):
        with server(TINY_Q4) as s:
            got.append([generate(s, m, p) for m in (TINY_GEMMA, TINY_Q4) for p in prompts(2, 30)] +
                       embed(s, ["one text", "and another, longer one"]))
    equal(got[1], got[0], "the second server's answers")


@case
def guessed_ahead_equals_plain():
    """Several tokens verified in a pass have the ids and probabilities of one a pass: guesses looked up, and of a drafter."""
    def drafted(d):
        fill(d, TINY_Q4)
        copy_model("gemma4_assistant", copy_model("gemma4_text", d), "assistant")

    models = {TINY_GEMMA: "lookup", TINY_Q4: "lookup", "gemma4_text": "mtp"}
    asked = [[2] + [300 + k % 5 for k in range(30)], *prompts(1, 20)]
    plain, counted = {}, {}
    for guess in (False, True):
        for model, mode in models.items():
            with Server(fill=drafted, backend=BACKEND, sandbox="strict", kv_mb=64, speculation=mode if guess else "off") as s:
                for temperature in (0, 0.8):
                    got = [generate(s, model, p, 48, temperature=temperature, top_k=40, seed=7, logprobs=probs)
                           for p in asked for probs in (5, None)]  # by the host; on the device where it draws
                    if guess:
                        equal(got, plain[model, temperature], f"{model}, temperature {temperature}")
                    plain[model, temperature] = got
                if guess:
                    wait_for(lambda: s.metric("inferd_speculation_passes_total", model=model), f"{model}: passes with guesses")
                    counted[model] = {r: int(s.metric("inferd_speculation_tokens_total", model=model, result=r) or 0)
                                      for r in ("accepted", "rejected")}
    print("  guesses:", counted)
    check(any(c["accepted"] for c in counted.values()), "some guesses were right")


@case
def embeddings_alone_equal_those_in_a_batch():
    texts = ["a b " * (1 + 2 * i) + "c" for i in range(9)]
    with server() as s:
        alone = [embed(s, [t])[0] for t in texts]
        equal(embed(s, texts), alone, "nine texts in one call")


@case
def a_decode_is_generated_kernels_and_replayed_graphs_only():
    only_on_a_device()
    model = TINY_Q4
    with server(TINY_Q4) as s:
        generate(s, model, prompts(1, 20)[0], 64)
        # the worker's counters come a moment after its answer
        wait_for(lambda: (s.metric("inferd_device_steps_total", model=model, how="replayed") or 0) > 0, "replayed graphs in the metrics")
        m = {r: s.metric("inferd_kernel_dispatches_total", model=model, route=r) or 0 for r in
             (*ROUTES, "hand", "reference")}
        print("  dispatches:", {k: int(v) for k, v in m.items()})
        check(sum(m[r] for r in ROUTES) > 0, f"operations on the device: {m}")
        equal((m["hand"], m["reference"]), (0, 0), "operations by hand-written kernels and by the processor")
        for kind in ("missing_artifact", "wiring", "decode", "slow"):
            equal(s.metric("inferd_kernel_fallbacks_total", model=model, kind=kind) or 0, 0, f"fallbacks of kind {kind}")
        check((s.metric("inferd_kernel_products_total", model=model, format="Q4_0") or 0) > 0, "products of Q4_0 weights")
        steps = {h: s.metric("inferd_device_steps_total", model=model, how=h) or 0 for h in
                 ("captured", "replayed", "streamed")}
        print("  steps:", {k: int(v) for k, v in steps.items()})
        check(steps["replayed"] > 0, f"graphs replayed: {steps}")
        equal(s.metric("inferd_hot_allocations_total", model=model) or 0, 0, "allocations inside steps")
        equal(s.metric("inferd_jit_total", model=model, result="hot_compile") or 0, 0, "compilations inside steps")


@case
def the_first_request_is_served_at_speed():
    """Printed, not judged: the first request after a load against the tenth."""
    model = REAL_SIZE if os.path.exists(os.path.join(MODELS, REAL_SIZE)) else TINY_Q4
    with server(model) as s:
        equal(s.post("/ai/v1/models/load", {"model": model}, timeout=120).status // 100, 2, "load")
        times = []
        for _ in range(10):
            begin = time.monotonic()
            generate(s, model, prompts(1, 20)[0], 16)
            times.append((time.monotonic() - begin) * 1e3)
        print(f"  {model}: first {times[0]:.1f} ms, tenth {times[9]:.1f} ms, ratio {times[0] / times[9]:.2f}, "
              f"median of the rest {statistics.median(times[1:]):.1f} ms")


@case
def a_device_that_is_not_there_is_named():
    only_on_a_device()
    with Server(fill=fill, backend=BACKEND, device=63, sandbox="strict") as s:
        r = s.post("/v1/completions", {"model": TINY_GEMMA, "prompt": [2, 300], "max_tokens": 1})
        check(r.status >= 400 and "63" in r.body.decode(), f"{r.status} {r.body[:300]!r} names device 63")


main()
