"""decisions.py - decisions by similarity over HTTP and the two commands, on one server: the contract's rows on the tiny
golden embedder, and a routing set (routing.json) on real MiniLM weights: how often it is right, how often it abstains, and
whether a calibrated bound holds on sentences that no threshold has seen."""
import hashlib
import json
import os
import random
import shutil
import socket
import subprocess
import threading

from inferd_test import (BIN, PRESET, REAL_MINILM, ROOT, SLOW, TINY_BERT, TINY_GEMMA, Server, Skip, case, check, copy_model, equal,
                         main, real_models, wait_for)

INFERD = os.path.join(BIN, "inferd")
PATH = "/ai/v1/decisions"
TINY_EG2 = "embeddinggemma2"
_server = None


def link_model(src, dst):
    """The files of a model, without a copy of what is large: calibrations may be put beside them."""
    for folder, _, names in os.walk(src):
        to = os.path.join(dst, os.path.relpath(folder, src))
        os.makedirs(to, exist_ok=True)
        for n in names:
            try:
                os.link(os.path.join(folder, n), os.path.join(to, n))
            except OSError:
                shutil.copy(os.path.join(folder, n), os.path.join(to, n))


def fill(to):
    copy_model(TINY_BERT, to)
    copy_model(TINY_GEMMA, to)
    copy_model(TINY_EG2, to)
    try:
        src = os.path.join(real_models(), REAL_MINILM)
    except Skip:
        return
    if os.path.isdir(src):
        link_model(src, os.path.join(to, REAL_MINILM))


def server():
    global _server
    if _server is None:
        _server = Server(fill=fill, log_level="debug")
        _server.start()
    return _server


def choice(name="q", values=("a", "b"), **extra):
    return {"name": name, "type": "choice", "instructions": "Which is it?",
            "choices": [{"value": v, "description": f"about {v}"} for v in values], **extra}


def decide(body, status=200):
    r = server().post(PATH, {"model": TINY_BERT, **body})
    equal(r.status, status, f"{json.dumps(body)[:300]}: {r.body[:400]!r}")
    return r.json


def metric(event):
    return server().metric("inferd_prototype_sets_total", model=TINY_BERT, event=event) or 0


@case
def identical_prototypes_tie():
    q = choice()
    q["choices"] = [{"value": "a", "description": "the same"}, {"value": "b", "description": "the same"}]
    a = decide({"input": "a text", "questions": [q]})["answers"][0]
    equal((a["status"], a["abstention_reason"], a["choice"], a["margin"]), ("abstained", "tie", None, 0), "tie")
    equal(a["similarities"][0]["similarity"], a["similarities"][1]["similarity"], "similarities")
    check("probabilities" not in a and "confidence" not in a, "a similarity is no probability")


@case
def thresholds_select_all_and_none():
    q = {**choice(values=("x", "y", "z")), "type": "multi_choice"}
    a = decide({"input": "a text", "questions": [{**q, "similarity_thresholds": -1}]})["answers"][0]
    equal((a["status"], a["choices"]), ("selected", ["x", "y", "z"]), "-1 selects all")
    equal(a["similarity_thresholds"], {"x": -1, "y": -1, "z": -1}, "effective thresholds")
    b = decide({"input": "a text", "questions": [{**q, "similarity_thresholds": 1}]})["answers"][0]
    equal((b["status"], b["choices"]), ("empty", []), "+1 selects none")
    equal(a["similarities"], b["similarities"], "thresholds move no similarity")
    # a threshold that is the similarity itself accepts, as it was printed
    s = {row["value"]: row["similarity"] for row in a["similarities"]}
    c = decide({"input": "a text", "questions": [{**q, "similarity_thresholds": s}]})["answers"][0]
    equal((c["status"], c["choices"], c["margin"]), ("selected", ["x", "y", "z"], 0), "equality accepts")
    d = decide({"input": "a text", "questions": [{**q, "similarity_thresholds": s,
                                                  "embedding_options": {"min_margin": 0.001}}]})["answers"][0]
    equal((d["status"], d["choices"], d["abstention_reason"]), ("abstained", [], "min_margin"), "margin withholds the set")
    # and a choice at its own bounds
    e = decide({"input": "a text", "questions": [choice()]})["answers"][0]
    check(e["status"] == "selected", e)
    best = max(x["similarity"] for x in e["similarities"])
    for bounds, want in (({"min_similarity": best, "min_margin": e["margin"]}, None), ({"min_similarity": 1}, "min_similarity"),
                         ({"min_margin": 2}, "min_margin")):
        f = decide({"input": "a text", "questions": [choice(embedding_options=bounds)]})["answers"][0]
        equal(f.get("abstention_reason"), want, f"{bounds}")


