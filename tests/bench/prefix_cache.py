"""prefix_cache.py - what the prompt cache gains: time to first token, and many clients with one beginning.

A server of the release preset on the real Gemma 3 270M, through HTTP. Each pair is measured in one run, alternating: a prompt
nobody has sent before, then one with the same first --prefix tokens and another end; and --clients requests at once with
one beginning, with the cache and without.

    tests/bench/run prefix-cache [--runs N] [--prefix N] [--clients N] [--threads N] [--only PART]
"""
import argparse
import http.client
import json
import os
import random
import statistics
import sys
import threading
import time

from bench_common import ROOT, inferd, models

sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
os.environ["INFERD_BIN"] = os.path.dirname(inferd())
from inferd_test import Server  # noqa: E402  (reads INFERD_BIN)

MODEL = "gemma-3-270m.gguf"


def ask(s, prompt, max_tokens, cache=True):
    """(seconds to the first token, seconds in all, cached tokens)"""
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=600)
    begin = time.monotonic()
    c.request("POST", "/v1/completions",
              json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "stream": True, "ignore_eos": True,
                          "prompt_cache": cache, "stream_options": {"include_usage": True}}),
              {"Content-Type": "application/json"})
    r = c.getresponse()
    assert r.status == 200, r.read()
    first, cached = None, 0
    for line in r:
        if not line.startswith(b"data: {"):
            continue
        first = first or time.monotonic() - begin
        if usage := json.loads(line[6:]).get("usage"):
            cached = usage["prompt_tokens_details"]["cached_tokens"]
    c.close()
    return first, time.monotonic() - begin, cached


def together(s, prompts, max_tokens, cache):
    out = [None] * len(prompts)

    def client(i):
        out[i] = ask(s, prompts[i], max_tokens, cache)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(len(prompts))]
    begin = time.monotonic()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return time.monotonic() - begin, out


def gaps(s, prompt, n, others=None):
    """Seconds between the tokens of a stream, and whatever others() returns, which runs while it does."""
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=600)
    c.request("POST", "/v1/completions",
              json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": n, "stream": True, "ignore_eos": True,
                          "return_token_ids": True}), {"Content-Type": "application/json"})
    r = c.getresponse()
    times, got, thread = [], [], None
    for line in r:
        if line.startswith(b"data: {"):
            times.append(time.monotonic())
        if len(times) == 20 and others and not thread:
            thread = threading.Thread(target=lambda: got.append((time.monotonic(), others(), time.monotonic())))
            thread.start()
        if thread and not thread.is_alive():
            break  # a client that leaves ends its task
    c.close()
    if not thread:
        return [b - a for a, b in zip(times[5:], times[6:])], None
    thread.join()
    begin, value, end = got[0]
    return [b - a for a, b in zip(times, times[1:]) if begin <= a and b <= end], value


def beside(s, long, short):
    """Time to the first token of the short prompt, sent half a second after the long one."""
    t = threading.Thread(target=ask, args=(s, long, 1))
    t.start()
    time.sleep(0.5)
    first = ask(s, short, 1)[0]
    t.join()
    return first


def first_token(s, a, words):
    cold, warm = [], []
    for _ in range(a.runs):
        prefix = words(a.prefix)
        cold.append(ask(s, prefix + words(a.tail), 1))
        warm.append(ask(s, prefix + words(a.tail), 1))
    c, w = (statistics.median(x[0] for x in side) for side in (cold, warm))
    print(f"time to first token, prompt of {a.prefix} + {a.tail} tokens, {a.threads} threads, {a.runs} runs")
    print(f"  new {c * 1000:.0f} ms ({min(cold)[0] * 1000:.0f}..{max(cold)[0] * 1000:.0f}), "
          f"known beginning {w * 1000:.0f} ms ({min(warm)[0] * 1000:.0f}..{max(warm)[0] * 1000:.0f}), "
          f"cached {warm[-1][2]} tokens: {100 * w / c:.1f} % (asked: at most 5 %)")


def clients(s, a, words):
    with_cache, without = [], []
    for _ in range(a.runs):
        prefix = words(a.prefix)
        prompts = [prefix + words(a.tail) for _ in range(a.clients)]
        t, out = together(s, prompts, a.answer, True)
        with_cache.append(t)
        hits = sum(x[2] for x in out)
        without.append(together(s, prompts, a.answer, False)[0])
    on, off = statistics.median(with_cache), statistics.median(without)
    print(f"{a.clients} clients at once, {a.prefix} tokens in common and {a.tail} of their own, {a.answer} tokens each")
    print(f"  cold {a.clients / off:.2f} requests/s, cached {a.clients / on:.2f} ({hits} prompt tokens not computed): "
          f"x {off / on:.1f} (asked: at least 3)")


def gaps_beside(s, a, words):
    solo = statistics.median(gaps(s, words(100), 100)[0])
    busy, _ = gaps(s, words(100), 4000, lambda: ask(s, words(4096), 1))
    m, worst = statistics.median(busy), sorted(busy)[int(len(busy) * 0.95)]
    print(f"gap between two tokens while a prompt of 4096 is read: {m * 1000:.0f} ms (95 %: {worst * 1000:.0f} ms), alone "
          f"{solo * 1000:.0f} ms: x {m / solo:.1f} (asked: at most 4)")
    short = statistics.median(ask(s, words(64), 1)[0] for _ in range(3))
    _, late = gaps(s, words(100), 4000, lambda: beside(s, words(4096), words(64)))
    print(f"first token of a prompt of 64 tokens: alone {short * 1000:.0f} ms, beside a decoder and a prompt of 4096 "
          f"{late * 1000:.0f} ms")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--runs", type=int, default=3)
    p.add_argument("--prefix", type=int, default=2048)
    p.add_argument("--tail", type=int, default=16, help="own tokens of each prompt")
    p.add_argument("--clients", type=int, default=16)
    p.add_argument("--answer", type=int, default=16, help="tokens of each answer of the clients")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--only", choices=("first-token", "clients", "gaps"))
    a = p.parse_args()
    rnd = random.Random(1)

    def words(n):
        return [rnd.randrange(1000, 200000) for _ in range(n)]

    with Server(models=os.path.dirname(models(MODEL)), preload=MODEL, threads=a.threads, max_seqs=a.clients, ctx_tokens=8192) as s:
        ask(s, words(40), 2)
        for name, part in (("first-token", first_token), ("clients", clients), ("gaps", gaps_beside)):
            if a.only in (None, name):
                part(s, a, words)


if __name__ == "__main__":
    main()
