"""real_weights.py - Gemma 3 270M (GGUF, Q4_K_M) and all-MiniLM-L6-v2 as people use them.

Facts are asserted only where the model is sure (the first token's probability is above one half in the reference too);
elsewhere what is asserted is determinism: the same bytes alone, in a crowd, streamed, and after a restart.
"""
import json
import math
import os
import threading

from inferd_test import PRESET, REAL_GEMMA, REAL_MINILM, ROOT, Server, Skip, case, check, equal, main, real_models

FACTS = [
    ("The Eiffel Tower is located in the city of", " Paris"),
    ("The capital of France is the city of", " Paris"),
    ("Paris is the capital of", " France"),
    ("Roses are red, violets are", " blue"),
    ("Monday, Tuesday, Wednesday,", " Thursday, Friday"),
    ("The opposite of hot is", " cold"),
    ("1, 2, 3, 4, 5,", " 6, 7"),
    ("def add(a, b):\n    return", " a + b"),
]


def server():
    if PRESET in ("asan", "tsan"):
        raise Skip("real weights are tried on the plain build; under a sanitizer they take minutes")
    return Server(models=real_models())


def complete(s, prompt, n=12, **more):
    r = s.post("/v1/completions", {"model": REAL_GEMMA, "prompt": prompt, "max_tokens": n, "temperature": 0, **more}, timeout=300)
    equal(r.status, 200, f"{prompt!r}: {r.body[:300]!r}")
    return r.json["choices"][0]["text"]


def streamed(s, prompt, n=12):
    text = ""
    for _, data in s.sse("/v1/completions", {"model": REAL_GEMMA, "prompt": prompt, "max_tokens": n, "temperature": 0, "stream": True},
                         timeout=300):
        if data != "[DONE]":
            text += "".join(c["text"] for c in data["choices"])
    return text


@case
def gemma_knows_what_it_is_sure_of():
    with server() as s:
        for prompt, want in FACTS:
            got = complete(s, prompt)
            check(got.startswith(want), f"{prompt!r} gave {got!r}, expected it to begin with {want!r}")


@case
def gemma_answers_the_same_alone_streamed_in_a_crowd_and_after_a_restart():
    prompts = [p for p, _ in FACTS]
    with server() as s:
        alone = [complete(s, p, 24) for p in prompts]
        equal([streamed(s, p, 24) for p in prompts[:2]], alone[:2], "streamed")
        crowd = [None] * len(prompts)

        def ask(i):
            crowd[i] = complete(s, prompts[i], 24)

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        equal(crowd, alone, "eight at once")
        equal(s.post("/ai/v1/models/unload", {"model": REAL_GEMMA}).status, 200, "unload")
        equal(complete(s, prompts[0], 24), alone[0], "after unload and reload")
    with server() as s:
        equal(complete(s, prompts[1], 24), alone[1], "after a restart")


@case
def gemma_samples_the_same_for_the_same_seed():
    with server() as s:
        opts = {"temperature": 1.0, "top_k": 64, "top_p": 0.95}
        first = complete(s, "Once upon a time", 24, seed=7, **opts)
        equal(complete(s, "Once upon a time", 24, seed=7, **opts), first, "seed 7 again")
        others = {complete(s, "Once upon a time", 24, seed=k, **opts) for k in range(8, 12)}
        check(len(others | {first}) > 1, "five seeds gave one text")


@case
def gemma_answers_the_same_from_the_prompt_cache():
    """Prompts past the window of 512 that share beginnings: ids and log probabilities as computed cold, to the last digit."""
    def ask(s, prompt, **more):
        r = s.post("/v1/completions", {"model": REAL_GEMMA, "prompt": prompt, "max_tokens": 10, "seed": 5, "temperature": 0.8,
                                       "logprobs": 3, "return_token_ids": True, "ignore_eos": True, **more}, timeout=300)
        equal(r.status, 200, f"{r.body[:300]!r}")
        return r.json["choices"], r.json["usage"]["cached_prompt_tokens"]

    stem = [2] + [1000 + i * i % 50021 for i in range(640)]
    with server() as s:
        prompts = [stem + [3000 + 17 * i] * (1 + 9 * i) for i in range(3)]
        cold = [ask(s, p, prompt_cache=False) for p in prompts]
        got = [None] * 3

        def client(i):
            got[i] = ask(s, prompts[i])

        threads = [threading.Thread(target=client, args=(i,)) for i in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        equal([c[0] for c in got], [c[0] for c in cold], "three at once that share a beginning")
        equal(sorted(c[1] for c in got), [0, 640, 640], "tokens from the cache")
        turn = prompts[2] + got[2][0][0]["token_ids"] + [4000] * 30
        again = ask(s, turn)
        check(again[1] >= 640, f"the next turn took {again[1]} tokens from the cache")
        equal(again[0], ask(s, turn, prompt_cache=False)[0], "the next turn")


@case
def gemma_keeps_a_long_prompt_in_mind_across_its_window():
    """2,000 tokens: most of the prompt is behind the sliding window of 512; the answer stays deterministic and sane."""
    with server() as s:
        prompt = "The secret word is zebra. " + "The weather was mild and the road was long. " * 190 + "The opposite of hot is"
        got = complete(s, prompt, 8)
        equal(complete(s, prompt, 8), got, "again")
        check(got.strip() != "", "an empty answer")


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


@case
def minilm_ranks_paraphrases_above_unrelated_sentences():
    with open(os.path.join(ROOT, "tests", "e2e", "pairs.json"), encoding="utf-8") as f:
        pairs = json.load(f)
    check(len(pairs) >= 20, "the list has at least 20 pairs")
    with server() as s:
        texts = [t for p in pairs for t in (p["a"], p["paraphrase"], p["unrelated"])]
        r = s.post("/v1/embeddings", {"model": REAL_MINILM, "input": texts}, timeout=300)
        equal(r.status, 200, "embeddings")
        v = [d["embedding"] for d in r.json["data"]]
        worst = 2.0
        for i, p in enumerate(pairs):
            a, b, c = v[3 * i:3 * i + 3]
            check(abs(cosine(a, a) - 1) < 1e-6 and abs(sum(x * x for x in a) - 1) < 1e-4, "unit length")
            margin = cosine(a, b) - cosine(a, c)
            worst = min(worst, margin)
            check(margin > 0, f"{p['a']!r}: the paraphrase scores {margin:.3f} below the unrelated sentence")
        print(f"{len(pairs)} pairs, smallest margin {worst:.3f}")


main()
