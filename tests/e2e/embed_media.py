"""embed_media.py - EmbeddingGemma 2 over HTTP: texts, pictures, sounds and groups against vectors of its reference.

One server for all cases, on the tiny golden checkpoint. Vectors of one request are also compared bit for bit: alone or
together, inline or attached, as JSON, base64 or numbers, over HTTP or from the command line.
"""
import base64
import concurrent.futures
import json
import math
import os
import struct
import subprocess
import sys

from inferd_test import BIN, GOLDEN, PRESET, SLOW, Server, Skip, case, check, copy_model, equal, golden_cases, main

sys.path.insert(0, os.path.join(GOLDEN, "embeddinggemma2"))
import eg2_http  # noqa: E402

try:
    import openai
except ImportError:
    openai = None

MODEL = "embeddinggemma2"
BOUND = 3e-4  # these weights amplify rounding: see tests/golden/README.md
TASKS = {"SearchQuery": "RETRIEVAL_QUERY", "QuestionAnswering": "QUESTION_ANSWERING", "FactChecking": "FACT_VERIFICATION",
         "CodeRetrieval": "CODE_RETRIEVAL_QUERY", "SentenceSimilarity": "SEMANTIC_SIMILARITY",
         "Classification": "CLASSIFICATION", "Clustering": "CLUSTERING", "Document": "RETRIEVAL_DOCUMENT",
         "multilingual": "RETRIEVAL_DOCUMENT", "long": "RETRIEVAL_DOCUMENT"}
DIMS = {"full": None, "dim64": 64, "dim32": 32, "dim16": 16}
server = None


def serve():
    global server
    if server is None:
        server = Server(fill=lambda d: copy_model(MODEL, d)).__enter__()
    return server


def ask(inputs, path="/ai/v1/embed", headers=None, **more):
    return serve().post(path, {"model": MODEL, "input": inputs, **more}, headers=headers)


def vectors(inputs, **more):
    r = ask(inputs, **more)
    equal(r.status, 200, r.body[:400])
    return [d["embedding"] for d in r.json["data"]]


def blob(name):
    with open(os.path.join(GOLDEN, MODEL, name), "rb") as f:
        return f.read()


def media(name):
    return {"type": "media", "mime_type": eg2_http.MIME[name[-4:]], "data": base64.b64encode(blob(name)).decode()}


def picture(name):
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(blob(name)).decode()}}


def text(s):
    return {"type": "text", "text": s}


def part(p):
    return text(p) if isinstance(p, str) else media(p.get("image") or p["audio"])


def near(got, want, what):
    equal(len(got), len(want), f"{what}: numbers")
    worst = max(abs(a - b) for a, b in zip(got, want))
    check(worst <= BOUND, f"{what}: off by {worst:.2e}, bound {BOUND}")
    check(abs(math.fsum(x * x for x in got) - 1) < 1e-4, f"{what}: length")


def packed(numbers):
    return struct.pack(f"<{len(numbers)}f", *numbers)


def golden_groups():
    with open(os.path.join(GOLDEN, "embeddinggemma2_groups.json"), encoding="utf-8") as f:
        return json.load(f)["groups"]


@case
def texts_equal_the_reference_in_every_task_and_size():
    known = {c["name"]: c for c in golden_cases(MODEL)["text"]}
    for name, task in TASKS.items():
        for dim, n in DIMS.items() if name == "Document" else (("full", None), ("dim16", 16)):
            got = vectors(known[name]["text"], task_type=task, dimensions=n)[0]
            near(got, known[name]["embedding"][dim], f"{name} {dim}")
    got = vectors(known["Document"]["text"])[0]
    near(got, known["Document"]["embedding"]["full"], "without a task: a document")
    got = vectors([{"title": "The harbour", "content": [text(known["Document_titled"]["text"])]}])[0]
    near(got, known["Document_titled"]["embedding"]["full"], "a title")
    r = ask("a", dimensions=48)
    check(r.status == 400 and b"64, 32 or 16" in r.body, r.body)


