#!/usr/bin/env python3
"""qualify.py - the contract of EmbeddingGemma 2 and its decisions, tried over sockets against a running server.

    qualify.py --url http://127.0.0.1:8090/ai/v1 --model NAME --oracle DIR --output REPORT.json
               [--iterations 32] [--concurrency 4] [--tolerance 1e-5] [--max-tokens 600] [--only CHECK[,CHECK]]
               [--overload CLIENTS] [--expect-busy] [--binary FILE]

DIR is a folder of oracle.py made from the checkpoint that the server holds under NAME. Vectors must be the reference's at
every size, answers of C clients asking at once the very numbers of one asking alone, refusals those of the contract.
--overload sends that many clients at once: answers 503 must be MODEL_RESOURCE_BUSY, say when to come back, and every
request must be served within 40 tries; --expect-busy fails unless some were answered so. REPORT.json has every check,
the largest differences, and hashes of what was compared. Exit: 0 all passed, 1 something failed. Stdlib only.
"""
import argparse
import base64
import json
import math
import os
import re
import struct
import sys
import threading
import time

import checkpoint
import eg2_http as api

CHECKS = []
TEXT = "I forgot my password."
ROUTE = {"name": "route", "type": "choice", "instructions": "Route the request to the responsible support team.",
         "choices": [{"value": "account", "examples": ["Reset my password", "I cannot log in"]},
                     {"value": "billing", "description": "Payments, invoices and unexpected charges"},
                     {"value": "shipping", "description": "Parcels that are late, lost or broken"}]}


class Failed(Exception):
    pass


def check(fn):
    CHECKS.append(fn)
    return fn


def need(truth, what):
    if not truth:
        raise Failed(what)


def status(reply, want, what):
    need(reply.status == want, f"{what}: {reply.short}, expected {want}")
    return reply.json


def refused(reply, want, what):
    """A refusal with a code and a reason."""
    j = status(reply, want, what)
    need(isinstance(j.get("error"), str) and j["error"], f"{what}: no error code in {reply.short}")
    need(isinstance(j.get("message"), str) and j["message"], f"{what}: no message in {reply.short}")
    return j


class Run:
    def __init__(self, a):
        self.a = a
        self.api = api.Client(a.url, a.model, a.timeout)
        with open(os.path.join(a.oracle, "oracle.json"), encoding="utf-8") as f:
            self.oracle = json.load(f)
        self.cases = [c for c in self.oracle["cases"] if len(c["ids"]) <= a.max_tokens]
        self.dims = self.oracle["dims"]
        self.figures = {"largest_difference": 0.0, "vectors": 0, "requests_at_once": 0, "busy": 0, "tries_more": 0}
        self.identity = None

    def body(self, case, dims=None):
        return api.body_of(case, self.a.oracle, dims)

    def named(self, *names):
        by = {c["name"]: c for c in self.cases}
        return [by[n] for n in names if n in by]

    def see_identity(self, j, what):
        got = j.get("model_identity")
        need(isinstance(got, str) and re.fullmatch("[0-9a-f]{64}", got), f"{what}: model_identity {got!r}, expected 64 hex digits")
        want = self.oracle["model_identity"]
        need(got == want, f"{what}: model_identity {got}, the oracle's checkpoint has {want}")
        self.identity = got

    def media_case(self):
        return next((c for c in self.cases if c["group"] and any("image" in p for p in c["parts"]) and
                     any("audio" in p for p in c["parts"])), None)


# ---------------------------------------------------------------- vectors

@check
def vectors_match_the_reference_at_every_size(r):
    worst = {}
    for c in r.cases:
        for dims in [None] + r.dims:
            what = f"{c['name']}, {dims or r.oracle['dim']} numbers"
            reply = r.api.post("/embed", r.body(c, dims))
            j = status(reply, 200, what)
            need([d.get("index") for d in j["data"]] == [0], f"{what}: {len(j['data'])} vectors, expected 1")
            v = j["data"][0]["embedding"]
            off = api.difference(v, c["reduced"][str(dims)] if dims else c["vector"])
            worst[c["name"]] = max(worst.get(c["name"], 0), off)
            need(off <= r.a.tolerance, f"{what}: off by {off:.2g}, allowed {r.a.tolerance:g}")
            need(abs(math.sqrt(sum(x * x for x in v)) - 1) < 1e-4, f"{what}: not of unit length")
            r.see_identity(j, what)
            r.figures["vectors"] += 1
    r.figures["largest_difference"] = max(worst.values())
    return {"cases": len(worst), "largest_difference": r.figures["largest_difference"], "of": max(worst, key=worst.get)}


