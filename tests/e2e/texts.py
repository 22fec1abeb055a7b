"""texts.py - rerank, extraction, vectors of three kinds, chunks: the routes, the official Cohere client and the commands, on the tiny
golden models against their references."""
import base64
import json
import os
import struct
import subprocess

from inferd_test import BIN, SLOW, Server, case, check, copy_model, equal, golden_cases, main

try:
    import cohere
except ImportError:
    cohere = None

INFERD = os.path.join(BIN, "inferd")
MODELS = ("reranker", "bge-m3", "minilm", "gliner2")
_shared = None


def server():
    """One server for all cases."""
    global _shared
    if _shared is None:
        _shared = Server(fill=lambda to: [copy_model(name, to) for name in MODELS])
        _shared.__enter__()
        for name in MODELS:
            equal(_shared.post("/ai/v1/models/load", {"model": name}).status, 200, f"load of {name}")
    return _shared


def close(a, b, most, what):
    check(abs(a - b) <= most, f"{what}: got {a}, expected {b}")


def pairs_by_query():
    out = {}
    for c in golden_cases("reranker")["cases"]:
        out.setdefault(c["query"], []).append(c)
    return out


def command(name, *args, text=""):
    r = subprocess.run([INFERD, name, *args, "--server", f"http://127.0.0.1:{server().port}"], input=text.encode(),
                       capture_output=True, timeout=60 * SLOW, check=False)
    return r.returncode, r.stdout.decode(), r.stderr.decode()


@case
def pairs_have_the_scores_of_the_reference():
    s = server()
    for query, cases in pairs_by_query().items():
        r = s.post("/ai/v1/rerank", {"model": "reranker", "query": query, "documents": [c["doc"] for c in cases],
                                     "return_logits": True})
        equal(r.status, 200, r.body)
        for i, (row, c) in enumerate(zip(r.json["data"], cases)):
            equal(row["index"], i, "index")
            close(row["logit"], c["logit"], 2e-4, "logit")
            close(row["score"], c["score"], 2e-4, "score")
        equal(r.json["usage"]["prompt_tokens"], sum(len(c["ids"]) for c in cases), "tokens of the pairs")
    ranking = golden_cases("reranker")["ranking"]
    docs = [c["doc"] for c in pairs_by_query()[ranking["query"]]]
    if len(docs) == len(ranking["order"]):
        r = s.post("/v1/rerank", {"model": "reranker", "query": ranking["query"], "documents": docs})
        equal([x["index"] for x in r.json["results"]], ranking["order"], "order")


@case
def empty_texts_have_the_scores_of_the_reference():
    """Of a query, of a document, of both: none is refused, in any shape."""
    s = server()
    cases = [c for c in golden_cases("reranker")["cases"] if not c["query"] or not c["doc"]]
    check(any(not c["query"] for c in cases) and any(not c["doc"] for c in cases), "the reference has both")
    for c in cases:
        for path, name, score in (("/ai/v1/rerank", "documents", lambda r: r["data"][0]["score"]),
                                  ("/v1/rerank", "documents", lambda r: r["results"][0]["relevance_score"]),
                                  ("/rerank", "texts", lambda r: r[0]["score"])):
            r = s.post(path, {"model": "reranker", "query": c["query"], name: [c["doc"]]})
            equal(r.status, 200, r.body)
            close(score(r.json), c["score"], 2e-4, f"{path}: {c['query']!r}, {c['doc']!r}")
    for c in golden_cases("bge-m3")["pair_scores"]:
        if not c["query"] or not c["passage"]:
            r = s.post("/ai/v1/rerank", {"model": "bge-m3", "query": c["query"], "documents": [c["passage"]],
                                         "weights": c["equal"]["weights"]})
            equal(r.status, 200, r.body)
            close(r.json["data"][0]["score"], c["equal"]["colbert+sparse+dense"], 2e-4, "by vectors")
    r = s.post("/ai/v1/rerank", {"model": "reranker", "query": "", "documents": ["", " ", [{"type": "text", "text": ""}]]})
    equal(r.status, 200, r.body)
    got = [x["score"] for x in r.json["data"]]
    check(got[0] == got[1] == got[2], f"nothing is nothing, however it is written: {got}")


