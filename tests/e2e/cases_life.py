#!/usr/bin/env python3
"""cases_life.py - public bug cases about the life of processes and files: more models than room under fire (B17), secrets in what
is written (B29), orphans (B31), a models folder that changes, stopped workers, signals, a broken stderr. After each: the
three standing checks, where the server is meant to live on.
"""
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from inferd_standing import Before, normal
from inferd_test import (BIN, SLOW, TINY_BERT, TINY_GEMMA, TINY_GEMMA_BF16, Server, Skip, case, check, children, copy_model, equal,
                         free_port, golden_models, main, pid_alive, wait_for)

COMP = "/v1/completions"
LONG = {"model": TINY_GEMMA, "prompt": "one two three", "max_tokens": 1900, "ignore_eos": True, "temperature": 1, "seed": 7}

# docs/architecture.md, "A worker's life", and supervisor/fleet/sup_fleet_policy.c
EDGES = {
    "absent": {"starting", "failed"}, "starting": {"loading", "draining", "cooling", "failed"},
    "loading": {"ready", "draining", "cooling", "failed"}, "ready": {"busy", "draining", "cooling"},
    "busy": {"ready", "draining", "cooling"}, "draining": {"absent", "cooling"}, "cooling": {"starting", "absent", "failed"},
    "failed": {"starting", "absent"},
}


def models(s):
    return {m["id"]: m for m in s.get("/v1/models").json["data"]}


def legal_states(s):
    last, n = {}, 0
    for e in s.log():
        if e.get("event") != "model_state":
            continue
        m, a, b = e["model"], e["from"], e["to"]
        was = last.get(m, "absent")  # ready and busy take turns too often to be logged
        check(a == was or {a, was} == {"ready", "busy"}, f"{m}: its state before {b} is {was}, it says {a}")
        check(b in EDGES[a], f"{m}: illegal edge {a} -> {b} ({e['reason']})")
        check(not (b == "draining" and e["reason"] == "evicted") or a == "ready", f"{m}: evicted while {a}")
        last[m] = b
        n += 1
    return n


