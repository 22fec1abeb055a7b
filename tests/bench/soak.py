"""soak.py - clients that join, leave, cancel and ask for everything, for a long time; then everything is idle again, exactly.

A server with a small random Gemma 4 model, one thread and a small prompt cache. Clients of three tenants (cache keys) hold
conversations whose beginnings grow, cancel streams, ask for several choices, schemas, expressions, penalties, and now and
then for one of a few requests whose answer is known: those must have the same bytes every time. Some of these are long: they
outgrow the pages they began with, the pool is too small for several of them, and sequences are parked and continued
(`inferd_sequences_parked_total`; a run of a minute or more in which none was is no soak and fails). A client leaves after a
while and another takes its place. At the end the KV pages, sequences, tasks and the ledger are what they were before the
first request, an unload gives back all of it, and resident memory has grown less than 1 % since minute 5.

    tests/bench/run soak [--minutes N] [--clients N] [--settle MINUTES]
"""
import argparse
import collections
import http.client
import json
import os
import random
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))
from inferd_test import Failed, Server, check, copy_model, equal, wait_for  # noqa: E402

MODEL = "gemma4_text"
COMP, CHAT = "/v1/completions", "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"enum": ["a", "b", None]},
                                           "l": {"type": "array", "items": {"type": "boolean"}, "maxItems": 4}},
          "required": ["n", "s", "l"], "additionalProperties": False}
OPTIONS = {"preload": MODEL, "threads": 1, "max_seqs": 6, "kv_mb": 2, "prompt_cache_mb": 1, "ctx_tokens": 1024}


def known(i):
    """Request i of those whose answers must never change."""
    kinds = ({}, {"temperature": 0.9, "seed": 5}, {"temperature": 1, "seed": 6, "top_p": 0.8, "n": 2},
             {"regex": "[a-f]{4,12}", "temperature": 1, "seed": 7}, {"repetition_penalty": 1.3, "logprobs": 2},
             {"temperature": 1.2, "seed": 8, "frequency_penalty": 0.4, "prompt_cache": False})
    return {"model": MODEL, "prompt": [4 + (i + 1) * j * j % 690 for j in range(70 + 9 * i)], "max_tokens": 12,
            "ignore_eos": i % 2 == 0, "return_token_ids": True, **kinds[i]}


def known_long(i):
    """More tokens than the 256 that a sequence reserves ahead, so that the pool runs out while several of these grow."""
    kinds = ({}, {"temperature": 0.8, "seed": 9}, {"temperature": 1, "seed": 10, "presence_penalty": 0.3})
    return {"model": MODEL, "prompt": [5 + (i + 3) * j * j % 680 for j in range(90 + 40 * i)], "max_tokens": 700 - 50 * i,
            "ignore_eos": True, "return_token_ids": True, **kinds[i]}


KNOWN = [known(i) for i in range(6)]
LONG = [known_long(i) for i in range(3)]


