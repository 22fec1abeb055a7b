"""structured.py - answers under a grammar: all valid, and what a token costs more. Not a timed test.

    tests/bench/run structured [--answers 10000] [--schemas 200] [--clients 8] [--turns 5]

With the tiny golden model, makes --answers answers over --schemas schemas (the same ones every time), temperature 1, each with a seed of its own, and
validates every one: with python's jsonschema if it is there, and always with what this file knows itself (JSON, and the
type at the top). An answer that is cut must say finish_reason length. Then, on the real weights, the same number of tokens with and
without a grammar, in turns, one client and --clients of them: decode time of a token, and the ratio of the medians.
--soak SECONDS goes on instead of ending after --answers and prints the workers' resident memory as it goes.
"""
import argparse
import concurrent.futures
import json
import os
import random
import statistics
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from inferd_test import REAL_GEMMA, Server, TINY_GEMMA, children, real_models  # noqa: E402

try:
    import jsonschema
except ImportError:
    jsonschema = None

WORDS = ("name title city price count total active kind tags items value unit date email note size color level state code "
         "owner parent address street country first last score rank path").split()


def scalar(r):
    return r.choice([
        lambda: {"type": "string", "maxLength": r.choice([4, 8, 20, 60])},
        lambda: {"type": "string", "minLength": 2, "maxLength": 12},
        lambda: {"type": "string", "pattern": r.choice(["^[A-Z]{2}-[0-9]{3}$", "^[a-z]+$", "^(on|off|auto)$", "^\\d{4}-\\d{2}$"])},
        lambda: {"type": "string", "format": r.choice(["date", "time", "date-time", "uuid", "email", "ipv4", "hostname", "duration"])},
        lambda: {"type": "integer", "minimum": r.randint(-50, 5), "maximum": r.randint(6, 100000)},
        lambda: {"type": "number", "minimum": r.choice([0, -1.5, 0.25]), "exclusiveMaximum": r.choice([1, 99.5, 1000])},
        lambda: {"type": "integer"},
        lambda: {"type": "boolean"},
        lambda: {"type": ["integer", "null"], "minimum": 0},
        lambda: {"enum": r.sample(WORDS, 4) + [None, 7]},
        lambda: {"const": r.choice(WORDS)},
    ])()


def schema(r, depth=0):
    """One of what people send: objects with some properties, arrays, alternatives, sometimes a recursive one."""
    kind = r.random()
    if depth >= 3 or (depth > 0 and kind < 0.55):
        return scalar(r)
    if kind < 0.68:
        names = r.sample(WORDS, r.randint(1, 5))
        return {"type": "object", "properties": {n: schema(r, depth + 1) for n in names},
                "required": r.sample(names, r.randint(0, len(names))),
                "additionalProperties": r.choice([False, False, False, {"type": "integer"}])}
    if kind < 0.8:
        return {"type": "array", "items": schema(r, depth + 1), "minItems": r.randint(0, 1), "maxItems": r.randint(1, 4)}
    if kind < 0.86:
        return {"anyOf": [schema(r, depth + 1), {"type": "null"}]}
    if kind < 0.91:  # told apart by a constant
        return {"oneOf": [{"type": "object", "properties": {"kind": {"const": k}, "value": scalar(r)}, "required": ["kind", "value"],
                           "additionalProperties": False} for k in r.sample(WORDS, 3)]}
    if kind < 0.96:
        a, b, both = (w for w in r.sample(WORDS, 3))
        return {"allOf": [{"type": "object", "properties": {a: scalar(r), both: {"type": "integer", "minimum": 3}}, "required": [a]},
                          {"properties": {b: scalar(r), both: {"maximum": 40}}, "required": [b, both]}]}
    return {"type": "array", "prefixItems": [scalar(r), schema(r, depth + 1)], "items": r.choice([False, {"type": "boolean"}])}


