"""limits.py - both sides of the limits of requests, heads, bodies, fields, headers, connections, times and keys.

One row is one limit: what is sent exactly at it is taken, one more is refused with the status and the code that
docs/limits.md names. Limits whose two sides need no socket are in unit tests; that page says where each one is tried.
"""
import json
import os
import re
import socket
import subprocess
import tempfile
import threading
import time

from inferd_test import BIN, ROOT, SLOW, TINY_BERT, TINY_GEMMA, Server, case, check, equal, main, wait_for

BODY = 1300000   # max_body_bytes here
HEAD = 16384     # max_header_bytes here
INPUTS = 4       # max_embed_inputs here
H = b"Host: x\r\n"
server = None


def serve():
    global server
    if server is None:
        server = Server(max_body_bytes=BODY, max_header_bytes=HEAD, max_embed_inputs=INPUTS, max_media_bytes=0, log_level="info").__enter__()
        server.post("/v1/completions", {"model": TINY_GEMMA, "prompt": "a", "max_tokens": 1})
        server.post("/v1/embeddings", {"model": TINY_BERT, "input": "a"})
    return server


def once(data, port=None):
    """The bytes of one answer, of a connection that is kept or closed behind it."""
    with socket.create_connection(("127.0.0.1", port or serve().port), timeout=20 * SLOW) as k:
        k.sendall(data)
        out = b""
        while b"\r\n\r\n" not in out:
            block = k.recv(65536)
            if not block:
                break
            out += block
        return out


def status(raw):
    check(raw.startswith(b"HTTP/1.1 "), f"no answer: {raw[:80]!r}")
    return int(raw[9:12])


def code(body):
    e = json.loads(body)["error"]
    return e["code"] if isinstance(e, dict) else e


# ------------------------------------------------------------------------------------------------ the head and the framing

def line(n):
    """A request line of n bytes, without its CRLF."""
    fixed = len(b"GET /healthz?x= HTTP/1.1")
    return b"GET /healthz?x=" + b"a" * (n - fixed) + b" HTTP/1.1\r\n" + H + b"\r\n"


def head(n):
    """A head of n bytes, its empty line included."""
    fixed = b"GET /healthz HTTP/1.1\r\n" + H + b"X: \r\n\r\n"
    return fixed[:-4] + b"a" * (n - len(fixed)) + b"\r\n\r\n"


def lines(n):
    return b"GET /healthz HTTP/1.1\r\n" + H + b"A: b\r\n" * (n - 1) + b"\r\n"


def chunked(rest, size=b"b"):
    return b"POST /ai/v1/chunk HTTP/1.1\r\n" + H + b"Transfer-Encoding: chunked\r\n\r\n" + size + rest


JSON = b'{"input":"a"}'  # 13 bytes: d


def extension(n):
    return chunked(b";" + b"x" * n + b"\r\n" + JSON + b"\r\n0\r\n\r\n", b"d")


def extensions(n):
    """In two chunks: the limit is of the whole body."""
    return chunked(b";" + b"x" * (n - 100) + b"\r\n" + JSON[:7] + b"\r\n6;" + b"x" * 100 + b"\r\n" + JSON[7:] + b"\r\n0\r\n\r\n", b"7")


def trailer(n):
    """A trailer section of n bytes, its empty line included."""
    return chunked(b"\r\n" + JSON + b"\r\n0\r\nX: " + b"a" * (n - 7) + b"\r\n\r\n", b"d")


def digits(n):
    return chunked(b"\r\n" + JSON + b"\r\n0\r\n\r\n", b"d".rjust(n, b"0"))


def trailers(n):
    return chunked(b"\r\n" + JSON + b"\r\n0\r\n" + b"A: b\r\n" * n + b"\r\n", b"d")


def body(n):
    text = JSON + b" " * (n - len(JSON))
    return b"POST /ai/v1/chunk HTTP/1.1\r\n" + H + b"Content-Length: %d\r\n\r\n" % n + text


