#!/usr/bin/env python3
"""compare.py - the same suite on the reference and on the server, and whether they agree.

    compare.py prepare --model-dir DIR --suite OUT [--longest 8192] [--media large|small]   (needs the reference)
    compare.py run --backend torch --model-dir DIR --suite OUT --output A.json   (needs the reference)
    compare.py run --backend server --url URL --model NAME --model-dir DIR --suite OUT --output B.json
    compare.py compare A.json B.json [--tolerance 1e-5] [--output REPORT.json]

The suite: eight edge cases (a short document, a short query, documents of exactly 128, 512 and 8,192 tokens, a picture, a
sound, a group of text, sound and picture), four documents ranked for three queries, a choice of three categories. Run
measures too: two warm-ups, then --samples requests of a short text, three of media, one of the longest. The server's
times hold HTTP, tokens and media; the reference's hold preparation and the model.
Compare wants vectors within the tolerance, complete rankings equal, scores, similarities and margin within twice it, the
same choice, the same token ids of what is embedded for the choice; it refuses results of different suites, checkpoints
or precisions. Exit: 0 agree, 1 do not, 2 cannot be compared. Server and compare are stdlib only.
"""
import argparse
import json
import os
import statistics
import sys
import time

import checkpoint
import eg2_http as api
import media

PRECISION = "f32"  # of activations and sums
DOCUMENTS = {
    "password": "To reset a forgotten password, open the sign-in page, choose recovery and follow the link in the mail.",
    "invoice": "Invoices are sent on the first day of the month; unexpected charges can be disputed for 60 days.",
    "parcel": "A parcel that is late by more than five days is searched for, and replaced if it is not found.",
    "harbour": "The harbour is a quiet place where small boats wait for the wind."}
QUERIES = {"access": "how do I regain access to my account", "charge": "why was I charged twice",
           "boats": "where do the boats wait"}
CHOICE = {
    "input": "I forgot my password.",
    "question": {"name": "route", "type": "choice", "instructions": "Route the request to the responsible support team.",
                 "choices": [{"value": "account", "examples": ["Reset my password", "I cannot log in"]},
                             {"value": "billing", "description": "Payments, invoices and unexpected charges"},
                             {"value": "shipping", "description": "Parcels that are late, lost or broken"}]}}
CHOICE_TASK, CHOICE_PROMPT = "CLUSTERING", "Clustering"


def rendered(suite):
    """What is embedded for the choice: (key, text without the prompt)."""
    q = suite["choice"]["question"]
    head = f"Instruction: {q['instructions']}\n"
    out = [("input", head + "Input: " + suite["choice"]["input"])]
    for c in q["choices"]:
        if c.get("examples"):
            out += [(f"{c['value']} {i}", head + "Input: " + e) for i, e in enumerate(c["examples"])]
        else:
            out.append((c["value"], head + "Category: " + c["description"]))
    return out


# ---------------------------------------------------------------- prepare

def prepare(a):
    import reference
    ref = reference.Reference(a.model_dir)
    media.write(a.suite, a.media)

    def case(name, parts, task="RETRIEVAL_DOCUMENT", group=False, kind="short"):
        return {"name": name, "parts": parts, "task_type": task, "title": None, "group": group, "kind": kind}

    picture, sound = {"image": "tall.png"}, {"audio": "second.wav"}
    lengths = [128, 512, a.longest]
    cases = [case("short document", [{"text": DOCUMENTS["harbour"]}]),
             case("short query", [{"text": QUERIES["boats"]}], "RETRIEVAL_QUERY")]
    cases += [case(f"{n} tokens", [{"text": ref.text_of(n, seed=n)}], kind="long" if n > 2048 else "short") for n in lengths]
    cases += [case("picture", [picture], kind="media"), case("sound", [sound], kind="media"),
              case("text, sound, picture", [{"text": QUERIES["boats"]}, sound, picture], group=True, kind="media")]
    suite = {"schema": 1, "cases": cases, "documents": DOCUMENTS, "queries": QUERIES, "choice": CHOICE,
             "model_identity": checkpoint.identity(a.model_dir)[0],
             "media": {n: checkpoint.sha256(os.path.join(a.suite, n)) for n in ("tall.png", "second.wav")},
             "prompts": {"choice": ref.prompts[CHOICE_PROMPT]}, "media_set": a.media, "versions": reference.versions()}
    api.write_report(os.path.join(a.suite, "suite.json"), suite)
    print(f"{a.suite}: {len(cases)} cases for {suite['model_identity'][:12]}")
    return 0


def load_suite(folder):
    path = os.path.join(folder, "suite.json")
    with open(path, encoding="utf-8") as f:
        suite = json.load(f)
    for name, want in suite["media"].items():
        if checkpoint.sha256(os.path.join(folder, name)) != want:
            raise SystemExit(f"compare: {name} is not the file of the suite")
    return suite, checkpoint.sha256(path)