def recursive(r):
    return {"$defs": {"node": {"type": "object", "properties": {
        "value": scalar(r), "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}},
        "required": ["value", "children"], "additionalProperties": False}}, "$ref": "#/$defs/node"}


def schemas(n):
    r = random.Random(4)
    return [recursive(r) if i % 20 == 19 else schema(r) for i in range(n)]


def top_ok(v, s):
    """The type at the top, without jsonschema."""
    kinds = {"object": dict, "array": list}
    return "type" not in s or s["type"] not in kinds or isinstance(v, kinds[s["type"]])


class Tally:
    def __init__(self):
        self.lock = threading.Lock()
        self.n = {"valid": 0, "length": 0, "invalid": 0, "failed": 0, "tokens": 0}

    def add(self, what, tokens=0):
        with self.lock:
            self.n[what] += 1
            self.n["tokens"] += tokens


def one(s, model, i, sch, max_tokens, tally):
    r = s.post("/v1/chat/completions", {
        "model": model, "messages": [{"role": "user", "content": f"Number {i}."}], "max_tokens": max_tokens,
        "temperature": 1, "seed": i, "response_format": {"type": "json_schema", "json_schema": {"schema": sch}}}, timeout=600)
    if r.status != 200:
        print(f"answer {i}: {r.status} {r.body[:300]!r} for {json.dumps(sch)}", file=sys.stderr)
        return tally.add("failed")
    c, usage = r.json["choices"][0], r.json["usage"]["completion_tokens"]
    if c["finish_reason"] == "length":
        return tally.add("length", usage)
    try:
        v = json.loads(c["message"]["content"])
        if jsonschema:
            jsonschema.validate(v, sch, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
        ok = top_ok(v, sch)
    except Exception as e:  # pylint: disable=broad-except
        print(f"answer {i}: {c['message']['content']!r} for {json.dumps(sch)}: {e}", file=sys.stderr)
        ok = False
    return tally.add("valid" if ok else "invalid", usage)


def rss(s):
    total = 0
    for pid, name in children(s.proc.pid):
        if name.startswith("inferd-worker"):
            with open(f"/proc/{pid}/statm", encoding="ascii") as f:
                total += int(f.read().split()[1]) * 4096
    return total


def generate(s, model, a, list_of):
    tally, began, shown = Tally(), time.monotonic(), 0
    first = None
    with concurrent.futures.ThreadPoolExecutor(a.clients) as pool:
        i = 0
        while (time.monotonic() - began < a.soak) if a.soak else i < a.answers:
            n = min(200, a.answers - i) if not a.soak else 200
            list(pool.map(lambda k: one(s, model, k, list_of[k % len(list_of)], a.max_tokens, tally), range(i, i + n)))
            i += n
            if i - shown >= 1000:
                shown = i
                first = first or rss(s)
                print(f"  {i} answers, {tally.n}, resident {rss(s) >> 20} MiB", file=sys.stderr)
    out = dict(tally.n, answers=i, schemas=len(list_of), seconds=round(time.monotonic() - began, 1),
               validator="jsonschema" if jsonschema else "json and the type at the top")
    if first:
        out["resident_growth"] = round(rss(s) / first - 1, 4)
    return out


PROBE = {"type": "object", "properties": {
    "title": {"type": "string", "maxLength": 80}, "when": {"type": "string", "format": "date-time"},
    "tags": {"type": "array", "items": {"type": "string", "maxLength": 16}, "minItems": 6, "maxItems": 12},
    "rows": {"type": "array", "minItems": 40, "items": {"type": "object", "properties": {
        "id": {"type": "integer", "minimum": 0, "maximum": 9999}, "text": {"type": "string", "maxLength": 400}, "on": {"type": "boolean"}},
        "required": ["id", "text", "on"], "additionalProperties": False}}},
    "required": ["title", "when", "tags", "rows"], "additionalProperties": False}


def ask(s, model, seed, tokens, extra):
    r = s.post("/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": "Rows."}], "seed": seed,
                                        "max_tokens": tokens, "temperature": 0.8, **extra}, timeout=600)
    n = r.json["usage"]["completion_tokens"]
    return r.json["timings"]["decode_ms"] / max(n - 1, 1), n


def seconds(s):
    """Spent on grammars; a worker tells ten times a second."""
    time.sleep(0.3)
    return sum(s.metric(f"inferd_grammar_{n}_seconds_total") or 0 for n in ("compile", "mask"))


def overhead(s, model, a, clients):
    """Decode milliseconds of a token: plain, with a schema that is known, with one seen for the first time; and what the
    worker itself measured: the time spent compiling and on masks as a share of decoding, whoever else uses the machine."""
    rows = {"plain": [], "schema": [], "new schema": []}
    decode_s, before = 0, seconds(s)
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        for turn in range(a.turns + 1):
            for what in rows:
                sch = dict(PROBE) if what != "new schema" else dict(PROBE, title=f"{clients} {turn}")
                extra = {"ignore_eos": True} if what == "plain" else {
                    "response_format": {"type": "json_schema", "json_schema": {"schema": sch}}}
                got = list(pool.map(lambda k: ask(s, model, turn * 100 + k, a.tokens, extra), range(clients)))
                decode_s += sum(ms * n / 1e3 for ms, n in got) if what != "plain" else 0
                if turn > 0:  # the first fills caches
                    rows[what].append(statistics.mean(ms for ms, _ in got))
    med = {k: statistics.median(v) for k, v in rows.items()}
    return {"clients": clients, "ms_per_token": {k: round(v, 4) for k, v in med.items()},
            "compiling_and_masks_share": round((seconds(s) - before) * clients / decode_s, 4),
            "ratio": round(med["schema"] / med["plain"], 4), "ratio_new": round(med["new schema"] / med["plain"], 4)}


def metrics(s):
    out = {}
    for name in ("inferd_grammars_total", "inferd_grammar_masks_total"):
        for word in ("compiled", "cached", "refused", "hit", "miss", "cut"):
            out[word] = s.metric(name, result=word) or out.get(word, 0)
    for name in ("compile_seconds_total", "mask_seconds_total", "bytes"):
        out[name] = s.metric("inferd_grammar_" + name)
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--answers", type=int, default=10000)
    p.add_argument("--schemas", type=int, default=200)
    p.add_argument("--clients", type=int, default=8)
    p.add_argument("--max-tokens", type=int, default=256)
    p.add_argument("--soak", type=float, default=0)
    p.add_argument("--tokens", type=int, default=128, help="of each answer whose time is taken")
    p.add_argument("--turns", type=int, default=5)
    p.add_argument("--model", default=REAL_GEMMA, help="whose time is taken, of the real weights")
    a = p.parse_args()

    result = {}
    if a.answers or a.soak:
        with Server(access_log="false", log_level="warn", max_queue=512) as s:
            result["answers"] = generate(s, TINY_GEMMA, a, schemas(a.schemas))
            result["answers"]["metrics"] = metrics(s)
    if a.turns:
        with Server(models=real_models(), access_log="false", log_level="warn", max_queue=512) as s:
            s.post("/ai/v1/models/load", {"model": a.model})
            result["model"] = a.model
            result["overhead"] = [overhead(s, a.model, a, c) for c in (1, a.clients)]
            result["metrics"] = metrics(s)
    print(json.dumps(result, indent=1))
    bad = result.get("answers", {})
    return 1 if bad.get("invalid") or bad.get("failed") else 0


if __name__ == "__main__":
    sys.exit(main())