def body_chunked(n):
    return chunked(b"\r\n" + JSON + b" " * (n - len(JSON)) + b"\r\n0\r\n\r\n", b"%x" % n)


def told(n):
    return b"POST /ai/v1/chunk HTTP/1.1\r\n" + H + b"Content-Length: %d\r\n\r\n" % n


# what, bytes at n, n, status at n, status at n + 1, code there
RAW = [
    ("request line", line, 8192, 200, 414, "URI_TOO_LONG"),
    ("head", head, HEAD, 200, 431, "HEADERS_TOO_LARGE"),
    ("header lines", lines, 100, 200, 431, "HEADERS_TOO_LARGE"),
    ("empty lines before a request", lambda n: b"\r\n" * n + lines(1), 2, 200, 400, "INVALID_REQUEST"),
    ("a chunk's extension", extension, 4096, 200, 400, "INVALID_REQUEST"),
    ("extensions of all chunks", extensions, 4096, 200, 400, "INVALID_REQUEST"),
    ("digits of a chunk's size", digits, 16, 200, 400, "INVALID_REQUEST"),
    ("trailer", trailer, 8192, 200, 431, "HEADERS_TOO_LARGE"),
    ("trailer lines", trailers, 100, 200, 431, "HEADERS_TOO_LARGE"),
    ("body, its length told", body, BODY, 200, 413, "CONTENT_TOO_LARGE"),
    ("body in chunks", body_chunked, BODY, 200, 413, "CONTENT_TOO_LARGE"),
    ("Content-Length", told, 2**63 - 1, 413, 400, "INVALID_REQUEST"),
]


@case
def heads_and_bodies():
    s = serve()
    for what, make, n, at, beyond, word in RAW:
        equal(status(once(make(n))), at, f"{what}: {n}")
        got = s.raw(make(n + 1), timeout=10 * SLOW)
        equal(status(got), beyond, f"{what}: {n + 1}")
        check(f'"error":"{word}"'.encode() in got, f"{what}: code: {got[-300:]!r}")
        check(b"Connection: close\r\n" in got, f"{what}: closes")


@case
def bodies_of_routes_that_take_files():
    """As much more as max_media_bytes take in base64; other routes of that server do not."""
    media, plain = 3000, 2000
    most = plain + media // 3 * 4
    with Server(max_body_bytes=plain, max_media_bytes=media, max_embed_inputs=INPUTS) as s:
        def sent(path, body, n):
            text = json.dumps(body).encode()
            return s.post(path, text + b" " * (n - len(text)))

        text = {"model": TINY_BERT, "input": "a"}
        equal(sent(EMB, text, most).status, 200, f"{most} bytes")
        r = sent(EMB, text, most + 1)
        equal((r.status, code(r.body)), (413, "CONTENT_TOO_LARGE"), f"{most + 1} bytes")
        r = sent(CHUNK, {"input": "a"}, plain)
        equal(r.status, 200, "a route without files")
        r = sent(CHUNK, {"input": "a"}, plain + 1)
        equal((r.status, code(r.body)), (413, "CONTENT_TOO_LARGE"), "beyond it")


# ---------------------------------------------------------------------------------------------------------------- fields

CHAT, COMP, EMB, CHUNK, TOKENIZE, DECIDE = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/ai/v1/chunk",
                                            "/ai/v1/tokenize", "/ai/v1/decisions")
HI = [{"role": "user", "content": "Hi"}]


def comp(**kw):
    return {"model": TINY_GEMMA, "prompt": "a", "max_tokens": 1, **kw}


def chat(**kw):
    return {"model": TINY_GEMMA, "messages": HI, "max_tokens": 1, **kw}


def emb(**kw):
    return {"model": TINY_BERT, "input": "a", **kw}


def text_config(**kw):
    return {"input": "a b", "config": {"text": {"target_tokens": 8, "overlap_tokens": 0, **kw}}}


