"""api_features.py - what the API promises beyond shapes, on the tiny golden models (or a server of INFERD_BASE_URL)."""
import base64
import http.client
import json
import os
import socket
import struct
import time

import inferd_api
from inferd_test import (SLOW, TINY_BERT, TINY_GEMMA, Server, Skip, case, check, copy_model, equal, golden_cases, main,
                         wait_for)


def complete(t, **kw):
    r = t.post("/ai/v1/completions", {"model": t.chat, "max_tokens": 8, **kw})
    equal(r.status, 200, f"status of {kw}: {r.body[:300]!r}")
    return r.json


def events(t, path, body):
    """Raw lines of a stream and its parsed data."""
    r = t.post(path, {**body, "stream": True})
    equal((r.status, r.headers["content-type"]), (200, "text/event-stream; charset=utf-8"), "stream head")
    text = r.body.decode()
    data = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    equal(data[-1], "[DONE]", "the last event")
    return text, [json.loads(d) for d in data[:-1]]


@case
def tokens_there_and_back():
    with inferd_api.target() as t:
        if t.chat != TINY_GEMMA:
            raise Skip("the reference ids belong to the tiny model")
        rows = golden_cases(TINY_GEMMA)["tokenizer"]["encode"]
        for row in rows:
            r = t.post("/ai/v1/tokenize", {"model": t.chat, "text": row["text"]}).json
            equal(r["tokens"], row["ids"], f"{row['name']}: ids")
            equal(r["count"], len(row["ids"]), f"{row['name']}: count")
            equal((len(r["pieces"]), len(r["offsets"])), (r["count"], r["count"]), f"{row['name']}: lists")
            for a, b in r["offsets"]:
                check(0 <= a <= b <= len(row["text"]), f"{row['name']}: offsets inside the text")
            plain = t.post("/ai/v1/tokenize", {"model": t.chat, "text": row["text"], "add_special_tokens": False}).json
            equal(plain["tokens"], row["ids_plain"], f"{row['name']}: ids without special tokens")
            if r["tokens"]:
                d = t.post("/ai/v1/detokenize", {"model": t.chat, "tokens": r["tokens"], "skip_special_tokens": True}).json
                equal(d["text"], row["decode_skip"], f"{row['name']}: text")
        check(len(rows) >= 10, "enough reference rows")


@case
def prompt_as_text_and_as_ids():
    with inferd_api.target() as t:
        ids = t.post("/ai/v1/tokenize", {"model": t.chat, "text": "Hello there"}).json["tokens"]
        a = complete(t, prompt="Hello there", return_token_ids=True)["choices"][0]
        b = complete(t, prompt=ids, return_token_ids=True)["choices"][0]
        equal(a, b, "the same answer")
        equal(a["prompt_token_ids"], ids, "prompt_token_ids")
        equal(len(a["token_ids"]) <= 8, True, "token_ids")
        many = complete(t, prompt=[ids, ids[:2], ids], n=2)["choices"]
        equal([c["index"] for c in many], list(range(6)), "indexes")
        equal({c["text"] for c in many[:2] + many[4:]}, {a["text"]}, "every greedy choice of that prompt")


@case
def stream_equals_whole():
    with inferd_api.target() as t:
        body = {"model": t.chat, "prompt": "Once upon", "max_tokens": 16, "n": 3, "temperature": 1.2, "seed": 5,
                "return_token_ids": True, "logprobs": 2, "ignore_eos": True, "echo": True}
        whole = t.post("/ai/v1/completions", body).json
        _, chunks = events(t, "/ai/v1/completions", {**body, "stream_options": {"include_usage": True}})
        for c in whole["choices"]:
            mine = [x for ch in chunks for x in ch["choices"] if x["index"] == c["index"]]
            equal("".join(x["text"] for x in mine), c["text"], "text")
            equal([i for x in mine for i in x.get("token_ids", [])], c["token_ids"], "token ids")
            equal([v for x in mine if x["logprobs"] for v in x["logprobs"]["token_logprobs"]],
                  c["logprobs"]["token_logprobs"], "log probabilities")
            equal([x["finish_reason"] for x in mine if x["finish_reason"]], [c["finish_reason"]], "one finish_reason")
        equal(chunks[-1]["choices"], [], "usage chunk")
        equal(chunks[-1]["usage"]["completion_tokens"], whole["usage"]["completion_tokens"], "usage")
        equal(whole["usage"]["completion_tokens"], 48, "ignore_eos runs to max_tokens")
        equal(len({ch["id"] for ch in chunks}), 1, "one id")


