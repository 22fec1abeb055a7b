#!/usr/bin/env python3
"""encode_load.py - an encoder of 8,192 positions under load: the rules EB-1 to EB-10 of engine.md 4.3, and texts that are none.

A tiny BERT of one layer is written for it (wide where it costs memory, narrow where it costs time). INFERD_TEST_DOCS=200 runs
as many documents as the rule says instead of a few.
"""
import array
import base64
import json
import os
import random
import struct
import threading
import time

from inferd_test import GOLDEN, TINY_BERT, TINY_GEMMA, Server, case, check, copy_model, equal, main, wait_for

MODEL = "long"
N_POS, D, FF = 8192, 32, 1024  # 1,216 floats a row: 40 MB for an input of full length
LENGTHS = (1, 8, 64, 511, 512, 513, 2000, 8191, 8192)
N_DOCS = int(os.environ.get("INFERD_TEST_DOCS", "9"))


def write_model(folder):
    """The golden BERT's tokenizer with weights of this shape."""
    copy_model(TINY_BERT, folder, MODEL)
    folder = os.path.join(folder, MODEL)
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    config.update(hidden_size=D, num_hidden_layers=1, num_attention_heads=2, intermediate_size=FF, max_position_embeddings=N_POS)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    with open(os.path.join(folder, "sentence_bert_config.json"), "w", encoding="utf-8") as f:
        json.dump({"max_seq_length": N_POS, "do_lower_case": False}, f)
    for extra in os.listdir(folder):  # a pooling of another width
        p = os.path.join(folder, extra, "config.json")
        if extra.endswith("_Pooling") and os.path.exists(p):
            with open(p, encoding="utf-8") as f:
                pool = json.load(f)
            pool["word_embedding_dimension"] = D
            with open(p, "w", encoding="utf-8") as f:
                json.dump(pool, f)
    shapes = [("embeddings.word_embeddings.weight", (config["vocab_size"], D)), ("embeddings.position_embeddings.weight", (N_POS, D)),
              ("embeddings.token_type_embeddings.weight", (2, D)), ("embeddings.LayerNorm.weight", (D,)), ("embeddings.LayerNorm.bias", (D,))]
    p = "encoder.layer.0."
    for name, rows, cols in (("attention.self.query", D, D), ("attention.self.key", D, D), ("attention.self.value", D, D),
                             ("attention.output.dense", D, D), ("intermediate.dense", FF, D), ("output.dense", D, FF)):
        shapes += [(f"{p}{name}.weight", (rows, cols)), (f"{p}{name}.bias", (rows,))]
    for name in ("attention.output.LayerNorm", "output.LayerNorm"):
        shapes += [(f"{p}{name}.weight", (D,)), (f"{p}{name}.bias", (D,))]
    rng, head, data = random.Random(6), {}, array.array("f")
    for name, shape in shapes:
        n = shape[0] * (shape[1] if len(shape) > 1 else 1)
        start = len(data) * 4
        data.extend([1.0] * n if name.endswith("LayerNorm.weight") else [rng.random() - 0.5 for _ in range(n)])
        head[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, len(data) * 4]}
    raw = json.dumps(head).encode()
    raw += b" " * (-len(raw) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(raw)) + raw + data.tobytes())


def fill(folder):
    write_model(folder)
    copy_model(TINY_GEMMA, folder)


def ids_of(n, seed):
    rng = random.Random(seed)
    return [rng.randrange(200, 900) for _ in range(n)]


def embed(s, ids, **more):
    return s.post("/ai/v1/embed", {"model": MODEL, "input": ids, "encoding_format": "base64", **more}, timeout=120)


def ledger(s):
    return sum(s.metric("inferd_ledger_bytes", kind=k) or 0 for k in ("weights", "kv", "workspace"))


