#!/usr/bin/env python3
"""cases_hostile.py - a user who tries things: mutated bodies and requests, wrong methods, many connections, pipelined streams,
JSON that is meant to hurt. Random, but seeded: a failure names what was sent. After each: the three standing checks.
"""
import copy
import json
import os
import random
import socket
import struct
import threading
import time

from inferd_standing import Before, standing
from inferd_test import SLOW, TINY_BERT, TINY_GEMMA, Server, case, check, equal, main, wait_for

ROUNDS = int(os.environ.get("INFERD_TEST_ROUNDS", 1200 if SLOW == 1 else 300))
SEED = int(os.environ.get("INFERD_TEST_SEED", 20260701))
G, E = TINY_GEMMA, TINY_BERT
HI = [{"role": "user", "content": "Hi"}]
BODIES = [
    ("/v1/chat/completions", {"model": G, "messages": [{"role": "system", "content": "x"}] + HI, "max_tokens": 3, "temperature": 1, "seed": 1,
                              "stop": ["z"], "logprobs": True, "top_logprobs": 2, "n": 2, "stream": False, "logit_bias": {"5": 1}}),
    ("/v1/chat/completions", {"model": G, "messages": HI, "max_completion_tokens": 3, "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/completions", {"model": G, "prompt": "a", "max_tokens": 3, "echo": True, "logprobs": 2, "top_k": 4, "top_p": 0.5, "min_p": 0.1}),
    ("/ai/v1/completions", {"model": G, "prompt": [[2, 5], [7]], "max_tokens": 3, "stream": True, "return_token_ids": True, "n": 2}),
    ("/v1/embeddings", {"model": E, "input": ["a", "b"], "encoding_format": "base64", "dimensions": 16}),
    ("/ai/v1/embed", {"model": E, "input_tokens": [[5, 6], [7]], "truncate": True, "error_policy": "per_item", "task_type": "CLUSTERING"}),
    ("/ai/v1/tokenize", {"model": G, "text": "a b", "add_special_tokens": True, "parse_special": False}),
    ("/ai/v1/detokenize", {"model": G, "tokens": [5, 600], "skip_special_tokens": True}),
    ("/ai/v1/models/load", {"model": E}),
]
VALUES = [None, True, False, 0, 1, -1, 2, 1.5, -0.0, 1e308, -1e308, 5e-324, 2**31, 2**32, 2**53, 2**63 - 1, -2**63, 128, 129, 2048, "", "a", "0",
          "\0", "\u0000x", "\u202e", "\ud7ff", "\U0010ffff", "a" * 5000, [], {}, [[]], [{}], {"a": {}}, [None], [1, "a"], ["a"] * 50, [5] * 300,
          "true", "null", "NaN", {"type": "text", "text": "x"}, [{"type": "text", "text": "x"}], [2**31], [-1], "user", "text", G, E, "base64"]


def places(x, path=()):
    """Paths of all values inside x."""
    yield path
    if isinstance(x, dict):
        for k in x:
            yield from places(x[k], path + (k,))
    elif isinstance(x, list):
        for i, v in enumerate(x):
            yield from places(v, path + (i,))


def mutate(rnd, body):
    body = copy.deepcopy(body)
    for _ in range(rnd.choice((1, 1, 1, 2, 4))):
        path = rnd.choice([p for p in places(body) if p] or [()])
        if not path:
            return body
        at = body
        for step in path[:-1]:
            at = at[step]
        k = path[-1]
        what = rnd.randrange(6)
        if what == 0:
            del at[k]
        elif what == 1 and isinstance(at, dict):
            at[rnd.choice(("x", "", "a" * 300, "\u4e2d", "n", "prompt", "input", "messages", "stream", "logprobs", "ignore_eos"))] = rnd.choice(VALUES)
        elif what == 2 and isinstance(at, list):
            at.extend(copy.deepcopy(at[k]) for _ in range(rnd.choice((1, 20))))
        elif what == 3:
            at[k] = [at[k]]
        else:
            at[k] = copy.deepcopy(rnd.choice(VALUES))
    return body


def well_formed(r, what):
    """Whatever it is, the answer is a whole one, in the shape that the page promises, and no failure of ours."""
    check(r.status in (200, 400, 404, 409, 413, 415, 504), f"status {r.status} for {what}: {r.body[:200]!r}")
    text = r.body.decode("utf-8")
    if r.headers["content-type"].startswith("text/event-stream"):
        events = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
        check("data: [DONE]" in text or "event: error" in text, f"a stream without an end for {what}: {text[-200:]!r}")
        check(events, f"an empty stream for {what}")
        return
    j = json.loads(text)
    if r.status != 200:
        e = j["error"]
        m = e["message"] if isinstance(e, dict) else j["message"]
        check(m and len(m) < 1000, f"a message for {what}: {m!r:.300}")


@standing
def bodies_mutated(s):
    rnd = random.Random(SEED)
    seen = {}
    for i in range(ROUNDS):
        path, body = rnd.choice(BODIES)
        body = mutate(rnd, body)
        try:
            raw = json.dumps(body, ensure_ascii=rnd.random() < 0.5).encode("utf-8", "surrogatepass")
        except (TypeError, ValueError):
            continue
        r = s.post(path, raw, headers={"X-Request-Timeout-Ms": "4000"})
        well_formed(r, f"round {i}: {path} {raw[:300]!r}")
        seen[r.status] = seen.get(r.status, 0) + 1
    check(seen.get(400, 0) > ROUNDS // 8 and seen.get(200, 0) > ROUNDS // 8, f"both sorts of answers: {seen}")


@standing
def body_bytes_mutated(s):
    rnd = random.Random(SEED + 1)
    for i in range(ROUNDS):
        path, body = rnd.choice(BODIES)
        raw = bytearray(json.dumps(body).encode())
        for _ in range(rnd.choice((1, 1, 2, 5))):
            at = rnd.randrange(len(raw))
            what = rnd.randrange(4)
            if what == 0:
                raw[at] = rnd.randrange(256)
            elif what == 1:
                del raw[at:at + rnd.choice((1, 1, 4, 30))]
            elif what == 2:
                raw[at:at] = rnd.choice((b'"', b"{", b"[", b"}", b"]", b",", b":", b"\\", b"\\u", b"\\ud800", b"\0", b"\xff", b"\xed\xa0\x80", b"1e999",
                                         b"-", b"//", b"/**/", b"\xef\xbb\xbf", b" " * 100, bytes(raw[:40])))
            else:
                raw = raw[:at]
            if not raw:
                raw = bytearray(b"x")
        well_formed(s.post(path, bytes(raw), headers={"X-Request-Timeout-Ms": "4000"}), f"round {i}: {path} {bytes(raw)[:300]!r}")


@standing
def request_bytes_mutated(s):
    """The head too: an answer, or a closed connection, within the time; the next client is served."""
    rnd = random.Random(SEED + 2)
    for i in range(ROUNDS // 2):
        path, body = rnd.choice(BODIES)
        data = json.dumps(body).encode()
        raw = bytearray(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
        head = raw.index(b"\r\n\r\n") + 4
        for _ in range(rnd.choice((1, 1, 3))):
            at = rnd.randrange(head)
            if rnd.random() < 0.6:
                raw[at] = rnd.choice((rnd.randrange(256), 0, 10, 13, 32, 58, 9, 127, 255))
            else:
                raw[at:at] = rnd.choice((b"\r\n", b"\n", b"\r", b" ", b"\0", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 3\r\n", b"a" * 9000, b"%00", b"%"))
        with socket.create_connection(("127.0.0.1", s.port), timeout=10 * SLOW) as c:
            c.sendall(raw)
            c.shutdown(socket.SHUT_WR)
            got = b""
            try:
                while block := c.recv(65536):
                    got += block
            except ConnectionResetError:
                pass
            except socket.timeout:
                check(False, f"round {i}: neither an answer nor an end for {bytes(raw[:200])!r}")
        check(not got or got.startswith(b"HTTP/1.1 "), f"round {i}: {got[:100]!r}")
        check(b"HTTP/1.1 500" not in got, f"round {i}: {got[:300]!r} for {bytes(raw[:200])!r}")
    equal(s.get("/healthz").status, 200, "the next client")


@standing
def json_that_hurts(s):
    g = f'"model":"{G}","prompt":"a","max_tokens":1'
    rows = [
        ("[" * 100000, (400, 413)), ('{"a":' * 100000, (400, 413)), ("[" * 31 + "]" * 31, 400), (f'{{{g},"x":{"[" * 30}{"]" * 30}}}', 200),
        (f'{{{g},"x":{"[" * 32}{"]" * 32}}}', 400), (f'{{{g},"x":"{"[" * 10000}"}}', 200), (f'{{{g},"x":[{"0," * 100000}0]}}', (200, 413)),
        ("{" + ",".join(f'"k{i}":1' for i in range(100000)) + "," + g + "}", (200, 400, 413)),  # many keys
        (f'{{{g},"{"k" * 1000000}":1}}', (200, 400)), (f'{{{g},"x":1{"0" * 100000}}}', (200, 400)), (f'{{{g},"x":0.{"1" * 100000}}}', (200, 400)),
        (f'{{{g},"temperature":0.{"0" * 5000}1}}', 200), (f'{{{g},"seed":{"9" * 5000}}}', 400), (f'{{{g},"x":-}}', 400), (f'{{{g},"x":01}}', 400),
        (f'{{{g},"x":1.}}', 400), (f'{{{g},"x":.5}}', 400), (f'{{{g},"x":0x10}}', 400), (f'{{{g},"x":"\t"}}', 400), (f'{{{g},"x":"\\x"}}', 400),
        (f'{{{g},"x":undefined}}', 400), (f'{{{g},}}', 400), (f'{{{g}}}x', 400), (f'\ufeff{{{g}}}', 400), (f'{{{g}}}\0', 400), (f' \r\n\t{{{g}}} \n', 200),
        (f'{{{g},"model":"{G}"}}', 400), (f'{{{g},"mode\\u006c":"{G}"}}', 400), (f"{{{g}}}".encode("utf-16"), 400), (b"\x1f\x8b\x08" + bytes(50), 400),
        (f'{{{g},"__proto__":{{"n":500}},"constructor":1,"toString":2}}', 200), (f'{{"\\u0000":1,{g}}}', (200, 400)), (b"0" * 1000000, 400),
        (b'"' + b"\\u0041" * 500000 + b'"', 400), (f'{{{g},"x":"{chr(0x4e2d) * 1000000}"}}', 200),
    ]
    for body, want in rows:
        begin = time.monotonic()
        r = s.post("/ai/v1/completions", body)
        check(r.status in (want if isinstance(want, tuple) else (want,)), f"{body[:60]!r}: {r.status} {r.body[:200]!r}, expected {want}")
        check(time.monotonic() - begin < 15 * SLOW, f"{body[:60]!r} took long")
        check(len(r.body) < 100000, f"{body[:60]!r}: an answer of {len(r.body)} bytes")
    keys = ",".join(f'"{k}":0' for k in range(700))
    equal(s.post("/ai/v1/completions", f'{{{g},"logit_bias":{{{keys}}}}}').status, 200, "700 biases")
    r = s.post("/ai/v1/completions", f'{{{g},"logit_bias":{{"5":1,"05":-1,"005":2}}}}')
    check(r.status in (200, 400), f"one token spelled three ways: {r.status}")


@standing
def every_method_on_every_route(s):
    paths = sorted({p for p, _ in BODIES} | {"/", "/healthz", "/readyz", "/metrics", "/v1/models", f"/v1/models/{G}", "/v1/models/", "/v1/", "/v1", "/ai/v1/echo",
                                             "/v1/chat/completions/", "/V1/models", "//v1/models", "/v1//models", "/v1/./models", "/favicon.ico", "/v1/models?a=b&a=c#x"})
    for path in paths:
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"):
            r = s.request(method, path, body=b"{}" if method in ("POST", "PUT", "PATCH", "DELETE", "GET") else None)
            check(r.status in (200, 204, 400, 404, 405, 501), f"{method} {path}: {r.status} {r.body[:100]!r}")
            check(r.status != 405 or "allow" in r.headers, f"{method} {path}: 405 without Allow")
        for method in (b"CONNECT", b"FOO", b"get", b"GETT", b"A" * 300):
            got = s.raw(method + b" " + path.encode() + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", timeout=5 * SLOW)
            check(got.startswith(b"HTTP/1.1 4") or got.startswith(b"HTTP/1.1 501"), f"{method[:10]} {path}: {got[:60]!r}")


@standing
def a_thousand_connections(s):
    before = s.metric("inferd_http_connections")
    rnd = random.Random(3)
    parts = [b"", b"G", b"GET /healthz HTTP/1.1\r\n", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 5,
             b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{", b"\xff" * 100]
    open_ = []
    for i in range(1000):
        c = socket.create_connection(("127.0.0.1", s.port), timeout=10 * SLOW)
        c.sendall(rnd.choice(parts))
        open_.append(c)
        if len(open_) > 200:
            k = open_.pop(rnd.randrange(len(open_)))
            if rnd.random() < 0.5:
                k.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            k.close()
        if i % 100 == 0:
            equal(s.get("/healthz").status, 200, "in between")
    for c in open_:
        c.close()
    wait_for(lambda: s.metric("inferd_http_connections") <= before, "all connections to be gone")


@case
def more_connections_than_allowed():
    with Server(max_connections=40) as s:
        b = Before(s)
        held = [socket.create_connection(("127.0.0.1", s.port), timeout=10 * SLOW) for _ in range(200)]
        time.sleep(0.3)
        refused = 0
        for c in held[40:]:
            try:
                c.settimeout(20 * SLOW)
                got = c.recv(65536)
            except OSError:
                got = b""
            refused += got.startswith(b"HTTP/1.1 503") or got == b""
        check(refused >= 150, f"{refused} of 160 were refused")
        for c in held:
            c.close()

        def place():
            try:
                return s.get("/healthz").status == 200
            except OSError:  # refused once more
                return False
        wait_for(place, "a free place")
        b.well()


@case
def a_place_in_the_queue():
    """What fits never is not told to try again; what fits later is, and gets its place."""
    with Server(max_queue=4, max_seqs=2) as s:
        b = Before(s)
        for k, status in ((1, 200), (4, 200), (5, 413), (128, 413)):
            r = s.post("/ai/v1/completions", {"model": G, "prompt": ["a"] * k, "max_tokens": 1})
            equal(r.status, status, f"{k} prompts: {r.body[:200]!r}")
            check(status == 200 or (r.json["error"] == "CONTENT_TOO_LARGE" and not r.json["retryable"]), f"{r.body[:200]!r}")
        stream = s.sse("/v1/completions", {"model": G, "prompt": "a", "max_tokens": 2000, "ignore_eos": True, "stream": True})
        next(stream)
        r = s.post("/ai/v1/completions", {"model": G, "prompt": ["a"] * 4, "max_tokens": 1})
        equal((r.status, r.json["error"], r.json["retryable"]), (503, "MODEL_RESOURCE_BUSY", True), f"{r.body[:200]!r}")
        check("n_tokens" not in r.json, f"requests are no tokens: {r.json}")
        stream.close()
        wait_for(lambda: s.metric("inferd_tasks_active", model=G) == 0, "the place")
        b.well()


@case
def memory_that_is_never_enough():
    """507 and not retryable; bytes are not told as tokens."""
    with Server(memory_mb=100) as s:
        r = s.post("/ai/v1/completions", {"model": G, "prompt": "a"})
        equal((r.status, r.json["error"], r.json["retryable"]), (507, "MODEL_RESOURCE_LIMIT", False), f"{r.body[:200]!r}")
        check("n_tokens" not in r.json and "memory_mb" in r.json["message"], f"{r.json}")
        equal(s.get("/readyz").status, 200, "/readyz")


def chunked(raw):
    """Splits pipelined chunked answers into bodies."""
    out = []
    while raw:
        head, _, raw = raw.partition(b"\r\n\r\n")
        check(head.startswith(b"HTTP/1.1 200"), f"an answer: {head[:80]!r}")
        body = b""
        while True:
            size, _, raw = raw.partition(b"\r\n")
            n = int(size, 16)
            body += raw[:n]
            raw = raw[n + 2:]
            if n == 0:
                break
        out.append(body)
    return out


@standing
def pipelined_streams(s):
    def req(i, close):
        data = json.dumps({"model": G, "prompt": f"p{i}", "max_tokens": 10 + i, "ignore_eos": True, "stream": True, "return_token_ids": True}).encode()
        return b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + (b"Connection: close\r\n" if close else b"") + b"Content-Length: %d\r\n\r\n" % len(data) + data
    got = chunked(s.raw(b"".join(req(i, i == 7) for i in range(8)), timeout=30 * SLOW))
    equal(len(got), 8, "answers")
    for i, body in enumerate(got):
        check(body.endswith(b"data: [DONE]\n\n"), f"the end of stream {i}")
        ids = [t for line in body.decode().split("\n") if line.startswith("data: {") for c in json.loads(line[6:])["choices"] for t in c.get("token_ids", [])]
        equal(len(ids), 10 + i, f"stream {i} is its own")
    for k in (1, 3, 8):  # and clients that leave in the middle of them
        c = socket.create_connection(("127.0.0.1", s.port), timeout=10 * SLOW)
        c.sendall(b"".join(req(i, False) for i in range(8)))
        for _ in range(k):
            c.recv(1000)
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        c.close()
    wait_for(lambda: s.metric("inferd_tasks_active", model=G) == 0, "no task")


@standing
def streams_nobody_reads(s):
    """Clients that ask for much and read nothing hold back themselves only."""
    data = json.dumps({"model": G, "prompt": "a", "max_tokens": 2000, "ignore_eos": True, "stream": True, "logprobs": 20}).encode()
    held = []
    for _ in range(6):
        c = socket.socket()
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.connect(("127.0.0.1", s.port))
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        held.append(c)
    for _ in range(3):
        equal(s.post("/v1/completions", {"model": G, "prompt": "a", "max_tokens": 3}, timeout=30).status, 200, "a client who reads")
    for c in held:
        c.close()
    wait_for(lambda: s.metric("inferd_tasks_active", model=G) == 0, "no task")


@standing
def load_and_unload_races(s):
    wrong = []

    def go(i):
        rnd = random.Random(i)
        for _ in range(12):
            what = rnd.choice(("load", "unload", "ask", "ask", "leave"))
            if what == "ask":
                r = s.post("/v1/embeddings", {"model": E, "input": "a"})
            elif what == "leave":
                c = socket.create_connection(("127.0.0.1", s.port))
                c.sendall(b'POST /ai/v1/models/%s HTTP/1.1\r\nHost: x\r\nContent-Length: 18\r\n\r\n{"model":"minilm"}' % rnd.choice((b"load", b"unload")))
                c.close()
                continue
            else:
                r = s.post(f"/ai/v1/models/{what}", {"model": E})
            if r.status not in (200, 409, 503):
                wrong.append((what, r.status, r.body[:200]))

    threads = [threading.Thread(target=go, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    equal(wrong, [], "answers")


main()