@case
def chat_first_chunk_has_the_role():
    with inferd_api.target() as t:
        t.need_chat()
        _, chunks = events(t, "/ai/v1/generate", {"model": t.chat, "messages": [{"role": "user", "content": "Hi"}],
                                                  "max_tokens": 3, "ignore_eos": True})
        equal(chunks[0]["choices"][0]["delta"], {"role": "assistant", "content": ""}, "first delta")
        equal(chunks[-1]["choices"][0]["delta"], {}, "last delta")
        equal(chunks[-1]["choices"][0]["finish_reason"], "length", "finish_reason")
        check(all(ch["object"] == "chat.completion.chunk" for ch in chunks), "object")


@case
def stop_strings_do_not_leak():
    """B3: a stop inside, across tokens, and one that never completes."""
    with inferd_api.target() as t:
        base = complete(t, prompt="Hello", max_tokens=24, ignore_eos=True)["choices"][0]["text"]
        check(len(base) >= 6, "an answer to cut")
        for a, b in ((2, 4), (3, 4), (1, 5)):
            stop = base[a:b]
            r = complete(t, prompt="Hello", max_tokens=24, ignore_eos=True, stop=[stop, "never in there"])["choices"][0]
            equal((r["text"], r["finish_reason"]), (base[:base.index(stop)], "stop"), f"stop {stop!r}")
            _, chunks = events(t, "/ai/v1/completions", {"model": t.chat, "prompt": "Hello", "max_tokens": 24,
                                                         "ignore_eos": True, "stop": stop})
            equal("".join(x["text"] for ch in chunks for x in ch["choices"]), r["text"], f"streamed stop {stop!r}")
        r = complete(t, prompt="Hello", max_tokens=24, ignore_eos=True, stop=base[-1] + "\0not there")["choices"][0]
        equal((r["text"], r["finish_reason"]), (base, "length"), "held-back text comes out in the end")


@case
def every_max_tokens_gives_valid_text():
    """B1: whatever character the cut falls into, the answer is valid JSON and UTF-8."""
    with inferd_api.target() as t:
        for k in range(1, 9):
            r = complete(t, prompt="\U0001f600\U0001f680\u4e2d", max_tokens=k, ignore_eos=True, logprobs=3, temperature=1.8, seed=k)
            equal(r["usage"]["completion_tokens"], k, "tokens")
            r["choices"][0]["text"].encode()


@case
def events_hold_whole_characters():
    """Of characters that are several tokens no part is ever in an event, with a stop string inside one's neighbour or without."""
    chars = "\U0001f600\u4e2d\u00e9"
    with inferd_api.target() as t:
        for path, prompt in (("/ai/v1/completions", {"prompt": "Hello"}),
                             ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]})):
            if "messages" in prompt:
                t.need_chat()
            for stop in (None, ["\u4e2d\u00e9\U0001f600", "\u00e9\u00e9"]):
                body = {"model": t.chat, **prompt, "max_tokens": 60, "temperature": 1, "seed": 4, "stop": stop,
                        "regex": f"[{chars}]{{9,12}}"}
                whole = t.post(path, body)
                equal(whole.status, 200, whole.body)
                whole = whole.json["choices"][0]
                text = whole["text"] if "text" in whole else whole["message"]["content"]
                check(text and set(text) <= set(chars), f"what the expression says: {text!r}")
                _, chunks = events(t, path, body)
                pieces = [c["text"] if "text" in c else c["delta"].get("content") or "" for ch in chunks for c in ch["choices"]]
                equal("".join(pieces), text, f"{path}, stop {stop}: {pieces}")
                check(sum(map(bool, pieces)) > (0 if stop else 2) and all(set(p) <= set(chars) for p in pieces), f"whole characters: {pieces}")
                for s in stop or ():
                    check(s not in text, f"{s!r} in {text!r}")