def client(s, docs, batch, out, problems):
    for at in range(0, len(docs), batch):
        part = docs[at:at + batch]
        r = embed(s, [ids_of(n, seed) for seed, n in part])
        if r.status != 200:
            problems.append(r.body[:300])
            return
        for (seed, _), row in zip(part, r.json["data"]):
            out[seed] = row["embedding"]


@case
def any_legal_batch_finishes_whatever_its_neighbours():
    with Server(fill=fill) as s:
        docs = [(i, LENGTHS[i % len(LENGTHS)]) for i in range(N_DOCS)]
        random.Random(1).shuffle(docs)
        equal(embed(s, [ids_of(3, 0)]).status, 200, "one text")
        equal(s.post("/ai/v1/completions", {"model": TINY_GEMMA, "prompt": "a", "max_tokens": 1}).status, 200, "a word")
        idle, out, problems, words = ledger(s), {}, [], []

        def generate():
            r = s.post("/ai/v1/completions", {"model": TINY_GEMMA, "prompt": "a", "max_tokens": 60, "ignore_eos": True}, timeout=120)
            words.append(r.status)

        threads = [threading.Thread(target=client, args=(s, docs[k::2], 8, out, problems)) for k in range(2)]
        threads.append(threading.Thread(target=generate))
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        equal(problems, [], "refusals")
        equal(words, [200], "the generation beside them")
        equal(len(out), N_DOCS, "documents with a vector")
        for seed in (0, 4, 6):  # alone, the same bits
            equal(embed(s, [ids_of(LENGTHS[seed], seed)]).json["data"][0]["embedding"], out[seed], f"{LENGTHS[seed]} tokens alone")
        v = struct.unpack(f"<{D}f", base64.b64decode(out[8]))
        check(abs(sum(x * x for x in v) - 1) < 1e-4, "a vector's length")
        wait_for(lambda: s.metric("inferd_tasks_active", model=MODEL) == 0, "no task left")
        equal(ledger(s), idle, "the ledger is back")
        check(s.metric("inferd_ledger_bytes", kind="workspace") <= (512 << 20) * 2, "workspace of both models")

        # EB-5: one is too long for the model; the others are answered
        r = embed(s, [ids_of(8, 1), ids_of(8193, 2), ids_of(64, 3)], error_policy="per_item")
        equal((r.status, [d["index"] for d in r.json["data"]], [(e["index"], e["code"], e["retryable"]) for e in r.json["errors"]]),
              (200, [0, 2], [(1, "CONTENT_TOO_LARGE", False)]), "per item")
        texts_that_are_none(s)


def texts_that_are_none(s):
    def ask(texts, **more):
        return s.post("/ai/v1/embed", {"model": MODEL, "input": texts, **more}, timeout=60)

    for text in (" ", " \n\t ", "\0", "a\0b", "\u200b", "\ufffd", "x" * 300 + "\0" * 300):
        r = ask([text, "beside"])
        equal((r.status, len(r.json.get("data", ()))), (200, 2), f"{text[:8]!r}: {r.body[:200]}")
    big = "a" * (1 << 20)
    t = time.monotonic()
    r = ask([big, "beside"], truncate=True)
    equal((r.status, len(r.json.get("data", ()))), (200, 2), f"1 MB of one character: {r.body[:200]}")
    check(time.monotonic() - t < 60, "1 MB of one character takes forever")
    for raw, want in ((b'"\\ud800"', (400,)), (b'"a\\udfff\\ud800"', (400,)), (b'"\\ud83d\\ude42"', (200,)), (b'"\xff"', (400,)), (b'""', (200, 400))):
        r = s.request("POST", "/ai/v1/embed", b'{"model":"' + MODEL.encode() + b'","input":[' + raw + b',"beside"]}', {"Content-Type": "application/json"})
        check(r.status in want, f"{raw}: {r.status} {r.body[:200]}")
    equal(ask(["still", "here"]).status, 200, "and goes on")