def nested(n):
    """A body of n levels, itself one."""
    return '{"model":"%s","prompt":"a","max_tokens":1,"x":%s1%s}' % (TINY_GEMMA, "[" * (n - 1), "]" * (n - 1))


def question(choices=2, examples=1, name="q"):
    return {"name": name, "type": "choice", "instructions": "Which?",
            "choices": [{"value": f"v{i}", "examples": [f"text {k}" for k in range(examples)]} for i in range(choices)]}


def decide(questions=1, inputs=None, ident="", **kw):
    d = {"model": TINY_BERT, "questions": [question(name=f"q{i}", **kw) for i in range(questions)]}
    if inputs is None:
        return {**d, "inputs": [{"id": ident or "x", "input": "a"}]}
    return {**d, "inputs": [{"input": "a"}] * inputs}


def span(field, low, high, make, path, step=1, beyond_low=True):
    """Rows of a field with a smallest and a largest value."""
    rows = [(f"{field}, most", path, make(**{field: high}), 200, make(**{field: high + step}), 400, "INVALID_REQUEST", field)]
    if beyond_low:
        rows.append((f"{field}, least", path, make(**{field: low}), 200, make(**{field: low - step}), 400, "INVALID_REQUEST", field))
    return rows


# what, path, body at the limit, its status, body beyond, its status, its code, a part of the message
ROWS = [
    ("levels of a body", COMP, nested(32), 200, nested(33), 400, "INVALID_REQUEST", "nested deeper than 32"),
    ("bytes of a model's name", COMP, comp(model="m" * 512), 404, comp(model="m" * 513), 400, "INVALID_REQUEST", "model"),
    *span("temperature", 0, 2, comp, COMP, 0.001),
    *span("top_p", 0, 1, comp, COMP, 0.001),
    *span("min_p", 0, 1, comp, COMP, 0.001),
    *span("typical_p", 0, 1, comp, COMP, 0.001),
    *span("top_k", 0, 1000000, comp, COMP),
    *span("repetition_penalty", 0.01, 100, comp, COMP, 0.001),
    *span("frequency_penalty", -2, 2, comp, COMP, 0.001),
    *span("presence_penalty", -2, 2, comp, COMP, 0.001),
    *span("seed", -2**63, 2**63 - 1, comp, COMP),
    *span("n", 1, 128, comp, COMP),
    *span("logprobs", 0, 64, comp, COMP),
    *span("top_logprobs", 0, 20, lambda **kw: chat(logprobs=True, **kw), CHAT),
    *span("max_tokens", 1, 2**31 - 1, lambda **kw: comp(**{"regex": "a", **kw}), COMP),
    *span("max_completion_tokens", 1, 2**31 - 1, lambda **kw: chat(regex="a", **kw), CHAT),
    *span("speculative_k", 1, 8, comp, COMP),
    *span("timeout_ms", 1, 86400000, comp, COMP, beyond_low=False),
    ("timeout_ms, least", COMP, comp(timeout_ms=60000), 200, comp(timeout_ms=0), 400, "INVALID_REQUEST", "timeout_ms"),
    ("stop strings", COMP, comp(stop=["zz"] * 16), 200, comp(stop=["zz"] * 17), 400, "INVALID_REQUEST", "stop"),
    ("bytes of a stop string", COMP, comp(stop="z" * 4096), 200, comp(stop="z" * 4097), 400, "INVALID_REQUEST", "stop"),
    # the model has 704 tokens: at the limit it is the 704th that is refused
    ("entries of logit_bias", COMP, comp(logit_bias={str(i): 0 for i in range(1024)}), 400, comp(logit_bias={str(i): 0 for i in range(1025)}), 400,
     "INVALID_REQUEST", "at most 1024"),
    ("a token of logit_bias", COMP, comp(logit_bias={"703": 1}), 200, comp(logit_bias={"704": 1}), 400, "INVALID_REQUEST", "from 0 to 703"),
    ("a value of logit_bias", COMP, comp(logit_bias={"5": 100}), 200, comp(logit_bias={"5": 100.5}), 400, "INVALID_REQUEST", "logit_bias"),
    ("a low value of logit_bias", COMP, comp(logit_bias={"5": -100}), 200, comp(logit_bias={"5": -100.5}), 400, "INVALID_REQUEST",
     "logit_bias"),
    ("prompts", COMP, comp(prompt=["a"] * 128), 200, comp(prompt=["a"] * 129), 400, "INVALID_REQUEST", "prompt"),
    ("prompts and choices together", COMP, comp(prompt=["a"] * 64, n=2), 200, comp(prompt=["a"] * 65, n=2), 400, "INVALID_REQUEST", "128"),
    ("bytes of prompt_cache_key", COMP, comp(prompt_cache_key="k" * 1024), 200, comp(prompt_cache_key="k" * 1025), 400,
     "INVALID_REQUEST", "prompt_cache_key"),
    ("bytes of a grammar", COMP, comp(grammar='root ::= "a"' + " " * (2**20 - 12)), 200, comp(grammar='root ::= "a"' + " " * (2**20 - 11)), 400,
     "INVALID_REQUEST", "grammar"),
    ("bytes of an expression", COMP, comp(regex="a" * 2**20), 400, comp(regex="a" * (2**20 + 1)), 400, "INVALID_REQUEST", "1048576"),
    ("messages", CHAT, chat(messages=HI * 16384), 400, chat(messages=HI * 16385), 400, "INVALID_REQUEST", "16384"),
    ("items of a response", "/v1/responses", {"model": TINY_GEMMA, "input": HI * 16384}, 400, {"model": TINY_GEMMA, "input": HI * 16385}, 400,
     "INVALID_REQUEST", "16384"),
    ("inputs of embeddings", EMB, emb(input=["a"] * INPUTS), 200, emb(input=["a"] * (INPUTS + 1)), 413, "CONTENT_TOO_LARGE", str(INPUTS)),
    ("dimensions", EMB, emb(dimensions=48), 200, emb(dimensions=49), 400, "INVALID_REQUEST", "dimensions"),
    ("bytes to tokenize", TOKENIZE, {"model": TINY_BERT, "text": " " * 2**20}, 200, {"model": TINY_BERT, "text": " " * (2**20 + 1)}, 413,
     "CONTENT_TOO_LARGE", "1048576"),
    ("max_chunks, most", CHUNK, {"input": "a", "config": {"max_chunks": 10000}}, 200, {"input": "a", "config": {"max_chunks": 10001}}, 400,
     "INVALID_REQUEST", "max_chunks"),
    ("max_chunks, least", CHUNK, {"input": "a", "config": {"max_chunks": 1}}, 200, {"input": "a", "config": {"max_chunks": 0}}, 400,
     "INVALID_REQUEST", "max_chunks"),
    ("target_tokens, most", CHUNK, text_config(target_tokens=65536), 200, text_config(target_tokens=65537), 400, "INVALID_REQUEST", "target_tokens"),
    ("target_tokens, least", CHUNK, text_config(target_tokens=1), 200, text_config(target_tokens=0), 400, "INVALID_REQUEST", "target_tokens"),
    ("bytes of a separator", CHUNK, text_config(separator="s" * 64), 200, text_config(separator="s" * 65), 400, "INVALID_REQUEST", "separator"),
    ("questions", DECIDE, decide(questions=64), 200, decide(questions=65), 400, "INVALID_REQUEST", "64"),
    ("choices, most", DECIDE, decide(choices=64), 200, decide(choices=65), 400, "INVALID_REQUEST", "64"),
    ("choices, least", DECIDE, decide(choices=2), 200, decide(choices=1), 400, "INVALID_REQUEST", "2 to 64"),
    ("examples of a choice", DECIDE, decide(examples=32), 200, decide(examples=33), 400, "INVALID_REQUEST", "32"),
    ("inputs of decisions", DECIDE, decide(inputs=128), 200, decide(inputs=129), 400, "INVALID_REQUEST", "128"),
    ("bytes of an input's id", DECIDE, decide(ident="i" * 1024), 200, decide(ident="i" * 1025), 400, "INVALID_REQUEST", "id"),
]