@case
def a_batch_echoes_ids_in_order_and_equals_single_inputs():
    texts = ["one", "another text", "one", "a third, which is longer than the others"]
    qs = [choice(), {**choice("t"), "type": "multi_choice", "similarity_thresholds": 0.5}]
    r = decide({"inputs": [{"id": f"i{i}", "input": t} if i != 1 else {"input": t} for i, t in enumerate(texts)],
                "questions": qs})
    check("answers" not in r, "no answers at the top of a batch")
    equal([d["input_index"] for d in r["data"]], [0, 1, 2, 3], "indexes")
    equal([d.get("id") for d in r["data"]], ["i0", None, "i2", "i3"], "ids")
    total = 0
    for row, text in zip(r["data"], texts):
        one = decide({"input": text, "questions": qs})
        equal(row["answers"], one["answers"], "alone and batched")
        total += one["usage"]["input_tokens"]
    equal(r["usage"], {"input_tokens": total, "output_tokens": 0}, "usage")
    equal(r["renderer_version"], "instruction-category-v1", "renderer")
    # the same after the worker was gone
    equal(server().post("/ai/v1/models/unload", {"model": TINY_BERT}).status, 200, "unload")
    again = decide({"input": texts[1], "questions": qs})
    equal(again["answers"], r["data"][1]["answers"], "after a restart")


@case
def prototypes_are_what_embeddings_say():
    """The same numbers as a client would get who renders, embeds and averages by itself; of EmbeddingGemma 2 with the
    prefix of the task and at every size."""
    head = "Instruction: Route it.\n"
    texts = [head + "Input: help me", head + "Input: reset it", head + "Input: log in", head + "Category: bills"]
    q = {"name": "q", "type": "choice", "instructions": "Route it.", "choices": [
        {"value": "a", "description": "not read", "examples": ["reset it", "log in"]}, {"value": "b", "description": "bills"}]}

    def unit(x):
        n = sum(k * k for k in x) ** 0.5
        return [k / n for k in x]

    def dot(x, y):
        return sum(p * q for p, q in zip(unit(x), unit(y)))
    seen = set()
    for model, task, dims in ((TINY_BERT, None, None), (TINY_EG2, None, None),
                              (TINY_EG2, "CLUSTERING", 16), (TINY_EG2, "CLASSIFICATION", None), (TINY_EG2, "CLASSIFICATION", 64)):
        options = {k: v for k, v in (("task_type", task), ("dimensions", dims)) if v}
        r = server().post(PATH, {"model": model, "input": "help me", "questions": [q], "embedding_options": options})
        equal(r.status, 200, f"{model} {options}: {r.body[:300]!r}")
        a = r.json["answers"][0]
        e = {"model": model, "input": texts, **options}
        if model == TINY_EG2:
            e.setdefault("task_type", "CLUSTERING")  # the default of decisions, not of embeddings
        v = [d["embedding"] for d in server().post("/ai/v1/embed", e).json["data"]]
        centroid = [p + q for p, q in zip(unit(v[1]), unit(v[2]))]
        for got, want in zip(a["similarities"], (dot(v[0], centroid), dot(v[0], v[3]))):
            check(abs(got["similarity"] - want) < 1e-6, (model, options, got, want))
        equal(r.json["model_identity"], server().get(f"/ai/v1/models/{model}").json.get("model_identity",
              r.json["model_identity"]), "identity")
        seen.add((a["prototype_set_hash"], a["similarities"][0]["similarity"]))
    equal(len(seen), 5, "task and size are in the hash and in the numbers")
    r = server().post(PATH, {"model": TINY_EG2, "input": "t", "questions": [q], "embedding_options": {"dimensions": 20}})
    check(r.status == 400 and "96, 64, 32 or 16" in r.json["message"], r.body)
    for kind in ("score", "predicate"):
        r = server().post(PATH, {"model": TINY_EG2, "input": "t", "questions": [{**q, "type": kind}]})
        check(r.status == 400 and "trained deciders" in r.json["message"], r.body)


