"""real_worker.py - the rows of the life-cycle table (docs/architecture.md) with the real binaries: processes are killed,
files pulled away, the server told to stop, and what clients saw is checked. Tiny golden checkpoints, no downloads."""
import json
import os
import shutil
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from inferd_test import SLOW, TINY_BERT, TINY_GEMMA, Server, case, check, children, equal, main, pid_alive, wait_for  # noqa: E402

LONG = {"model": TINY_GEMMA, "prompt": "one two three", "max_tokens": 1500, "stream": True, "ignore_eos": True,
        "temperature": 1, "seed": 7}
SHORT = {"model": TINY_GEMMA, "prompt": "one two three", "max_tokens": 6, "temperature": 0}


def stream_into(s, body, out):
    try:
        for event, data in s.sse("/v1/completions", body, timeout=120):
            out.append((event, data))
    except Exception as e:  # a cut connection is an outcome, too
        out.append(("broken", repr(e)))


def long_stream(s):
    """A stream that is under way: (thread, list of its events)."""
    got = []
    t = threading.Thread(target=stream_into, args=(s, LONG, got), daemon=True)
    t.start()
    wait_for(lambda: len(got) >= 3 or any(e == "broken" for e, _ in got), "the first deltas", 30)
    check(all(e is None for e, _ in got), f"the stream began badly: {got[-1]}")
    return t, got


def model(s, name):
    for m in s.get("/v1/models").json["data"]:
        if m["id"] == name:
            return m
    return None


def still_well(s, front, want):
    """The three checks after every case: same processes, ready, same bytes."""
    check(pid_alive(s.proc.pid) and pid_alive(front), "a supervisor process was replaced")
    equal(s.get("/readyz").status, 200, "/readyz")
    r = s.post("/v1/completions", SHORT)
    equal(r.status, 200, "a normal request: " + r.body.decode()[:300])
    equal(r.json["choices"][0]["text"], want, "the same request gives the same bytes")


def front_pid(s):
    return wait_for(lambda: [p for p, n in children(s.proc.pid) if n == "inferd"], "the front")[0]


def begin(s):
    r = s.post("/v1/completions", SHORT)
    equal(r.status, 200, r.body.decode()[:300])
    return front_pid(s), r.json["choices"][0]["text"]


@case
def a_worker_killed_in_mid_stream_is_told_and_replaced():
    with Server() as s:
        front, want = begin(s)
        t, got = long_stream(s)
        os.kill(model(s, TINY_GEMMA)["pid"], signal.SIGKILL)
        t.join(30 * SLOW)
        check(not t.is_alive(), "the stream did not end")
        event, data = got[-1]
        equal(event, "error", f"the last event is {got[-1]}")
        equal(data["error"]["code"], "WORKER_CRASHED")
        check(data["error"]["retryable"], "it may be tried again")
        still_well(s, front, want)
        equal(s.metric("inferd_worker_deaths_total", model=TINY_GEMMA), 1)


@case
def an_idle_worker_killed_costs_nobody_anything():
    with Server() as s:
        front, want = begin(s)
        os.kill(model(s, TINY_GEMMA)["pid"], signal.SIGKILL)
        still_well(s, front, want)


@case
def a_stopped_worker_is_found_within_five_seconds():
    with Server() as s:  # default options
        front, want = begin(s)
        t, got = long_stream(s)
        began = time.monotonic()
        os.kill(model(s, TINY_GEMMA)["pid"], signal.SIGSTOP)
        t.join(30 * SLOW)
        took = time.monotonic() - began
        check(not t.is_alive(), "the stream did not end")
        equal(got[-1][0], "error", f"the last event is {got[-1]}")
        equal(got[-1][1]["error"]["code"], "WORKER_CRASHED")
        check(took <= 5 * SLOW, f"found after {took:.1f} s")
        equal(s.metric("inferd_worker_deaths_total", model=TINY_GEMMA, cause="hang"), 1)
        still_well(s, front, want)


@case
def a_front_that_stood_still_blames_nobody():
    with Server() as s:
        front, want = begin(s)
        t, got = long_stream(s)
        os.kill(front, signal.SIGSTOP)
        time.sleep(5)
        os.kill(front, signal.SIGCONT)
        t.join(60 * SLOW)
        equal(got[-1][1], "[DONE]", f"the stream ended with {got[-1]}")
        equal(s.metric("inferd_worker_deaths_total", model=TINY_GEMMA), None, "deaths")
        still_well(s, front, want)


@case
def a_killed_launcher_takes_all_along():
    with Server() as s:
        begin(s)
        equal(s.post("/v1/embeddings", {"model": TINY_BERT, "input": "x"}).status, 200)
        kids = [p for p, _ in children(s.proc.pid)]
        check(len(kids) >= 3, f"front and two workers: {kids}")
        s.proc.kill()
        s.proc.wait()
        wait_for(lambda: not any(pid_alive(p) for p in kids), "the death of all children")


@case
def a_killed_front_ends_the_server_with_an_error():
    with Server() as s:
        front, _ = begin(s)
        kids = [p for p, _ in children(s.proc.pid)]
        os.kill(front, signal.SIGKILL)
        check(s.proc.wait(10 * SLOW) != 0, "a service manager must see a failure")
        wait_for(lambda: not any(pid_alive(p) for p in kids), "the death of all children")