# -------------------------------------------------------------------- run

class Torch:
    def __init__(self, a, suite):
        import reference
        self.suite, self.folder = suite, a.suite
        self.ref = reference.Reference(a.model_dir, a.threads)
        self.about = {"backend": "torch", "precision": PRECISION, "versions": reference.versions(), "threads": a.threads}
        self.dim = self.ref.dim

    def embed(self, case):
        parts = []
        for p in case["parts"]:
            kind, value = next(iter(p.items()))
            parts.append((kind, value if kind == "text" else os.path.join(self.folder, value)))
        return self.ref.embed(parts, case["task_type"])[0]

    def ids(self, text):
        return self.ref.tokenizer.encode(text).ids

    def choose(self):
        """By the rules of instruction-category-v1."""
        import numpy as np
        v = {k: np.array(self.ref.embed([("text", t)], CHOICE_TASK)[0]) for k, t in rendered(self.suite)}
        scores = {}
        for c in self.suite["choice"]["question"]["choices"]:
            own = [v[k] for k in v if k == c["value"] or k.startswith(c["value"] + " ")]
            centre = np.mean(own, 0)
            scores[c["value"]] = float(v["input"] @ (centre / np.linalg.norm(centre)))
        first, second = sorted(scores.values(), reverse=True)[:2]
        return {"similarities": scores, "margin": first - second,
                "choice": max(scores, key=scores.get) if first - second > 1e-6 else None}


class Server:
    def __init__(self, a, suite):
        if not a.url or not a.model:
            raise SystemExit("compare: --backend server needs --url and --model")
        self.suite, self.folder = suite, a.suite
        self.api = api.Client(a.url, a.model, a.timeout)
        reply = self.ask("/embed", {"input": "a"})
        if reply.get("model_identity") != suite["model_identity"]:
            raise SystemExit(f"compare: the server holds {reply.get('model_identity')}, the suite is of {suite['model_identity']}")
        self.dim = len(reply["data"][0]["embedding"])
        info = self.api.send("GET", f"//v1/models/{a.model}").json
        self.about = {"backend": "server", "url": a.url, "model": a.model, "precision": info.get("compute", PRECISION),
                      "info": {k: info[k] for k in ("backend", "kernels", "threads", "quant", "compute") if k in info}}

    def ask(self, path, body):
        reply = self.api.finish(path, body)
        if reply.status != 200:
            raise SystemExit(f"compare: {path}: {reply.short}")
        return reply.json

    def embed(self, case):
        return self.ask("/embed", api.body_of(case, self.folder))["data"][0]["embedding"]

    def ids(self, text):
        return self.ask("/tokenize", {"text": text, "add_special_tokens": True})["tokens"]

    def choose(self):
        c = self.suite["choice"]
        a = self.ask("/decisions", {"input": c["input"], "questions": [c["question"]],
                                    "embedding_options": {"task_type": CHOICE_TASK}})["answers"][0]
        return {"similarities": {s["value"]: s["similarity"] for s in a["similarities"]}, "margin": a["margin"],
                "choice": a["choice"]}


def timed(fn, times, warm):
    for _ in range(warm):
        fn()
    out, value = [], None
    for _ in range(times):
        begin = time.perf_counter()
        value = fn()
        out.append(round((time.perf_counter() - begin) * 1000, 3))
    return value, out


