"""traces.py - spans of requests at an OpenTelemetry collector, and a collector that is slow, busy or away."""
import http.server
import json
import os
import re
import socket
import threading
import time

from inferd_test import BIN, SLOW, TINY_BERT, TINY_GEMMA, Server, case, check, children, equal, free_port, main, wait_for

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


class Collector:
    """An OTLP/HTTP receiver on loopback. say: the statuses it answers with, the last one for good."""

    def __init__(self, say=(200,), port=0, delay=0):
        self.spans, self.bodies, self.say, self.delay = [], [], list(say), delay
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                time.sleep(outer.delay)
                status = outer.say.pop(0) if len(outer.say) > 1 else outer.say[0]
                outer.bodies.append((self.path, self.headers["Content-Type"], status))
                if status == 200:
                    for r in json.loads(body)["resourceSpans"]:
                        equal(r["resource"]["attributes"][0], {"key": "service.name", "value": {"stringValue": "inferd"}}, "resource")
                        for scope in r["scopeSpans"]:
                            outer.spans += scope["spans"]
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", "2")
                    self.end_headers()
                    self.wfile.write(b"{}")
                except OSError:
                    pass  # the tracer reads the status and leaves

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def attributes(span):
    return {a["key"]: next(iter(a["value"].values())) for a in span["attributes"]}


