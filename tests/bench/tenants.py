"""tenants.py - what a refusal costs, and what one tenant feels of another that floods. Not a timed test.

    tests/bench/run tenants [--seconds N] [--rounds N]

Times are the server's own (access log, from the first byte of a request to the last of its answer). Refusals: a tenant whose
requests are used up, with small bodies, with 60 KiB that are read and not parsed, and with 10 MiB that are not read. Neighbours:
tenants a and b may each ask 10 times a second and do; then a asks 50 times as often. Rounds alternate. Last, 24 clients of a tenant
without limits generate while another asks one thing at a time.
"""
import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from inferd_test import BIN, TINY_BERT, TINY_GEMMA, Server, children  # noqa: E402

SHARE = 10  # requests a second


def key(folder, tenant, *args):
    return subprocess.run([os.path.join(BIN, "inferd"), "keys", "create", "--vault-dir", folder, "--tenant", tenant, *args],
                          capture_output=True, text=True, check=True).stdout.strip()


def quantiles(ms):
    ms = sorted(ms)
    return {"n": len(ms), "p50_ms": round(ms[len(ms) // 2], 3), "p99_ms": round(ms[min(len(ms) - 1, len(ms) * 99 // 100)], 3)}


def logged(s, since, tenant, status):
    time.sleep(0.2)
    return [e["ms"] for e in s.log()[since:] if e.get("event") == "http_request" and e.get("tenant") == tenant and e["status"] == status]


class Client:
    def __init__(self, s, who):
        self.c = s.conn()
        self.head = {"Authorization": f"Bearer {who}", "Content-Type": "application/json"}

    def post(self, path, body):
        self.c.request("POST", path, body=body, headers=self.head)
        r = self.c.getresponse()
        r.read()
        return r.status


def paced(s, who, path, body, per_s, seconds, n_conns=1):
    """Open loop: each connection asks at its times, however long an answer takes."""
    def one(k):
        c, begin = Client(s, who), time.monotonic()
        for i in range(int(seconds * per_s / n_conns)):
            time.sleep(max(0.0, begin + (i + k / n_conns) * n_conns / per_s - time.monotonic()))
            c.post(path, body)

    threads = [threading.Thread(target=one, args=(k,)) for k in range(n_conns)]
    for t in threads:
        t.start()
    return threads


def cpu_s(s):
    ticks = 0
    for pid, name in children(s.proc.pid):
        if not name.startswith("inferd-worker"):
            with open(f"/proc/{pid}/stat", encoding="ascii") as f:
                part = f.read().rpartition(")")[2].split()
            ticks += int(part[11]) + int(part[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def refusals(folder):
    out = {}
    who = key(folder, "full", "--requests-per-minute", "1")
    with Server(vault_dir=folder) as s:
        c = Client(s, who)
        c.post("/v1/embeddings", json.dumps({"model": TINY_BERT, "input": "x"}))
        for name, n, size in (("small body", 3000, 64), ("60 KiB", 1000, 60 << 10)):
            at, begin = len(s.log()), cpu_s(s)
            body = b"{" + b" " * (size - 1)
            assert all(c.post("/v1/embeddings", body) == 429 for _ in range(n))
            out[name] = {**quantiles(logged(s, at, "full", 429)), "cpu_us": round((cpu_s(s) - begin) / n * 1e6, 1)}
        at = len(s.log())
        for _ in range(300):  # the connection ends behind each
            c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=30)
            c.putrequest("POST", "/v1/embeddings")
            c.putheader("Authorization", f"Bearer {who}")
            c.putheader("Content-Length", str(10 << 20))
            c.endheaders()
            assert c.getresponse().status == 429
            c.close()
        out["10 MiB, not read"] = quantiles(logged(s, at, "full", 429))
    return out


def neighbours(folder, seconds, rounds):
    a = key(folder, "a", "--requests-per-minute", str(SHARE * 60))
    b = key(folder, "b", "--requests-per-minute", str(SHARE * 60))
    body = json.dumps({"model": TINY_BERT, "input": "river stone paper window silent machine walks under bright morning"})
    res = {"quiet": [], "noisy": []}
    refused = let_in = 0
    for i in range(rounds):
        for how in ("quiet", "noisy") if i % 2 == 0 else ("noisy", "quiet"):
            with Server(vault_dir=folder, preload=[TINY_BERT]) as s:
                c = Client(s, a)
                while c.post("/v1/embeddings", body) == 200:
                    pass  # its burst is used up: from here on its share is 10 a second
                at = len(s.log())
                threads = paced(s, a, "/v1/embeddings", body, SHARE * (50 if how == "noisy" else 1), seconds, 8 if how == "noisy" else 1)
                for t in threads + paced(s, b, "/v1/embeddings", body, SHARE, seconds):
                    t.join()
                res[how] += logged(s, at, "b", 200)
                if how == "noisy":
                    refused += len(logged(s, at, "a", 429))
                    let_in += len(logged(s, at, "a", 200))
    out = {how: quantiles(ms) for how, ms in res.items()}
    out["p99_ratio"] = round(out["noisy"]["p99_ms"] / out["quiet"]["p99_ms"], 3)
    out["of a, noisy"] = {"let_in_per_s": round(let_in / seconds / rounds, 2), "refused_per_s": round(refused / seconds / rounds, 1)}
    return out


def turns(folder, seconds):
    a, b = key(folder, "flood"), key(folder, "one")
    body = json.dumps({"model": TINY_GEMMA, "prompt": "a", "max_tokens": 64, "ignore_eos": True, "temperature": 0})
    with Server(vault_dir=folder, preload=[TINY_GEMMA], max_seqs=8) as s:
        stop = threading.Event()

        def ask(who):
            c = Client(s, who)
            while not stop.is_set():
                c.post("/v1/completions", body)

        at = len(s.log())
        threads = [threading.Thread(target=ask, args=(who,)) for who in [a] * 24 + [b]]
        for t in threads:
            t.start()
        time.sleep(seconds)
        stop.set()
        for t in threads:
            t.join()
        return {"one client of 24 that flood": quantiles(logged(s, at, "flood", 200)), "alone in its tenant": quantiles(logged(s, at, "one", 200))}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--rounds", type=int, default=3)
    o = p.parse_args()
    folder = os.path.join(tempfile.mkdtemp(prefix="inferd-bench-"), "vault")
    print(json.dumps({"load": os.getloadavg()[0], "refusals": refusals(folder), "neighbours": neighbours(folder, o.seconds, o.rounds),
                      "turns": turns(folder, o.seconds)}, indent=1))


if __name__ == "__main__":
    main()