@case
def four_shapes_say_the_same():
    s = server()
    query, docs = "what is a panda", ["hi", "The giant panda is a bear.", "The sky is blue."]
    ours = s.post("/ai/v1/rerank", {"model": "reranker", "query": query, "prompts": docs}).json["data"]
    score = {x["index"]: x["score"] for x in ours}
    best = sorted(score, key=lambda i: -score[i])
    for path in ("/v1/rerank", "/v2/rerank"):
        r = s.post(path, {"model": "reranker", "query": query, "documents": [docs[0], {"text": docs[1]}, docs[2]], "top_n": 2,
                          "return_documents": True}).json
        equal([(x["index"], x["relevance_score"], x["document"]) for x in r["results"]],
              [(i, score[i], {"text": docs[i]}) for i in best[:2]], path)
        check(r["id"] and r["meta"]["billed_units"]["search_units"] == 1, "meta")
    # a client of TEI names no model: there is one that was made for it
    r = s.post("/rerank", {"query": query, "texts": docs, "return_text": True})
    equal(r.json, [{"index": i, "score": score[i], "text": docs[i]} for i in best], "TEI")
    r = s.request("POST", "/ai/v1/rerank", {"model": "reranker", "query": query, "documents": docs},
                  headers={"Accept": "application/vnd.antfly.numeric.v1"})
    equal(r.body[:24], b"AFN1" + struct.pack("<IQQ", 2, 3, 1), "head of the frame")
    equal(struct.unpack("<3f", r.body[24:]), tuple(struct.unpack("<f", struct.pack("<f", score[i]))[0] for i in range(3)), "frame")


@case
def embedders_score_by_their_kinds():
    s = server()
    for p in golden_cases("bge-m3")["pair_scores"]:
        for name in ("equal", "card"):
            r = s.post("/ai/v1/rerank", {"model": "bge-m3", "query": p["query"], "documents": [p["passage"]],
                                         "weights": p[name]["weights"]})
            row = r.json["data"][0]
            close(row["score"], p[name]["colbert+sparse+dense"], 2e-4, "all kinds")
            for kind in ("dense", "sparse", "colbert"):
                close(row["scores"][kind], p[kind], 2e-4, kind)
    r = s.post("/ai/v1/rerank", {"model": "minilm", "query": "a", "documents": ["b"], "weights": {"colbert": 1}})
    equal((r.status, r.json["error"]), (400, "UNSUPPORTED_FEATURE"), r.body)


@case
def vectors_of_three_kinds_in_one_answer():
    s = server()
    cases = golden_cases("bge-m3")["cases"][:3]
    r = s.post("/ai/v1/embed", {"model": "bge-m3", "input": [c["text"] for c in cases],
                                "outputs": ["dense", "sparse", "colbert"], "encoding_format": "base64"})
    equal(r.status, 200, r.body)
    for row, c in zip(r.json["data"], cases):
        equal({str(i) for i in row["sparse"]["indices"]}, set(c["sparse"]), "tokens that have a weight")
        for i, w in zip(row["sparse"]["indices"], row["sparse"]["values"]):
            close(w, c["sparse"][str(i)], 2e-4, f"weight of {i}")
        equal(len(row["colbert"]), len(c["ids"]) - 1, "token vectors")
        first = struct.unpack("<48f", base64.b64decode(row["colbert"][0]))
        close(sum(x * x for x in first), 1, 1e-4, "length")
        close(sum(x * x for x in struct.unpack("<48f", base64.b64decode(row["embedding"]))), 1, 1e-4, "length")
    one = s.post("/ai/v1/embed", {"model": "bge-m3", "input": cases[0]["text"], "outputs": ["sparse"]}).json["data"][0]
    equal(one["embedding"], r.json["data"][0]["sparse"], "sparse alone")


