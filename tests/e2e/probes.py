"""probes.py - what /livez, /readyz, /startupz and the numbers for load balancers say, also under full load."""
import os
import signal
import threading
import time

from inferd_test import SLOW, TINY_BERT, TINY_GEMMA, Server, case, check, equal, main, wait_for

PROBES = ("/livez", "/readyz", "/startupz", f"/readyz?model={TINY_GEMMA}", "/metrics")


def ready(s, model):
    return s.get(f"/readyz?model={model}")


@case
def a_model_is_ready_after_a_forward_pass():
    with Server() as s:
        equal(s.get("/livez").json, {"status": "ok"}, "livez")
        equal(ready(s, "nope").status, 404, "a model that is not there")
        for model in (TINY_GEMMA, TINY_BERT):
            r = ready(s, model)
            equal((r.status, r.json["state"]), (503, "absent"), "before the load")
            equal(s.post("/ai/v1/models/load", {"model": model}).status, 200, "load")
            wait_for(lambda m=model: ready(s, m).status == 200, f"the first pass of {model}")
            equal(s.metric("inferd_probe_passes_total", model=model, result="ok"), 1.0, "passes that the probe started")
        check(s.metric("inferd_tokens_total", model=TINY_GEMMA, kind="completion") >= 1, "a token was really computed")


@case
def an_answer_to_a_client_is_as_good():
    with Server() as s:
        equal(s.post("/v1/completions", {"model": TINY_GEMMA, "prompt": "a", "max_tokens": 2}).status, 200, "completion")
        equal(ready(s, TINY_GEMMA).status, 200, "ready at once")
        equal(s.metric("inferd_probe_passes_total", model=TINY_GEMMA), None, "no pass of the probe's own")


@case
def a_new_worker_has_to_show_it_again():
    with Server(preload=[TINY_GEMMA]) as s:
        wait_for(lambda: ready(s, TINY_GEMMA).status == 200, "ready")
        old = s.workers()
        equal(len(old), 1, "workers")
        os.kill(old[0], signal.SIGKILL)
        wait_for(lambda: ready(s, TINY_GEMMA).status == 503, "not ready without its worker")
        equal(s.post("/ai/v1/models/load", {"model": TINY_GEMMA}).status, 200, "load")
        wait_for(lambda: ready(s, TINY_GEMMA).status == 200, "ready again")
        equal(s.metric("inferd_probe_passes_total", model=TINY_GEMMA, result="ok"), 2.0, "one pass for each worker")


@case
def draining_is_told_at_once():
    with Server(drain_grace_ms=3000, preload=[TINY_GEMMA]) as s:
        wait_for(lambda: ready(s, TINY_GEMMA).status == 200, "ready")
        s.proc.send_signal(signal.SIGTERM)
        r = wait_for(lambda: (x := ready(s, TINY_GEMMA)).status == 503 and x, "not ready", 2)
        check("shutting down" in r.json["reason"], r.json)
        equal(s.get("/livez").status, 200, "alive while it drains")


def stream(s, stop):
    body = {"model": TINY_GEMMA, "prompt": "a b c", "max_tokens": 400, "ignore_eos": True, "stream": True}
    while not stop.is_set():
        for _ in s.sse("/v1/completions", body):
            if stop.is_set():
                return


def times(s, n):
    """Milliseconds of n probes over one connection, sorted."""
    out = []
    c = s.conn()
    for i in range(n):
        begin = time.monotonic()
        c.request("GET", PROBES[i % len(PROBES)])
        r = c.getresponse()
        r.read()
        out.append((time.monotonic() - begin) * 1000)
        equal(r.status, 200, PROBES[i % len(PROBES)])
        time.sleep(0.005)
    c.close()
    return sorted(out)


@case
def probes_answer_in_50_ms_at_saturation():
    with Server(preload=[TINY_GEMMA], max_seqs=4) as s:
        wait_for(lambda: ready(s, TINY_GEMMA).status == 200, "ready")
        stop = threading.Event()
        threads = [threading.Thread(target=stream, args=(s, stop), daemon=True) for _ in range(12)]
        for t in threads:
            t.start()
        try:
            wait_for(lambda: s.metric("vllm:num_requests_running") == 4, "every sequence is in use", 20)
            equal(s.metric("inferd_requests_running", model=TINY_GEMMA), 4.0, "running")
            check(s.metric("vllm:num_requests_waiting") >= 4, "and the others wait")
            wait_for(lambda: 0 < s.metric("inferd_kv_used_ratio", model=TINY_GEMMA) <= 1, "KV cache in use")  # told now and then
            for _ in range(3):  # the machine may be busy with others for a moment
                ms = times(s, 100)
                if ms[89] < 50 * SLOW:
                    break
            check(ms[89] < 50 * SLOW, f"nine of ten probes in 50 ms; median {ms[50]:.1f}, nine of ten {ms[89]:.1f}, worst {ms[-1]:.1f}")
            print(f"  median {ms[50]:.2f} ms, nine of ten {ms[89]:.2f} ms, worst {ms[-1]:.2f} ms", flush=True)
        finally:
            stop.set()
            for t in threads:
                t.join(30 * SLOW)
        wait_for(lambda: s.metric("vllm:num_requests_running") == 0 and s.metric("vllm:num_requests_waiting") == 0, "all at rest")


if __name__ == "__main__":
    main()