@case
def logit_bias_decides():
    with inferd_api.target() as t:
        ids = t.post("/ai/v1/tokenize", {"model": t.chat, "text": "z", "add_special_tokens": False}).json["tokens"]
        r = complete(t, prompt="Hello", max_tokens=3, logit_bias={str(ids[0]): 100}, return_token_ids=True)["choices"][0]
        equal(r["token_ids"], [ids[0]] * 3, "the biased token wins")


@case
def embeddings_in_all_forms():
    with inferd_api.target() as t:
        def embed(**kw):
            r = t.post("/ai/v1/embed", {"model": t.embed, **kw})
            equal(r.status, 200, f"{kw}: {r.body[:300]!r}")
            return r.json
        one = embed(input="a small cat")["data"][0]["embedding"]
        ids = t.post("/ai/v1/tokenize", {"model": t.embed, "text": "a small cat"}).json["tokens"]
        check(embed(input_tokens=[ids])["data"][0]["embedding"] == one, "input_tokens")
        check(embed(input=ids)["data"][0]["embedding"] == one, "input as ids")
        check(embed(input=[{"type": "text", "text": "a small cat"}])["data"][0]["embedding"] == one, "input as a part")
        many = embed(input=["x", "a small cat", "a much longer neighbour in the same batch"])["data"]
        check(many[1]["embedding"] == one, "alone or in a batch")
        raw = base64.b64decode(embed(input="a small cat", encoding_format="base64")["data"][0]["embedding"])
        equal(raw, struct.pack(f"<{len(one)}f", *one), "base64")


@case
def models_by_id_load_and_unload():
    with inferd_api.target() as t:
        equal(t.post("/ai/v1/models/load", {"model": t.embed}).json["state"], "ready", "load")
        m = t.get(f"/ai/v1/models/{t.embed}").json
        check(m["state"] in ("ready", "busy") and m["pid"] > 0 and m["loads"] >= 1 and m["embed_dim"] > 0, f"loaded: {m}")
        equal(t.post("/ai/v1/models/unload", {"model": t.embed}).json["state"], "absent", "unload")
        equal(t.get(f"/ai/v1/models/{t.embed}").json["pid"], 0, "no worker")
        full = t.get("/ai/v1/models").json
        check(t.embed in full["embedders"] and t.chat in full["generators"], "maps")
        equal(t.post("/v1/embeddings", {"model": t.embed, "input": "a"}).status, 200, "loads again by itself")


@case
def echo_gives_every_byte_back():
    with inferd_api.target() as t:
        for body in (b"", b"x", bytes(range(256)) * 1000):  # the last goes as a memfd
            r = t.post(f"/ai/v1/echo?model={t.embed}", body)
            equal((r.status, r.body == body), (200, True), f"echo of {len(body)} bytes")
        equal(t.request("POST", "/ai/v1/echo", b"y", headers={"X-Model": t.embed}).body, b"y", "model in the header")


@case
def a_short_deadline_is_504_and_stops_the_work():
    """B47"""
    with inferd_api.target() as t:
        r = t.post("/ai/v1/completions", {"model": t.chat, "prompt": "a", "max_tokens": 1000000, "ignore_eos": True,
                                          "n": 8, "timeout_ms": 1})
        check(r.status == 504, f"status {r.status}: {r.body[:200]!r}")
        equal((r.json["error"], r.json["retryable"], r.headers.get("x-should-retry")), ("DEADLINE_EXCEEDED", False, "false"), "504")