@case
def a_choice_is_the_references():
    """What PyTorch and the published modelling code made of the same question (tests/golden/embeddinggemma2/compare.py)."""
    folder = os.path.join(ROOT, "tests", "golden", TINY_EG2, "suite")
    with open(os.path.join(folder, "suite.json"), encoding="utf-8") as f:
        c = json.load(f)["choice"]
    with open(os.path.join(folder, "torch.json"), encoding="utf-8") as f:
        want = json.load(f)["choice"]
    r = server().post(PATH, {"model": TINY_EG2, "input": c["input"], "questions": [c["question"]]})
    equal(r.status, 200, f"{r.body[:300]!r}")
    a = r.json["answers"][0]
    equal(a["choice"], want["choice"], "choice")
    equal({x["value"] for x in a["similarities"]}, set(want["similarities"]), "values")
    for x in a["similarities"]:
        check(abs(x["similarity"] - want["similarities"][x["value"]]) < 1e-5, (x, want))
    check(abs(a["margin"] - want["margin"]) < 1e-5, (a["margin"], want["margin"]))


@case
def mistakes_are_400_in_words():
    multi = {**choice(), "type": "multi_choice"}
    for q, says in ((choice(embedding_options={"min_margin": 3}), "0 to 2"),
                    ({**choice(), "type": "score"}, "trained deciders only"),
                    ({**choice(), "type": "predicate"}, "trained deciders only"),
                    (multi, "similarity_thresholds"),
                    (choice(embedding_options={"calibration_id": "nowhere"}), "calibrations/nowhere.json"),
                    (choice(embedding_options={"calibration_id": "../../x"}), "letters, digits"),
                    ({**multi, "similarity_thresholds": 0, "embedding_options": {"calibration_id": "a"}}, "expected no other"),
                    (choice(threshold=1), "threshold")):
        r = decide({"input": "t", "questions": [q]}, 400)
        equal(r["error"], "INVALID_REQUEST", "code")
        check(says in r["message"], r["message"])
    r = decide({"input": "t", "questions": [choice()], "embedding_options": {"task_type": "CLASSIFICATION"}}, 400)
    check("task" in r["message"], r["message"])  # this model has no task prompts
    r = decide({"input": "t", "questions": [choice()], "model_identity": "0" * 64}, 409)
    equal(r["error"], "MODEL_IDENTITY_MISMATCH", "code")
    r = server().post(PATH, {"model": TINY_GEMMA, "input": "t", "questions": [choice()]})
    equal((r.status, r.json["error"]), (400, "INVALID_MODEL"), "a model that embeds nothing")
    r = decide({"inputs": [{"input": f"t{i}"} for i in range(128)], "questions": [choice(f"q{i}") for i in range(64)]}, 413)
    check("8320 texts" in r["message"] and "4096" in r["message"], r["message"])
    r = decide({"inputs": [{"input": "t"}, {"input": "far " * 4000}], "questions": [choice()]}, 413)
    equal((r["input_index"], r["limit"]), (1, 64), f"the input is named: {r}")


