#!/usr/bin/env python3
"""contract.py - the same request has the same bytes: cached or cold, alone or beside seven others, before or after a worker
died, guessed ahead or not. Random conversations of a few growing turns on a small random Gemma 4 model, greedy and sampled,
with penalties, stop strings, several choices, structured output, and chats that think and call tools.

    python3 tests/e2e/contract.py            24 conversations
    CONTRACT_FULL=1 python3 tests/e2e/contract.py   200 of them
"""
import concurrent.futures
import os
import random
import signal
import subprocess

from inferd_test import BIN, Server, case, check, copy_model, equal, main, wait_for

MODEL = "gemma4_text"
N = 200 if os.environ.get("CONTRACT_FULL") else 24
COMP, CHAT = "/v1/completions", "/v1/chat/completions"
NOTE = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}, "b": {"type": "integer"}}, "required": ["a"]}
TOOLS = [{"type": "function", "function": {"name": "note", "parameters": NOTE}},
         {"type": "function", "function": {"name": "now"}}]
SHAPE = {"type": "json_schema", "json_schema": {"name": "x", "schema": NOTE}}
OPTIONS = {"preload": MODEL, "threads": 1, "max_seqs": 24, "kv_mb": 32}


def speculation(mode):
    """The option for a server that guesses ahead, or does not; none where this build has no such option."""
    known = subprocess.run([os.path.join(BIN, "inferd"), "help", "config", "--markdown"], stdout=subprocess.PIPE, text=True, check=True)
    return {"speculation": mode} if "`speculation`" in known.stdout else {}


def conversation(i):
    """Requests whose prompts grow: what a turn adds does not depend on the answers."""
    rnd = random.Random(i)
    kinds = ({}, {"temperature": 0.8}, {"temperature": 1, "top_p": 0.9, "top_k": 40}, {"temperature": 1, "min_p": 0.02},
             {"temperature": 1, "typical_p": 0.7}, {"repetition_penalty": 1.2, "frequency_penalty": 0.3},
             {"temperature": 1.1, "presence_penalty": 0.5, "logit_bias": {"9": 4, "20": -100}}, {"stop": ["a", "e "]},
             {"temperature": 1, "n": 3}, {"regex": "[a-f]{4,20}", "temperature": 1}, {"logprobs": 3, "temperature": 0.7},
             {"response_format": {"type": "json_object"}, "temperature": 1})
    word = [rnd.randrange(4, 700) for _ in range(rnd.randrange(3, 30))]
    prompt = word * rnd.randrange(1, 5) + [rnd.randrange(4, 700) for _ in range(rnd.randrange(1, 70))]
    out = []
    for _ in range(rnd.randrange(2, 4)):
        kind = kinds[(i + len(out)) % len(kinds)]
        bound = "regex" in kind or "response_format" in kind  # a grammar says where the answer ends
        out.append({"model": MODEL, "prompt": prompt, "max_tokens": rnd.randrange(4, 25), "seed": rnd.randrange(1 << 40),
                    "return_token_ids": True, "ignore_eos": not bound and rnd.random() < 0.5, **kind})
        prompt = prompt + [rnd.randrange(4, 700) for _ in range(rnd.randrange(5, 60))]
    return out


def chat(i):
    """The same with messages: calls that must be, calls or a shape, each thought about or not."""
    rnd = random.Random(i)
    kinds = ({"tool_choice": "required"}, {"response_format": SHAPE},
             {"response_format": SHAPE, "tools": []})
    messages, out = [], []
    for turn in range(2):
        messages = messages + [{"role": "user", "content": " ".join(rnd.choice(("the", "sun", "of", "7", "north")) for _ in range(60))}]
        out.append({"model": MODEL, "messages": messages, "max_tokens": 40, "seed": rnd.randrange(1 << 40), "temperature": 1,
                    "return_token_ids": True, "tools": TOOLS, "chat_template_kwargs": {"enable_thinking": rnd.random() < 0.7},
                    "logit_bias": {"22": 4}, **kinds[(i + turn) % 3]})  # 22: what ends a thought
        messages = messages + [{"role": "assistant", "content": "yes " * rnd.randrange(9)}]
    return out


def ask(s, body):
    r = s.request("POST", CHAT if "messages" in body else COMP, body)
    equal(r.status, 200, f"{r.body[:300]!r}")
    j = r.json
    for c in j["choices"]:
        for call in c.get("message", {}).get("tool_calls") or []:
            del call["id"]  # is of the request
    return j["choices"], j["usage"]["cached_prompt_tokens"]


