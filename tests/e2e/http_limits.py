#!/usr/bin/env python3
"""http_limits.py - the transport of a real server: limits, strictness, listeners. Bug case B27.

After each case that abuses the server, the same normal request must still give the same answer.
"""
import http.client
import os
import socket
import stat
import subprocess
import tempfile
import threading
import time

from inferd_test import BIN, SLOW, Server, case, check, children, equal, main, wait_for

H = b"Host: x\r\n"
SECOND = b"GET /metrics HTTP/1.1\r\n" + H + b"\r\n"

# what, status, bytes. Each is followed by a second request, which must not be run.
SMUGGLE = [
    ("CL and TE", 400, b"POST /v1/embeddings HTTP/1.1\r\n" + H +
     b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("CL 0 and TE", 400, b"POST /v1/embeddings HTTP/1.1\r\n" + H +
     b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("two CLs", 400, b"POST /v1/embeddings HTTP/1.1\r\n" + H + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
    ("chunked, gzip", 400, b"POST /v1/embeddings HTTP/1.1\r\n" + H +
     b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n"),
    ("xchunked", 400, b"POST /v1/embeddings HTTP/1.1\r\n" + H + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    ("obs-fold", 400, b"GET /healthz HTTP/1.1\r\n" + H + b"X: a\r\n b\r\n\r\n"),
    ("LF only", 400, b"GET /healthz HTTP/1.1\nHost: x\n\n"),
    ("bare CR", 400, b"GET /healthz HTTP/1.1\r\n" + H + b"X: a\rY: b\r\n\r\n"),
    ("space before colon", 400, b"POST /v1/embeddings HTTP/1.1\r\n" + H + b"Content-Length : 1\r\n\r\na"),
    ("header NUL", 400, b"GET /healthz HTTP/1.1\r\n" + H + b"X: a\0b\r\n\r\n"),
    ("chunk size overflow", 400, b"POST /v1/embeddings HTTP/1.1\r\n" + H +
     b"Transfer-Encoding: chunked\r\n\r\n10000000000000001\r\na\r\n0\r\n\r\n"),
    ("chunk size of 2^64 - 1", 413, b"POST /v1/embeddings HTTP/1.1\r\n" + H +
     b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\na\r\n0\r\n\r\n"),
    ("chunk extension of 1 MB", 400, b"POST /v1/embeddings HTTP/1.1\r\n" + H +
     b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 1000000 + b"\r\na\r\n0\r\n\r\n"),
    ("HTTP/2 preface", 505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ("long path", 414, b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\n" + H + b"\r\n"),
    ("long header", 431, b"GET /healthz HTTP/1.1\r\n" + H + b"X: " + b"a" * 70000 + b"\r\n\r\n"),
    ("1000 headers", 431, b"GET /healthz HTTP/1.1\r\n" + H + b"A: b\r\n" * 1000 + b"\r\n"),
    ("escaped NUL", 400, b"GET /v1/models/a%00b HTTP/1.1\r\n" + H + b"\r\n"),
    ("bad escape", 400, b"GET /v1/models/%zz HTTP/1.1\r\n" + H + b"\r\n"),
]


def healthy(s):
    r = s.get("/healthz")
    equal((r.status, r.json["status"]), (200, "ok"), "/healthz")


def status(raw):
    check(raw.startswith(b"HTTP/1.1 "), f"no answer: {raw[:80]!r}")
    return int(raw[9:12])


@case
def smuggling_is_refused_and_closed():
    with Server(ready=False, fill=None) as s:
        wait_for(lambda: alive(s), "the listener")
        pids = sorted(children(s.proc.pid))
        for what, want, raw in SMUGGLE:
            got = s.raw(raw + SECOND, shut=False)
            equal(status(got), want, what)
            equal(got.count(b"X-Request-Id: "), 1, f"{what}: answers")
            check(b"Connection: close\r\n" in got, f"{what}: closes")
            check(b"inferd_http" not in got, f"{what}: the second request was run")
            healthy(s)
        equal(sorted(children(s.proc.pid)), pids, "the same processes")
        check(s.proc.poll() is None, "the server lives")


def alive(s):
    try:
        return s.get("/healthz", timeout=10).status == 200
    except OSError:
        return False


@case
def a_body_of_100_MB_gets_413_and_the_reason():
    with Server(ready=False, fill=None) as s:
        wait_for(lambda: alive(s), "the listener")
        block = b"x" * (1 << 20)
        c = s.conn()
        c.putrequest("POST", "/v1/completions")
        c.putheader("Content-Length", str(100 << 20))
        c.endheaders()
        for _ in range(100):  # a client that sends all before it looks
            c.send(block)
        r = c.getresponse()
        equal(r.status, 413, "status")
        body = r.read()
        check(b"CONTENT_TOO_LARGE" in body and b"max_body_bytes" in body, f"reason: {body!r}")
        c.close()
        # with an expectation no byte of the body is asked for
        got = s.raw(b"POST /v1/completions HTTP/1.1\r\n" + H + b"Expect: 100-continue\r\nContent-Length: 104857600\r\n\r\n")
        equal(status(got), 413, "expectation")
        check(b"100 Continue" not in got, "no 100 before a 413")
        # and chunked, where the length is not known before
        with socket.create_connection(("127.0.0.1", s.port), timeout=30 * SLOW) as k:
            k.sendall(b"POST /v1/completions HTTP/1.1\r\n" + H + b"Transfer-Encoding: chunked\r\n\r\n")
            for _ in range(100):
                k.sendall(b"100000\r\n" + block + b"\r\n")
            k.sendall(b"0\r\n\r\n")
            equal(status(k.recv(65536)), 413, "chunked")
        healthy(s)


@case
def an_expectation_is_answered():
    with Server(ready=False, fill=None) as s:
        wait_for(lambda: alive(s), "the listener")
        with socket.create_connection(("127.0.0.1", s.port), timeout=10 * SLOW) as k:
            k.sendall(b"POST /v1/embeddings HTTP/1.1\r\n" + H + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
            equal(k.recv(65536), b"HTTP/1.1 100 Continue\r\n\r\n", "interim answer")
            k.sendall(b"{}")
            equal(status(k.recv(65536)), 400, "final answer")  # no model named
        equal(status(s.raw(b"POST /v1/embeddings HTTP/1.1\r\n" + H + b"Expect: x\r\nContent-Length: 2\r\n\r\n")), 417,
              "unknown expectation")


@case
def slow_clients_are_cut_and_cost_nobody_else():
    with Server(ready=False, fill=None, header_timeout_ms=400, body_timeout_ms=400) as s:
        wait_for(lambda: alive(s), "the listener")
        got = {}

        def drip(name, head):
            with socket.create_connection(("127.0.0.1", s.port), timeout=20 * SLOW) as k:
                k.sendall(head)
                k.settimeout(0.05)
                end, out = time.monotonic() + 20 * SLOW, b""
                while time.monotonic() < end:
                    try:
                        k.sendall(b"a")  # each byte in time, the whole never
                        block = k.recv(65536)
                        out += block
                        if not block:
                            break
                    except socket.timeout:
                        continue
                    except OSError:
                        break
                got[name] = out

        threads = [threading.Thread(target=drip, args=(n, h)) for n, h in [
            *[(f"head {i}", b"GET /healthz HTTP/1.1\r\nX: ") for i in range(20)],
            *[(f"body {i}", b"POST /v1/embeddings HTTP/1.1\r\n" + H + b"Content-Length: 1000000\r\n\r\n") for i in range(20)],
        ]]
        for t in threads:
            t.start()
        while any(t.is_alive() for t in threads):
            healthy(s)
            time.sleep(0.05)
        equal(len(got), 40, "connections ended")
        for name, out in got.items():
            equal(status(out), 408, name)
            check(b"REQUEST_TIMEOUT" in out, name)


@case
def head_options_and_405():
    with Server(ready=False, fill=None) as s:
        wait_for(lambda: alive(s), "the listener")
        r = s.request("HEAD", "/healthz")
        equal((r.status, r.body), (200, b""), "HEAD")
        check(int(r.headers["content-length"]) > 0, "HEAD tells the length")
        r = s.request("OPTIONS", "/v1/embeddings")
        equal((r.status, r.body), (204, b""), "OPTIONS")
        equal(r.headers["allow"], "POST, OPTIONS", "Allow")
        r = s.get("/v1/embeddings")
        equal((r.status, r.json["error"]), (405, "METHOD_NOT_ALLOWED"), "GET of a POST path")
        equal(r.headers["allow"], "POST, OPTIONS", "Allow")
        r = s.post("/healthz", "x")
        equal((r.status, r.headers["allow"]), (405, "GET, HEAD, OPTIONS"), "POST of a GET path")
        r = s.get("/nowhere")
        equal((r.status, r.json["error"]), (404, "NOT_FOUND"), "unknown path")
        r = s.get("/healthz", headers={"X-Request-Id": "mine-1"})
        equal(r.headers["x-request-id"], "mine-1", "request id")


@case
def pipelined_requests_are_answered_in_order():
    with Server(ready=False, fill=None) as s:
        wait_for(lambda: alive(s), "the listener")
        one = b"".join(b"GET /healthz HTTP/1.1\r\n" + H + b"X-Request-Id: n%d\r\n\r\n" % i for i in range(49))
        got = s.raw(one + b"GET /healthz HTTP/1.1\r\n" + H + b"X-Request-Id: n49\r\nConnection: close\r\n\r\n")
        equal(got.count(b"HTTP/1.1 200 OK\r\n"), 50, "answers")
        at = [got.index(b"X-Request-Id: n%d\r\n" % i) for i in range(50)]
        equal(at, sorted(at), "order")


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=20 * SLOW)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


@case
def unix_socket_listener():
    with tempfile.TemporaryDirectory(prefix="inferd-test-") as d:
        path = os.path.join(d, "s")
        stale = socket.socket(socket.AF_UNIX)  # what a killed server leaves
        stale.bind(path)
        stale.close()
        with Server(ready=False, fill=None, unix_socket=path) as s:
            wait_for(lambda: alive(s), "the listener")
            equal(stat.S_IMODE(os.stat(path).st_mode), 0o660, "mode")
            c = UnixConnection(path)
            c.request("GET", "/healthz")
            equal(c.getresponse().status, 200, "over the Unix socket")
            c.close()
            # a second server may not take it over
            other = subprocess.run([os.path.join(BIN, "inferd"), "serve", "--port=0", f"--unix-socket={path}",
                                    f"--models-dir={s.models}"], capture_output=True, text=True, timeout=30 * SLOW)
            check(other.returncode != 0 and path in other.stderr, f"taken: {other.returncode} {other.stderr[-300:]}")
            c = UnixConnection(path)
            c.request("GET", "/healthz")
            equal(c.getresponse().status, 200, "still the first one's")
            c.close()


@case
def a_public_address_needs_consent():
    out = subprocess.run([os.path.join(BIN, "inferd"), "serve", "--port=0", "--host=0.0.0.0", "--models-dir=/tmp"],
                         capture_output=True, text=True, timeout=30 * SLOW)
    check(out.returncode != 0, "refused")
    check("insecure" in out.stderr and "0.0.0.0" in out.stderr, f"says how: {out.stderr[-300:]}")


main()