@case
def pictures_and_sounds_equal_the_reference():
    known = {c["name"]: c["embedding"]["full"] for c in golden_cases(MODEL)["mixed"]}
    r = ask([picture("wide_rgb.png"), media("second.wav"), "a text between", media("wide_rgb.png")])
    equal(r.status, 200, r.body[:400])
    got = [d["embedding"] for d in r.json["data"]]
    near(got[0], known["picture_only"], "a picture")
    near(got[1], known["sound_only"], "a sound")
    equal(packed(got[0]), packed(got[3]), "the same picture twice")
    usage = r.json["usage"]
    check(usage["media_tokens"] == 60 + 60 + 25, f"rows of media: {usage}")
    check(0 < usage["prompt_tokens"] < 40, f"tokens of texts: {usage}")


@case
def groups_equal_the_reference():
    for g in golden_groups():
        group = {"content": [part(p) for p in g["parts"]]}
        if g["title"]:
            group["title"] = g["title"]
        for dim, n in DIMS.items() if g["name"] == "all_kinds" else (("full", None),):
            r = ask([group], task_type=g["task_type"], dimensions=n)
            equal(r.status, 200, r.body[:400])
            near(r.json["data"][0]["embedding"], g["embedding"][dim], f"{g['name']} {dim}")
            equal(r.json["usage"].get("media_tokens", 0), g["n_media_tokens"], f"{g['name']}: rows of media")
    # the order of the parts matters, the title "none" does not
    parts = [text("before"), media("grey.png"), text("after")]
    a, b, c = vectors([{"content": parts}, {"content": parts[::-1]}, {"title": "none", "content": parts}])
    check(a != b, "another order, the same vector")
    equal(packed(a), packed(c), 'title "none"')