class Soak:
    def __init__(self, s, seed=1):
        self.s, self.seed = s, seed
        self.done = collections.Counter()
        self.failed = []
        self.end = 0.0
        self.lock = threading.Lock()
        self.answers = {id(x): self.answer(x) for x in KNOWN + LONG}

    def answer(self, body):
        r = self.s.request("POST", COMP, body, timeout=120)
        equal(r.status, 200, f"{body}: {r.body[:300]!r}")
        return json.dumps(r.json["choices"])

    def count(self, what):
        with self.lock:
            self.done[what] += 1

    def cancelled(self, rnd, body):
        """Leaves a stream in the middle, or before it begins."""
        c = http.client.HTTPConnection("127.0.0.1", self.s.port, timeout=120)
        try:
            c.request("POST", COMP, json.dumps({**body, "stream": True, "max_tokens": 400, "ignore_eos": True}),
                      {"Content-Type": "application/json"})
            n = rnd.randrange(0, 12)
            if n > 0:
                r = c.getresponse()
                equal(r.status, 200, "a stream")
                for line in r:
                    n -= line.startswith(b"data: ")
                    if n <= 0:
                        break
        finally:
            c.close()

    def turn(self, rnd, tokens, tenant):
        """One request on a conversation's tokens; gives the tokens of the next turn."""
        body = {"model": MODEL, "prompt": tokens, "max_tokens": rnd.randrange(1, 40), "prompt_cache_key": tenant,
                "return_token_ids": True}
        if rnd.random() < 0.6:
            body.update(temperature=rnd.choice((0.3, 1, 1.5)), seed=rnd.randrange(1 << 40), top_p=rnd.choice((1, 0.9)),
                        top_k=rnd.choice((0, 20)))
        if rnd.random() < 0.2:
            body.update(frequency_penalty=0.5, repetition_penalty=1.2, logit_bias={"9": -100})
        kind, name = rnd.random(), "answered"
        if kind < 0.2:
            self.cancelled(rnd, body)
            self.count("cancelled")
            return tokens
        if kind < 0.36:
            name, known = ("known", KNOWN) if kind < 0.3 else ("long", LONG)
            i = rnd.randrange(len(known))
            equal(self.answer(known[i]), self.answers[id(known[i])], f"{name} request {i}")
            self.count(name)
            return tokens
        if kind < 0.5:
            name, body["n"] = "several", rnd.randrange(2, 4)
        elif kind < 0.65:
            name = "bound"
            body.update(rnd.choice(({"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
                                    {"regex": "[a-z]{1,%d}" % rnd.randrange(2, 60)}, {"response_format": {"type": "json_object"}})))
        r = self.s.request("POST", COMP, body, timeout=120)
        if r.status == 429:  # the queue is bounded
            self.count("refused")
            return tokens
        equal(r.status, 200, f"{r.body[:300]!r}")
        choices = r.json["choices"]
        if "json_schema" in json.dumps(body) and choices[0]["finish_reason"] == "stop":
            equal(sorted(json.loads(choices[0]["text"])), ["l", "n", "s"], "an answer under a schema")
        self.count(name)
        return tokens + choices[0]["token_ids"] + [rnd.randrange(4, 700) for _ in range(rnd.randrange(1, 50))]

    def client(self, n):
        """A place of the table: one conversation after another, each by a client that then leaves."""
        rnd = random.Random(self.seed * 1000 + n)
        try:
            while time.monotonic() < self.end:
                tokens = [rnd.randrange(4, 20)] * 40 + [rnd.randrange(4, 700) for _ in range(rnd.randrange(1, 100))]
                tenant = rnd.choice("abc")
                for _ in range(rnd.randrange(1, 9)):
                    tokens = self.turn(rnd, tokens, tenant)
                    if len(tokens) > 700 or time.monotonic() >= self.end:
                        break
                self.count("left")
                time.sleep(rnd.random() * 0.2)
        except Exception as e:  # reported at the end: the others go on
            self.failed.append(f"client {n}: {type(e).__name__}: {e}"[:600])
            self.end = 0

    def run(self, seconds, clients, sample=None, every=30):
        self.end = time.monotonic() + seconds
        threads = [threading.Thread(target=self.client, args=(i,)) for i in range(clients)]
        [t.start() for t in threads]
        begin, at = time.monotonic(), every
        while time.monotonic() < self.end:
            time.sleep(min(0.2, every))
            if sample and time.monotonic() - begin >= at:
                sample(time.monotonic() - begin)
                at += every
        [t.join() for t in threads]
        if self.failed:
            raise Failed("; ".join(self.failed))


IDLE = (("inferd_kv_used_bytes", {}), ("inferd_sequences", {}), ("inferd_tasks_active", {}),
        ("inferd_prompt_cache_bytes", {"kind": "held"}), ("inferd_ledger_bytes", {"kind": "kv"}),
        ("inferd_ledger_bytes", {"kind": "weights"}), ("inferd_ledger_bytes", {"kind": "workspace"}), ("inferd_workers", {}))


def idle(s):
    """A gauge that no worker has told yet is 0."""
    return {" ".join((name, *labels.values())): s.metric(name, **labels) or 0 for name, labels in IDLE}


def resident(s):
    """{process: bytes} of front and worker, as the kernel says."""
    out = {}
    for pid, kind in [(p, "worker") for p in s.workers()] + [(s.proc.pid, "launcher")]:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
            out[kind] = int(next(x for x in f if x.startswith("VmRSS:")).split()[1]) << 10
    out["front"] = int(s.metric("inferd_resident_bytes", process="front") or 0)
    return out


def idle_again(s, before, seconds=10):
    """All gauges are what they were, and an unload gives everything back."""
    try:
        wait_for(lambda: idle(s) == before, "idle values", seconds)
    except Failed:
        equal(idle(s), before, "idle values after the last request")
    equal(before["inferd_kv_used_bytes"], 0, "KV bytes while idle")
    used, budget = (s.metric("inferd_prompt_cache_bytes", kind=k) for k in ("used", "budget"))
    check(0 < used <= budget, f"the cache holds {used} of {budget} bytes")
    equal(s.metric("inferd_hot_allocations_total", model=MODEL) or 0, 0, "hot allocations")
    equal(s.metric("inferd_worker_deaths_total") or 0, 0, "deaths of workers")
    equal(s.request("POST", "/ai/v1/models/unload", {"model": MODEL}).json["state"], "absent", "unload")
    wait_for(lambda: all(not s.metric("inferd_ledger_bytes", kind=k) for k in ("kv", "weights", "workspace")),
             "an empty ledger", seconds)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--minutes", type=float, default=30)
    p.add_argument("--clients", type=int, default=6)
    p.add_argument("--settle", type=float, default=5, help="minutes after which memory must not grow")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    samples = []

    def sample(t):
        samples.append((t, resident(s)))
        print(f"{t / 60:5.1f} min  " + "  ".join(f"{k} {v / 1048576:.2f} MiB" for k, v in samples[-1][1].items()) +
              f"  kv {s.metric('inferd_kv_used_bytes') or 0:.0f}  {dict(soak.done)}", flush=True)

    with tempfile.TemporaryDirectory(prefix="inferd-soak-") as d:
        copy_model(MODEL, d)
        with Server(models=d, **OPTIONS) as s:
            wait_for(lambda: s.metric("inferd_ledger_bytes", kind="kv"), "the model")
            before = idle(s)
            soak = Soak(s, a.seed)
            soak.run(a.minutes * 60, a.clients, sample)
            sample(a.minutes * 60)
            evicted = s.metric("inferd_prompt_cache_pages_total", event="evicted_budget")
            parked = s.metric("inferd_sequences_parked_total")
            cut = s.metric("inferd_tasks_total", result="cancelled")
            idle_again(s, before)
    print(f"{a.minutes:g} minutes, {a.clients} clients: {dict(soak.done)}; tasks cancelled {cut or 0:.0f}, "
          f"pages evicted {evicted or 0:.0f}, sequences parked {parked or 0:.0f}")
    print("idle again: " + ", ".join(f"{k} {v:.0f}" for k, v in before.items()) + "; ledger empty after the unload")
    first = next((x for x in samples if x[0] >= a.settle * 60), samples[0])
    grown = {k: v / first[1][k] - 1 for k, v in samples[-1][1].items()}
    total = sum(samples[-1][1].values()) / sum(first[1].values()) - 1
    print(f"resident memory since minute {first[0] / 60:.1f}: " + ", ".join(f"{k} {100 * v:+.2f} %" for k, v in grown.items()) +
          f", all {100 * total:+.2f} % (asked: below 1 %)")
    if total >= 0.01:
        raise SystemExit("resident memory grew")
    if a.minutes >= 1 and not parked:
        raise SystemExit("no sequence was parked: the pool was never short")


if __name__ == "__main__":
    main()