@check
def many_inputs_give_the_vectors_of_each(r):
    texts = [c for c in r.cases if not c["group"] and "text" in c["parts"][0] and c["task_type"] == "RETRIEVAL_DOCUMENT"]
    one = [api.vectors(r.api.post("/embed", r.body(c)))[0] for c in texts]
    j = status(r.api.post("/embed", {"input": [c["parts"][0]["text"] for c in texts]}), 200, "texts in one request")
    need([d["index"] for d in j["data"]] == list(range(len(texts))), "indexes")
    need([d["embedding"] for d in j["data"]] == one, "texts in one request: other numbers than alone")
    groups = [c for c in r.cases if c["group"] and c["task_type"] == "RETRIEVAL_DOCUMENT"]
    one = [api.vectors(r.api.post("/embed", r.body(c)))[0] for c in groups]
    many = r.api.post("/embed", {"input": [api.input_of(c, r.a.oracle)[0] for c in groups]})
    status(many, 200, "groups in one request")
    need(api.vectors(many) == one, "groups in one request: other numbers than alone")
    return {"texts": len(texts), "groups": len(groups)}


@check
def a_title_of_none_is_no_title(r):
    def group(**more):
        reply = r.api.post("/embed", {"input": [dict(content=[{"type": "text", "text": TEXT}], **more)]})
        status(reply, 200, f"group with {more}")
        return api.vectors(reply)[0]

    plain = group()
    need(group(title="none") == plain, "title 'none' gives other numbers than no title")
    need(group(title="Account recovery") != plain, "a title changes nothing")
    flat = api.vectors(r.api.post("/embed", {"input": TEXT}))[0]
    need(flat == plain, "a group of one text gives other numbers than the text")


@check
def the_openai_route_and_the_numeric_frame_carry_the_same_numbers(r):
    c = next(c for c in r.cases if not c["group"] and "text" in c["parts"][0] and c["task_type"] == "RETRIEVAL_DOCUMENT")
    body = {"input": c["parts"][0]["text"], "dimensions": r.dims[0]}
    want = api.vectors(r.api.post("/embed", body))[0]
    j = status(r.api.send("POST", "//v1/embeddings", dict(body, model=r.a.model)), 200, "/v1/embeddings")
    need(j["data"][0]["embedding"] == want, "/v1/embeddings gives other numbers")
    j = status(r.api.send("POST", "//v1/embeddings", dict(body, model=r.a.model, encoding_format="base64")), 200, "base64")
    raw = base64.b64decode(j["data"][0]["embedding"])
    need(list(struct.unpack(f"<{len(raw) // 4}f", raw)) == api.float32(want), "base64 gives other numbers")
    reply = r.api.post("/embed", body, {"Accept": "application/vnd.antfly.numeric.v1"})
    need(reply.status == 200 and reply.headers.get("content-type", "").startswith("application/vnd.antfly.numeric.v1"),
         f"numeric frame: {reply.short}, {reply.headers.get('content-type')}")
    need(api.numeric(reply.body) == (1, [api.float32(want)]), "the numeric frame gives other numbers")


@check
def framed_attachments_are_inline_media(r):
    c = r.media_case()
    need(c is not None, "the oracle has no group of picture and sound")
    want = r.api.post("/embed", r.body(c))
    status(want, 200, c["name"])
    content, files = [], []
    for p in c["parts"]:
        if "text" in p:
            content.append({"type": "text", "text": p["text"]})
            continue
        name = p.get("image") or p["audio"]
        with open(os.path.join(r.a.oracle, name), "rb") as f:
            files.append((api.MIME[os.path.splitext(name)[1]], f.read()))
        content.append({"type": "media", "data": f"attachment:{len(files) - 1}", "mime_type": files[-1][0]})
    group = {"content": content} if c["title"] is None else {"content": content, "title": c["title"]}
    body = api.attachments({"model": r.a.model, "input": [group], "task_type": c["task_type"]}, files)
    got = r.api.send("POST", "/embed", body, {"Content-Type": "application/vnd.antfly.attachments.v1"})
    status(got, 200, "framed attachments")
    need(api.vectors(got) == api.vectors(want), "framed attachments give other numbers")
    return {"attachments": len(files)}