@case
def fields():
    s = serve()
    bad = []
    for what, path, at, ok, beyond, no, word, says in ROWS:
        r = s.post(path, at)
        if r.status != ok:
            bad.append(f"{what}, at the limit: {r.status}, expected {ok}: {r.body[:200]!r}")
        elif ok == 400:
            check(says not in r.body.decode(), f"{what}, at the limit: refused for its size: {r.body[:200]!r}")
        r = s.post(path, beyond)
        if (r.status, code(r.body)) != (no, word) or says not in r.body.decode():
            bad.append(f"{what}, beyond: {r.status} {r.body[:200]!r}, expected {no} {word} and '{says}'")
    equal(bad, [], f"{len(bad)} limits")


# --------------------------------------------------------------------------------------------------------------- headers

@case
def headers():
    s = serve()
    one = comp()
    for name, ok, no in (("X-Request-Timeout", ("86400", "60.001", "86400.000"), ("86400.001", "0.0009", "0", "86401", "")),
                         ("X-Request-Timeout-Ms", ("86400000", "60000"), ("86400001", "0", "", "1.5")),
                         ("X-Keep-Alive", ("0" * 62 + "5m", "5m"), ("0" * 63 + "5m", "soon"))):
        for v in ok:
            r = s.post(COMP, one, headers={name: v})
            equal(r.status, 200, f"{name}: {v[:70]}: {r.body[:200]!r}")
        for v in no:
            r = s.post(COMP, one, headers={name: v})
            equal((r.status, code(r.body)), (400, "INVALID_REQUEST"), f"{name}: {v[:70]}")
    r = s.get("/healthz", headers={"X-Request-Id": "i" * 64})
    equal(r.headers["x-request-id"], "i" * 64, "a request id of 64")
    r = s.get("/healthz", headers={"X-Request-Id": "i" * 65})
    check(r.status == 200 and r.headers["x-request-id"] != "i" * 65, "one of 65 is replaced")
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    r = s.get("/healthz", headers={"traceparent": parent})
    check(parent[3:35] in r.headers.get("traceresponse", ""), "a traceparent of 55")
    for v in (parent[:-1], parent + "0", "00-" + "0" * 32 + parent[35:], parent[:36] + "0" * 16 + "-01"):
        r = s.get("/healthz", headers={"traceparent": v})
        check(r.status == 200 and parent[3:35] not in r.headers.get("traceresponse", ""), f"no trace of {v}")


