#!/usr/bin/env python3
"""cases_cancel.py - public bug cases about requests that end early: clients that leave (B5), probes under load (B19), SIGTERM
under load (B45), deadlines (B47). After each: the three standing checks.
"""
import http.client
import json
import os
import signal
import socket
import struct
import threading
import time

from inferd_standing import Before
from inferd_test import SLOW, TINY_BERT, TINY_GEMMA, Server, case, check, equal, main, wait_for

COMP = "/v1/completions"
LONG = {"model": TINY_GEMMA, "prompt": "one two three", "max_tokens": 2000, "ignore_eos": True, "temperature": 1, "seed": 7}


class Client:
    """A POST whose connection can be reset at any time."""

    def __init__(self, s, body, path=COMP, headers=""):
        data = json.dumps(body).encode()
        self.sock = socket.create_connection(("127.0.0.1", s.port), timeout=60 * SLOW)
        self.sock.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n{headers}\r\n".encode() + data)
        self.got = b""

    def read_until(self, what):
        while what not in self.got:
            block = self.sock.recv(65536)
            check(block, f"the connection ended before {what!r}: {self.got[-200:]!r}")
            self.got += block

    def reset(self):
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


def count(s, result, model=TINY_GEMMA):
    return s.metric("inferd_tasks_total", model=model, result=result) or 0


def running(s):
    return s.metric("inferd_sequences", model=TINY_GEMMA, state="running")


def idle(s):
    """No sequence runs or waits, and no step is made any more."""
    wait_for(lambda: s.metric("inferd_tasks_active", model=TINY_GEMMA) == 0, "no task in the front")
    wait_for(lambda: running(s) == 0 and s.metric("inferd_sequences", model=TINY_GEMMA, state="waiting") == 0, "an idle worker")

    def still():  # the last report of steps may be under way
        steps = s.metric("inferd_steps_total", model=TINY_GEMMA)
        time.sleep(0.25)
        return s.metric("inferd_steps_total", model=TINY_GEMMA) == steps
    wait_for(still, "the end of steps nobody waits for")


@case
def b5_leave_in_mid_stream():
    with Server() as s:
        b = Before(s)
        for stream in (True, False):
            before = count(s, "cancelled")
            all_ok = count(s, "ok")
            clients = [Client(s, {**LONG, "stream": stream, "seed": i}) for i in range(5)]
            for c in clients:
                if stream:
                    c.read_until(b"data: ")
            if not stream:
                wait_for(lambda: running(s), "work")
            for c in clients:
                c.reset()
            wait_for(lambda: count(s, "cancelled") == before + 5, "five cancels")
            idle(s)
            equal(count(s, "ok"), all_ok, "none of them finished")
            b.well(f"stream {stream}:")


@case
def b5_leave_while_queued():
    with Server(max_seqs=1) as s:
        b = Before(s)
        first = Client(s, {**LONG, "stream": True})
        first.read_until(b"data: ")
        before = count(s, "cancelled")
        queued = [Client(s, {**LONG, "n": 4, "stream": i % 2 == 0}) for i in range(10)]
        wait_for(lambda: s.metric("inferd_tasks_active", model=TINY_GEMMA) == 11, "the queue")
        for c in queued:
            c.reset()
        wait_for(lambda: count(s, "cancelled") == before + 10, "ten cancels")
        first.read_until(b"[DONE]")  # it was not harmed
        first.sock.close()
        idle(s)
        b.well()


def state_of(s):
    return next(m["state"] for m in s.get("/v1/models").json["data"] if m["id"] == TINY_GEMMA)


@case
def b5_leave_while_the_model_starts():
    """The launcher is stopped, so that the worker everyone waits for is not even made."""
    with Server() as s:
        b = Before(s)
        s.post("/ai/v1/models/unload", {"model": TINY_GEMMA})
        ok, cancelled = count(s, "ok"), count(s, "cancelled")
        os.kill(s.proc.pid, signal.SIGSTOP)
        try:
            clients = [Client(s, {**LONG, "stream": i == 0}) for i in range(3)]
            wait_for(lambda: s.metric("inferd_load_waiters", model=TINY_GEMMA) == 3, "three who wait for the load")
            equal(state_of(s), "starting", "the state of the model")
            for c in clients:
                c.reset()
            wait_for(lambda: count(s, "cancelled") == cancelled + 3, "three cancels")
            equal(s.metric("inferd_load_waiters", model=TINY_GEMMA), 0, "nobody waits for the load")
        finally:
            os.kill(s.proc.pid, signal.SIGCONT)
        wait_for(lambda: state_of(s) == "ready", "the load")
        idle(s)
        equal(count(s, "ok"), ok, "none of them started")
        b.well()


