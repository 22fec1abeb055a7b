"""fake_worker.py - what clients see when workers crash, hang or lie: the real supervisor over HTTP with
build/*/tests/fake-worker, which does what a prompt or a model file tells it (tests/fault/fake_worker.c)."""
import os
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from inferd_test import BIN, SLOW, Server, Skip, case, check, equal, main, wait_for  # noqa: E402

FAKE = os.path.join(BIN, "tests", "fake-worker")


def write(models, name, text):
    with open(os.path.join(models, name), "w", encoding="utf-8") as f:
        f.write(text)


def fill(d):
    write(d, "m.gguf", "load-ok")
    write(d, "other.gguf", "load-ok")


def server(**kw):
    if not os.path.exists(FAKE):
        raise Skip(f"{FAKE} is not built")
    return Server(fill=fill, worker=FAKE, **kw)


def ask(s, prompt, model="m", **kw):
    return s.post("/v1/completions", {"model": model, "prompt": prompt, "max_tokens": 1000, **kw})


def embed(s, text, model="m"):
    return s.post("/v1/embeddings", {"model": model, "input": text})


@case
def a_crash_before_the_first_byte_is_hidden():
    with server() as s:
        once = os.path.join(s.models, "once")
        r = ask(s, f"crash @{once}")
        equal(r.status, 200, r.body.decode()[:300])
        equal(s.metric("inferd_task_retries_total", model="m.gguf"), 1)
        equal(s.metric("inferd_worker_deaths_total", model="m.gguf"), 1)


@case
def a_crash_in_mid_stream_is_an_error_event():
    with server() as s:
        got = list(s.sse("/v1/completions", {"model": "m", "prompt": "crash-mid", "max_tokens": 99, "stream": True}))
        equal(got[-1][0], "error", f"{got[-1]}")
        equal(got[-1][1]["error"]["code"], "WORKER_CRASHED")
        equal(ask(s, "x").status, 200)


@case
def a_poisonous_request_is_convicted_and_its_neighbours_are_not():
    with server() as s:
        equal(ask(s, "x").status, 200)
        out = {}

        def one(i):
            out[i] = embed(s, "crash" if i == 3 else "ms=100")

        threads = [threading.Thread(target=one, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for i, r in out.items():
            if i != 3:
                equal(r.status, 200, f"innocent {i}: {r.body.decode()[:200]}")
        equal(out[3].status, 500)
        equal(out[3].json["error"]["code"], "REQUEST_POISONED")
        equal(out[3].json["error"]["retryable"], False)
        check("retry-after" not in out[3].headers, "no Retry-After on what must not be tried again")


@case
def a_crash_loop_backs_off_and_leaves_others_alone():
    with server() as s:
        write(s.models, "loop.gguf", "load-crash")
        time.sleep(1.1)
        r = ask(s, "x", model="loop")
        equal(r.status, 503, r.body.decode()[:300])
        check(int(r.headers["retry-after"]) >= 1, "Retry-After")
        equal(r.json["error"]["retryable"], True)
        deaths = s.metric("inferd_worker_deaths_total", model="loop.gguf")
        r = ask(s, "x", model="loop")
        equal(r.status, 503)
        equal(s.metric("inferd_worker_deaths_total", model="loop.gguf"), deaths, "no process was made while cooling")
        equal(ask(s, "x", model="other").status, 200)
        equal(s.get("/readyz").status, 200)


@case
def a_hanging_worker_is_replaced():
    with server(hang_timeout_s=1) as s:
        r = ask(s, f"hang @{os.path.join(s.models, 'once')}")
        equal(r.status, 200, r.body.decode()[:300])
        equal(s.metric("inferd_worker_deaths_total", model="m.gguf", cause="hang"), 1)


@case
def lies_of_a_worker_never_reach_a_client():
    with server() as s:
        for i, lie in enumerate(["bad-utf8", "bad-token", "bad-index"]):
            r = ask(s, f"{lie} @{os.path.join(s.models, f'once{i}')}")
            equal(r.status, 200, f"{lie}: {r.body.decode()[:200]}")
            equal(s.metric("inferd_worker_deaths_total", model="m.gguf", cause="protocol"), i + 1)


@case
def vanished_weights_are_retryable():
    with server() as s:
        r = ask(s, f"sigbus @{os.path.join(s.models, 'once')}")
        equal(r.status, 503, r.body.decode()[:300])
        equal(r.json["error"]["retryable"], True)
        check(int(r.headers["retry-after"]) >= 1, "Retry-After")
        equal(ask(s, "x").status, 200)


@case
def a_load_that_never_ends_is_ended():
    with server(load_timeout_s=1) as s:
        write(s.models, "stuck.gguf", "load-hang")
        time.sleep(1.1)
        r = ask(s, "x", model="stuck")
        check(r.status in (503, 504), f"status {r.status}: {r.body[:200]}")
        equal(s.metric("inferd_model_loads_total", model="stuck.gguf", result="timeout"), 1)
        equal(ask(s, "x").status, 200)


@case
def an_endless_stream_is_cut_when_the_grace_is_over():
    with server(drain_grace_ms=1000) as s:
        got = []

        def read():
            try:
                for ev in s.sse("/v1/completions", {"model": "m", "prompt": "forever", "max_tokens": 1000000, "stream": True}):
                    got.append(ev)
            except Exception as e:
                got.append(("broken", repr(e)))

        t = threading.Thread(target=read, daemon=True)
        t.start()
        wait_for(lambda: len(got) > 3, "the stream")
        s.proc.send_signal(signal.SIGTERM)
        equal(s.proc.wait(20 * SLOW), 0, "a drain that had to cut streams is a clean end")
        t.join(10)
        check(not t.is_alive(), "the client was told")
        check(any(e.get("event") == "streams_cut" for e in s.log()), "the log says so")


@case
def models_are_evicted_by_age_and_idleness():
    with server(max_loaded_models=1, keep_alive_s=1) as s:
        equal(ask(s, "x").status, 200)
        equal(ask(s, "x", model="other").status, 200)
        equal(s.metric("inferd_model_unloads_total", model="m.gguf", reason="evicted"), 1)
        wait_for(lambda: s.metric("inferd_model_unloads_total", model="other.gguf", reason="idle") == 1, "the idle unload")
        wait_for(lambda: s.metric("inferd_ledger_bytes", kind="weights") == 0, "an empty ledger")
        equal(ask(s, "x").status, 200)


main()