# --------------------------------------------------------------------------------------------- connections and their times

@case
def connections_at_once():
    with Server(fill=None, ready=False, max_connections=4) as s:
        wait_for(lambda: reachable(s.port), "the listener")
        held = []

        def full():  # the one that asked whether it listens is closed a moment later
            while len(held) < 4:
                held.append(socket.create_connection(("127.0.0.1", s.port), timeout=10 * SLOW))
            for k in held:
                k.sendall(b"GET /healthz HTTP/1.1\r\n" + H + b"\r\n")
            got = [k.recv(4096)[9:12] for k in held]
            if got == [b"200"] * 4:
                return True
            for k in held:
                k.close()
            held.clear()
            return False

        wait_for(full, "four connections")
        got = once(lines(1), s.port)
        equal(status(got), 503, "the fifth")
        check(b"SERVICE_UNAVAILABLE" in got and b"Retry-After: 1\r\n" in got, f"why: {got!r}")
        held.pop().close()
        wait_for(lambda: status(once(lines(1), s.port)) == 200, "its place")
        for k in held:
            k.close()


def reachable(port):
    try:
        return status(once(lines(1), port)) == 200
    except OSError:
        return False


@case
def pipelined_bytes_beyond_what_is_kept_wait():
    """More than is kept (16 KiB) while a request is in work: nothing is lost, refused or out of order."""
    n = 600
    one = b"".join(b"GET /healthz HTTP/1.1\r\n" + H + b"X-Request-Id: n%d\r\n\r\n" % i for i in range(n))
    with socket.create_connection(("127.0.0.1", serve().port), timeout=20 * SLOW) as k:
        k.sendall(b"POST /v1/completions HTTP/1.1\r\n" + H)
        text = json.dumps(comp(max_tokens=8)).encode()
        sender = threading.Thread(target=k.sendall, args=(b"Content-Length: %d\r\n\r\n" % len(text) + text + one,))
        sender.start()
        out = b""
        while out.count(b"X-Request-Id: n") < n:
            block = k.recv(65536)
            check(block, f"closed after {out.count(b'X-Request-Id: n')} answers")
            out += block
        sender.join()
    at = [out.index(b"X-Request-Id: n%d\r\n" % i) for i in range(n)]
    equal(at, sorted(at), "order")
    equal(out.count(b"HTTP/1.1 200 OK\r\n"), n + 1, "all answered")