@case
def a_small_workspace_takes_one_row_at_a_time_or_says_what_it_takes():
    with Server(fill=write_model, workspace_mb=44) as s:  # one input of full length, and little more
        r = embed(s, [ids_of(n, n) for n in (513, 8192, 8)])
        equal((r.status, len(r.json.get("data", ()))), (200, 3), f"just enough: {r.body[:300]}")
    with Server(fill=write_model, workspace_mb=24) as s:  # half of it
        lengths = (8, 8192, 512, 2000)
        r = embed(s, [ids_of(n, n) for n in lengths])
        equal((r.status, r.json["error"], r.json["retryable"], r.json["input_index"], r.json["limit_name"]),
              (413, "MODEL_RESOURCE_LIMIT", False, 1, "workspace_mb"), "too long for the workspace")
        check(r.json["needed_bytes"] > r.json["allowed_bytes"] == 24 << 20, f"bytes: {r.json}")
        check("Retry-After" not in r.headers, "a permanent refusal is not to be tried again")
        r = embed(s, [ids_of(n, n) for n in lengths], error_policy="per_item")
        equal(([d["index"] for d in r.json["data"]], [(e["index"], e["code"], e["status"], e["retryable"]) for e in r.json["errors"]]),
              ([0, 2, 3], [(1, "MODEL_RESOURCE_LIMIT", 413, False)]), "per item")
        told = [m for m in s.get("/v1/models").json["data"] if m["id"] == MODEL][0]
        check("8192" in json.dumps(told) and "workspace" in json.dumps(told), f"the model says what it takes: {told}")


@case
def hybrid_scores_are_the_reference_s():
    def fill_bge(folder):
        copy_model("bge-m3", folder)

    with open(os.path.join(GOLDEN, "bge-m3", "cases.json"), encoding="utf-8") as f:
        pairs = [p for p in json.load(f)["pair_scores"] if p["query"] and p["passage"]]  # the route refuses empty ones
    check(len(pairs) >= 4, "pairs to check")
    with Server(fill=fill_bge) as s:
        for p in pairs:
            for name, weights in (("equal", {}), ("card", {"weights": {"dense": 0.4, "sparse": 0.2, "colbert": 0.4}})):
                r = s.post("/ai/v1/rerank", {"model": "bge-m3", "query": p["query"], "documents": [p["passage"]], **weights})
                equal(r.status, 200, f"{r.body[:200]}")
                got = r.json["data"][0]
                for kind in ("dense", "sparse", "colbert"):
                    check(abs(got["scores"][kind] - p[kind]) < 2e-5, f"{p['query']!r} {kind}: {got['scores'][kind]}, reference {p[kind]}")
                want = p[name]["colbert+sparse+dense"]
                check(abs(got["score"] - want) < 2e-5, f"{p['query']!r} {name}: {got['score']}, reference {want}")


@case
def a_config_that_makes_no_sense_is_no_matter_of_memory():
    def broken(folder):
        for name, key, value in (("huge", "hidden_size", 1 << 40), ("negative", "num_attention_heads", -4),
                                 ("wide", "max_position_embeddings", (1 << 31) - 1), ("zero", "num_hidden_layers", 0)):
            copy_model(TINY_BERT, folder, name)
            p = os.path.join(folder, name, "config.json")
            with open(p, encoding="utf-8") as f:
                config = json.load(f)
            config[key] = value
            with open(p, "w", encoding="utf-8") as f:
                json.dump(config, f)

    with Server(fill=broken) as s:
        for name in ("huge", "negative", "wide", "zero"):
            r = s.post("/ai/v1/embed", {"model": name, "input": "a"})
            equal((r.status, r.json["retryable"]), (500, False), f"{name}: {r.body[:200]}")
            check(r.json["error"] in ("INVALID_MODEL_CONFIG", "MODEL_LOAD_FAILED"), f"{name}: {r.json}")
        equal(s.post("/ai/v1/embed", {"model": "huge", "input": "a"}).json["error"], "INVALID_MODEL_CONFIG", "a number out of range")


main()