@case
def bad_documents_are_named():
    s = server()
    bad = {"model": "reranker", "query": "q", "documents": ["good", 7, "x" * 1000000, "a\x00b \U0001f600"]}
    r = s.post("/ai/v1/rerank", bad)
    equal((r.status, r.json["input_index"]), (400, 1), r.body)
    r = s.post("/ai/v1/rerank", {**bad, "error_policy": "per_item"}).json
    equal([x["index"] for x in r["data"]], [0, 3], "answered")
    equal([(e["index"], e["code"]) for e in r["errors"]], [(1, "INVALID_REQUEST"), (2, "CONTENT_TOO_LARGE")], "refused")
    r = s.post("/ai/v1/rerank", {**bad, "error_policy": "per_item", "truncate": True}).json
    equal([(x["index"], x.get("truncated", False)) for x in r["data"]], [(0, False), (2, True), (3, False)], "cut")
    r = s.post("/ai/v1/rerank", '{"model":"reranker","query":"q","documents":["\\ud800"]}')
    equal(r.status, 400, r.body)
    r = s.post("/ai/v1/extract", {"model": "bge-m3", "inputs": [{"content": "a"}], "schema": {"entities": ["b"]}})
    equal((r.status, r.json["error"]), (400, "INVALID_MODEL"), r.body)


def as_ours(schema):
    """A schema of the reference in the words of /ai/v1/extract."""
    def label(name, d):
        return {"name": name, **{k: d[k] for k in ("description", "dtype", "threshold") if d.get(k) is not None}}

    out = {}
    if "entities" in schema:
        e = schema["entities"]
        out["entities"] = [label(k, v or {}) for k, v in e.items()] if isinstance(e, dict) else e
    if "relations" in schema:
        out["relations"] = list(schema["relations"])
    if "classifications" in schema:
        out["classifications"] = [
            {"name": c["task"], "labels": [label(x, {"description": c.get("label_descriptions", {}).get(x)}) for x in c["labels"]],
             "multi_label": c.get("multi_label", False), "threshold": c.get("cls_threshold", 0.5), "prompt": c.get("prompt"),
             "examples": [{"input": i, "output": o} for i, o in c.get("examples", [])]} for c in schema["classifications"]]
    if "structures" in schema:
        out["structures"] = {
            name: {"fields": {f["name"]: {"type": f["dtype"], "description": f.get("description"), "choices": f.get("choices"),
                                          "threshold": f.get("threshold"), "patterns": f.get("validators")} for f in d["fields"]}}
            for name, d in schema["structures"].items()}
    return out


def same_span(got, want, what, key="text"):
    equal((got[key], got.get("start"), got.get("end")), (want["text"], want.get("start"), want.get("end")), what)
    close(got["score"], want["confidence"], 4e-4, f"score of {what}")


def same_values(got, want, what):
    if isinstance(want, list):
        equal(len(got), len(want), f"{what}: {got}")
        for g, w in zip(got, want):
            same_span(g, w, what, "value")
    elif want is None:
        equal(got, None, what)
    else:
        same_span(got, want, what, "value")


