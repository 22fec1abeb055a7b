"""encode_soak.py - 10,000 documents of mixed length by 8 clients in batches of 8 to 256, and short texts one by one.

First one client embeds the documents in large batches (256): the throughput to be held against. Then 8 clients share the same
documents, each in batches of its own size. No document may be refused, every vector has the bits it had in the first run, memory
at the end is within 5 % of what it was after a fifth of the work, and throughput is at least 90 % of the first run's. Last,
8 clients send single short texts, with `embed_wait_ms` 0 and 2 in turn: what waiting for others gains.

    tests/bench/run encode-soak [--docs N] [--model tiny|NAME] [--words N] [--seconds N]

Without real weights (or with --model tiny) the golden BERT is used: it shows the server's share, not the model's.
"""
import argparse
import hashlib
import json
import os
import random
import shutil
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))
from inferd_test import REAL_MINILM, TINY_BERT, Server, Skip, copy_model, real_models  # noqa: E402

BATCHES = (8, 16, 24, 32, 64, 96, 128, 256)
WORDS = ("river stone paper window silent machine walks under bright morning copper letters of the and a to in every answer "
         "question garden hollow quick seven blue mountain").split()


def documents(n, most):
    """Mostly short, some long: lengths are spread evenly over their logarithm."""
    rng = random.Random(10)
    return [" ".join(rng.choice(WORDS) for _ in range(int(most ** rng.random()))) for _ in range(n)]


def resident(s):
    pages = 0
    for pid in [s.proc.pid, *s.workers()]:
        with open(f"/proc/{pid}/statm", encoding="ascii") as f:
            pages += int(f.read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Work:
    def __init__(self, s, model, docs):
        self.s, self.model, self.docs = s, model, docs
        self.lock, self.at, self.done = threading.Lock(), 0, 0
        self.sums, self.failed, self.tokens, self.early = [None] * len(docs), [], 0, 0

    def take(self, n):
        with self.lock:
            first, self.at = self.at, min(self.at + n, len(self.docs))
            return first, self.docs[first:self.at]

    def client(self, batch):
        while True:
            first, part = self.take(batch)
            if not part:
                return
            r = self.s.post("/v1/embeddings", {"model": self.model, "input": part, "encoding_format": "base64", "truncate": True},
                            timeout=600)
            if r.status != 200:
                self.failed.append((first, r.status, r.body[:200]))
                return
            for row in r.json["data"]:
                self.sums[first + row["index"]] = hashlib.sha256(row["embedding"].encode()).digest()
            with self.lock:
                self.tokens += r.json["usage"]["prompt_tokens"]
                self.done += len(part)
                if not self.early and self.done > len(self.docs) // 5:
                    self.early = resident(self.s)

    def run(self, batches):
        threads = [threading.Thread(target=self.client, args=(b,)) for b in batches]
        start = time.monotonic()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return time.monotonic() - start


def singles(s, model, seconds, n_clients=8):
    """Texts answered and the mean time of one, in ms."""
    counts, end = [0] * n_clients, time.monotonic() + seconds

    body = json.dumps({"model": model, "input": "a short text of a client", "encoding_format": "base64"})

    def client(k):
        conn = s.conn()
        while time.monotonic() < end:
            conn.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
            r = conn.getresponse()
            if r.status != 200:
                raise SystemExit(f"refused: {r.read()[:200]}")
            r.read()
            counts[k] += 1
        conn.close()

    threads = [threading.Thread(target=client, args=(k,)) for k in range(n_clients)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return sum(counts) / seconds, 1000 * seconds * n_clients / max(sum(counts), 1)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--docs", type=int, default=10000)
    p.add_argument("--words", type=int, default=200, help="of the longest document")
    p.add_argument("--model", default="")
    p.add_argument("--seconds", type=int, default=10, help="of each run of single texts")
    a = p.parse_args()
    try:
        real = a.model != "tiny" and real_models()
    except Skip:
        real = None
    model = a.model if a.model not in ("", "tiny") else REAL_MINILM if real else TINY_BERT

    def fill(folder):
        if real:
            shutil.copytree(os.path.join(real, model), os.path.join(folder, model))
        else:
            copy_model(model, folder)

    docs, wrong = documents(a.docs, a.words), []
    with Server(fill=fill, preload=model, log_level="warn") as s:
        one = Work(s, model, docs)
        took = one.run([256])
        print(f"1 client, batches of 256: {len(docs)} documents, {one.tokens} tokens in {took:.1f} s: {one.tokens / took:.0f} tokens/s")
        many = Work(s, model, docs)
        took8 = many.run(BATCHES)
        late = resident(s)
        ratio = took / took8
        print(f"8 clients, batches of {', '.join(map(str, BATCHES))}: {took8:.1f} s: {many.tokens / took8:.0f} tokens/s, {ratio:.3f} of the first")
        print(f"resident memory after a fifth {many.early / 1e6:.1f} MB, at the end {late / 1e6:.1f} MB")
        if one.failed or many.failed:
            wrong.append(f"refused: {(one.failed + many.failed)[:3]}")
        if None in many.sums or many.sums != one.sums:
            wrong.append("vectors differ between the runs, or are missing")
        if late > many.early * 1.05:
            wrong.append("memory grew")
        if ratio < 0.9:
            wrong.append("throughput below 90 % of the single client's")
    rates = {0: [], 2: []}
    for _ in range(2):
        for wait in rates:
            with Server(fill=fill, preload=model, log_level="warn", embed_wait_ms=wait) as s:
                singles(s, model, 1)
                rates[wait].append(singles(s, model, a.seconds))
    for wait, r in rates.items():
        print(f"8 clients, single short texts, embed_wait_ms {wait}: " + ", ".join(f"{n:.0f}/s ({ms:.2f} ms)" for n, ms in r))
    print(json.dumps({"ok": not wrong, "wrong": wrong}))
    return 1 if wrong else 0


sys.exit(main())
