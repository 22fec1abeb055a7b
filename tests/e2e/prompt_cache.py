#!/usr/bin/env python3
"""prompt_cache.py - the prompt cache as a client and an operator see it (docs/prompt-cache.md)."""
import json
import threading
import time

from inferd_test import SLOW, Server, case, check, copy_model, equal, main, wait_for

CHAT, COMP = "/v1/chat/completions", "/v1/completions"
MODEL = "gemma3_text"
PROMPT = [4 + i * i % 690 for i in range(300)]


def comp(s, prompt, path=COMP, **kw):
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 8, "return_token_ids": True, "ignore_eos": True, **kw}
    r = s.request("POST", path, body)
    equal(r.status, 200, r.body[:300])
    return r.json


def cached(r):
    equal(r["usage"]["cached_prompt_tokens"], r["usage"]["prompt_tokens_details"]["cached_tokens"], "two names, one number")
    return r["usage"]["cached_prompt_tokens"]


def metric(s, name, **labels):
    total = 0.0
    for line in s.get("/metrics").body.decode().splitlines():
        if line.startswith(name + "{") and all(f'{k}="{v}"' in line for k, v in labels.items()):
            total += float(line.rsplit(" ", 1)[1])
    return total


def settles(s, want, name, **labels):
    """The worker tells at most ten times a second, and once when it falls idle."""
    end = time.monotonic() + 30 * SLOW
    while metric(s, name, **labels) != want and time.monotonic() < end:
        time.sleep(0.05)
    equal(metric(s, name, **labels), want, f"{name} {labels}")


@case
def the_second_prompt_is_cached_and_answers_alike():
    with Server(preload=MODEL) as s:
        first = comp(s, PROMPT, seed=3, temperature=0.9)
        again = comp(s, PROMPT, seed=3, temperature=0.9)
        equal(cached(first), 0, "the first")
        equal(cached(again), 288, "the second: whole pages below the last token")
        equal(again["choices"], first["choices"], "the answers")
        off = comp(s, PROMPT, seed=3, temperature=0.9, prompt_cache=False)
        equal(cached(off), 0, "a request that opts out")
        equal(off["choices"], first["choices"], "cold again")
        turn = PROMPT + first["choices"][0]["token_ids"] + [50] * 40
        equal(cached(comp(s, turn)), 288, "the next turn: the answer's page was not whole")
        equal(cached(comp(s, turn + [51] * 40)), 320, "and one more")
        stream = s.request("POST", COMP, {"model": MODEL, "prompt": PROMPT, "max_tokens": 2, "stream": True,
                                          "stream_options": {"include_usage": True}}).body.decode()
        last = [json.loads(x[6:]) for x in stream.splitlines() if x.startswith("data: {")][-1]
        equal(cached(last), 288, "a stream")
        equal(cached(comp(s, PROMPT[:40])), 0, "below the least length")
        settles(s, 0, "inferd_kv_used_bytes", model=MODEL)
        settles(s, 0, "inferd_prompt_cache_bytes", kind="held")
        check(metric(s, "inferd_prompt_cache_tokens_total", result="hit") >= 288, "hits are counted")
        check(metric(s, "inferd_prompt_cache_tokens_total", result="miss") > 300, "misses are counted")
        check(metric(s, "inferd_prompt_cache_bytes", kind="used") > 0, "bytes are told")
        equal(metric(s, "inferd_hot_allocations_total", model=MODEL), 0, "hot allocations")


@case
def keys_divide_and_restarts_forget():
    with Server(preload=MODEL) as s:
        equal([cached(comp(s, PROMPT, prompt_cache_key=k)) for k in ("a", "b", "", "a", "b", "")],
              [0, 0, 0, 288, 288, 288], "one space for each key")
        r = s.request("POST", COMP, {"model": MODEL, "prompt": PROMPT, "prompt_cache_key": "x" * 1025})
        equal((r.status, r.json["error"]["param"]), (400, "prompt_cache_key"), "a key that is too long")
        want = comp(s, PROMPT)["choices"]
        equal(s.request("POST", "/ai/v1/models/unload", {"model": MODEL}).json["state"], "absent", "unload")
        r = comp(s, PROMPT)
        equal((cached(r), r["choices"]), (0, want), "a new worker knows nothing and answers alike")


