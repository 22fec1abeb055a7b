#!/usr/bin/env python3
"""cases_limits.py - public bug cases about sizes and names: names (B7), huge prompts (B13), bad items of a batch (B23), smuggling
beyond http_limits.py (B27), limits per item and per request (B49). After each: the three standing checks.
"""
import json
import os
import time

from inferd_standing import Before, options, standing
from inferd_test import SLOW, TINY_BERT, TINY_GEMMA, Server, case, check, copy_model, equal, golden_models, main

options(max_body_bytes=64 << 20)
MB = 1 << 20


# ------------------------------------------------------------------- B7: names

NAMES = ["../../etc/passwd", "../gemma3_text", "gemma3_text/../gemma3_text", "./gemma3_text", "gemma3_text/.", "gemma3_text//model.safetensors",
         "/etc/passwd", "//etc/passwd", "%2e%2e%2fgemma3_text", "..%2fetc", "..\\..\\etc", "C:\\x", "file:///etc/passwd", "http://127.0.0.1/x",
         "sha256:../../x", "~", "~root", "$HOME", "`id`", "$(id)", "a;id", "gemma3_text\n", "gemma3_text ", " gemma3_text", "GEMMA3_TEXT",
         "gemma3_text/model.safetensors", "gemma3_text/config.json", "..", ".", "...", "-", "--help", "*", "?", "gemma3_tex?",
         "\u202egemma", "gemma3\u200b_text", "proc/self/environ", "dev/null", "a" * 255, "a" * 512, "a/" * 255 + "a"]


@standing
def b7_names_lead_nowhere(s):
    def refused(r, name, where):
        check(r.status in (400, 404), f"{where} {name!r:.60}: {r.status} {r.body[:200]!r}")
        e = r.json["error"]
        check((e["code"] if isinstance(e, dict) else e) in ("MODEL_NOT_FOUND", "INVALID_REQUEST"), f"{where} {name!r:.60}: {r.body[:200]!r}")
        text = r.body.decode()
        for leak in ("root:", "No such file", "Permission", s.models, "errno"):
            check(leak not in text, f"{where} {name!r:.60} tells of the disk: {text[:200]}")

    for name in NAMES + ["a\0b", "gemma3_text\0", "", "a" * 513, "a" * 4096, "a" * 100000, "/" * 500]:
        for path, rest in (("/ai/v1/completions", {"prompt": "a"}), ("/v1/embeddings", {"input": "a"}), ("/ai/v1/tokenize", {"text": "a"}),
                           ("/ai/v1/models/load", {}), ("/ai/v1/models/unload", {})):
            refused(s.post(path, {"model": name, **rest}), name, path)
    for raw in ("..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd", "..%252f..%252fetc", "%2Fetc%2Fpasswd", "gemma3_text%2F..%2Fminilm",
                "a" * 4000, "%c0%ae%c0%ae%2f", "%ff", "..;/x", "gemma3_text%0a"):
        r = s.get(f"/v1/models/{raw}")
        check(r.status in (400, 404), f"retrieve {raw!r:.60}: {r.status} {r.body[:100]!r}")
        r = s.post(f"/ai/v1/echo?model={raw}", b"x")
        check(r.status in (400, 404), f"echo {raw!r:.60}: {r.status} {r.body[:100]!r}")
    equal(sorted(os.listdir(s.models)), sorted((TINY_GEMMA, TINY_BERT)), "nothing was made in the models folder")