def same_findings(item, schema, want, what):
    for label, spans in want.get("entities", {}).items():
        got = [e for e in item["entities"] if e["label"] == label]
        spans = [] if spans is None else spans if isinstance(spans, list) else [spans]
        equal(len(got), len(spans), f"{what}: {label}: {got}")
        for g, w in zip(got, spans):
            same_span(g, w, f"{what}: {label}")
    if "entities" not in schema:  # else the ends are told as the entities that stand there
        for name, pairs in want.get("relation_extraction", {}).items():
            ours = [[item["entities"][r[end]["entity_index"]] for end in ("source", "target")] for r in item["relations"]
                    if r["type"] == name]
            places = {tuple((e["start"], e["end"]) for e in pair) for pair in ours}
            equal(places, {tuple((p[k]["start"], p[k]["end"]) for k in ("head", "tail")) for p in pairs}, f"{what}: {name}")
    for c in schema.get("classifications", []):
        labels = want[c["task"]] if isinstance(want[c["task"]], list) else [want[c["task"]]]
        got = [x for x in item["classifications"] if x["name"] == c["task"]]
        equal([x["label"] for x in got], [x["label"] for x in labels], f"{what}: {c['task']}")
        for g, w in zip(got, labels):
            close(g["score"], w["confidence"], 4e-4, f"{what}: {c['task']}")
    for name in schema.get("structures", {}):
        records = want[name] or []
        equal(len(item["structures"][name]), len(records), f"{what}: {name}")
        for g, w in zip(item["structures"][name], records):
            for field in w:
                same_values(g[field], w[field], f"{what}: {name}.{field}")


@case
def extraction_is_the_reference():
    s = server()
    cases = [c for c in golden_cases("gliner2")["cases"] if c["max_len"] is None and "entity_attributes" not in c["schema"]]
    check(len(cases) >= 10, "cases")
    inputs = [{"id": c["name"], "content": c["text"], "schema": as_ours(c["schema"]),
               "options": {"threshold": c["threshold"]}} for c in cases]
    options = {"flat_ner": False, "include_confidence": True, "include_spans": True, "offsets": "codepoints"}
    r = s.post("/ai/v1/extract", {"model": "gliner2", "schema_version": 2, "inputs": inputs, "options": options})
    equal(r.status, 200, r.body)
    for item, c in zip(r.json["data"], cases):
        equal(item["id"], c["name"], "id")
        same_findings(item, c["schema"], c["result"], c["name"])
    # offsets in bytes are of the same text
    c = next(c for c in cases if c["name"] == "entities-unicode")
    one = {"model": "gliner2", "inputs": [{"content": c["text"]}], "schema": as_ours(c["schema"])}
    wide = s.post("/ai/v1/extract", {**one, "options": {**options, "threshold": c["threshold"], "offsets": "bytes"}}).json
    for e in wide["data"][0]["entities"]:
        equal(c["text"].encode()[e["start"]:e["end"]].decode(), e["text"], "bytes")


@case
def extraction_of_odd_requests():
    s = server()
    ask = {"model": "gliner2", "inputs": [{"content": "Maria works for Acme."}], "schema": {"entities": ["person", "company"]}}
    r = s.post("/ai/v1/extract", {**ask, "schema": {"entities": ["person", "company"], "relations": ["person::works for::company"]},
                                  "options": {"threshold": 0.01}}).json["data"][0]
    for rel in r["relations"]:
        equal([r["entities"][rel[end]["entity_index"]]["label"] for end in ("source", "target")], ["person", "company"], "ends")
    many = s.post("/ai/v1/extract", {**ask, "schema": {"entities": [f"label {i}" for i in range(60)]}})
    equal(many.status, 200, many.body[:200])
    odd = {**ask, "inputs": [{"content": x} for x in ("", "   ", "a\x00b", "x" * 1000000)]}
    r = s.post("/ai/v1/extract", odd)
    equal((r.status, r.json["input_index"]), (413, 3), r.body[:300])  # one word, longer than the model's window
    r = s.post("/ai/v1/extract", {**odd, "error_policy": "per_item"}).json
    equal([x["index"] for x in r["data"]], [0, 1, 2], "answered")
    equal([(e["index"], e["code"]) for e in r["errors"]], [(3, "CONTENT_TOO_LARGE")], "refused")
    r = s.post("/ai/v1/classify", {"model": "gliner2", "texts": ["I like it"], "labels": ["good", "bad", "neutral"]}).json
    close(sum(c["score"] for c in r["data"][0]["classifications"]), 1, 1e-3, "probabilities")
    code, out, err = command("extract", "gliner2", "Maria works for Acme.", "--entities", "person,company", "--threshold", "0.01",
                             "--classify", "tone=good,bad")
    equal(code, 0, err)
    check("tone: " in out and "LABEL" in out, out)


