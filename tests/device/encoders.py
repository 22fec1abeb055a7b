"""encoders.py - encoders of real geometry in f16 and tf32 on the device beside the same in exact f32, through a server in the
strict sandbox. Run by tests/device/run.

Weights are random (tests/bench/make_encoder.py), lengths go up to one pass of 8,192 rows: what tiny golden models do not
reach. Vectors must point the same way, a ranking keep its order, a row have the same bits alone and in company.
"""
import math
import os
import shutil

from inferd_test import Server, Skip, case, check, equal, main

BACKEND = os.environ.get("INFERD_TEST_BACKEND", "cuda")
MODELS = os.environ.get("INFERD_TEST_DEVICE_MODELS", "")
COSINE = 0.9999
LENGTHS = (8192, 3, 512, 1500, 77, 512, 64, 65, 129, 430)
VECTORS, RANKS = "bge-m3", "deberta-v3-base"


def put(name, to_dir):
    if not os.path.isdir(os.path.join(MODELS, name)):
        raise Skip(f"{name} was not made")
    shutil.copytree(os.path.join(MODELS, name), os.path.join(to_dir, name), copy_function=os.link)


def server(name, compute):
    return Server(fill=lambda d: put(name, d), backend=BACKEND, sandbox="strict", compute=compute, batch_tokens=8192)


def ids(i, n):
    return [5 + (i * 7919 + k * 104729 + k * k) % 900 for k in range(n)]


def embed(s, inputs):
    r = s.post("/v1/embeddings", {"model": VECTORS, "input": inputs}, timeout=120)
    equal(r.status, 200, f"{r.body[:300]!r}")
    return [d["embedding"] for d in r.json["data"]]


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


@case
def vectors_point_where_those_of_f32_do():
    inputs = [ids(i, n) for i, n in enumerate(LENGTHS)]
    with server(VECTORS, "exact_f32") as s:
        want = embed(s, inputs)
    with server(VECTORS, "f16") as s:
        got = embed(s, inputs)
        alone = [embed(s, [x])[0] for x in inputs]
    near = [cosine(a, b) for a, b in zip(want, got)]
    print(f"  cosines of f16: {min(near):.7f} at least, lengths {LENGTHS}")
    check(min(near) >= COSINE, f"cosines {near}")
    for n, a, b in zip(LENGTHS, got, alone):
        equal(b, a, f"{n} tokens alone and in company")


@case
def a_ranking_keeps_its_order():
    docs = [" ".join(f"w{(i * 37 + k * k) % 700}" for k in range(20 + 40 * (i % 9))) for i in range(24)]
    scores = {}
    for compute in ("exact_f32", "tf32", "f16"):
        with server(RANKS, compute) as s:
            def rank(d):
                r = s.post("/v1/rerank", {"model": RANKS, "query": "w1 w2 w3", "documents": d}, timeout=120)
                equal(r.status, 200, f"{r.body[:300]!r}")
                return {x["index"]: x["relevance_score"] for x in r.json["results"]}

            scores[compute] = rank(docs)
            for i in (0, 7, 23):
                equal(rank([docs[i]])[0], scores[compute][i], f"{compute}: document {i} alone and in company")
    want = scores.pop("exact_f32")
    order = sorted(want, key=lambda i: want[i])
    for compute, got in scores.items():
        worst = max(abs(got[i] - want[i]) for i in want)
        gap = min(want[b] - want[a] for a, b in zip(order, order[1:]))
        print(f"  scores of {compute}: {worst:.2e} off at most, nearest neighbours {gap:.2e} apart")
        check(worst <= 4e-4, f"{compute}: a score is off by {worst}")
        for a, b in zip(order, order[1:]):
            check(got[a] <= got[b] or want[b] - want[a] <= 2 * worst, f"{compute}: documents {a} and {b} changed places")


main()