@case
def b7_links_and_odd_files_are_no_models():
    """What stands in the models folder may be hostile, too; each is refused by itself and the server goes on."""
    def fill(d):
        golden_models(d)
        outside = os.path.join(os.path.dirname(d), "outside")
        copy_model(TINY_BERT, os.path.dirname(d), "outside")
        os.symlink(outside, os.path.join(d, "link_dir"))
        os.symlink("/etc/passwd", os.path.join(d, "link.gguf"))
        os.symlink("loop.gguf", os.path.join(d, "loop.gguf"))
        os.symlink("nowhere", os.path.join(d, "dangling.gguf"))
        os.mkfifo(os.path.join(d, "fifo.gguf"))
        os.mkdir(os.path.join(d, "dir.gguf"))
        open(os.path.join(d, "empty.gguf"), "wb").close()
        with open(os.path.join(d, "junk.gguf"), "wb") as f:
            f.write(b"GGUF" + bytes(range(256)) * 64)
        with open(os.path.join(d, "text.gguf"), "wb") as f:
            f.write(b"hello")
        copy_model(TINY_BERT, d, "inner")  # a folder whose weights are links out of it
        for name, to in (("model.safetensors", os.path.join(outside, "model.safetensors")), ("config.json", None)):
            if to:
                os.unlink(os.path.join(d, "inner", name))
                os.symlink(to, os.path.join(d, "inner", name))
        copy_model(TINY_BERT, d, "fifo_inside")
        os.unlink(os.path.join(d, "fifo_inside", "model.safetensors"))
        os.mkfifo(os.path.join(d, "fifo_inside", "model.safetensors"))
        copy_model(TINY_BERT, d, "dir_inside")
        os.unlink(os.path.join(d, "dir_inside", "config.json"))
        os.mkdir(os.path.join(d, "dir_inside", "config.json"))
        copy_model(TINY_BERT, d, "empty_config")
        open(os.path.join(d, "empty_config", "config.json"), "wb").close()
        copy_model(TINY_BERT, d, "cut")
        os.truncate(os.path.join(d, "cut", "model.safetensors"), 5000)
        os.mkdir(os.path.join(d, "odd \u4e2d\n\"name\""))
        open(os.path.join(os.fsencode(d), b"bad\xff.gguf"), "wb").close()
        deep = d
        for _ in range(40):
            deep = os.path.join(deep, "d")
            os.mkdir(deep)

    with Server(fill=fill) as s:
        b = Before(s)
        r = s.get("/v1/models")
        r.body.decode("utf-8")
        listed = {m["id"] for m in r.json["data"]}
        check({TINY_GEMMA, TINY_BERT} <= listed, f"the good ones are listed: {listed}")
        for name in ("link_dir", "link", "link.gguf", "loop", "dangling", "fifo", "fifo.gguf", "dir.gguf", "dir", "empty", "empty.gguf", "junk", "text",
                     "inner", "fifo_inside", "dir_inside", "empty_config", "cut", "odd \u4e2d\n\"name\"", "bad\udcff", "d/d/d"):
            try:
                body = {"model": name, "input": "a"}
                r = s.post("/ai/v1/embed", json.dumps(body, ensure_ascii="\udcff" not in name).encode("utf-8", "surrogateescape"), timeout=20)
            except TimeoutError:
                check(False, f"{name!r} hangs")
            check(r.status in (400, 404, 500), f"{name!r}: {r.status} {r.body[:200]!r}")
            check(b"root:" not in r.body, f"{name!r}: the file's text")
            if r.status == 500:
                check(r.json["error"] in ("MODEL_LOAD_FAILED", "MODEL_WEIGHTS_MISSING") and r.json["retryable"] is False, f"{name!r}: {r.json}")
            equal(s.get("/healthz", timeout=10).status, 200, f"alive after {name!r}")
        b.well()


# ------------------------------------------------------------ B13: huge prompts

def took(fn):
    begin = time.monotonic()
    fn()
    return time.monotonic() - begin


def linear(fn, n, what):
    """Eight times the input takes about eight times the time, by far not sixty-four; loaded machines get four tries."""
    tries = []
    for _ in range(4):
        a, b = took(lambda: fn(n)), took(lambda: fn(8 * n))
        tries.append(b / a)
        if b < 24 * a or b < 0.2:
            return
    check(False, f"{what}: eight times the input takes {tries} times as long")


