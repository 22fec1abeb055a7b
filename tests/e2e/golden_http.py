"""golden_http.py - golden files of the reference implementations, asked over HTTP from real processes.

What a user of the API would see: token ids, offsets, greedy runs, log probabilities, vectors. Default settings (KV cache
in f16), so the bound is that of tests/golden/README.md on differences of log probabilities.
"""
import math
import os
import subprocess
import sys

from inferd_test import (Server, Skip, case, check, copy_model, equal, golden_cases, main, ROOT, TINY_BERT, TINY_GEMMA,
                         TINY_GEMMA_BF16)

LOGIT_BOUND = 2e-3
GAP_BOUND = 2e-3  # a greedy run may part where the runner-up is nearer than this
VECTOR_BOUND = 1e-5


def gguf_of(name, to_dir, *args):
    """The same weights as GGUF, by the test script."""
    src = os.path.join(ROOT, "tests", "golden", name)
    dst = os.path.join(to_dir, name + ".gguf")
    subprocess.run([sys.executable, os.path.join(ROOT, "tests", "models", "gguf_from_safetensors.py"), src, dst, *args],
                   check=True, stdout=subprocess.DEVNULL)
    return name + ".gguf"


def fill(to_dir):
    for name in (TINY_GEMMA, TINY_GEMMA_BF16, TINY_BERT):
        copy_model(name, to_dir)
    for name in (TINY_GEMMA, TINY_GEMMA_BF16):
        gguf_of(name, to_dir)


def check_logits(server, model, golden):
    worst = 0.0
    for c in golden["logits"]:
        r = server.post("/v1/completions", {"model": model, "prompt": c["ids"], "max_tokens": 1, "temperature": 0, "logprobs": 64,
                                            "echo": True, "ignore_eos": True, "return_token_ids": True})
        equal(r.status, 200, f"{c['name']}: {r.body[:300]!r}")
        top = r.json["choices"][0]["logprobs"]["top_token_ids"]
        equal(len(top), len(c["ids"]) + 1, f"{c['name']}: rows")
        check(top[0] is None, "the first prompt token has no log probability")
        for row in c["rows"]:
            got = dict(top[row["pos"] + 1])
            equal(len(got), 64, f"{c['name']} row {row['pos']}: candidates")
            want = [(i, z) for i, z in row["top"] if i in got]
            check(len(want) >= 62, f"{c['name']} row {row['pos']}: only {len(want)} of the reference's top 64 are in ours")
            # a log probability is a logit minus a constant: compare differences to the best
            i0, z0 = want[0]
            for i, z in want:
                d = abs((got[i] - got[i0]) - (z - z0))
                worst = max(worst, d)
                check(d <= LOGIT_BOUND, f"{model} {c['name']} row {row['pos']} id {i}: off by {d:.2e}, bound {LOGIT_BOUND}")
    return worst


def check_greedy(server, model, golden):
    for c in golden["logits"]:
        r = server.post("/v1/completions", {"model": model, "prompt": c["ids"], "max_tokens": len(c["greedy"]), "temperature": 0,
                                            "ignore_eos": True, "return_token_ids": True})
        equal(r.status, 200, f"{c['name']}: {r.body[:300]!r}")
        got = r.json["choices"][0]["token_ids"]
        for k, (g, w) in enumerate(zip(got, c["greedy"])):
            if g != w:
                check(c["greedy_gap"][k] < GAP_BOUND, f"{model} {c['name']}: token {k} is {g}, expected {w}, gap {c['greedy_gap'][k]}")
                break
        else:
            equal(len(got), len(c["greedy"]), f"{model} {c['name']}: length")


@case
def gemma_logits_and_greedy_ids_equal_the_reference():
    with Server(fill=fill) as s:
        worst = {}
        for name in (TINY_GEMMA, TINY_GEMMA_BF16):
            golden = golden_cases(name)
            for model in (name, name + ".gguf"):
                worst[model] = check_logits(s, model, golden)
                check_greedy(s, model, golden)
        print("worst difference of log probabilities:", {k: f"{v:.1e}" for k, v in worst.items()})


@case
def gemma4_logits_greedy_ids_and_prompts_equal_the_reference():
    def gemma4(to_dir):
        copy_model("gemma4_text", to_dir)
        copy_model("gemma4_mm", to_dir)
        gguf_of("gemma4_text", to_dir)

    with Server(fill=gemma4) as s:
        golden = golden_cases("gemma4_text")
        for model in ("gemma4_text", "gemma4_text.gguf"):
            check_logits(s, model, golden)
            check_greedy(s, model, golden)
        text = golden_cases("gemma4_mm")
        text["logits"] = [c for c in text["logits"] if c["name"] == "text_only"]
        check_greedy(s, "gemma4_mm", text)
        notes = {m["id"]: m.get("note") for m in s.get("/v1/models").json["data"]}
        equal(notes, {"gemma4_text": None, "gemma4_text.gguf": None, "gemma4_mm": "text only: the vision tower and the audio "
                      "tower of this checkpoint are not read"}, "notes")
        done = 0
        for c in golden_cases("gemma4_chat")["cases"]:
            if c["options"] or any(set(m) != {"role", "content"} or m["role"] == "developer" for m in c["messages"]):
                continue
            r = s.post("/v1/chat/completions", {"model": "gemma4_text", "messages": c["messages"], "max_tokens": 1})
            equal(r.status, 200, f"{c['name']}: {r.body[:300]!r}")
            # the template is a larger model's, which appends an empty thought; this one does not
            want = c["text"].removesuffix("<|channel>thought\n<channel|>")
            n = len(s.post("/ai/v1/tokenize", {"model": "gemma4_text", "text": want, "add_special_tokens": False,
                                               "parse_special": True}).json["tokens"])
            equal(r.json["usage"]["prompt_tokens"], n, f"prompt of {c['name']}")
            done += 1
        check(done > 5, "conversations")


