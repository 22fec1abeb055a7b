"""idle_sse.py - resident memory of the supervisor with 1,000 quiet SSE clients. Not a timed test.

    tests/bench/run idle-sse

Each client holds a chat stream that waits for its turn: the first few generate, the rest are queued with headers and
heartbeats sent. Prints the front's and the launcher's resident memory before and with the clients, from /proc.
"""
import json
import os
import socket
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from inferd_test import Server, children, real_models, REAL_GEMMA  # noqa: E402

N = int(os.environ.get("CLIENTS", "1000"))


def rss_kib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))


def main():
    with Server(models=real_models(), preload=[REAL_GEMMA], max_seqs=2, hang_timeout_s=3600) as s:
        front = [pid for pid, name in children(s.proc.pid) if not name.startswith("inferd-worker")]
        pids = [s.proc.pid, *front]
        before = sum(map(rss_kib, pids))
        body = json.dumps({"model": REAL_GEMMA, "stream": True, "max_tokens": 30000, "ignore_eos": True,
                           "messages": [{"role": "user", "content": "Write a very long story."}]}).encode()
        head = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n").encode()
        socks = []
        for _ in range(N):
            c = socket.create_connection(("127.0.0.1", s.port))
            c.sendall(head + body)
            socks.append(c)
        time.sleep(5)
        started = 0
        for c in socks:
            c.settimeout(0.01)
            try:
                started += c.recv(64).startswith(b"HTTP/1.1 200")
            except OSError:
                pass
        with_clients = sum(map(rss_kib, pids))
        print(json.dumps({"clients": N, "answered_200": started, "supervisor_rss_mib_before": round(before / 1024, 1),
                          "supervisor_rss_mib_with_clients": round(with_clients / 1024, 1)}))
        for c in socks:
            c.close()


if __name__ == "__main__":
    main()