@standing
def b13_huge_prompts_are_told_their_size(s):
    def comp(text, status=(400, 413)):
        r = s.post("/ai/v1/completions", {"model": TINY_GEMMA, "prompt": text, "max_tokens": 1}, timeout=120)
        check(r.status in status, f"{text[:5]!r} x {len(text)}: {r.status} {r.body[:200]!r}")
        if r.status != 200:
            equal((r.json["limit"], r.json["n_tokens"] > r.json["limit"]), (2047, True), f"numbers: {r.json}")
        return r

    comp("\n" * (10**7 // SLOW))
    comp("x" * 10**6)
    comp("\u4e2d" * 10**6)
    comp("word " * (2 * 2048))
    comp(" " * 10**6)
    comp("<eos>" * 10**5)
    comp("\x00" * 10**5)
    r = s.post("/ai/v1/completions", {"model": TINY_GEMMA, "prompt": [5] * 2048, "max_tokens": 1})
    equal((r.status, r.json["n_tokens"], r.json["limit"]), (413, 2048, 2047), f"ids: {r.body[:200]!r}")
    r = s.post("/ai/v1/completions", {"model": TINY_GEMMA, "prompt": [5] * 2047, "max_tokens": 100})
    equal((r.status, r.json["usage"]["completion_tokens"]), (200, 1), "exactly the context")
    r = s.post("/ai/v1/chat/completions", {"model": TINY_GEMMA, "messages": [{"role": "user", "content": "x" * 10**6}]}, timeout=120)
    equal((r.status, r.json["limit"]), (413, 2047), f"chat: {r.body[:200]!r}")
    many = [{"role": ("user", "assistant")[i % 2], "content": "a"} for i in range(16383)]
    r = s.post("/ai/v1/chat/completions", {"model": TINY_GEMMA, "messages": many}, timeout=120)
    equal((r.status, r.json["limit"]), (413, 2047), f"16383 messages: {r.body[:200]!r}")
    r = s.post("/ai/v1/chat/completions", {"model": TINY_GEMMA, "messages": many + many}, timeout=120)
    check(r.status in (400, 413), f"32766 messages: {r.body[:200]!r}")
    for text in ("\n" * 10**6, "x" * 10**6, "word " * 10**5, "\u4e2d" * 10**5, "[UNK]" * 10**5, "e\u0301" * 10**5):
        r = s.post("/ai/v1/embed", {"model": TINY_BERT, "input": ["short", text]}, timeout=120)
        if text[0] not in "\nxe":  # white space is nothing, and a word that is too long is one [UNK]
            equal((r.status, r.json["input_index"], r.json["limit"]), (413, 1, 64), f"embed: {r.body[:200]!r}")
            check(r.json["n_tokens"] > 64, f"{r.json}")
        cut = s.post("/ai/v1/embed", {"model": TINY_BERT, "input": ["short", text], "truncate": True}, timeout=120)
        equal(cut.status, 200, f"truncate: {cut.body[:200]!r}")
        equal([d.get("truncated", False) for d in cut.json["data"]], [False, r.status != 200], f"flags of {text[:5]!r}")
        t = s.post("/ai/v1/tokenize", {"model": TINY_GEMMA, "text": text}, timeout=120)
        check(t.status in (200, 413), f"tokenize: {t.status} {t.body[:200]!r}")


@standing
def b13_tokenizers_are_linear(s):
    def go(model, piece):
        def fn(n):
            r = s.post("/ai/v1/embed" if model == TINY_BERT else "/ai/v1/completions",
                       {"model": model, **({"input": piece * n} if model == TINY_BERT else {"prompt": piece * n, "max_tokens": 1})}, timeout=120)
            check(r.status in (200, 400, 413), f"{r.status} {r.body[:200]!r}")
        return fn

    for piece in ("x", "ab", " ", "\n", "\u4e2d", "e\u0301", "<", "<eos", "a ", "\U0001f600", "th"):
        linear(go(TINY_GEMMA, piece), 100000 // SLOW, f"gemma, {piece!r}")
        linear(go(TINY_BERT, piece), 100000 // SLOW, f"bert, {piece!r}")


@standing
def b13_a_client_that_leaves_a_huge_prompt(s):
    """Others are served while huge prompts come and their clients go."""
    import socket
    body = json.dumps({"model": TINY_GEMMA, "prompt": "x y " * (10**6 // SLOW)}).encode()
    for _ in range(6):
        c = socket.create_connection(("127.0.0.1", s.port))
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        c.close()
        equal(s.post("/v1/embeddings", {"model": TINY_BERT, "input": "a"}).status, 200, "a neighbour")


# ------------------------------------------------------- B23, B49: items of a batch

@standing
def b23_per_item_and_fail_fast(s):
    texts = [f"number {i}" for i in range(32)]
    bad = {5: "", 9: "word " * 200, 17: 5, 30: {"type": "image_url"}, 31: [1100]}
    mixed = [bad.get(i, t) for i, t in enumerate(texts)]
    r = s.post("/ai/v1/embed", {"model": TINY_BERT, "input": mixed, "error_policy": "per_item"})
    equal(r.status, 200, f"{r.body[:300]!r}")
    equal(sorted(e["index"] for e in r.json["errors"]), sorted(bad), "errors in place")
    equal(r.json["summary"], {"total": 32, "succeeded": 27, "failed": 5}, "summary")
    long = next(e for e in r.json["errors"] if e["index"] == 9)
    equal((long["code"], long["limit"], long["n_tokens"] > 64, long["status"]), ("CONTENT_TOO_LARGE", 64, True, 413), f"{long}")
    for d in r.json["data"]:
        one = s.post("/ai/v1/embed", {"model": TINY_BERT, "input": texts[d["index"]]}).json["data"][0]["embedding"]
        check(one == d["embedding"], f"vector {d['index']} is what it is alone")
    r = s.post("/ai/v1/embed", {"model": TINY_BERT, "input": mixed, "error_policy": "fail_fast"})
    equal((r.status, r.json["input_index"]), (400, 5), f"{r.body[:200]!r}")
    r = s.post("/ai/v1/embed", {"model": TINY_BERT, "input": [""] * 40, "error_policy": "per_item"})
    equal((r.status, len(r.json["errors"]), r.json["data"]), (200, 40, []), "all bad")
    body = b'{"model":"minilm","error_policy":"per_item","input":["a","\xff\xfe","b"]}'
    equal(s.post("/ai/v1/embed", body).status, 400, "bytes that are no UTF-8 make the body no JSON")
    r = s.post("/ai/v1/embed", {"model": TINY_BERT, "input": ["word " * 200] * 3, "error_policy": "per_item", "truncate": True}).json
    equal((len(r["data"]), r["errors"], [d.get("truncated") for d in r["data"]]), (3, [], [True] * 3), "cut instead of refused")


@standing
def b49_limits_per_item_and_per_request(s):
    """An input that fits alone is never refused because of its neighbours; what counts for the request says so."""
    full = "a " * 60
    alone = s.post("/ai/v1/embed", {"model": TINY_BERT, "input": full}).json
    equal(alone["usage"]["prompt_tokens"] <= 64, True, "fits alone")
    r = s.post("/ai/v1/embed", {"model": TINY_BERT, "input": ["a"] * 2048, "encoding_format": "base64"}, timeout=120)
    equal((r.status, len(r.json["data"])), (200, 2048), f"2048 inputs: {r.body[:200]!r}")
    n = 512 // SLOW
    r = s.post("/ai/v1/embed", {"model": TINY_BERT, "input": [full] * n, "encoding_format": "base64"}, timeout=300)
    equal((r.status, len(r.json["data"])), (200, n), f"{n} full inputs: {r.body[:200]!r}")
    equal(len({d["embedding"] for d in r.json["data"]}), 1, "all the same")
    equal(r.json["usage"]["prompt_tokens"], n * alone["usage"]["prompt_tokens"], "usage")
    r = s.post("/ai/v1/embed", {"model": TINY_BERT, "input": ["a"] * 2049})
    equal((r.status, r.json["error"]), (413, "CONTENT_TOO_LARGE"), "one input more")
    check("2049" in r.json["message"] and "2048" in r.json["message"], f"{r.json}")
    r = s.post("/ai/v1/completions", {"model": TINY_GEMMA, "prompt": ["a"] * 64, "n": 3, "max_tokens": 1})
    check(r.status == 400 and "128" in r.json["message"], f"64 prompts x 3: {r.body[:200]!r}")
    r = s.post("/ai/v1/completions", {"model": TINY_GEMMA, "prompt": [[5] * 400] * 64, "n": 2, "max_tokens": 1}, timeout=120)
    equal((r.status, len(r.json["choices"])), (200, 128), f"64 long prompts x 2: {r.body[:200]!r}")
    r = s.post("/ai/v1/completions", {"model": TINY_GEMMA, "prompt": ["a", "x" * 10**5], "max_tokens": 1})
    equal((r.status, r.json["limit"]), (413, 2047), "one prompt of two is too long")
    r = s.post("/ai/v1/completions", {"model": TINY_GEMMA, "prompt": "a", "n": 128, "max_tokens": 2**31 - 1, "timeout_ms": 300})
    check(r.status in (200, 504), f"huge n x max_tokens: {r.status} {r.body[:100]!r}")


# ---------------------------------------------------- B27: beyond http_limits.py

H = b"Host: x\r\n"
SMUGGLE = [
    ("TE on HTTP/1.0", b"POST /v1/embeddings HTTP/1.0\r\n" + H + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("two TEs", b"POST /v1/embeddings HTTP/1.1\r\n" + H + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n"),
    ("TE with a tab", b"POST /v1/embeddings HTTP/1.1\r\n" + H + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n"),
    ("CL +5", b"POST /v1/embeddings HTTP/1.1\r\n" + H + b"Content-Length: +5\r\n\r\nabcde"),
    ("CL -1", b"POST /v1/embeddings HTTP/1.1\r\n" + H + b"Content-Length: -1\r\n\r\n"),
    ("CL 5, 5", b"POST /v1/embeddings HTTP/1.1\r\n" + H + b"Content-Length: 5, 5\r\n\r\nabcde"),
    ("CL 0x5", b"POST /v1/embeddings HTTP/1.1\r\n" + H + b"Content-Length: 0x5\r\n\r\nabcde"),
    ("CL 2^64 + 5", b"POST /v1/embeddings HTTP/1.1\r\n" + H + b"Content-Length: 18446744073709551621\r\n\r\nabcde"),
    ("CL with a space inside", b"POST /v1/embeddings HTTP/1.1\r\n" + H + b"Content-Length: 1 2\r\n\r\nabcdefghijkl"),
    ("two equal CLs", b"POST /v1/embeddings HTTP/1.1\r\n" + H + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nabcde"),
    ("chunk size with a sign", b"POST /v1/embeddings HTTP/1.1\r\n" + H + b"Transfer-Encoding: chunked\r\n\r\n+5\r\nabcde\r\n0\r\n\r\n"),
    ("chunk size 0x5", b"POST /v1/embeddings HTTP/1.1\r\n" + H + b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nabcde\r\n0\r\n\r\n"),
    ("chunk ends by LF", b"POST /v1/embeddings HTTP/1.1\r\n" + H + b"Transfer-Encoding: chunked\r\n\r\n5\nabcde\n0\n\n"),
    ("chunk data too long", b"POST /v1/embeddings HTTP/1.1\r\n" + H + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcde\r\n0\r\n\r\n"),
    ("no Host", b"GET /healthz HTTP/1.1\r\n\r\n"),
    ("two Hosts", b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
    ("header without a name", b"GET /healthz HTTP/1.1\r\n" + H + b": x\r\n\r\n"),
    ("header without a colon", b"GET /healthz HTTP/1.1\r\n" + H + b"nonsense\r\n\r\n"),
    ("space in the name", b"GET /healthz HTTP/1.1\r\n" + H + b"Content Length: 5\r\n\r\n"),
    ("NUL in the path", b"GET /healthz\0 HTTP/1.1\r\n" + H + b"\r\n"),
    ("space in the path", b"GET /healthz x HTTP/1.1\r\n" + H + b"\r\n"),
    ("HTTP/9.9", b"GET /healthz HTTP/9.9\r\n" + H + b"\r\n"),
    ("a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200) + b"\r\n\r\n"),
    ("no method", b" /healthz HTTP/1.1\r\n" + H + b"\r\n"),
    ("0 bytes of method", b"\0\0\0\0\0\0\0\0\r\n\r\n"),
]


@standing
def b27_smuggling(s):
    second = b"GET /metrics HTTP/1.1\r\n" + H + b"\r\n"
    for what, raw in SMUGGLE:
        got = s.raw(raw + second, timeout=5 * SLOW)
        check(got.startswith(b"HTTP/1.1 4") or got.startswith(b"HTTP/1.1 5"), f"{what}: {got[:100]!r}")
        equal(got.count(b"X-Request-Id: "), 1, f"{what}: answers")
        check(b"inferd_http" not in got, f"{what}: the second request was run")
        check(b"\r\nConnection: close\r\n" in got, f"{what}: closes")


@standing
def odd_headers_are_bytes(s):
    """Headers that mean nothing here change nothing; what is echoed is checked."""
    for h in ({"X-Request-Id": "a" * 5000}, {"X-Request-Id": "a\tb"}, {"X-Request-Id": "\xff\xfe"}, {"X-Request-Id": ""}, {"X-Request-Id": "<script>\"\\"},
              {"Content-Type": "text/plain"}, {"Content-Type": "application/json; charset=utf-16"}, {"Content-Type": ""}, {"Accept": "x/y"},
              {"Content-Encoding": "gzip"}, {"Authorization": "Bearer " + "x" * 4000}, {"Connection": "upgrade", "Upgrade": "h2c"},
              {"Upgrade": "websocket", "Connection": "Upgrade"}, {"X-Forwarded-For": "1.2.3.4"}, {"Range": "bytes=0-1"}, {"TE": "trailers"},
              {"Cookie": "a" * 8000}, {"Origin": "http://evil"}, {"X-Model": "../x"}, {"Expect": ""}):
        r = s.post("/v1/completions", json.dumps({"model": TINY_GEMMA, "prompt": "a", "max_tokens": 1}), headers=h)
        check(r.status in (200, 400, 403, 415, 417), f"{str(h)[:60]}: {r.status} {r.body[:200]!r}")
        check(r.status != 403 or "Origin" in h, f"{h}: 403")
        rid = r.headers.get("x-request-id", "")
        check(rid and len(rid) < 200 and all(33 <= ord(c) < 127 for c in rid) and "<" not in rid, f"request id {rid!r:.80}")
        check("access-control-allow-origin" not in r.headers, "no CORS")


main()