@case
def gemma_token_ids_equal_the_reference():
    with Server(fill=fill) as s:
        golden = golden_cases(TINY_GEMMA)
        for model in (TINY_GEMMA, TINY_GEMMA + ".gguf"):
            for c in golden["tokenizer"]["encode"]:
                for field, flags in (("ids", (True, True)), ("ids_plain", (False, True)), ("ids_no_special_parse", (False, False))):
                    r = s.post("/ai/v1/tokenize", {"model": model, "text": c["text"], "add_special_tokens": flags[0],
                                                   "parse_special": flags[1]})
                    equal(r.status, 200, c["name"])
                    equal(r.json["tokens"], c[field], f"{model} {c['name']} {field}")
            for c in golden["tokenizer"]["decode"]:
                r = s.post("/ai/v1/detokenize", {"model": model, "tokens": c["ids"], "skip_special": False})
                equal(r.json["text"], c["decode"], f"{model} decode {c['name']}")


@case
def minilm_ids_offsets_and_vectors_equal_the_reference():
    golden = golden_cases(TINY_BERT)
    with Server(fill=fill) as s:
        for c in golden["tokenization"]:
            r = s.post("/ai/v1/tokenize", {"model": TINY_BERT, "text": c["text"]})
            equal(r.json["tokens"], c["ids"], f"ids of {c['text'][:60]!r}")
            equal(r.json["offsets"], c["offsets"], f"offsets of {c['text'][:60]!r}")
        worst = 0.0
        limit = golden["max_seq_length"]
        for c in golden["cases"]:
            for body in ({"input": c["text"], "truncate": True}, {"input_tokens": [c["ids"]]}):
                if not body.get("input", "x") or ("input_tokens" in body and len(c["ids"]) > limit):
                    continue  # an empty string is refused by the API, more ids than the model takes too
                r = s.post("/ai/v1/embed", {"model": TINY_BERT, **body})
                equal(r.status, 200, f"{body}: {r.body[:300]!r}")
                got = r.json["data"][0]["embedding"]
                equal(len(got), len(c["embedding"]), "dimension")
                worst = max(worst, *(abs(a - b) for a, b in zip(got, c["embedding"])))
        check(worst <= VECTOR_BOUND, f"vectors off by {worst:.2e}, bound {VECTOR_BOUND}")
        print(f"worst vector difference {worst:.1e}")


@case
def a_batch_of_embeddings_is_the_same_bytes_as_single_calls():
    golden = golden_cases(TINY_BERT)
    with Server(fill=fill) as s:
        texts = [c["text"] for c in golden["cases"] if c["text"]]
        many = s.post("/v1/embeddings", {"model": TINY_BERT, "input": texts, "encoding_format": "base64", "truncate": True}).json
        for i, t in enumerate(texts):
            one = s.post("/v1/embeddings", {"model": TINY_BERT, "input": t, "encoding_format": "base64", "truncate": True}).json
            equal(one["data"][0]["embedding"], many["data"][i]["embedding"], f"text {i}")


def golden_path(*parts):
    return os.path.join(ROOT, "tests", "golden", *parts)


def fill_encoders(to_dir):
    gguf_of("modernbert", to_dir, "--tokenizer", golden_path("byte_bpe", "modernbert"))
    gguf_of("nomic", to_dir, "--tokenizer", golden_path(TINY_BERT))
    gguf_of("embeddinggemma_v1", to_dir)


@case
def encoders_from_gguf_equal_the_reference():
    """Means of the reference, divided by their length: the format has no word for the last, and what reads it does so."""
    with Server(fill=fill_encoders) as s:
        for model, field, bound in (("modernbert", "mean", VECTOR_BOUND), ("nomic", "mean", VECTOR_BOUND),
                                    ("embeddinggemma_v1", "embedding", 3e-4)):
            golden = golden_cases(model)
            cases, worst = golden.get("cases") or golden["text"], 0.0
            r = s.post("/ai/v1/embed", {"model": model + ".gguf", "input_tokens": [c["ids"] for c in cases]})
            equal(r.status, 200, r.body[:300])
            for c, row in zip(cases, r.json["data"]):
                length = math.sqrt(sum(v * v for v in c[field]))
                equal(len(row["embedding"]), len(c[field]), "dimension")
                worst = max(worst, *(abs(a - b / length) for a, b in zip(row["embedding"], c[field])))
            check(worst <= bound, f"{model}: vectors off by {worst:.2e}, bound {bound}")
        bpe = golden_cases(os.path.join("byte_bpe", "modernbert"))
        for c in bpe["cases"]:
            r = s.post("/ai/v1/tokenize", {"model": "modernbert.gguf", "text": c["text"]})
            equal(r.json["tokens"], c["ids"], f"ids of {c['text'][:60]!r}")


@case
def log_probabilities_are_normalised():
    with Server(fill=fill) as s:
        r = s.post("/v1/completions", {"model": TINY_GEMMA, "prompt": [2, 577, 606], "max_tokens": 1, "temperature": 0, "logprobs": 64})
        total = sum(math.exp(v) for v in r.json["choices"][0]["logprobs"]["top_logprobs"][0].values())
        check(0.05 < total <= 1.0 + 1e-4, f"the 64 likeliest tokens carry {total} of the probability")


if not os.path.isdir(os.path.join(ROOT, "tests", "golden", TINY_GEMMA)):
    @case
    def golden_files():
        raise Skip("tests/golden is empty")

main()