@case
def chunks_are_places_of_the_text():
    s = server()
    text = "One two three. Four five.\n\nSix seven eight nine ten. \U0001f600 eleven\n\n" * 20
    for config in ({"max_chunks": 1000, "text": {"target_tokens": 9, "overlap_tokens": 2, "sentences": True}},
                   {"model": "fixed_bpe", "max_chunks": 3}):
        r = s.post("/ai/v1/chunk", {"input": text, "config": config}).json
        check(r["data"], "some pieces")
        for i, c in enumerate(r["data"]):
            equal((c["object"], c["index"], c["text"]), ("chunk", i, text[c["start_char"]:c["end_char"]]), "a piece")
        equal(r["truncated"], False, "the whole text")
    r = s.post("/ai/v1/chunk", {"input": "x" * 1000000, "config": {"text": {"target_tokens": 100}}}).json
    equal((len(r["data"]), r["truncated"]), (50, True), "a million of one character")
    r = s.post("/ai/v1/chunk", {"input": text, "config": {"model": "minilm", "text": {"target_tokens": 40}}})
    equal(r.status, 200, r.body)
    for c in r.json["data"]:
        equal(c["text"], text[c["start_char"]:c["end_char"]], "a piece by a model's tokens")
        check(0 < c["n_tokens"] <= 40, "tokens")


@case
def the_official_client_of_cohere():
    if cohere is None:
        from inferd_test import Skip
        raise Skip("the cohere package is not installed (tests/run makes a venv with it)")
    base, docs = f"http://127.0.0.1:{server().port}", ["hi", "The giant panda is a bear.", "The sky is blue."]
    new = cohere.ClientV2(api_key="any", base_url=base).rerank(model="reranker", query="what is a panda", documents=docs, top_n=2)
    old = cohere.Client(api_key="any", base_url=base).rerank(model="reranker", query="what is a panda", top_n=2,
                                                            documents=[{"text": d} for d in docs], return_documents=True)
    equal([(x.index, x.relevance_score) for x in new.results], [(x.index, x.relevance_score) for x in old.results], "both")
    check(new.results[0].relevance_score >= new.results[1].relevance_score, "best first")
    equal(old.results[0].document.text, docs[old.results[0].index], "document")
    equal(new.meta.billed_units.search_units, 1, "search units")
    try:
        cohere.ClientV2(api_key="any", base_url=base).rerank(model="nothing", query="q", documents=docs)
        check(False, "no error")
    except cohere.errors.NotFoundError as e:
        check("nothing" in e.body["message"], e.body)


@case
def commands():
    code, out, err = command("rerank", "reranker", "what is a panda", text="hi\n\nThe giant panda is a bear.\n")
    equal(code, 0, err)
    rows = [line.split(None, 3) for line in out.splitlines()[1:]]
    equal({r[3] for r in rows}, {"hi", "The giant panda is a bear."}, out)
    check(float(rows[0][1]) >= float(rows[1][1]), "best first")
    code, out, err = command("rerank", "minilm", "a cat", "a kitten", "stocks", "--top", "1", "--json")
    equal((code, len(json.loads(out)["data"])), (0, 1), err)
    code, out, err = command("chunk", "--target", "4", "--overlap", "0", "--json", text="one two three. four five six")
    equal([json.loads(line)["text"] for line in out.splitlines()], ["one two three.", "four five six"], err)
    code, out, err = command("extract", "minilm", "text", "--entities", "a")
    equal(code, 1, "an embedder does not extract")
    check("does not extract" in err, err)
    code, out, err = command("extract", "minilm", "text")
    check(code == 1 and "nothing to find" in err, err)


if __name__ == "__main__":
    main()
