"""reload.py - SIGHUP: the configuration is read again while models and requests go on."""
import json
import os
import signal
import tempfile
import threading
import time

from inferd_test import TINY_BERT, TINY_GEMMA, Server, case, check, children, equal, main, wait_for

FOLDER = tempfile.mkdtemp(prefix="inferd-reload-")
FILE = os.path.join(FOLDER, "inferd.json")
ASK = {"model": TINY_GEMMA, "prompt": "one two three", "max_tokens": 4, "temperature": 0, "ignore_eos": True}


def write(text):
    tmp = FILE + ".new"
    with open(tmp, "w", encoding="utf-8") as f:
        f.write(text if isinstance(text, str) else json.dumps(text))
    os.rename(tmp, FILE)


def events(s, name):
    return [e for e in s.log() if e.get("event") == name]


def reload(s, text, event="conf_reloaded"):
    n = len(events(s, event))
    write(text)
    s.proc.send_signal(signal.SIGHUP)
    wait_for(lambda: len(events(s, event)) > n, event, 10)
    return events(s, event)[-1]


def server(first, **args):
    write(first)
    return Server(env={"INFERD_CONFIG": FILE}, **args)


def pid_of(s, model):
    return next(m["pid"] for m in s.get("/v1/models").json["data"] if m["id"] == model)


@case
def limits_change_and_the_warm_model_stays():
    with server({"max_embed_inputs": 2}) as s:
        equal(s.post("/v1/completions", ASK).status, 200)
        three = {"model": TINY_BERT, "input": ["a", "b", "c"]}
        equal(s.post("/v1/embeddings", three).status, 413, "three inputs")
        warm, front = pid_of(s, TINY_GEMMA), children(s.proc.pid)
        e = reload(s, {"max_embed_inputs": 3, "max_tokens_default": 5})
        equal(e["changed"], "max_tokens_default,max_embed_inputs", "what changed")
        equal(s.post("/v1/embeddings", three).status, 200, "three inputs")
        equal(s.post("/v1/embeddings", {**three, "input": ["a"] * 4}).status, 413, "four inputs")
        r = s.post("/v1/completions", {k: v for k, v in ASK.items() if k != "max_tokens"})
        equal(r.json["usage"]["completion_tokens"], 5, "tokens of a request that names none")
        equal(pid_of(s, TINY_GEMMA), warm, "the warm model's process")
        check(set(front) <= set(children(s.proc.pid)), "the supervisor's processes")
        equal(s.metric("inferd_config_reloads_total", outcome="ok"), 1, "reloads")
        check(abs(s.metric("inferd_config_last_reload_timestamp_seconds") - time.time()) < 60, "when it was read")
        equal(reload(s, {"max_embed_inputs": 3, "max_tokens_default": 5})["changed"], "", "nothing new")
        equal(reload(s, {})["changed"], "max_tokens_default,max_embed_inputs", "defaults again")
        equal(s.post("/v1/embeddings", {**three, "input": ["a"] * 4}).status, 200, "four inputs")