@case
def b5_leave_with_half_a_request():
    with Server() as s:
        b = Before(s)
        for cut in (b"", b"P", b"POST ", b"POST /v1/completions HTTP/1.1\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
                    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"a"):
            for linger in (True, False):
                c = socket.create_connection(("127.0.0.1", s.port))
                c.sendall(cut)
                if linger:
                    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                c.close()
        wait_for(lambda: s.metric("inferd_http_connections") == 1, "the connections to be gone")  # ours, that asks
        b.well()


@case
def b19_probes_under_saturation():
    with Server(max_seqs=4) as s:
        b = Before(s)
        stop = threading.Event()
        wrong = []

        def load(i):
            body = {"model": TINY_GEMMA, "prompt": [2] + [300 + (i + k) % 300 for k in range(1900)], "max_tokens": 100, "ignore_eos": True,
                    "stream": i % 2 == 0}
            while not stop.is_set():
                try:
                    r = s.post(COMP, body, timeout=120)
                    if r.status != 200:
                        wrong.append(r.body[:200])
                except OSError as e:
                    wrong.append(repr(e))

        threads = [threading.Thread(target=load, args=(i,)) for i in range(16)]
        for t in threads:
            t.start()
        try:
            wait_for(lambda: running(s) == 4, "all places to be taken")
            answers = 0
            for i in range(60):
                r = s.get(("/healthz", "/readyz", "/metrics", "/v1/models")[i % 4], timeout=10)  # patience for a loaded test machine
                answers += r.status == 200
                time.sleep(0.03)
            equal(answers, 60, "probes answered")
        finally:
            stop.set()
            for t in threads:
                t.join()
        equal(wrong, [], "the load itself")
        b.well()


@case
def b45_sigterm_under_load():
    for grace in (60000, 300):
        with Server(drain_grace_ms=grace, max_seqs=16) as s:  # a place for each: nobody's first word waits for another's last
            Before(s)
            out, begun = [], []

            def stream(i):
                c = Client(s, {**LONG, "stream": True, "n": 2, "seed": i, "max_tokens": 600 if grace == 60000 else 2000}, headers="Connection: close\r\n")
                c.read_until(b"data: ")
                begun.append(0)
                try:
                    while block := c.sock.recv(65536):
                        c.got += block
                except OSError as e:
                    out.append(f"broken: {e!r}")
                    return
                whole = c.got.endswith(b"0\r\n\r\n")
                out.append("done" if whole and b"[DONE]" in c.got else "error" if whole and b"event: error\ndata: {" in c.got
                           else f"cut: {c.got[-200:]!r}")

            def embeds():
                while s.proc.poll() is None:
                    try:
                        r = s.post("/v1/embeddings", {"model": TINY_BERT, "input": ["a"] * 50})
                        if r.status not in (200, 503):
                            out.append(f"embed: {r.status} {r.body[:100]!r}")
                    except (OSError, http.client.HTTPException):
                        return  # the listener is closed

            threads = [threading.Thread(target=stream, args=(i,)) for i in range(8)] + [threading.Thread(target=embeds) for _ in range(3)]
            for t in threads:
                t.start()
            wait_for(lambda: len(begun) == 8, "all streams under way", 120)
            check(len(out) < 8, f"streams are under way when the signal comes: {out}")
            kept = s.conn()
            kept.request("GET", "/readyz")
            equal(kept.getresponse().read() and 1, 1, "ready before")
            s.proc.send_signal(signal.SIGTERM)
            wait_for(lambda: any(e.get("event") == "draining" for e in s.log()) or s.proc.poll() is not None, "the drain")
            try:  # on a connection that was open before
                kept.request("GET", "/readyz")
                equal(kept.getresponse().status, 503, "readiness")
            except (OSError, http.client.HTTPException):
                pass  # closed: not ready, too
            try:
                r = s.post(COMP, {**LONG, "max_tokens": 1})
                check(r.status in (200, 503), f"a new request while draining: {r.status}")  # the listener closes a little later
            except (OSError, http.client.HTTPException):
                pass
            for t in threads:
                t.join(60 * SLOW)
            equal(s.proc.wait(30 * SLOW), 0, "exit status")
            equal(len(out), 8, f"ends: {out}")
            allowed = {"done"} if grace == 60000 else {"done", "error"}
            equal(set(out) - allowed, set(), f"how streams ended with a grace of {grace} ms")


def is_504(r, part=""):
    equal((r.status, r.json["error"]["code"], r.json["error"]["retryable"]), (504, "DEADLINE_EXCEEDED", False), f"{r.body[:200]!r}")
    said = r.json["error"]["message"]
    check(any(p in said for p in part.split("|")), f"{said!r} says {part!r}")