@case
def times():
    """In time is taken and too late is cut, for a head, a body and a quiet connection."""
    ms = 1500 * SLOW
    with Server(fill=None, ready=False, header_timeout_ms=ms, body_timeout_ms=ms, idle_timeout_ms=ms) as s:
        wait_for(lambda: reachable(s.port), "the listener")
        whole = b"GET /healthz HTTP/1.1\r\n" + H + b"\r\n"
        post = b"POST /ai/v1/chunk HTTP/1.1\r\n" + H + b"Content-Length: 13\r\n\r\n"
        rows = {"head": (whole[:20], whole[20:], 408), "body": (post + JSON[:5], JSON[5:], 408), "idle": (whole, whole, None)}
        got = {}

        def early(name, first, rest):
            with socket.create_connection(("127.0.0.1", s.port), timeout=30 * SLOW) as k:
                k.sendall(first)
                if name == "idle":
                    k.recv(65536)
                time.sleep(ms / 1000 / 3)
                k.sendall(rest)
                got[name, "early"] = k.recv(65536)

        def late(name, first):
            with socket.create_connection(("127.0.0.1", s.port), timeout=30 * SLOW) as k:
                begin = time.monotonic()
                k.sendall(first)
                if name == "idle":
                    k.recv(65536)
                got[name, "late"] = k.recv(65536)
                got[name, "after"] = time.monotonic() - begin

        threads = [threading.Thread(target=early, args=(n, a, b)) for n, (a, b, _) in rows.items()]
        threads += [threading.Thread(target=late, args=(n, a)) for n, (a, _, _) in rows.items()]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for name, (_, _, want) in rows.items():
            equal(status(got[name, "early"]), 200, f"{name} in time")
            equal(status(got[name, "late"]) if want else got[name, "late"], want or b"", f"{name} too late")
            check(got[name, "after"] >= ms / 1000 * 0.95, f"{name}: cut after {got[name, 'after']:.2f} s of {ms} ms")


# ------------------------------------------------------------------------------------------------------------------ keys

@case
def the_page_names_what_is_there():
    """Each row of docs/limits.md: the file that defines the limit and the test that tries it exist."""
    with open(os.path.join(ROOT, "docs", "limits.md"), encoding="utf-8") as f:
        text = f.read()
    there = set()
    for top in ("supervisor", "worker", "proto", "tests"):
        for _, _, names in os.walk(os.path.join(ROOT, top)):
            there.update(names)
    words = set(re.findall(r"`(\w+\.[hcpy]+|test_\w+)`", text))
    check(len(words) > 40, f"names were found: {len(words)}")
    for w in sorted(words):
        check(w in there or w + ".c" in there, f"'{w}' is named and is not there")