@case
def thirty_two_cold_requests_load_once():
    with Server() as s:
        got = []

        def one():
            got.append(s.post("/v1/completions", SHORT).status)

        threads = [threading.Thread(target=one) for _ in range(32)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        equal(got, [200] * 32)
        equal(s.metric("inferd_model_loads_total", model=TINY_GEMMA, result="ok"), 1, "loads")
        equal(len(s.workers()), 1, "workers")


@case
def weights_truncated_under_the_server_come_back_without_a_restart():
    with Server() as s:
        front, want = begin(s)
        path = os.path.join(s.models, TINY_GEMMA, "model.safetensors")
        with open(path, "rb") as f:
            whole = f.read()
        os.truncate(path, 4096)
        codes = set()
        end = time.monotonic() + 3
        while time.monotonic() < end:
            r = s.post("/v1/completions", SHORT)
            codes.add(r.status)
            if r.status == 503:
                check(int(r.headers["retry-after"]) >= 1, "Retry-After")
            equal(s.get("/healthz").status, 200)
            time.sleep(0.2)
        check(codes <= {200, 500, 503}, f"statuses {codes}")
        with open(path, "wb") as f:
            f.write(whole)
        wait_for(lambda: s.post("/v1/completions", SHORT).status == 200, "the recovery", 20)
        still_well(s, front, want)


@case
def weights_renamed_away_and_back():
    with Server() as s:
        front, want = begin(s)
        path = os.path.join(s.models, TINY_GEMMA, "model.safetensors")
        os.rename(path, path + ".away")
        s.post("/ai/v1/models/unload", {"model": TINY_GEMMA})
        time.sleep(1.1)
        r = s.post("/v1/completions", SHORT)
        check(r.status in (404, 500, 503), f"status {r.status} without weights: {r.body[:200]}")
        os.rename(path + ".away", path)
        wait_for(lambda: s.post("/v1/completions", SHORT).status == 200, "the recovery", 20)
        still_well(s, front, want)


@case
def a_missing_weight_is_named_and_not_tried_in_a_loop():
    def fill(d):
        for name in (TINY_GEMMA, TINY_BERT):
            src = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", name)
            shutil.copytree(src, os.path.join(d, name), ignore=shutil.ignore_patterns("cases.json", "golden.safetensors"))
        path = os.path.join(d, TINY_GEMMA, "model.safetensors")
        with open(path, "rb") as f:
            raw = f.read()
        n = int.from_bytes(raw[:8], "little")
        head = json.loads(raw[8:8 + n])
        gone = sorted(k for k in head if k.endswith("down_proj.weight"))[0]
        head["renamed.by.the.test"] = head.pop(gone)
        text = json.dumps(head).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as f:
            f.write(len(text).to_bytes(8, "little") + text + raw[8 + n:])

    with Server(fill=fill) as s:
        for _ in range(3):
            r = s.post("/v1/completions", SHORT)
            equal(r.status, 500, r.body.decode()[:200])
            e = r.json["error"]
            equal(e["code"], "MODEL_WEIGHTS_MISSING")
            check("down_proj" in json.dumps(e), f"the tensor is not named: {e}")
            check(e["retryable"] is False, "not retryable")
        equal(s.metric("inferd_model_loads_total", model=TINY_GEMMA, result="failed"), 1, "loads tried")
        equal(s.post("/v1/embeddings", {"model": TINY_BERT, "input": "x"}).status, 200)


@case
def a_client_that_leaves_frees_the_worker():
    with Server() as s:
        front, want = begin(s)
        before = s.metric("inferd_tasks_total", model=TINY_GEMMA, result="cancelled") or 0
        gens = [s.sse("/v1/completions", LONG) for _ in range(5)]
        for g in gens:
            next(g)
        for g in gens:
            g.close()
        wait_for(lambda: (s.metric("inferd_tasks_total", model=TINY_GEMMA, result="cancelled") or 0) == before + 5,
                 "five cancels", 10)
        wait_for(lambda: s.metric("inferd_sequences", model=TINY_GEMMA, state="running") == 0, "an idle worker", 10)
        still_well(s, front, want)


@case
def unload_lets_the_batch_finish():
    with Server() as s:
        front, want = begin(s)
        t, got = long_stream(s)
        r = s.post("/ai/v1/models/unload", {"model": TINY_GEMMA}, timeout=120)
        equal(r.status, 200, r.body.decode()[:200])
        t.join(60 * SLOW)
        equal(got[-1][1], "[DONE]", f"the stream ended with {got[-1]}")
        for kind in ("weights", "kv", "workspace"):
            equal(s.metric("inferd_ledger_bytes", kind=kind), 0, f"the ledger's {kind}")
        still_well(s, front, want)
        wait_for(lambda: s.metric("inferd_model_loads_total", model=TINY_GEMMA, result="ok") == 2, "the reload")


@case
def a_term_lets_streams_finish_and_exits_clean():
    with Server(drain_grace_ms=60000) as s:
        begin(s)
        t, got = long_stream(s)
        s.proc.send_signal(signal.SIGTERM)
        # the signal travels launcher -> front; the listeners stay open long enough to see the change
        wait_for(lambda: s.get("/readyz").status == 503, "readiness to turn false before the listeners close")
        t.join(60 * SLOW)
        equal(got[-1][1], "[DONE]", f"the stream ended with {got[-1]}")
        equal(s.proc.wait(20 * SLOW), 0, "exit status")
        check(not any(e.get("event") == "shutdown_forced" for e in s.log()), "it was not forced")


@case
def a_second_term_ends_at_once():
    with Server(drain_grace_ms=600000) as s:
        begin(s)
        kids = [p for p, _ in children(s.proc.pid)]
        t, _ = long_stream(s)
        s.proc.send_signal(signal.SIGTERM)
        wait_for(lambda: any(e.get("event") == "shutdown" for e in s.log()), "the first signal")
        s.proc.send_signal(signal.SIGTERM)
        check(s.proc.wait(10 * SLOW) != 0, "a forced end is no clean one")
        wait_for(lambda: not any(pid_alive(p) for p in kids), "the death of all children")


main()