@case
def a_request_is_a_span_of_its_callers_trace():
    with Collector() as c, Server(otlp_endpoint=c.url, preload=[TINY_GEMMA, TINY_BERT]) as s:
        begin = time.time_ns()
        r = s.post("/v1/completions", {"model": TINY_GEMMA, "prompt": "a b c", "max_tokens": 4, "ignore_eos": True},
                   headers={"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"})
        equal(r.status, 200, "completion")
        mine = re.fullmatch(rf"00-{TRACE}-([0-9a-f]{{16}})-01", r.headers["traceresponse"])
        check(mine and mine[1] != PARENT, f"traceresponse: {r.headers['traceresponse']}")
        equal(s.post("/v1/embeddings", {"model": TINY_BERT, "input": ["a", "b"]}).status, 200, "embeddings")
        equal(s.post("/v1/embeddings", {"model": "nope", "input": "a"}).status, 404, "no such model")
        s.get("/v1/models")  # no span: it is no POST and has no trace
        wait_for(lambda: len(c.spans) == 3, "three spans")
        equal(c.bodies[0][:2], ("/v1/traces", "application/json"), "how it was sent")
        span = c.spans[0]
        equal((span["traceId"], span["parentSpanId"], span["spanId"], span["traceState"], span["kind"]),
              (TRACE, PARENT, mine[1], "vendor=1", 2), "ids")
        equal(span["name"], f"text_completion {TINY_GEMMA}", "name")
        check(begin <= int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"]) <= time.time_ns(), "times")
        a = attributes(span)
        equal((a["http.route"], a["http.response.status_code"], a["gen_ai.usage.output_tokens"], a["inferd.request_id"]),
              ("/v1/completions", "200", "4", r.headers["x-request-id"]), "attributes")
        check(int(a["gen_ai.usage.input_tokens"]) > 1 and int(a["inferd.decode_us"]) > 0, f"attributes: {a}")
        check("parentSpanId" not in c.spans[1] and c.spans[1]["traceId"] != c.spans[2]["traceId"], "traces of their own")
        equal(c.spans[1]["name"], f"embeddings {TINY_BERT}", "name")
        equal(attributes(c.spans[2])["http.response.status_code"], "404", "a refused request")
        check("a b c" not in json.dumps(c.spans), "no prompt is in a span")
        wait_for(lambda: s.metric("inferd_spans_total", result="exported") == 3, "the count comes back")
        line = [e for e in s.log() if e.get("trace_id") == TRACE]
        equal([e["span_id"] for e in line], [mine[1]], "the access log names it")


@case
def the_caller_and_the_percentage_decide():
    with Collector() as c, Server(otlp_endpoint=c.url, trace_percent=0, preload=[TINY_BERT]) as s:
        body = {"model": TINY_BERT, "input": "a"}
        r = s.post("/v1/embeddings", body, headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
        check(r.headers["traceresponse"].endswith("-00"), "not sampled, and told so")
        check("traceresponse" not in s.post("/v1/embeddings", body).headers, "no trace is begun")
        s.get("/readyz", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
        wait_for(lambda: c.spans, "one span")
        time.sleep(0.2)
        equal([x["name"] for x in c.spans], ["GET /readyz"], "spans")


@case
def the_tracer_has_no_files_and_no_children():
    with Collector() as c, Server(otlp_endpoint=c.url) as s:
        roles = [pid for pid, name in children(s.proc.pid) if name == "inferd"]
        equal(len(roles), 2, "tracer and front")
        walled = 0
        for pid in roles:
            with open(f"/proc/{pid}/status", encoding="ascii") as f:
                text = f.read()
            walled += "Seccomp:\t2" in text and "NoNewPrivs:\t1" in text
        equal(walled, 2, "each behind a filter")
    with Server() as s:
        equal(len([1 for _, name in children(s.proc.pid) if name == "inferd"]), 1, "no tracer without an address")


@case
def a_busy_collector_is_asked_again():
    with Collector(say=(503, 429, 200)) as c, Server(otlp_endpoint=c.url, preload=[TINY_BERT]) as s:
        s.post("/v1/embeddings", {"model": TINY_BERT, "input": "a"})
        wait_for(lambda: c.spans, "the span, at the third attempt", 20)
        equal([b[2] for b in c.bodies], [503, 429, 200], "attempts")
        wait_for(lambda: s.metric("inferd_spans_total", result="exported") == 1, "exported")
        equal(s.metric("inferd_spans_total", result="failed"), None, "nothing failed")


@case
def a_collector_that_refuses_or_is_away_is_told_once_and_hurts_nobody():
    port = free_port()
    with Server(otlp_endpoint=f"http://127.0.0.1:{port}", preload=[TINY_BERT]) as s:
        body = {"model": TINY_BERT, "input": "a"}
        for _ in range(50):
            equal(s.post("/v1/embeddings", body).status, 200, "answered all the same")
        # three batches, faster than a batch is given up: one is tried again and then is, the others find no room
        one = f"GET /healthz HTTP/1.1\r\nHost: x\r\ntraceparent: 00-{TRACE}-{PARENT}-01\r\n\r\n".encode()
        for _ in range(30):
            with socket.create_connection(("127.0.0.1", s.port), timeout=30 * SLOW) as c:
                c.sendall(one * 50)
                got = b""
                while got.count(b"HTTP/1.1 200") < 50:
                    more = c.recv(65536)
                    check(more, f"answered all the same: {got[-300:]}")
                    got += more
        wait_for(lambda: (s.metric("inferd_spans_total", result="failed") or 0) > 0, "given up", 30)
        wait_for(lambda: [e for e in s.log() if e.get("event") == "collector_away"], "the log tells", 10)
        check((s.metric("inferd_spans_total", result="dropped") or 0) > 0, "what found no room is counted")
        with Collector(port=port) as c:
            s.post("/v1/embeddings", body)
            wait_for(lambda: c.spans, "spans when it is back", 30)
            wait_for(lambda: [e for e in s.log() if e.get("event") == "collector_back"], "the log tells")


@case
def the_last_spans_leave_before_the_end():
    with Collector() as c:
        with Server(otlp_endpoint=c.url, preload=[TINY_BERT]) as s:
            s.post("/v1/embeddings", {"model": TINY_BERT, "input": "a"})
            equal(s.stop(), 0, "exit")
        equal(len(c.spans), 1, "the span was sent while the server ended")


@case
def a_wrong_address_ends_the_start():
    import subprocess
    for url, says in (("https://127.0.0.1", "TLS"), ("http://127.0.0.1:99999", "port"), ("tcp://x", "is no such address")):
        r = subprocess.run([os.path.join(BIN, "inferd"), "serve", f"--otlp-endpoint={url}"], capture_output=True, text=True,
                           timeout=20 * SLOW, check=False)
        equal(r.returncode, 2, f"exit for {url}")
        check(says in r.stderr and "otlp_endpoint" in r.stderr, r.stderr)


if __name__ == "__main__":
    main()
