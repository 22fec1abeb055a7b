"""exhaustion.py - descriptors, memory and frames run out or come in halves, with real processes: clients are told to come
back, nobody is replaced who need not be, and everything works again once there is room. Limits are set from outside
(prlimit), which needs the right to: cases skip where it is missing."""
import json
import os
import resource
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from inferd_test import BIN, SLOW, TINY_BERT, TINY_GEMMA, Server, Skip, case, check, children, equal, main, pid_alive, wait_for  # noqa: E402

SHORT = {"model": TINY_GEMMA, "prompt": "one two three", "max_tokens": 6, "temperature": 0}
BIG = {"model": TINY_GEMMA, "text": "a b c " * 40000}  # its frame does not fit a datagram: it goes as a memfd


def front_of(s):
    return wait_for(lambda: [p for p, n in children(s.proc.pid) if n == "inferd"], "the front")[0]


def limit(pid, what, value):
    """Sets a soft limit of another process; returns what it was."""
    try:
        old = resource.prlimit(pid, what)
        resource.prlimit(pid, what, (value, old[1]))
    except PermissionError:
        raise Skip("limits of another process may not be set")
    return old


def highest_fd(pid):
    try:
        return max(int(f) for f in os.listdir(f"/proc/{pid}/fd"))
    except PermissionError:
        raise Skip("another process's descriptors may not be seen")


def loaded(s, name):
    equal(s.post("/ai/v1/models/load", {"model": name}, timeout=60).status, 200, f"load {name}")


def well(s, front):
    check(pid_alive(s.proc.pid) and pid_alive(front), "a supervisor process was replaced")
    r = s.post("/v1/completions", SHORT)
    equal(r.status, 200, "a normal request: " + r.body.decode()[:300])
    equal(s.post("/ai/v1/tokenize", BIG).status, 200, "a large request")
    equal(s.get("/readyz").status, 200, "/readyz")


@case
def the_launcher_has_no_descriptors_left():
    with Server() as s:
        front = front_of(s)
        loaded(s, TINY_BERT)
        old = limit(s.proc.pid, resource.RLIMIT_NOFILE, highest_fd(s.proc.pid) + 1)
        r = s.post("/v1/completions", SHORT)
        check(r.status in (500, 503), f"a cold model: {r.status} {r.body[:300]}")
        check(r.json["error"]["retryable"], f"it may be tried again: {r.body[:300]}")
        equal(s.post("/v1/embeddings", {"model": TINY_BERT, "input": "x"}).status, 200, "what is loaded")
        limit(s.proc.pid, resource.RLIMIT_NOFILE, old[0])
        wait_for(lambda: s.post("/v1/completions", SHORT).status == 200, "the model", 15)
        well(s, front)


@case
def the_front_has_no_descriptors_left():
    with Server() as s:
        front = front_of(s)
        loaded(s, TINY_BERT)
        c = s.conn()  # a connection that is there already
        c.request("GET", "/healthz")
        c.getresponse().read()
        old = limit(front, resource.RLIMIT_NOFILE, highest_fd(front) + 1)

        def ask(path, body):
            c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            r = c.getresponse()
            got = json.loads(r.read())
            return r.status, got["error"] if isinstance(got.get("error"), dict) else got

        status, body = ask("/v1/completions", SHORT)  # the new worker's channel cannot be received
        check(status in (500, 503) and body["retryable"], f"a cold model: {status} {body}")
        status, body = ask("/ai/v1/tokenize", {**BIG, "model": TINY_BERT})  # no memfd
        check(status in (500, 503) and body["retryable"], f"a large request: {status} {body}")
        equal(ask("/v1/embeddings", {"model": TINY_BERT, "input": "x"})[0], 200, "a small request to what is loaded")
        limit(front, resource.RLIMIT_NOFILE, old[0])
        wait_for(lambda: s.post("/v1/completions", SHORT).status == 200, "the model", 15)
        well(s, front)
        check(len([w for w in s.workers() if pid_alive(w)]) == 2, f"workers that nobody owns: {s.workers()}")


@case
def a_worker_has_no_memory_left():
    with Server(threads=1) as s:
        front = front_of(s)
        well(s, front)
        pid = s.workers()[0]
        with open(f"/proc/{pid}/statm", encoding="ascii") as f:
            pages = int(f.read().split()[0])
        limit(pid, resource.RLIMIT_AS, pages * os.sysconf("SC_PAGESIZE") + (1 << 20))
        codes = [s.post("/ai/v1/tokenize", {"model": TINY_GEMMA, "text": "a b c " * 150000}).status for _ in range(3)]
        check(set(codes) <= {200, 413, 500, 503}, f"statuses {codes}")
        check(s.post("/v1/completions", SHORT).status == 200, "a small one is served meanwhile")
        if pid_alive(pid):
            limit(pid, resource.RLIMIT_AS, resource.RLIM_INFINITY)
        well(s, front)


@case
def neighbours_load_while_a_batch_is_embedded():
    """200 documents while the model is loaded and unloaded all the time: all are embedded, the ledger ends empty."""
    with Server() as s:
        front = front_of(s)
        stop, orders = threading.Event(), []

        def churn():
            while not stop.is_set():
                for verb in ("unload", "load"):
                    orders.append(s.post(f"/ai/v1/models/{verb}", {"model": TINY_BERT}, timeout=60).status)
                    time.sleep(0.05)

        t = threading.Thread(target=churn, daemon=True)
        t.start()
        vectors, tries = [], 0
        for i in range(0, 200, 8):
            batch = {"model": TINY_BERT, "input": [f"document {k} " + "a b c " * (k % 15) for k in range(i, i + 8)]}
            while True:
                tries += 1
                r = s.post("/v1/embeddings", batch)
                if r.status == 200:
                    break
                equal(r.status, 503, r.body.decode()[:300])
                check(r.json["error"]["retryable"], "it may be tried again")
                check(tries < 2000, "no progress")
                time.sleep(0.02)
            vectors += r.json["data"]
            time.sleep(0.02)
        stop.set()
        t.join(60 * SLOW)
        equal(len(vectors), 200, "documents")
        check(len(orders) >= 10 and set(orders) <= {200, 503}, f"orders {orders[:20]}")
        check(s.metric("inferd_model_loads_total", model=TINY_BERT, result="ok") >= 4, "loads")
        equal(s.metric("inferd_worker_deaths_total", model=TINY_BERT), None, "deaths")
        s.post("/ai/v1/models/unload", {"model": TINY_BERT})
        wait_for(lambda: s.metric("inferd_ledger_bytes", kind="weights") == 0, "an empty ledger")
        equal(s.metric("inferd_worker_processes"), 0, "processes")
        well(s, front)


def fake_server(**kw):
    fake = os.path.join(BIN, "tests", "fake-worker")
    if not os.path.exists(fake):
        raise Skip(f"{fake} is not built")

    def fill(d):
        with open(os.path.join(d, "m.gguf"), "w", encoding="utf-8") as f:
            f.write("load-ok")
    return Server(fill=fill, worker=fake, **kw)


@case
def half_frames_end_their_worker_alone():
    with fake_server() as s:
        for i, lie in enumerate(["half-frame", "huge-frame", "no-memfd", "garbage"]):
            r = s.post("/v1/completions", {"model": "m", "max_tokens": 9,
                                           "prompt": f"{lie} @{os.path.join(s.models, f'once{i}')}"})
            equal(r.status, 200, f"{lie}: {r.body.decode()[:200]}")
            equal(s.metric("inferd_worker_deaths_total", model="m.gguf", cause="protocol"), i + 1, lie)


main()