@case
def the_way_a_file_comes_changes_nothing():
    files = [("image/png", blob("grey.png")), ("Audio/WAV; x=1", blob("short.wav"))]
    inputs = [{"content": [text("a"), {"type": "image_url", "image_url": {"url": "attachment:0"}},
                           {"type": "media", "data": "attachment:1", "mime_type": "audio/wav"}]}]
    r = serve().request("POST", "/ai/v1/embed", body=eg2_http.attachments({"model": MODEL, "input": inputs}, files),
                        headers={"Content-Type": "application/vnd.antfly.attachments.v1"})
    equal(r.status, 200, r.body[:400])
    inline = [{"content": [text("a"), picture("grey.png"), media("short.wav")]}]
    want = packed(vectors(inline)[0])
    equal(packed(r.json["data"][0]["embedding"]), want, "attached and inline")
    equal(base64.b64decode(vectors(inline, encoding_format="base64")[0]), want, "as base64")
    r = ask(inline, headers={"Accept": "application/vnd.antfly.numeric.v1"})
    equal(r.headers["content-type"], "application/vnd.antfly.numeric.v1", "type of the numbers")
    equal(r.body, b"AFN1" + struct.pack("<IQQ", 1, 1, len(want) // 4) + want, "as numbers")
    d = os.path.join(GOLDEN, MODEL)
    r = subprocess.run([os.path.join(BIN, "inferd"), "embed", MODEL, "--server", f"http://127.0.0.1:{serve().port}", "--json",
                        "--group", "--text", "a", "--image", os.path.join(d, "grey.png"), "--audio",
                        os.path.join(d, "short.wav")], capture_output=True, timeout=60 * SLOW, check=False)
    equal(r.returncode, 0, r.stderr.decode())
    line = json.loads(r.stdout)
    equal(packed(line["embedding"]), want, "from the command line")
    equal([list(p) for p in line["group"]], [["text"], ["image"], ["audio"]], "its parts")


@case
def a_bad_input_leaves_its_neighbours_alone():
    r = ask([{"content": [text("a")]}, {"content": []}, {"content": [media("grey.png")]},
             {"content": [{**media("grey.png"), "data": base64.b64encode(blob("grey.png")[:200]).decode()}]},
             {"content": [text("b"), {**media("short.wav"), "data": "AAAA"}]},
             {"content": [{"type": "media", "url": "https://127.0.0.1/x.png"}]}], error_policy="per_item")
    equal(r.status, 200, r.body[:400])
    a = r.json
    equal([d["index"] for d in a["data"]], [0, 2], "indexes")
    equal([(e["index"], e["stage"], e["status"], e["retryable"]) for e in sorted(a["errors"], key=lambda e: e["index"])],
          [(1, "parse", 400, False), (3, "image_decode", 400, False), (4, "audio_decode", 400, False), (5, "fetch", 403, False)],
          "errors")
    equal(a["summary"], {"total": 6, "succeeded": 2, "failed": 4}, "summary")
    equal([packed(d["embedding"]) for d in a["data"]],
          [packed(v) for v in vectors([{"content": [text("a")]}]) + vectors([{"content": [media("grey.png")]}])], "vectors")
    # files may be larger than max_body_bytes lets a body be
    r = ask([{"type": "media", "mime_type": "image/png", "data": base64.b64encode(bytes(14 << 20)).decode()}])
    check(r.status == 400 and r.json["input_index"] == 0, r.body)
    # without error_policy the first bad one is named
    r = ask([text("a"), {**media("short.wav"), "data": "AAAA"}])
    check(r.status == 400 and r.json["input_index"] == 1, r.body)
    r = ask([{"title": "t", "content": [text("a")]}], task_type="RETRIEVAL_QUERY")
    check(r.status == 400 and b"only documents have a title" in r.body, r.body)


@case
def an_identity_can_be_pinned():
    r = ask("a")
    identity = r.json["model_identity"]
    check(len(identity) == 64 and set(identity) <= set("0123456789abcdef"), identity)
    for n in DIMS.values():
        equal(ask("a", dimensions=n, model_identity=identity).json["model_identity"], identity, f"dimensions {n}")
    other = ("1" if identity[0] == "0" else "0") + identity[1:]
    for inputs in ("a", [{"content": [media("grey.png")]}]):
        r = ask(inputs, model_identity=other)
        equal((r.status, r.json["error"], r.json["retryable"], r.headers.get("x-should-retry")),
              (409, "MODEL_IDENTITY_MISMATCH", False, "false"), "another identity")
    m = serve().get("/ai/v1/models/" + MODEL).json
    equal((m["model_identity"], m["inputs"]), (identity, ["text", "image", "audio"]), "what the model says of itself")
    check("embedding_groups" in m["capabilities"], m["capabilities"])


@case
def many_at_once_are_as_one_by_one():
    inputs = [["a text"], [media("grey.png")], [media("short.wav")], ["two", "texts of other lengths, together"],
              [{"content": [text("a"), media("grey.png"), media("short.wav")]}], [{"content": [media("short.wav")]}] * 2,
              [picture("grey.png"), "and a text"], [{"title": "t", "content": [text("b")]}], ["a much longer text " * 8]]
    serial = [[packed(v) for v in vectors(i)] for i in inputs]
    rounds = 36 // len(inputs) if PRESET not in ("asan", "tsan") else 1
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda i: [packed(v) for v in vectors(i)], inputs * rounds))
    equal(len(got), len(inputs) * rounds, "answers")
    for k, v in enumerate(got):
        check(v == serial[k % len(inputs)], f"request {k} differs from itself alone")


@case
def the_official_client_embeds_pictures_too():
    if openai is None:
        raise Skip("the openai package is not installed (tests/run makes a venv with it)")
    c = openai.OpenAI(base_url=f"http://127.0.0.1:{serve().port}/v1", api_key="any string", max_retries=0)
    r = c.embeddings.create(model=MODEL, input=["a", picture("grey.png")], dimensions=16)  # asks for base64 by itself
    equal([packed(d.embedding) for d in r.data], [packed(v) for v in vectors(["a", media("grey.png")], dimensions=16)], "vectors")
    try:
        c.embeddings.create(model=MODEL, input="a", extra_body={"model_identity": "0" * 64})
        check(False, "a wrong identity was taken")
    except openai.ConflictError as e:
        equal(e.body["code"], "MODEL_IDENTITY_MISMATCH", "code")


if __name__ == "__main__":
    main()