@case
def many_with_one_beginning_compute_it_once():
    with Server(preload=MODEL, max_seqs=16) as s:
        out = [None] * 12

        def client(i):
            out[i] = comp(s, PROMPT + [100 + i] * 20)

        threads = [threading.Thread(target=client, args=(i,)) for i in range(12)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        # arrival decides who is first; every other one shares nine pages
        equal(sorted(map(cached, out)), [0] + [288] * 11, "cached tokens")
        for i in (0, 5, 11):
            equal(comp(s, PROMPT + [100 + i] * 20, prompt_cache=False)["choices"], out[i]["choices"], f"client {i}")


@case
def a_budget_is_kept_and_off_is_off():
    with Server(preload=MODEL, prompt_cache_mb=1) as s:
        for i in range(12):
            comp(s, [5 + i] * 10 + PROMPT * 3)
        settles(s, 0, "inferd_kv_used_bytes", model=MODEL)
        used, budget = (metric(s, "inferd_prompt_cache_bytes", kind=k) for k in ("used", "budget"))
        equal(budget, 1 << 20, "the budget")
        check(0 < used <= budget, f"{used} of {budget} bytes")
        check(metric(s, "inferd_prompt_cache_pages_total", event="evicted_budget") > 0, "something was evicted")
    with Server(preload=MODEL, prompt_cache=False) as s:
        equal([cached(comp(s, PROMPT)) for _ in range(2)], [0, 0], "switched off")
        equal(metric(s, "inferd_prompt_cache_bytes", kind="used"), 0, "nothing is kept")


def two(d):
    copy_model(MODEL, d)
    copy_model(MODEL, d, "other")


@case
def prompts_that_stay_out_of_the_cache_earn_no_share_of_it():
    with Server(fill=two, preload=MODEL, prompt_cache_mb=2) as s:
        for i in range(4):
            comp(s, [5 + i] * 10 + PROMPT * 3, prompt_cache=False)
        equal(s.request("POST", "/ai/v1/models/load", {"model": "other"}).status, 200, "load")
        settles(s, 1 << 20, "inferd_prompt_cache_bytes", kind="budget", model=MODEL)


@case
def a_worker_that_comes_takes_its_share_of_the_budget():
    with Server(fill=two, preload=MODEL, prompt_cache_mb=2) as s:
        for i in range(12):
            comp(s, [5 + i] * 10 + PROMPT * 3)
        settles(s, 2 << 20, "inferd_prompt_cache_bytes", kind="budget", model=MODEL)
        check(metric(s, "inferd_prompt_cache_bytes", kind="used", model=MODEL) > 3 << 19, "nearly all is in use")
        equal(s.request("POST", "/ai/v1/models/load", {"model": "other"}).status, 200, "load")
        # half of it evenly, the other half to the one that was asked
        settles(s, 3 << 19, "inferd_prompt_cache_bytes", kind="budget", model=MODEL)
        check(metric(s, "inferd_prompt_cache_bytes", kind="used", model=MODEL) <= 3 << 19, "the first gave up pages")
        check(cached(comp(s, [16] * 10 + PROMPT * 3)) > 0, "the newest prompt is still there")


@case
def a_budget_that_shrinks_under_load_changes_no_answer():
    prompts = [[5 + i] * 10 + PROMPT * 3 for i in range(6)]
    with Server(fill=two, preload=MODEL, prompt_cache_mb=2) as s:
        cold = [comp(s, p, prompt_cache=False)["choices"] for p in prompts]
        stop, bad, hits = threading.Event(), [], [0]

        def ask(k):
            while not stop.is_set():
                i = k = (k * 7 + 3) % len(prompts)
                r = comp(s, prompts[i])
                hits[0] += cached(r)
                if r["choices"] != cold[i]:
                    bad.append((i, r["choices"]))

        threads = [threading.Thread(target=ask, args=(k,), daemon=True) for k in range(4)]
        for t in threads:
            t.start()
        seen = set()
        for _ in range(2):  # each load takes a share away while pages are in use, each unload gives it back
            for verb in ("load", "unload"):
                equal(s.request("POST", f"/ai/v1/models/{verb}", {"model": "other"}).status, 200, verb)
                time.sleep(0.2)
                seen.add(metric(s, "inferd_prompt_cache_bytes", kind="budget", model=MODEL))
        wait_for(lambda: hits[0] > 0 or bad, "an answer whose prompt was cached")
        stop.set()
        for t in threads:
            t.join(60 * SLOW)
            check(not t.is_alive(), "a client hangs")
        check(not bad, f"{len(bad)} answers are other than cold ones: {bad[:1]}")
        check(min(seen) < 2 << 20 and hits[0] > 0, f"budgets {seen}, {hits[0]} tokens from the cache")
        equal(metric(s, "inferd_hot_allocations_total", model=MODEL), 0, "hot allocations")


@case
def no_prompt_is_cut_and_no_context_shifted():
    """The golden's context is 2,048 tokens; one is kept for the answer."""
    with Server(preload=MODEL) as s:
        for path, body in ((COMP, {"prompt": [5] * 2048}), (COMP, {"prompt": "a b c " * 4000}),
                           (CHAT, {"messages": [{"role": "user", "content": "a b c " * 4000}]})):
            r = s.request("POST", path, {"model": MODEL, "max_tokens": 5, **body})
            e = r.json["error"]
            equal((r.status, e["code"], e["limit"]), (413, "CONTENT_TOO_LARGE", 2047), f"{path}: {r.body[:300]}")
            check(e["n_tokens"] >= 2048 and "2047" in e["message"], f"{path}: {e}")
        for n, want in ((2047, 1), (2000, 48), (2000, 20)):
            r = s.request("POST", COMP, {"model": MODEL, "prompt": [7] * n, "max_tokens": 100 if want > 20 else want, "ignore_eos": True})
            equal((r.json["choices"][0]["finish_reason"], r.json["usage"]["completion_tokens"]), ("length", want), f"{n} tokens")


main()
