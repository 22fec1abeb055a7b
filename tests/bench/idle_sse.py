"""idle_sse.py - memory and descriptors of the supervisor under quiet clients. Not a timed test.

    tests/bench/run idle-sse            (CLIENTS=1000 streams, IDLE=10000 kept connections, KEYS=1 with API keys)

A stream is a chat that waits for its turn: the first few generate, the rest are queued with headers and heartbeats sent. An
idle connection asked for the list of models once (with its key) and is kept. Prints the resident memory of all the supervisor's
processes before, with and after the clients, the open descriptors of the front, and how long a health check takes meanwhile.
"""
import json
import os
import resource
import socket
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from inferd_keys import bearer, folder, keys  # noqa: E402
from inferd_test import Server, children, real_models, REAL_GEMMA  # noqa: E402

N, IDLE, KEYS = (int(os.environ.get(k, d)) for k, d in (("CLIENTS", "1000"), ("IDLE", "10000"), ("KEYS", "1")))


def rss_kib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))


def answered(c):
    c.settimeout(0.01)
    try:
        return c.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def main():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, N + IDLE + 256)), hard))
    args, head_key = {}, ""
    if KEYS:
        vault = folder()
        key = keys(vault, "create", "--tenant", "acme")
        args = {"vault_dir": vault}
        head_key = "".join(f"{k}: {v}\r\n" for k, v in bearer(key).items())
    with Server(models=real_models(), preload=[REAL_GEMMA], max_seqs=2, hang_timeout_s=3600, max_connections=N + IDLE + 100,
                **args) as s:
        roles = [pid for pid, name in children(s.proc.pid) if not name.startswith("inferd-worker")]
        pids = [s.proc.pid, *roles]

        def rss():
            return round(sum(map(rss_kib, pids)) / 1024, 1)

        def fds():
            return max(len(os.listdir(f"/proc/{p}/fd")) for p in roles)

        def health_ms():
            took = []
            for _ in range(50):
                t = time.monotonic()
                s.get("/healthz")
                took.append(time.monotonic() - t)
            return round(1000 * sorted(took)[45], 2)

        out = {"streams": N, "idle": IDLE, "keys": bool(KEYS), "rss_mib": [rss()], "descriptors": [fds()], "health_p90_ms": [health_ms()]}
        body = json.dumps({"model": REAL_GEMMA, "stream": True, "max_tokens": 30000, "ignore_eos": True,
                           "messages": [{"role": "user", "content": "Write a very long story."}]}).encode()
        stream = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{head_key}Content-Type: application/json\r\n"
                  f"Content-Length: {len(body)}\r\n\r\n").encode() + body
        ask = f"GET /v1/models HTTP/1.1\r\nHost: x\r\n{head_key}\r\n".encode()
        idle, streams = [], []
        for what, n, into in ((ask, IDLE, idle), (stream, N, streams)):
            for _ in range(n):
                c = socket.create_connection(("127.0.0.1", s.port))
                c.sendall(what)
                into.append(c)
        time.sleep(5)
        out["idle_200"], out["streams_200"] = sum(map(answered, idle)), sum(map(answered, streams))
        out["rss_mib"].append(rss())
        out["descriptors"].append(fds())
        out["health_p90_ms"].append(health_ms())
        for c in idle + streams:
            c.close()
        time.sleep(5)
        out["rss_mib"].append(rss())
        out["descriptors"].append(fds())
        out["health_p90_ms"].append(health_ms())
        print(json.dumps(out))


if __name__ == "__main__":
    main()