def choices(s, talks, **more):
    return [[ask(s, {**body, **more})[0] for body in talk] for talk in talks]


def same(got, want, talks, what):
    for i, (g, w) in enumerate(zip(got, want)):
        for turn, (a, b) in enumerate(zip(g, w)):
            equal(a, b, f"{what}: conversation {i}, turn {turn}, {talks[i][turn]}")


# how a request may be guessed for, where the model has a drafter
WISHES = ({}, {"speculation_policy": "mtp", "speculative_k": 1}, {"speculation_policy": "off"}, {"draft_model": "assistant", "speculative_k": 8},
          {"speculation_policy": "lookup", "speculative_k": 2}, {"draft_model": f"{MODEL}/assistant", "speculation_policy": "mtp"},
          {"draft_model": MODEL, "speculation_policy": "auto", "speculative_k": 4})
GREEDY = {"model": MODEL, "prompt": [5, 6, 7] * 9, "max_tokens": 64, "ignore_eos": True}


def wished(s, wish, body):
    return s.request("POST", COMP, {**body, **wish})


def refused(s, wish, param, words):
    for path, body in ((COMP, GREEDY), ("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "a"}]})):
        r = s.request("POST", path, {**body, **wish})
        equal((r.status, r.json["error"]["param"]), (400, param), f"{path} {wish}")
        check(words in r.json["error"]["message"], r.json["error"]["message"])


@case
def the_same_request_has_the_same_bytes():
    talks = [conversation(i) for i in range(N)] + [chat(i) for i in range(N // 4)]
    with Server(fill=lambda d: copy_model(MODEL, d), **OPTIONS, **speculation("off")) as s:
        cold = choices(s, talks, prompt_cache=False)
        check(len({str(x) for x in cold}) == len(talks), "conversations differ")
        said = [c["message"] for talk in cold[N:] for turn in talk for c in turn]
        check(any(m.get("tool_calls") for m in said) and any("reasoning_content" in m for m in said), "some call, some think")
        warm = [[ask(s, body) for body in talk] for talk in talks]
        same([[a for a, _ in x] for x in warm], cold, talks, "cached")
        check(sum(n for x in warm for _, n in x) > 0, "something was cached")
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            same(list(pool.map(lambda t: choices(s, [t], prompt_cache=False)[0], talks)), cold, talks, "beside seven others")
            same(list(pool.map(lambda t: choices(s, [t])[0], talks)), cold, talks, "cached beside seven others")
        for wish in ({"speculation_policy": "mtp"}, {"draft_model": "assistant"}, {"speculation_policy": "lookup"}):
            refused(s, wish, "speculation_policy", "expected auto or off: this server does not guess")
        for wish in ({"speculation_policy": "off", "speculative_k": 8}, {"draft_model": MODEL}):
            equal(wished(s, wish, GREEDY).status, 200, f"{wish} where nothing is guessed")
        old = s.workers()
        equal(len(old), 1, "workers")
        os.kill(old[0], signal.SIGKILL)
        wait_for(lambda: s.metric("inferd_worker_deaths_total"), "the death to be seen")
        same(choices(s, talks), cold, talks, "after the worker died")
        check(s.workers() and s.workers() != old, "another worker")
    if more := speculation("auto"):
        with Server(fill=lambda d: copy_model("gemma4_assistant", copy_model(MODEL, d), "assistant"), **OPTIONS, **more) as s:
            same(choices(s, talks, speculation_policy="lookup"), cold, talks, "guessed ahead")
            wait_for(lambda: all(s.metric("inferd_speculation_tokens_total", result=x) for x in ("accepted", "rejected")),
                     "guesses, right and wrong")
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                same(list(pool.map(lambda i: choices(s, [talks[i]], **WISHES[i % len(WISHES)])[0], range(N))), cold, talks,
                     "guessed ahead each in its way, beside seven others")
            # one pass in 64 guesses even where that does not pay
            details = [[wished(s, {"speculation_policy": p}, GREEDY).json["usage"]["completion_tokens_details"] for _ in range(4)]
                       for p in ("mtp", "off")]
            check(any(sum(d.values()) for d in details[0]), f"the drafter guesses: {details[0]}")
            check(not any(sum(d.values()) for d in details[1]), f"off is off: {details[1]}")
            refused(s, {"draft_model": "gemma-3-270m"}, "draft_model", 'got "gemma-3-270m", expected "assistant"')


main()