# --------------------------------------------------------------- refusals

@check
def per_item_keeps_the_good_groups(r):
    ok = {"content": [{"type": "text", "text": TEXT}]}
    body = {"input": [ok, {"content": []}, ok], "error_policy": "per_item"}
    reply = r.api.post("/embed", body)
    j = status(reply, 200, "per_item")
    need([d["index"] for d in j["data"]] == [0, 2], f"indexes {[d['index'] for d in j['data']]}, expected 0 and 2")
    need(len(j.get("errors", [])) == 1, f"errors {j.get('errors')}, expected 1")
    e = j["errors"][0]
    need((e.get("index"), e.get("status"), e.get("retryable")) == (1, 400, False), f"error {e}")
    need(e.get("code") and e.get("message") and e.get("stage"), f"error {e} lacks code, message or stage")
    need(j.get("summary") == {"total": 3, "succeeded": 2, "failed": 1}, f"summary {j.get('summary')}")
    need(j["data"][0]["embedding"] == j["data"][1]["embedding"], "equal groups, other numbers")
    refused(r.api.post("/embed", dict(body, error_policy="fail_fast")), 400, "an empty group, fail_fast")


@check
def a_wrong_identity_is_a_conflict(r):
    j = status(r.api.post("/embed", {"input": TEXT}), 200, "embed")
    r.see_identity(j, "embed")
    status(r.api.post("/embed", {"input": TEXT, "model_identity": r.identity}), 200, "the right identity")
    wrong = ("0" if r.identity[0] != "0" else "1") + r.identity[1:]
    codes = {refused(r.api.post("/embed", {"input": TEXT, "model_identity": wrong}), 409, "embed with a wrong identity")["error"]}
    body = {"input": TEXT, "questions": [ROUTE], "model_identity": wrong}
    codes.add(refused(r.api.post("/decisions", body), 409, "decisions with a wrong identity")["error"])
    return {"codes": sorted(codes)}


@check
def what_the_contract_forbids_is_refused(r):
    text = {"type": "text", "text": TEXT}
    group = {"content": [text]}
    choice = dict(ROUTE, name="other")
    rows = [
        ("title with RETRIEVAL_QUERY", "/embed", {"input": [dict(group, title="t")], "task_type": "RETRIEVAL_QUERY"}),
        ("unknown task", "/embed", {"input": TEXT, "task_type": "POETRY"}),
        ("dimensions 300", "/embed", {"input": TEXT, "dimensions": 300}),
        ("dimensions 0", "/embed", {"input": TEXT, "dimensions": 0}),
        ("groups and texts mixed", "/embed", {"input": [group, TEXT]}),
        ("65 groups", "/embed", {"input": [group] * 65}),
        ("65 parts", "/embed", {"input": [{"content": [text] * 65}]}),
        ("an empty group", "/embed", {"input": [{"content": []}]}),
        ("a group with another key", "/embed", {"input": [dict(group, colour="red")]}),
        ("a broken picture", "/embed", {"input": [{"type": "media", "data": "iVBORw0KGgo=", "mime_type": "image/png"}]}),
        ("a broken sound", "/embed", {"input": [{"type": "media", "data": "UklGRg==", "mime_type": "audio/wav"}]}),
        ("a film", "/embed", {"input": [{"type": "media", "data": "AAAA", "mime_type": "video/mp4"}]}),
        ("two forms of input", "/decisions", {"input": TEXT, "inputs": [{"input": TEXT}], "questions": [ROUTE]}),
        ("score asked of similarities", "/decisions", {"input": TEXT, "questions": [
            {"name": "s", "type": "score", "instructions": "i", "levels": [{"label": "a"}, {"label": "b"}]}]}),
        ("predicate asked of similarities", "/decisions", {"input": TEXT, "questions": [
            {"name": "p", "type": "predicate", "instructions": "i"}]}),
        ("min_margin 3", "/decisions", {"input": TEXT, "questions": [dict(ROUTE, embedding_options={"min_margin": 3})]}),
        ("a calibration that is not there", "/decisions", {"input": TEXT, "questions": [
            dict(ROUTE, embedding_options={"calibration_id": "not_there"})]}),
        ("two questions of one name", "/decisions", {"input": TEXT, "questions": [choice, choice]}),
        ("multi_choice without thresholds", "/decisions", {"input": TEXT, "questions": [dict(ROUTE, type="multi_choice")]}),
        ("an unknown key", "/decisions", {"input": TEXT, "questions": [ROUTE], "colour": "red"}),
    ]
    wrong, codes = [], {}
    for what, path, body in rows:
        try:
            codes[what] = refused(r.api.post(path, body), 400, what)["error"]
        except Failed as e:
            wrong.append(str(e))
    need(not wrong, "; ".join(wrong))
    return {"codes": codes}