@case
def b47_deadline_in_the_queue_and_in_work():
    with Server(max_seqs=1) as s:
        b = Before(s)
        first = Client(s, {**LONG, "stream": True, "n": 4})
        first.read_until(b"data: ")
        before = count(s, "deadline")
        for k, kw in enumerate(({"body": {**LONG, "timeout_ms": 50}}, {"body": LONG, "headers": {"X-Request-Timeout-Ms": "50"}},
                                {"body": {**LONG, "timeout_ms": 86400000}, "headers": {"X-Request-Timeout-Ms": "50"}},
                                {"body": {**LONG, "timeout_ms": 50}, "headers": {"X-Request-Timeout-Ms": "86400000"}},
                                {"body": {**LONG, "timeout_ms": 1}}, {"body": {**LONG, "stream": True, "timeout_ms": 50}})):
            is_504(s.post(COMP, **kw), "while it was queued|with the worker: queued")
            wait_for(lambda: count(s, "deadline") == before + k + 1, "the count")
        first.reset()
        idle(s)
        b.well("queue:")
        # decode: whole answers are 504, streams end with an event after what was sent
        before = count(s, "deadline")
        is_504(s.post(COMP, {**LONG, "n": 128, "timeout_ms": 300}), "while it was running|with the worker: queued or running")
        idle(s)
        last = None
        for event, data in s.sse(COMP, {**LONG, "n": 128, "stream": True, "timeout_ms": 300 * SLOW}):
            last = (event, data)
        equal((last[0], last[1]["error"]["code"]), ("error", "DEADLINE_EXCEEDED"), "the last event")
        idle(s)
        equal(count(s, "deadline"), before + 2, "deadlines counted")
        b.well("decode:")
        # prefill: so many rows that they cannot be through
        rows = [[2] + [300 + (i + k) % 300 for k in range(2000)] for i in range(64)]
        is_504(s.post(COMP, {"model": TINY_GEMMA, "prompt": rows, "max_tokens": 1, "timeout_ms": 150}), "while it was running|with the worker: queued|while it was queued")
        idle(s)
        b.well("prefill:")


@case
def b47_deadline_while_loading_and_embedding():
    with Server(load_timeout_s=60, hang_timeout_s=60) as s:
        b = Before(s)
        r = s.post("/v1/embeddings", {"model": TINY_BERT, "input": ["word " * 25] * 2048, "timeout_ms": 20})
        is_504(r)
        wait_for(lambda: s.metric("inferd_tasks_active", model=TINY_BERT) == 0, "no task")
        b.well("embed:")
        pid = next(m["pid"] for m in s.get("/v1/models").json["data"] if m["id"] == TINY_GEMMA)
        os.kill(pid, signal.SIGSTOP)  # a worker that does not answer: the front keeps the time
        try:
            is_504(s.post(COMP, {**LONG, "timeout_ms": 100}))
            is_504(s.post(COMP, {**LONG, "stream": True, "timeout_ms": 100}))
            # the head of a stream is out after a second of waiting: then it is an event
            last = list(s.sse(COMP, {**LONG, "stream": True, "timeout_ms": 1600}))[-1]
            equal((last[0], last[1]["error"]["code"]), ("error", "DEADLINE_EXCEEDED"), "after the heartbeat")
            r = s.post("/ai/v1/tokenize", {"model": TINY_GEMMA, "text": "a", "timeout_ms": 100})
            equal((r.status, r.json["error"]), (504, "DEADLINE_EXCEEDED"), "tokenize")
        finally:
            os.kill(pid, signal.SIGCONT)
        idle(s)
        b.well("stopped worker:")


@case
def b47_deadlines_that_are_none():
    with Server(request_timeout_ms=400) as s:
        b = Before(s)
        for bad in (0, -1, -2**63, 86400001, 2**63, 1e300, 0.5, "5", [5], True):
            r = s.post(COMP, {**LONG, "timeout_ms": bad})
            equal((r.status, r.json["error"]["code"], r.json["error"]["param"]), (400, "INVALID_REQUEST", "timeout_ms"), f"timeout_ms {bad}")
        for bad in ("0", "-1", "", " ", "1e3", "5ms", "86400001", "9" * 400, "+5", "0x10", "5, 6", "5.0"):
            r = s.post(COMP, {**LONG}, headers={"X-Request-Timeout-Ms": bad})
            equal((r.status, r.json["error"]["code"]), (400, "INVALID_REQUEST"), f"header {bad!r:.20}: {r.body[:200]!r}")
        is_504(s.post(COMP, {**LONG, "n": 128, "timeout_ms": 86400000}))  # a request cannot raise the server's limit
        idle(s)
        b.well()


main()