def run(a):
    suite, digest = load_suite(a.suite)
    identity, files = checkpoint.identity(a.model_dir)
    if identity != suite["model_identity"]:
        raise SystemExit(f"compare: {a.model_dir} is {identity}, the suite is of {suite['model_identity']}")
    side = (Torch if a.backend == "torch" else Server)(a, suite)
    ms, vectors = {}, {}
    for c in suite["cases"]:
        n = {"short": a.samples, "media": min(3, a.samples), "long": 1}[c["kind"]]
        vectors[c["name"]], ms[c["name"]] = timed(lambda: side.embed(c), n, 0 if c["kind"] == "long" else a.warm)
        print(f"{c['name']}: {statistics.median(ms[c['name']]):.1f} ms", file=sys.stderr, flush=True)

    def text(s, task):
        return side.embed({"parts": [{"text": s}], "task_type": task, "title": None, "group": False})

    docs = {k: text(s, "RETRIEVAL_DOCUMENT") for k, s in suite["documents"].items()}
    scores = {}
    for q, s in suite["queries"].items():
        v = text(s, "RETRIEVAL_QUERY")
        scores[q] = {k: sum(x * y for x, y in zip(v, d)) for k, d in docs.items()}
    choice, ms["choice"] = timed(side.choose, a.samples, a.warm)
    choice["ids"] = {k: side.ids(suite["prompts"]["choice"] + t) for k, t in rendered(suite)}
    out = {"schema": 1, "suite_sha256": digest, "model_identity": identity, "weights": checkpoint.weights_dtype(a.model_dir),
           "files": files, **side.about, "dim": side.dim, "vectors": vectors, "scores": scores,
           "rankings": {q: sorted(s, key=s.get, reverse=True) for q, s in scores.items()}, "choice": choice, "ms": ms,
           **({"binary": checkpoint.sha256(a.binary)} if a.binary else {}),
           "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    api.write_report(a.output, out)
    print(f"{a.output}: {len(vectors)} vectors by {out['backend']}")
    return 0


# ---------------------------------------------------------------- compare

def differences(ref, got, tolerance):
    """What does not agree, and the largest distances."""
    wrong, worst = [], {"vectors": 0.0, "scores": 0.0, "similarities": 0.0}

    def near(kind, what, d, allowed):
        worst[kind] = max(worst[kind], d)
        if not d <= allowed:
            wrong.append(f"{what}: off by {d:.3g}, allowed {allowed:g}")

    for name, v in ref["vectors"].items():
        near("vectors", f"vector of '{name}'", api.difference(got["vectors"].get(name), v), tolerance)
    for q, want in ref["rankings"].items():
        if got["rankings"].get(q) != want:
            wrong.append(f"ranking of '{q}': {got['rankings'].get(q)}, expected {want}")
        for d, s in ref["scores"][q].items():
            near("scores", f"score of '{d}' for '{q}'", api.difference([got["scores"].get(q, {}).get(d)], [s]), 2 * tolerance)
    a, b = ref["choice"], got["choice"]
    for k, s in a["similarities"].items():
        near("similarities", f"similarity of '{k}'", api.difference([b["similarities"].get(k)], [s]), 2 * tolerance)
    near("similarities", "margin", api.difference([b["margin"]], [a["margin"]]), 2 * tolerance)
    if a["choice"] != b["choice"]:
        wrong.append(f"choice '{b['choice']}', expected '{a['choice']}'")
    for k, ids in a["ids"].items():
        if b["ids"].get(k) != ids:
            wrong.append(f"token ids of '{k}' differ")
    return wrong, worst


def compare(a):
    with open(a.reference, encoding="utf-8") as f:
        ref = json.load(f)
    with open(a.result, encoding="utf-8") as f:
        got = json.load(f)
    for key in ("schema", "suite_sha256", "model_identity", "weights", "precision", "dim"):
        if ref.get(key) is None or ref.get(key) != got.get(key):
            print(f"compare: {key} is {ref.get(key)} and {got.get(key)}: these cannot be compared", file=sys.stderr)
            return 2
    wrong, worst = differences(ref, got, a.tolerance)
    median = {k: (statistics.median(v), statistics.median(got["ms"][k])) for k, v in ref["ms"].items() if k in got["ms"]}
    for k, (x, y) in median.items():
        print(f"{k:24} {ref['backend']} {x:10.1f} ms   {got['backend']} {y:10.1f} ms   {y / x:6.2f}x")
    for w in wrong:
        print(f"FAILED {w}")
    print(f"{len(ref['vectors'])} vectors (largest difference {worst['vectors']:.2g}), {len(ref['rankings'])} rankings (scores "
          f"{worst['scores']:.2g}), choice '{ref['choice']['choice']}' (similarities {worst['similarities']:.2g}): " +
          ("agree" if not wrong else f"{len(wrong)} differences"))
    if a.output:
        api.write_report(a.output, {"schema": 1, "agree": not wrong, "wrong": wrong, "largest": worst, "tolerance": a.tolerance,
                                    "median_ms": median, "hashes": {p: checkpoint.sha256(p) for p in (a.reference, a.result)}})
    return 1 if wrong else 0


def main(args=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = p.add_subparsers(dest="command", required=True)
    s = sub.add_parser("prepare")
    s.add_argument("--longest", type=int, default=8192, help="tokens of the longest text")
    s.add_argument("--media", choices=list(media.SETS), default="large")
    r = sub.add_parser("run")
    r.add_argument("--backend", choices=["torch", "server"], required=True)
    r.add_argument("--url")
    r.add_argument("--model")
    r.add_argument("--output", required=True)
    r.add_argument("--threads", type=int, default=2, help="of the reference")
    r.add_argument("--samples", type=int, default=10)
    r.add_argument("--warm", type=int, default=2)
    r.add_argument("--timeout", type=float, default=600)
    r.add_argument("--binary", help="the server's program, to name its hash in the result")
    for x in (s, r):
        x.add_argument("--model-dir", required=True)
        x.add_argument("--suite", required=True, help="folder of the suite")
    c = sub.add_parser("compare")
    c.add_argument("reference")
    c.add_argument("result")
    c.add_argument("--tolerance", type=float, default=1e-5)
    c.add_argument("--output")
    a = p.parse_args(args)
    if a.command == "run" and a.samples < 1:
        p.error("--samples: at least 1")
    return {"prepare": prepare, "run": run, "compare": compare}[a.command](a)


if __name__ == "__main__":
    sys.exit(main())