@check
def extraction_is_not_for_embedders(r):
    """400 by contract; 404 where the server has no such route, which is said."""
    reply = r.api.post("/extract", {"text": TEXT, "labels": ["person"]})
    need(reply.status == 400 or reply.status == 404 and reply.json.get("error") != "MODEL_NOT_FOUND",
         f"/extract: {reply.short}, expected 400 (or 404 without the route)")
    return {"status": reply.status, "note": "the route does not exist" if reply.status == 404 else "refused"}


# -------------------------------------------------------------- decisions

def answer(r, question, **more):
    j = status(r.api.post("/decisions", {"input": TEXT, "questions": [question], **more}), 200, question["name"])
    r.see_identity(j, question["name"])
    need(j.get("renderer_version") == "instruction-category-v1", f"renderer_version {j.get('renderer_version')!r}")
    a = j["answers"][0]
    need((a.get("name"), a.get("type")) == (question["name"], question["type"]), f"answer {a}")
    need((a.get("decision_method"), a.get("similarity_metric")) == ("embedding_similarity", "cosine"), f"answer {a}")
    need(re.fullmatch("[0-9a-f]{64}", a.get("prototype_set_hash") or ""), f"prototype_set_hash in {a}")
    need([s["value"] for s in a["similarities"]] == [c["value"] for c in question["choices"]], f"similarities of {a}")
    need(all(-1 <= s["similarity"] <= 1 for s in a["similarities"]), f"similarities of {a}")
    need("probabilities" not in a and "confidence" not in a, f"probabilities in {a}")
    return a


@check
def a_choice_is_the_nearest_category(r):
    for task in ("CLUSTERING", "CLASSIFICATION"):
        for dims in [r.oracle["dim"]] + r.dims:
            a = answer(r, ROUTE, embedding_options={"task_type": task, "dimensions": dims})
            s = sorted((x["similarity"] for x in a["similarities"]), reverse=True)
            best = max(a["similarities"], key=lambda x: x["similarity"])["value"]
            need(abs(a["margin"] - (s[0] - s[1])) < 1e-6, f"margin {a['margin']}, similarities {s}")
            need((a["status"], a["choice"]) == (("abstained", None) if s[0] - s[1] <= 1e-6 else ("selected", best)), f"answer {a}")
    first = answer(r, ROUTE)
    need(answer(r, ROUTE) == first, "asked again, another answer")
    return {"answer": first}


@check
def equal_prototypes_tie(r):
    twin = dict(ROUTE, name="twin", choices=[{"value": "a", "description": "Payments"}, {"value": "b", "description": "Payments"}])
    a = answer(r, twin)
    need((a["status"], a["choice"], a.get("abstention_reason")) == ("abstained", None, "tie"), f"answer {a}")
    need(a["margin"] <= 1e-6, f"margin {a['margin']}")