@case
def a_longer_queue_holds_for_a_warm_model():
    with server({"max_queue": 1}) as s:
        equal(s.post("/v1/completions", ASK).status, 200)
        reload(s, {"max_queue": 64})
        seen, ask = [], {**ASK, "max_tokens": 60}
        threads = [threading.Thread(target=lambda: seen.append(s.post("/v1/completions", ask, timeout=60).status), daemon=True)
                   for _ in range(24)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        equal(seen, [200] * 24, "24 at once")


@case
def a_file_with_a_mistake_changes_nothing():
    with server({"max_embed_inputs": 2}) as s:
        three = {"model": TINY_BERT, "input": ["a", "b", "c"]}
        for n, (text, what) in enumerate((('{"max_embed_inputs": 3, "max_queu": 4}', "max_queu"), ('{"max_embed_inputs": 3', "line 1"),
                                          ('{"max_embed_inputs": 3, "max_queue": "many"}', "max_queue"),
                                          ('{"max_embed_inputs": 3, "port": 70000}', "port"), ("[]", "object"),
                                          ('{"max_embed_inputs": 3, "host": "0.0.0.0"}', "host"))):
            e = reload(s, text, "conf_refused")
            check(what in e["error"], f"{text}: {e['error']}")
            equal(s.post("/v1/embeddings", three).status, 413, f"{text}: the old limit")
            wait_for(lambda want=n + 1: s.metric("inferd_config_reloads_total", outcome="refused") == want, "it is counted", 5)
        os.unlink(FILE)
        s.proc.send_signal(signal.SIGHUP)
        wait_for(lambda: len(events(s, "conf_refused")) == 7, "no file", 10)
        equal(s.post("/v1/embeddings", three).status, 413, "no file: the old limit")
        equal(reload(s, {"max_embed_inputs": 3})["changed"], "max_embed_inputs", "a right one again")
        equal(s.post("/v1/embeddings", three).status, 200)


@case
def what_needs_a_restart_is_named_and_kept():
    with server({"max_queue": 9}) as s:
        port = s.port
        e = reload(s, {"max_queue": 8, "port": port + 1, "sandbox": "off", "max_seqs": 3})
        equal(e["changed"], "max_queue", "what changed")
        kept = events(s, "conf_needs_restart")
        equal([k["options"] for k in kept], ["max_seqs,sandbox"], "port is a flag here, which is stronger than the file")
        equal(s.get("/healthz").status, 200, "the old port")
        equal(s.get("/ai/v1/security").json["sandbox"], "strict", "the sandbox")


@case
def flags_stay_stronger_than_the_file():
    with server({}, max_embed_inputs=1) as s:
        equal(reload(s, {"max_embed_inputs": 7})["changed"], "", "a flag holds")
        equal(s.post("/v1/embeddings", {"model": TINY_BERT, "input": ["a", "b"]}).status, 413)


@case
def time_outs_log_level_and_access_log_change():
    with server({"header_timeout_ms": 60000}) as s:
        import socket
        with socket.create_connection(("127.0.0.1", s.port)) as c:
            c.sendall(b"GET /healthz HTTP/1.1\r\n")
            time.sleep(0.3)
            reload(s, {"header_timeout_ms": 100, "access_log": False})
            c.settimeout(10)
            check(c.recv(100).startswith(b"HTTP/1.1 408"), "the half head is cut by the new time-out")
        n = len(events(s, "http_request"))
        equal(s.get("/healthz").status, 200)
        reload(s, {"log_level": "error"}, "reload_asked")
        time.sleep(0.5)
        equal(len(events(s, "http_request")), n, "no line for a request")
        before = len(s.log_lines)
        equal(s.post("/v1/completions", ASK).status, 200)
        equal([e for e in s.log()[before:] if e.get("level") in ("info", "debug")], [], "lines below the level")


@case
def many_reloads_under_load_lose_nothing():
    with server({"max_queue": 100}) as s:
        want = s.post("/v1/completions", ASK).json["choices"][0]["text"]
        stop, wrong, done = threading.Event(), [], []

        def client():
            while not stop.is_set():
                r = s.post("/v1/completions", ASK, timeout=60)
                (done if r.status == 200 and r.json["choices"][0]["text"] == want else wrong).append(r.status)

        warm = pid_of(s, TINY_GEMMA)
        fds = [len(os.listdir(f"/proc/{p}/fd")) for p, _ in [(s.proc.pid, 0), *children(s.proc.pid)]]
        threads = [threading.Thread(target=client, daemon=True) for _ in range(4)]
        for t in threads:
            t.start()
        for i in range(50):
            if i % 5 == 4:
                reload(s, "{", "conf_refused")
            else:
                equal(reload(s, {"max_queue": 50 + i, "keep_alive_s": 100 + i})["changed"], "max_queue,keep_alive_s")
        stop.set()
        for t in threads:
            t.join(60)
        check(not wrong and len(done) > 50, f"answers: {len(done)} right, wrong {wrong[:3]}")
        equal(pid_of(s, TINY_GEMMA), warm, "the warm model's process")
        now = [len(os.listdir(f"/proc/{p}/fd")) for p, _ in [(s.proc.pid, 0), *children(s.proc.pid)]]
        check(sum(now) <= sum(fds) + 8, f"descriptors before {fds}, after {now}")


main()