@case
def one_request_fills_for_all_and_a_waiter_may_leave():
    body = {"inputs": [{"input": f"text {i}"} for i in range(8)], "questions": [
        {**choice(), "instructions": "A set of its own.",
         "choices": [{"value": v, "examples": [f"{v} {k}" for k in range(20)]} for v in "abcdef"]}]}
    fills = metric("fill")
    answers = []
    # two that leave at once, among four that stay
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", server().port)) as c:
            data = json.dumps({"model": TINY_BERT, **body}).encode()
            c.sendall(b"POST /ai/v1/decisions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    threads = [threading.Thread(target=lambda: answers.append(decide(body)["data"])) for _ in range(4)]
    for th in threads:
        th.start()
    for th in threads:
        th.join()
    equal(len(answers), 4, "answers")
    check(all(a == answers[0] for a in answers), "the same bytes for all")
    wait_for(lambda: metric("fill") == fills + 1, "one fill for all of them")
    # those who come later find it
    hits = metric("hit")
    equal(decide(body)["data"], answers[0], "kept")
    wait_for(lambda: metric("hit") == hits + 1, "a hit")
    check(server().metric("inferd_prototype_bytes", model=TINY_BERT) > 0, "bytes are told")
    check(server().metric("inferd_decisions_total", model=TINY_BERT, result="tie") >= 1, "results are counted")


# ------------------------------------------------------------------- real weights

def routing():
    with open(os.path.join(ROOT, "tests", "e2e", "routing.json"), encoding="utf-8") as f:
        return json.load(f)


def route_question(r):
    return {"name": "route", "type": "choice", "instructions": r["instructions"],
            "choices": [{"value": t["value"], "examples": t["examples"]} for t in r["teams"]]}


def real_minilm():
    if PRESET == "asan":
        raise Skip("real weights are too slow under a sanitizer")
    path = os.path.join(real_models(), REAL_MINILM)
    if not os.path.isdir(path):
        raise Skip(f"{REAL_MINILM} is not among the real weights")


def run(*args):
    return subprocess.run([INFERD, *args], capture_output=True, text=True, timeout=120 * SLOW, check=False,
                          env={k: v for k, v in os.environ.items() if k != "INFERD_SERVER"})


@case
def sixty_sentences_find_their_team():
    real_minilm()
    r = routing()
    todo = [(s, t["value"]) for t in r["teams"] for s in t["sentences"]]
    equal(len(todo), 60, "sentences")
    a = server().post(PATH, {"model": REAL_MINILM, "inputs": [{"input": s} for s, _ in todo],
                             "questions": [route_question(r)]})
    equal(a.status, 200, f"{a.body[:300]!r}")
    rows = [(d["answers"][0], team) for d, (_, team) in zip(a.json["data"], todo)]
    check(all(x["status"] == "selected" for x, _ in rows), "without bounds only a tie abstains")
    bare = sum(x["choice"] == team for x, team in rows)
    decided = [(x, team) for x, team in rows if x["margin"] >= 0.03]  # as min_margin 0.03 would
    right = sum(x["choice"] == team for x, team in decided)
    print(f"# routing: {bare} of 60 right without bounds; min_margin 0.03: {right} right, {len(decided) - right} wrong, "
          f"{60 - len(decided)} abstained")
    check(bare >= 54, f"{bare} of 60 right")
    check(len(decided) >= 40 and len(decided) - right < 60 - bare, "a margin turns errors into abstentions")


def labelled(r):
    """410 sentences: 300 and 50 made of templates, of which the 50 ask for something no team does, and the 60."""
    out = [{"input": s, "labels": [t["value"]]} for t in r["teams"] for s in t["sentences"]]
    for t in [*r["teams"], {**r["other"], "value": None}]:
        for n, pattern in enumerate(t["templates"]):
            for k, word in enumerate(t["words"]):
                out.append({"input": pattern.format(p=r["polite"][(n + k) % len(r["polite"])], x=word),
                            "labels": [t["value"]] if t["value"] else []})
    random.Random(5).shuffle(out)
    for i, row in enumerate(out):
        row["split"] = ("fit", "validation", "holdout", "fit", "holdout")[i % 5]
    equal(len({row["input"] for row in out}), 410, "different sentences")
    return out


@case
def from_labelled_sentences_to_a_bound_that_holds():
    real_minilm()
    s = server()
    r = routing()
    rows = labelled(r)
    work = os.path.join(s.own, "work")
    os.makedirs(work, exist_ok=True)
    request, lines, scores = (os.path.join(work, n) for n in ("request.json", "labelled.jsonl", "scores.jsonl"))
    artifact = os.path.join(s.models, REAL_MINILM, "calibrations", "support_v1.json")
    with open(request, "w", encoding="utf-8") as f:
        json.dump({"model": REAL_MINILM, "questions": [route_question(r)]}, f)
    with open(lines, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(row) + "\n" for row in rows)
    out = run("decisions", "--server", f"http://127.0.0.1:{s.port}", "--request", request, "--scores", lines)
    equal(out.returncode, 0, out.stderr)
    with open(scores, "w", encoding="utf-8") as f:
        f.write(out.stdout)
    equal(len(out.stdout.splitlines()), len(rows) + 1, "a binding and a line for each input")
    # a bound nobody can keep writes nothing
    out = run("calibrate", scores, artifact, "--precision", "1")
    check(out.returncode == 1 and "not qualified" in out.stderr and not os.path.exists(artifact), out.stderr)
    out = run("calibrate", scores, artifact, "--precision", "0.9", "--minimum-coverage", "0.2")
    print("# " + out.stderr.strip().replace("\n", "\n# "))
    equal(out.returncode, 0, out.stderr)
    with open(artifact, encoding="utf-8") as f:
        made = json.load(f)
    m = made["metrics"]["holdout"]
    check(made["qualified"] and m["n"] == 164 and m["accuracy_lower_95"] >= 0.9 and m["correct"] >= 0.9 * m["selected"], m)
    check(0.2 <= m["coverage"] < 1, "some are not decided: nobody is there for them")
    # the server decides by it as the artifact counted, here on the first of the holdout
    by_hash = {x["state_sha256"]: x for x in map(json.loads, open(scores, encoding="utf-8").read().splitlines()[1:])}
    part = [row for row in rows if row["split"] == "holdout"][:40]
    question = {**route_question(r), "embedding_options": {"calibration_id": "support_v1"}}
    a = s.post(PATH, {"model": REAL_MINILM, "inputs": [{"input": x["input"]} for x in part], "questions": [question]})
    equal(a.status, 200, f"{a.body[:300]!r}")
    seen = set()
    for row, d in zip(part, a.json["data"]):
        x = d["answers"][0]
        sample = by_hash[hashlib.sha256(row["input"].encode()).hexdigest()]
        best, second = sorted(sample["scores"], reverse=True)[:2]
        t = made["thresholds"]
        equal([v["similarity"] for v in x["similarities"]], sample["scores"], "scores are those of the server")
        equal(x["status"] == "selected", best >= t["min_similarity"] and best - second >= t["min_margin"], "by its bounds")
        equal(x["calibration_id"], "support_v1", "calibration_id")
        seen.add(x["status"])
    equal(seen, {"selected", "abstained"}, "both occur")
    # bound to exactly this: other prototypes, dimensions or labels, and another state of the file are refused
    other = json.loads(json.dumps(question))
    other["choices"][0]["examples"][0] += "!"
    for body, says in (({"questions": [other]}, "prototypes"),
                       ({"questions": [question], "embedding_options": {"dimensions": 128}}, "dimensions"),
                       ({"questions": [{**question, "choices": question["choices"][::-1]}]}, "label 0")):
        a = s.post(PATH, {"model": REAL_MINILM, "input": "t", **body})
        check(a.status == 400 and says in a.json["message"], a.body)
    made["qualified"] = False
    with open(artifact, "w", encoding="utf-8") as f:
        json.dump(made, f)
    a = s.post(PATH, {"model": REAL_MINILM, "input": "t", "questions": [question]})
    check(a.status == 400 and "not qualified" in a.json["message"], a.body)


@case
def the_command_shows_answers():
    s = server()
    work = os.path.join(s.own, "work")
    os.makedirs(work, exist_ok=True)
    path = os.path.join(work, "ask.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"model": TINY_BERT, "inputs": [{"id": "x\u001b[31m", "input": "a text"}, {"input": "b"}],
                   "questions": [choice(), {**choice("t"), "type": "multi_choice", "similarity_thresholds": 1}]}, f)
    url = f"http://127.0.0.1:{s.port}"
    out = run("decisions", "--server", url, "--request", path)
    equal(out.returncode, 0, out.stderr)
    check("[0] x" in out.stdout and "\x1b" not in out.stdout and "  q: " in out.stdout and "  t: empty, margin" in out.stdout,
          out.stdout)
    out = run("decisions", "--server", url, "--request", path, "--json")
    equal(len(json.loads(out.stdout)["data"]), 2, "json")
    equal(run("decisions", "--server", url).returncode, 2, "a request is needed")
    # scores of a question with several labels, for calibrate
    lines = os.path.join(work, "tagged.jsonl")
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"model": TINY_BERT, "input": "dropped", "questions": [
            {**choice("t"), "type": "multi_choice", "embedding_options": {"calibration_id": "not_yet"}}]}, f)
    with open(lines, "w", encoding="utf-8") as f:
        f.write('{"input": "one", "labels": ["b", "a"], "split": "fit"}\n\n{"input": "two", "labels": []}\n')
    out = run("decisions", "--server", url, "--request", path, "--scores", lines)
    equal(out.returncode, 0, out.stderr)
    head, one, two = map(json.loads, out.stdout.splitlines())
    equal((head["binding"]["mode"], head["binding"]["labels"], head["binding"]["dimensions"], head["binding"]["task_type"]),
          ("multi", ["a", "b"], 48, "CLUSTERING"), "binding")
    equal((one["split"], one["labels"], len(one["scores"])), ("fit", ["b", "a"], 2), "sample")
    check(two["split"] in ("fit", "validation", "holdout"), "a split by the text's hash")
    equal(two["state_sha256"], hashlib.sha256(b"two").hexdigest(), "state")
    with open(lines, "a", encoding="utf-8") as f:
        f.write('{"input": "three"}\n')
    out = run("decisions", "--server", url, "--request", path, "--scores", lines)
    check(out.returncode == 1 and "line 4" in out.stderr, out.stderr)
    out = run("decisions", "--server", url, "--request", path + "x")
    check(out.returncode == 1 and "ask.jsonx" in out.stderr, out.stderr)


if __name__ == "__main__":
    main()