@check
def thresholds_select_all_or_none(r):
    many = dict(ROUTE, name="tags", type="multi_choice")
    values = [c["value"] for c in ROUTE["choices"]]
    a = answer(r, dict(many, similarity_thresholds=-1))
    need((a["status"], a["choices"]) == ("selected", values), f"threshold -1: {a}")
    need(a["similarity_thresholds"] == {v: -1 for v in values}, f"thresholds of {a}")
    a = answer(r, dict(many, similarity_thresholds=1))
    need((a["status"], a["choices"]) == ("empty", []), f"threshold 1: {a}")
    a = answer(r, dict(many, similarity_thresholds=dict(zip(values, (-1, 1, -1)))))
    need((a["status"], a["choices"]) == ("selected", [values[0], values[2]]), f"a map of thresholds: {a}")
    a = answer(r, dict(many, similarity_thresholds=-1, embedding_options={"min_margin": 2}))
    need(a["status"] == "abstained", f"min_margin 2: {a}")
    a = answer(r, dict(ROUTE, embedding_options={"min_similarity": 1}))
    need((a["status"], a["choice"]) == ("abstained", None), f"min_similarity 1: {a}")


@check
def a_batch_echoes_ids_and_answers_as_alone(r):
    inputs = [{"id": "a", "input": TEXT}, {"input": "My parcel is late."}, {"id": "c", "input": TEXT}]
    j = status(r.api.post("/decisions", {"inputs": inputs, "questions": [ROUTE, dict(ROUTE, name="second")]}), 200, "inputs")
    need("answers" not in j, "answers beside data")
    need([(d["input_index"], d.get("id")) for d in j["data"]] == [(0, "a"), (1, None), (2, "c")], f"rows {j['data']}"[:300])
    need(all([a["name"] for a in d["answers"]] == ["route", "second"] for d in j["data"]), "names of answers")
    need(j["data"][0]["answers"] == j["data"][2]["answers"], "equal inputs, other answers")
    need(j["data"][0]["answers"][0] == answer(r, ROUTE), "in a batch another answer than alone")
    need(j["usage"]["output_tokens"] == 0 and j["usage"]["input_tokens"] > 0, f"usage {j['usage']}")


# ------------------------------------------------------------ concurrency

def shown(reply):
    """What must not depend on who else asks."""
    j = reply.json
    return reply.status, {k: j.get(k) for k in ("data", "answers", "model_identity", "usage")}


def requests(r):
    """(path, body) of different kinds."""
    names = ("task RETRIEVAL_QUERY", "task CLUSTERING", "titled", "128 tokens", "picture", "sound", "text, sound, picture")
    out = [("/embed", r.body(c, dims)) for c, dims in zip(r.named(*names), [None, r.dims[0], None, r.dims[1], None, None, r.dims[-1]])]
    out.append(("/decisions", {"input": TEXT, "questions": [ROUTE]}))
    out.append(("/embed", {"input": [{"content": [{"type": "text", "text": TEXT}]}, {"content": []}], "error_policy": "per_item"}))
    return out