@case
def b17_three_models_room_for_two():
    def fill(d):
        golden_models(d)
        copy_model(TINY_GEMMA_BF16, d)

    with Server(fill=fill, max_loaded_models=2, log_level="debug") as s:
        b = Before(s)
        end = time.monotonic() + 12
        names = (TINY_GEMMA, TINY_BERT, TINY_GEMMA_BF16)
        wrong, seen, most = [], {}, [0]
        limit_s = 15

        def client(i):
            rnd = random.Random(i)
            while time.monotonic() < end:
                name = rnd.choice(names)
                head = {"X-Request-Timeout-Ms": str(limit_s * 1000)}
                begin = time.monotonic()
                try:
                    if name == TINY_BERT:
                        r = s.post("/v1/embeddings", {"model": name, "input": "a"}, headers=head)
                    else:
                        r = s.post(COMP, {"model": name, "prompt": "a", "max_tokens": rnd.randint(1, 60), "ignore_eos": True}, headers=head)
                    code = 200 if r.status == 200 else r.json["error"]["code"]
                except OSError as e:
                    wrong.append(repr(e))
                    continue
                took = time.monotonic() - begin
                if took > limit_s + 10 * SLOW:
                    wrong.append(f"{name} took {took:.1f} s, its deadline was {limit_s} s: {code}")
                seen[code] = seen.get(code, 0) + 1

        def chaos():
            rnd = random.Random(99)
            while time.monotonic() < end:
                time.sleep(0.15)
                try:
                    alive = s.workers()
                    most[0] = max(most[0], len(alive))
                    what = rnd.choice(("kill", "unload", "load", "list"))
                    if what == "kill" and alive:
                        os.kill(rnd.choice(alive), signal.SIGKILL)
                    elif what in ("load", "unload"):
                        s.post(f"/ai/v1/models/{what}", {"model": rnd.choice(names)}, headers={"X-Request-Timeout-Ms": "5000"}, timeout=20)
                    equal(s.get("/readyz", timeout=10).status, 200, "/readyz meanwhile")
                except ProcessLookupError:
                    pass
                except BaseException as e:
                    wrong.append(f"chaos: {e!r}")

        threads = [threading.Thread(target=client, args=(i,)) for i in range(16)] + [threading.Thread(target=chaos)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        equal(wrong[:3], [], "requests past their deadline or broken")
        allowed = {200, "WORKER_CRASHED", "REQUEST_POISONED", "MODEL_RESOURCE_BUSY", "MODEL_UNAVAILABLE", "SERVICE_UNAVAILABLE", "DEADLINE_EXCEEDED",
                   "INFERENCE_FAILED"}
        check(set(seen) <= allowed and seen.get(200, 0) > 20, f"ends of requests: {seen}")
        # two models and, while they change, one that goes and one that is looked at
        check(most[0] <= 4, f"{most[0]} workers at once")
        wait_for(lambda: sum(m["state"] in ("ready", "busy") for m in models(s).values()) <= 2, "at most two models")
        for name in names:
            s.post("/ai/v1/models/load", {"model": name})
        wait_for(lambda: all(s.metric("inferd_tasks_active", model=n) in (0, None) for n in names), "no task")
        check(legal_states(s) > 20, "states changed")
        b.well()


@case
def b17_clients_swap_models_and_all_are_answered():
    """No kills: with room for one model, alternating requests all get their answer."""
    with Server(max_loaded_models=1) as s:
        b = Before(s)
        wrong = []

        def client(i):
            for k in range(4):
                r = (s.post("/v1/embeddings", {"model": TINY_BERT, "input": "a"}) if (i + k) % 2
                     else s.post(COMP, {"model": TINY_GEMMA, "prompt": "a", "max_tokens": 5}))
                if r.status != 200:
                    wrong.append(r.body[:200])

        threads = [threading.Thread(target=client, args=(i,)) for i in range(10)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        equal(wrong, [], "answers")
        loads = sum(m["loads"] for m in models(s).values())
        check(loads <= 60, f"{loads} loads for 40 requests")
        legal_states(s)
        b.well()


@case
def b29_nothing_of_a_request_is_written():
    canary = "CANARY" + os.urandom(6).hex()
    for level in ("info", "debug"):
        with Server(log_level=level) as s:
            b = Before(s)
            h = {"Authorization": f"Bearer {canary}", "Cookie": canary, "X-Custom": canary, "User-Agent": canary, "X-Api-Key": canary}
            msg = [{"role": "user", "content": canary}]
            for path, body in ((COMP, {"model": TINY_GEMMA, "prompt": canary, "max_tokens": 2, "stop": canary, "user": canary}),
                               ("/v1/chat/completions", {"model": TINY_GEMMA, "messages": msg, "max_tokens": 2}),
                               ("/v1/chat/completions", {"model": TINY_GEMMA, "messages": msg, "max_tokens": 2, "stream": True, "metadata": {canary: canary}}),
                               ("/v1/embeddings", {"model": TINY_BERT, "input": [canary] * 3}),
                               ("/ai/v1/tokenize", {"model": TINY_GEMMA, "text": canary}),
                               (f"/ai/v1/echo?model={TINY_BERT}&key={canary}", canary),
                               (COMP, {"model": TINY_GEMMA, "prompt": canary, "top_k": canary}),
                               (COMP, {"model": TINY_GEMMA, "prompt": canary * 2000}),
                               (COMP, {"model": canary, "prompt": canary}), (COMP, {canary: canary}), (COMP, canary), (COMP, f'{{"{canary}": {canary}}}'),
                               ("/ai/v1/models/load", {"model": canary}), (f"/v1/models/{canary}", {}), (f"/{canary}?api_key={canary}", {})):
                s.post(path, body, headers=h)
            for path in (f"/v1/models/{canary}", f"/{canary}", f"/healthz?{canary}"):
                s.get(path, headers=h)
            s.raw(f"GET /{canary} HTTP/1.1\r\nHost: {canary}\r\nX: {canary}\n\r\n\r\n{canary}\r\n\r\n".encode())
            gen = s.sse(COMP, {**LONG, "prompt": canary, "stream": True}, headers=h)
            next(gen)
            os.kill(models(s)[TINY_GEMMA]["pid"], signal.SIGKILL)  # a crash tells nothing, too
            for _ in gen:
                pass
            b.well()
            for path in ("/metrics", "/v1/models", "/ai/v1/models", "/readyz", "/startupz"):
                check(canary.encode() not in s.get(path).body, f"{path} tells of a request")
            for pid in [s.proc.pid] + [p for p, _ in children(s.proc.pid)]:
                for name in ("cmdline", "environ", "comm"):
                    try:
                        with open(f"/proc/{pid}/{name}", "rb") as f:
                            check(canary.encode() not in f.read(), f"/proc/{pid}/{name}")
                    except OSError:
                        pass
            for line in s.log_lines:
                check(canary not in line, f"log at {level}: {line[:300]}")
            for line in s.log():
                check("raw" not in line, f"a log line that is no JSON: {line}")


@case
def b29_a_workers_environment_is_empty():
    with Server(env={"SOME_SECRET": "hunter2hunter2"}) as s:
        normal(s)
        for pid in s.workers():
            try:
                with open(f"/proc/{pid}/environ", "rb") as f:
                    equal(f.read(), b"", "environment of a worker")
            except PermissionError:
                pass  # even better
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                check(b"hunter2" not in f.read(), "command line of a worker")


@case
def b31_a_killed_supervisor_leaves_nothing():
    with tempfile.TemporaryDirectory(prefix="inferd-test-") as d:
        golden_models(d)
        port, path = free_port(), os.path.join(d, ".sock")
        for who in ("launcher", "front", "launcher"):
            with Server(models=d, port=port, unix_socket=path) as s:  # binds again at once
                b = Before(s)
                for g in [s.sse(COMP, {**LONG, "stream": True, "seed": i}) for i in range(4)]:
                    next(g)
                kids = [p for p, _ in children(s.proc.pid)]
                check(len(kids) >= 3, f"front and workers: {kids}")
                os.kill(s.proc.pid if who == "launcher" else b.pids[1], signal.SIGKILL)
                wait_for(lambda: not any(pid_alive(p) for p in kids), f"the end of all children of a killed {who}")
                check(s.proc.wait(10 * SLOW) != 0, "not a clean end")
                with socket.socket() as k:
                    check(k.connect_ex(("127.0.0.1", port)) != 0, "the port is free")


# ---------------------------------------------------------- a folder that changes

@case
def files_change_under_the_server():
    with Server() as s:
        b = Before(s)
        ask = {"model": TINY_GEMMA, "prompt": "The same", "max_tokens": 8, "ignore_eos": True, "return_token_ids": True}
        one = s.post(COMP, ask).json["choices"]
        # replaced as a whole, by rename, while it answers a stream
        other = copy_model(TINY_GEMMA_BF16, os.path.dirname(s.models), "other")
        stream = s.sse(COMP, {**LONG, "stream": True})
        next(stream)
        os.rename(os.path.join(s.models, TINY_GEMMA), os.path.join(os.path.dirname(s.models), "first"))
        os.rename(other, os.path.join(s.models, TINY_GEMMA))
        equal(list(stream)[-1][1], "[DONE]", "the old model finishes its answers")
        wait_for(lambda: models(s)[TINY_GEMMA].get("quant") == "BF16" or s.post(COMP, ask).status != 200, "the new files to be seen", 25)
        equal(models(s)[TINY_GEMMA]["quant"], "BF16", "the new model")
        r = s.post(COMP, ask)
        equal(r.status, 200, f"an answer of the new model: {r.body[:200]!r}")
        # gone
        os.rename(os.path.join(s.models, TINY_GEMMA), other)
        def gone():
            r = s.post(COMP, ask)
            check(r.status in (200, 404, 503), f"while it goes: {r.status} {r.body[:200]!r}")
            return r.status == 404
        wait_for(gone, "404 for a model that is gone", 45)
        equal(s.post("/v1/embeddings", {"model": TINY_BERT, "input": "a"}).status, 200, "its neighbour")
        # and back
        os.rename(os.path.join(os.path.dirname(s.models), "first"), os.path.join(s.models, TINY_GEMMA))
        wait_for(lambda: s.post(COMP, ask).status == 200, "the model that came back", 25)
        equal(s.post(COMP, ask).json["choices"], one, "the same answer as at first")
        b.well()


@case
def a_weights_file_cut_and_written_in_place():
    """SIGBUS in the worker is its own death; half a file is refused by name; a whole one heals."""
    with Server() as s:
        b = Before(s)
        path = os.path.join(s.models, TINY_GEMMA, "model.safetensors")
        with open(path, "rb") as f:
            whole = f.read()
        for cut in (0, 8, 100, len(whole) // 2, len(whole) - 1):
            os.truncate(path, cut)
            for _ in range(3):
                r = s.post(COMP, {**LONG, "max_tokens": 3, "timeout_ms": 3000})
                check(r.status in (200, 500, 503, 504), f"cut to {cut}: {r.status} {r.body[:200]!r}")
            with open(path, "r+b") as f:
                f.write(whole)
            wait_for(lambda: s.post(COMP, {**LONG, "max_tokens": 3}).status == 200, f"the recovery from {cut}", 40)
            check(pid_alive(b.pids[1]), "the front lives")
        b.well()


@case
def the_models_folder_itself_goes_and_comes():
    with Server() as s:
        b = Before(s)
        away = s.models + ".away"
        os.rename(s.models, away)
        for _ in range(5):
            r = s.post(COMP, {**LONG, "max_tokens": 2})
            check(r.status in (200, 404, 500, 503), f"{r.status} {r.body[:200]!r}")
            equal(s.get("/v1/models").status, 200, "the list")
            time.sleep(0.3)
        os.rename(away, s.models)
        wait_for(lambda: s.post(COMP, {**LONG, "max_tokens": 2}).status == 200, "the folder that came back", 25)
        b.well()


@case
def files_without_permission():
    if os.geteuid() == 0:
        raise Skip("root reads files of mode 000; run as a user to try this")
    with Server() as s:
        b = Before(s)
        path = os.path.join(s.models, TINY_GEMMA)
        os.chmod(path, 0)
        s.post("/ai/v1/models/unload", {"model": TINY_GEMMA})
        r = s.post(COMP, {**LONG, "max_tokens": 2})
        check(r.status in (404, 500, 503), f"{r.status} {r.body[:200]!r}")
        os.chmod(path, 0o755)
        wait_for(lambda: s.post(COMP, {**LONG, "max_tokens": 2}).status == 200, "the model", 25)
        b.well()


@case
def a_thousand_files_at_once():
    with Server() as s:
        b = Before(s)
        for i in range(1000):
            with open(os.path.join(s.models, f"junk{i:04d}.gguf"), "wb") as f:
                f.write(b"GGUF" + os.urandom(i % 64))
        wait_for(lambda: len(models(s)) >= 1002, "all to be listed", 30)
        r = s.post(COMP, {"model": "junk0007", "prompt": "a"})
        equal((r.status, r.json["error"]["code"]), (500, "MODEL_LOAD_FAILED"), f"{r.body[:200]!r}")
        b.well()
        check(len(s.get("/metrics").body) < 2_000_000, "metrics stay bounded")
        for i in range(1000):
            os.unlink(os.path.join(s.models, f"junk{i:04d}.gguf"))
        wait_for(lambda: len(models(s)) == 2, "all to be gone", 30)
        b.well()


# ------------------------------------------------------------ signals and stderr

@case
def a_stopped_worker_in_mid_stream():
    with Server(hang_timeout_s=2) as s:
        b = Before(s)
        gens = [s.sse(COMP, {**LONG, "stream": True, "seed": i}) for i in range(3)]
        for g in gens:
            next(g)
        os.kill(models(s)[TINY_GEMMA]["pid"], signal.SIGSTOP)
        equal(s.post("/v1/embeddings", {"model": TINY_BERT, "input": "a"}).status, 200, "a neighbour meanwhile")
        for g in gens:
            event, data = list(g)[-1]
            equal((event, data["error"]["code"] if event else data), ("error", "WORKER_CRASHED"), "the last event")
        b.well()
        equal(s.metric("inferd_worker_deaths_total", model=TINY_GEMMA, cause="hang"), 1, "one death")
        # stopped while idle: the next request finds out and is answered by the next worker
        os.kill(models(s)[TINY_GEMMA]["pid"], signal.SIGSTOP)
        b.well()
        # a stop shorter than the limit is no death
        pid = models(s)[TINY_GEMMA]["pid"]
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(pid, signal.SIGCONT)
        b.well()
        equal(models(s)[TINY_GEMMA]["pid"], pid, "the same worker")


@case
def signals_to_the_parts():
    with Server() as s:
        b = Before(s)
        for pid in [b.pids[1]] + s.workers():
            for sig in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):  # stopping is the launcher's business
                os.kill(pid, sig)
        time.sleep(0.3)
        b.well()
        s.proc.send_signal(signal.SIGHUP)  # from a process: files are read again, nothing ends
        wait_for(lambda: any(e.get("event") == "reload_asked" for e in s.log()), "the word of a reload")
        b.well()


def started(cmd, **kw):
    port = free_port()
    d = tempfile.mkdtemp(prefix="inferd-test-")
    golden_models(d)
    proc = subprocess.Popen(cmd + [os.path.join(BIN, "inferd"), "serve", f"--port={port}", f"--models-dir={d}"], **kw)
    s = Server(models=d, port=port)
    s.proc = proc
    s.own = d
    return s


@case
def a_terminal_that_goes_away_ends_the_server():
    master, slave = os.openpty()
    own_terminal = ("import fcntl, os, sys, termios\nos.setsid()\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
                    "os.execv(sys.argv[1], sys.argv[1:])")
    s = started([sys.executable, "-c", own_terminal], stdin=slave, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        s.wait_ready()
        Before(s).well()
        os.close(slave)
        os.close(master)
        equal(s.proc.wait(20 * SLOW), 0, "exit status when the terminal is gone")
    finally:
        s.stop()


@case
def a_stderr_nobody_reads():
    r, w = os.pipe()
    null = subprocess.DEVNULL
    for what in ("reader gone", "full pipe", "full disk", "closed", "all closed"):
        if what == "reader gone":
            r, w = os.pipe()
            os.close(r)
            s = started([], stdin=null, stdout=null, stderr=w)
            os.close(w)
        elif what == "full pipe":
            r, w = os.pipe()
            os.set_blocking(w, False)
            try:
                while True:
                    os.write(w, b"x" * 65536)
            except BlockingIOError:
                pass
            os.set_blocking(w, True)
            s = started([], stdin=null, stdout=null, stderr=w)
            os.close(w)
        elif what == "full disk":
            with open("/dev/full", "wb") as full:
                s = started([], stdin=null, stdout=null, stderr=full)
        else:
            closing = "exec \"$@\" 2>&-" if what == "closed" else "exec \"$@\" 0<&- 1>&- 2>&-"
            s = started(["sh", "-c", closing, "sh"], stdin=null, stdout=null, stderr=null)
        try:
            s.wait_ready()
            b = Before(s)
            for _ in range(50):  # log lines go nowhere, and into no connection
                r2 = s.get("/v1/models")
                equal(r2.status, 200, what)
            raw = s.raw(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            check(b'"event"' not in raw and raw.endswith(b"}"), f"{what}: {raw!r}")
            b.well(what)
            if what in ("full pipe", "full disk"):
                check(s.metric("inferd_log_lines_dropped_total") >= 0, "dropped lines are counted")
        finally:
            status = s.stop()
            if what == "full pipe":
                os.close(r)
        equal(status, 0, f"{what}: exit status")


main()