def run(*args, stdin=None):
    r = subprocess.run([os.path.join(BIN, "inferd"), *args], capture_output=True, text=True, input=stdin, timeout=60 * SLOW,
                       stdin=None if stdin is not None else subprocess.DEVNULL)
    return r.returncode, r.stdout + r.stderr


# what, arguments at the limit, beyond it
KEYS = [
    ("tenant", ["--tenant", "t" * 63], ["--tenant", "t" * 64]),
    ("tenant, least", ["--tenant", "t"], ["--tenant", ""]),
    ("name", ["--name", "n" * 100], ["--name", "n" * 101]),
    ("weight, most", ["--weight", "1000"], ["--weight", "1001"]),
    ("weight, least", ["--weight", "1"], ["--weight", "0"]),
    ("models", [x for i in range(64) for x in ("--model", f"m{i}")], [x for i in range(65) for x in ("--model", f"m{i}")]),
    ("a model's id", ["--model", "m" * 255], ["--model", "m" * 256]),
    ("requests a minute", ["--requests-per-minute", "1000000000000"], ["--requests-per-minute", "1000000000001"]),
    ("tokens a minute", ["--tokens-per-minute", "1000000000000"], ["--tokens-per-minute", "1000000000001"]),
    ("tokens a day", ["--tokens-per-day", "1000000000000"], ["--tokens-per-day", "1000000000001"]),
    ("requests at once", ["--concurrency", "1000000000000"], ["--concurrency", "1000000000001"]),
    ("percent of a cache", ["--cache-percent", "100"], ["--cache-percent", "101"]),
    ("endpoints", ["--endpoints", "generate,embed,rerank,extract,decide,tokens,watch"], ["--endpoints", "generate,everything"]),
    ("time to live, least", ["--expires", "1s"], ["--expires", "0s"]),
]


@case
def keys():
    with tempfile.TemporaryDirectory(prefix="inferd-test-") as d:
        vault = os.path.join(d, "vault")
        for what, at, beyond in KEYS:
            rc, out = run("keys", "create", "--vault-dir", vault, *at)
            equal(rc, 0, f"{what}, at the limit: {out[:300]}")
            rc, out = run("keys", "create", "--vault-dir", vault, *beyond)
            check(rc != 0 and "inf_" not in out, f"{what}, beyond it: {rc} {out[:300]}")
        keyfile = os.path.join(d, "master")
        equal(run("credentials", "make-key", keyfile)[0], 0, "a master key")
        common = ["--vault-dir", vault, "--key-file", keyfile, "--as", "raw"]
        for n, want in ((8192, True), (8193, False), (1, True), (0, False)):
            rc, out = run("credentials", "set", "https://a.example", *common, stdin="s" * n)
            equal(rc == 0, want, f"a credential of {n} bytes: {out[:300]}")
        for n, want in ((253, True), (254, False)):
            name = ".".join(["a" * 49] * 5)[:n - 4].rstrip(".")
            name = name + "b" * (n - 4 - len(name)) + ".org"
            rc, out = run("credentials", "set", "https://" + name, *common, stdin="s")
            equal(rc == 0, want, f"a name of {n} bytes: {out[:300]}")
        for n, want in ((45, True), (46, False)):
            rc, out = run("credentials", "set", f"https://[{'0' * (n - 3)}::1]", *common, stdin="s")
            equal(rc == 0, want, f"an address of {n} characters: {out[:300]}")
        for port, want in ((65535, True), (65536, False), (1, True), (0, False)):
            rc, out = run("credentials", "set", f"https://a.example:{port}", *common, stdin="s")
            equal(rc == 0, want, f"port {port}: {out[:300]}")


main()