def crowd(r, clients, each, plan, want):
    """clients threads, each asking each requests of the plan, begun at different places; returns 503 answers."""
    busy, wrong, lock, gate = [], [], threading.Lock(), threading.Barrier(clients)

    def on_busy(reply):
        with lock:
            busy.append(reply)

    def client(k):
        gate.wait()
        for i in range(each):
            at = (i + k * 5) % len(plan)
            try:
                reply = r.api.finish(*plan[at], on_busy=on_busy)
                if shown(reply) != want[at]:
                    raise Failed(f"client {k}, request {i} ({plan[at][0]}): {reply.short[:200]}, not what was answered alone")
            except Exception as e:  # connections refused too
                with lock:
                    wrong.append(str(e))
                return

    threads = [threading.Thread(target=client, args=(k,)) for k in range(clients)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    need(not wrong, f"{len(wrong)} clients failed, first: {wrong[0] if wrong else ''}")
    return busy


@check
def clients_at_once_get_the_numbers_of_one_alone(r):
    plan = requests(r)
    want = [shown(r.api.finish(*p)) for p in plan]
    need(all(w[0] == 200 for w in want), f"statuses alone {[w[0] for w in want]}")
    need([shown(r.api.finish(*p)) for p in plan] == want, "asked again alone, other numbers")
    begin = time.monotonic()
    busy = crowd(r, r.a.concurrency, r.a.iterations, plan, want)
    r.figures["requests_at_once"] = r.a.concurrency * r.a.iterations
    return {"kinds": len(plan), "clients": r.a.concurrency, "each": r.a.iterations, "busy": len(busy),
            "seconds": round(time.monotonic() - begin, 3)}


@check
def overload_is_said_and_bounded_retries_finish(r):
    if not r.a.overload:
        return {"skipped": "not asked for (--overload)"}
    plan = requests(r)
    want = [shown(r.api.finish(*p)) for p in plan]
    busy = crowd(r, r.a.overload, 2, plan, want)
    for b in busy:
        j = b.json
        need(j.get("error") == "MODEL_RESOURCE_BUSY", f"busy answer {b.short}")
        need(j.get("reason") in ("inference_capacity", "inference_admission"), f"reason {j.get('reason')!r}")
        need(isinstance(j.get("retry_after_ms"), int) and j["retry_after_ms"] >= 1, f"retry_after_ms {j.get('retry_after_ms')!r}")
        need(re.fullmatch("[1-9][0-9]*", b.headers.get("retry-after", "")), f"Retry-After {b.headers.get('retry-after')!r}")
    need(busy or not r.a.expect_busy, f"{r.a.overload} clients at once never found the server busy")
    r.figures["busy"], r.figures["tries_more"] = len(busy), len(busy)
    return {"clients": r.a.overload, "requests": 2 * r.a.overload, "busy": len(busy)}


# ------------------------------------------------------------------- main

def main(args=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--url", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--oracle", required=True, help="folder of oracle.py")
    p.add_argument("--output", required=True, help="report, JSON")
    p.add_argument("--iterations", type=int, default=32)
    p.add_argument("--concurrency", type=int, default=4)
    p.add_argument("--tolerance", type=float, default=1e-5)
    p.add_argument("--max-tokens", type=int, default=600, help="longer cases of the oracle are left out")
    p.add_argument("--timeout", type=float, default=300)
    p.add_argument("--overload", type=int, default=0, metavar="CLIENTS")
    p.add_argument("--expect-busy", action="store_true")
    p.add_argument("--binary", help="the server's program, to name its hash in the report")
    p.add_argument("--only", default="", help="names of checks, by comma")
    a = p.parse_args(args)
    only = [n for n in a.only.split(",") if n]
    unknown = set(only) - {c.__name__ for c in CHECKS}
    if unknown or a.iterations < 1 or a.concurrency < 1 or a.overload < 0:
        p.error(f"unknown checks {sorted(unknown)}; there are {[c.__name__ for c in CHECKS]}" if unknown else "counts: at least 1")
    r = Run(a)
    results = []
    for fn in CHECKS:
        if only and fn.__name__ not in only:
            continue
        begin, rec = time.monotonic(), {"check": fn.__name__}
        try:
            rec["detail"], rec["passed"] = fn(r), True
        except Exception as e:  # a broken answer must not end the campaign
            rec["why"], rec["passed"] = (str(e) if isinstance(e, Failed) else f"{type(e).__name__}: {e}")[:2000], False
        rec["seconds"] = round(time.monotonic() - begin, 3)
        results.append(rec)
        word = "FAILED" if not rec["passed"] else "skipped" if "skipped" in (rec["detail"] or {}) else "passed"
        print(f"{word} {fn.__name__} ({rec['seconds']:.1f} s)" +
              ("" if rec["passed"] else f": {rec['why'][:500]}"), flush=True)
    report = {
        "schema": 1, "tool": "qualify", "url": a.url, "model": a.model, "model_identity": r.identity, "passed": all(x["passed"] for x in results),
        "iterations": a.iterations, "concurrency": a.concurrency, "tolerance": a.tolerance, "figures": r.figures, "checks": results,
        "hashes": {"oracle.json": checkpoint.sha256(os.path.join(a.oracle, "oracle.json")), "qualify.py": checkpoint.sha256(os.path.abspath(__file__)), **({"binary": checkpoint.sha256(a.binary)} if a.binary else {})},
        "reference": r.oracle["versions"], "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    api.write_report(a.output, report)
    print(f"{a.output}: {sum(x['passed'] for x in results)} of {len(results)} checks passed or skipped, largest difference "
          f"{r.figures['largest_difference']:.2g}")
    return 0 if report["passed"] and results else 1


if __name__ == "__main__":
    sys.exit(main())