@case
def a_slow_reader_gets_everything():
    """More than stream_buffer_bytes are made while nobody reads: the stream pauses, and nothing is lost."""
    body = {"model": TINY_GEMMA, "prompt": "Hello", "max_tokens": 1500, "n": 4, "logprobs": 64, "ignore_eos": True,
            "temperature": 1.0, "seed": 3}
    with Server(stream_buffer_bytes=65536) as t:
        want = t.post("/ai/v1/completions", body).json["choices"]
        with socket.socket() as s:
            s.settimeout(60 * SLOW)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 262144)
            s.connect(("127.0.0.1", t.port))
            data = json.dumps({**body, "stream": True}).encode()
            s.sendall(b"POST /ai/v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
            wait_for(lambda: t.metric("inferd_http_streams_paused_total"), "the stream to be paused")
            equal(t.get("/readyz", timeout=10).status, 200, "/readyz meanwhile")
            got, size = t_stream_texts(s, len(want))
        check(size > 2 << 20, f"the stream was large: {size} bytes")
        equal(got, [c["text"] for c in want], "every choice")


def t_stream_texts(s, n):
    """The choices' texts of a chunked stream that is read to its end, and how long it was."""
    raw = bytearray()
    while block := s.recv(1 << 20):
        raw += block
    raw = bytes(raw)
    at = raw.index(b"\r\n\r\n") + 4
    parts = []
    while at < len(raw):
        end = raw.index(b"\r\n", at)
        k = int(raw[at:end], 16)
        parts.append(raw[end + 2:end + 2 + k])
        at = end + 2 + k + 2
        if k == 0:
            break
    body = b"".join(parts)
    lines = [line[6:] for line in body.decode().split("\n") if line.startswith("data: ")]
    equal(lines[-1], "[DONE]", "the last event")
    texts = [""] * n
    for line in lines[:-1]:
        for c in json.loads(line)["choices"]:
            texts[c["index"]] += c["text"]
    return texts, len(body)


@case
def too_many_requests_are_told_when_to_come_back():
    with Server(max_concurrent_requests=1) as s:
        stream = s.sse("/ai/v1/completions", {"model": TINY_GEMMA, "prompt": "a", "max_tokens": 2000, "n": 8,
                                              "ignore_eos": True, "stream": True})
        next(stream)
        r = s.post("/ai/v1/completions", {"model": TINY_GEMMA, "prompt": "a"})
        equal((r.status, r.headers["retry-after"]), (503, "1"), "refusal")
        equal({k: r.json[k] for k in ("error", "reason", "retryable", "retry_after_ms")},
              {"error": "MODEL_RESOURCE_BUSY", "reason": "inference_admission", "retryable": True, "retry_after_ms": 1000},
              "fields")
        equal(s.get("/healthz").status, 200, "probes are not counted")
        stream.close()
        wait_for(lambda: s.post("/ai/v1/completions", {"model": TINY_GEMMA, "prompt": "a", "max_tokens": 1}).status == 200,
                 "the place to be free again")


@case
def a_model_copied_in_is_found():
    with Server() as s:
        equal(s.post("/v1/embeddings", {"model": "new/one", "input": "a"}).status, 404, "not there yet")
        copy_model(TINY_BERT, s.models, os.path.join("new", "one"))
        wait_for(lambda: s.post("/v1/embeddings", {"model": "new/one", "input": "a"}).status == 200, "the new model")
        equal(s.get("/v1/models/new%2Fone").json["id"], "new/one", "retrieve with %2F")


@case
def one_connection_serves_many():
    with inferd_api.target() as t:
        c = http.client.HTTPConnection(t.host, t.port, timeout=30 * SLOW)
        try:
            for text in ("one", "two"):  # one connection, kept alive
                c.request("POST", f"/ai/v1/echo?model={t.embed}", body=text.encode())
                equal(c.getresponse().read(), text.encode(), "echo")
        finally:
            c.close()


if __name__ == "__main__":
    main()
