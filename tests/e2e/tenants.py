"""tenants.py - many tenants on one server: limits of keys, times to come back, fair turns, deadlines, and who used what.

Keys are made with `inferd keys`. No case asserts how fast the machine is: a noisy neighbour is judged by what the quiet one gets
beside it (exact figures: docs/performance.md, made by tests/bench/run tenants).
"""
import json
import os
import signal
import tempfile
import threading
import time

from inferd_keys import keys
from inferd_test import SLOW, TINY_BERT, TINY_GEMMA, Server, Skip, case, check, equal, main, wait_for

EMBED = "/v1/embeddings"
COMP = "/v1/completions"
TEXT = {"model": TINY_BERT, "input": "one text"}
GEN = {"model": TINY_GEMMA, "prompt": "a", "max_tokens": 8, "ignore_eos": True, "temperature": 0}
LONG = {**GEN, "max_tokens": 4000}


class Tenants:
    """A server with a key for each tenant: Tenants(a=("--weight", "2"), b=()) -> .post("a", ...)."""

    def __init__(self, server=None, **limits):
        self.folder = os.path.join(tempfile.mkdtemp(prefix="inferd-test-"), "vault")
        self.key = {name: keys(self.folder, "create", "--tenant", name, *args) for name, args in limits.items()}
        self.key["ops"] = keys(self.folder, "create", "--tenant", "ops", "--admin")
        self.s = Server(vault_dir=self.folder, **(server or {}))

    def __enter__(self):
        self.s.__enter__()
        return self

    def __exit__(self, *exc):
        self.s.__exit__(*exc)

    def headers(self, tenant, **more):
        return {"Authorization": f"Bearer {self.key[tenant]}", **more}

    def post(self, tenant, path, body, **headers):
        return self.s.post(path, body, headers=self.headers(tenant, **{k.replace("_", "-"): v for k, v in headers.items()}))

    def metric(self, line):
        """The value of a series, written as in the page; 0 when it is not there."""
        for row in self.s.get("/metrics", headers=self.headers("ops")).body.decode().splitlines():
            if row.startswith(line + " "):
                return float(row.rsplit(" ", 1)[1])
        return 0.0


def refused(r, code, what):
    """A 429 in OpenAI's shape whose times agree; returns them in seconds."""
    equal((r.status, r.json["error"]["code"], r.json["error"]["retryable"]), (429, code, True), what)
    ms, s = r.json["error"]["retry_after_ms"], int(r.headers["retry-after"])
    check(ms >= 1 and s == max(1, -(-ms // 1000)), f"{what}: retry_after_ms {ms}, Retry-After {s}")
    equal(r.json["error"]["reason"], "inference_admission", what)
    return ms / 1000


@case
def requests_a_minute():
    with Tenants(a=("--requests-per-minute", "60"), b=("--requests-per-minute", "3")) as t:
        begin = time.monotonic()
        n = 0
        while (r := t.post("a", EMBED, TEXT)).status == 200:
            equal(r.headers["x-ratelimit-limit-requests"], "60", "the limit")
            check(0 <= int(r.headers["x-ratelimit-remaining-requests"]) <= 59, "what is left")
            check("x-ratelimit-limit-tokens" not in r.headers, "no limit of tokens, nothing said of it")
            n += 1
        took = time.monotonic() - begin
        check(60 <= n <= 60 + took + 1, f"{n} in {took:.2f} s, a burst of 60 and one a second")
        wait = refused(r, "RATE_LIMITED", "one more")
        equal(r.headers["x-ratelimit-remaining-requests"], "0", "nothing is left")
        check(wait <= 1, f"a second at most, not {wait}")
        time.sleep(wait)
        equal(t.post("a", EMBED, TEXT).status, 200, "at the time that was told")
        for _ in range(3):  # another tenant, another bucket
            equal(t.post("b", EMBED, TEXT).status, 200, "within its limit")
        check(19 <= refused(t.post("b", EMBED, TEXT), "RATE_LIMITED", "its fourth") <= 20, "a third of a minute")
        check(t.metric('inferd_tenant_refused_total{tenant="a"}') >= 1, "refusals by tenant")
        check(t.metric('inferd_admission_refused_total{reason="requests"}') >= 2, "refusals by reason")


@case
def tokens_a_minute_and_a_day():
    with Tenants(a=("--tokens-per-minute", "100"), d=("--tokens-per-day", "40")) as t:
        r = t.post("a", EMBED, TEXT)
        used = r.json["usage"]["total_tokens"]
        equal(r.status, 200, "a small one")
        left = int(r.headers["x-ratelimit-remaining-tokens"])
        check(100 - used <= left <= 100 - used + 2, f"{used} used, {left} left: the worker's count is charged, not the guess")
        r = t.post("a", COMP, {**GEN, "max_tokens": 99})  # with its prompt 100: the whole bucket
        check(refused(r, "RATE_LIMITED", "not now") <= 60, "within the minute")
        r = t.post("a", COMP, {**GEN, "max_tokens": 100})
        equal((r.status, r.json["error"]["code"], r.json["error"]["retryable"]), (413, "REQUEST_OVER_QUOTA", False), "never")
        equal((r.json["error"]["n_tokens"], r.json["error"]["limit"]), (101, 100), "its numbers")
        check("retry-after" not in r.headers, "no time would help")
        equal(t.post("d", COMP, {**GEN, "max_tokens": 30}).status, 200, "within the day")
        r = t.post("d", COMP, {**GEN, "max_tokens": 30})
        wait = refused(r, "QUOTA_EXCEEDED", "the day's tokens are used up")
        to_midnight = 86400 - time.time() % 86400
        check(abs(wait - to_midnight) < 5 or wait < 5, f"until midnight UTC: {wait}, not {to_midnight}")
        check(t.metric('inferd_tenant_tokens_total{tenant="d",kind="answer"}') == 30, "tokens by tenant")


@case
def the_tokens_of_a_day_outlive_the_server():
    if 86400 - time.time() % 86400 < 120:
        raise Skip("it is nearly midnight UTC")

    def asked(t, what):
        return refused(t.post("d", COMP, {**GEN, "max_tokens": 30}), "QUOTA_EXCEEDED", what)

    def again(t, sig):
        t.s.proc.send_signal(sig)
        t.s.proc.wait(30 * SLOW)
        t.s.start()

    with Tenants(d=("--tokens-per-day", "40")) as t:
        usage = os.path.join(t.folder, "usage")
        equal(t.post("d", COMP, {**GEN, "max_tokens": 30}).status, 200, "within the day")
        asked(t, "used up")
        again(t, signal.SIGTERM)
        asked(t, "after a restart")
        equal(os.stat(usage).st_mode & 0o777, 0o600, "its mode")
        again(t, signal.SIGTERM)
        again(t, signal.SIGKILL)
        asked(t, "after restarts in which nothing was asked, the last without a last word")
        for spoilt in (b"", b"no such file"):
            t.s.proc.send_signal(signal.SIGTERM)
            t.s.proc.wait(30 * SLOW)
            with open(usage, "wb") as f:
                f.write(spoilt)
            t.s.start()
            equal(sum(e.get("event") == "quota_days_lost" for e in t.s.log()), bool(spoilt), "an empty file is a new one, a broken one is named")
            equal(t.post("d", COMP, {**GEN, "max_tokens": 30}).status, 200, "counted from zero")
            asked(t, "and on")
        time.sleep(6)  # written meanwhile
        again(t, signal.SIGKILL)
        asked(t, "after a crash")
        with Server(models=t.s.models, vault_dir=t.folder) as other:
            check(any("another server" in e.get("error", "") for e in other.log() if e.get("event") == "quota_days_not_kept"), "one keeps them")


@case
def requests_at_once():
    with Tenants(a=("--concurrency", "2"), b=()) as t:
        streams = [t.s.sse(COMP, {**LONG, "stream": True}, headers=t.headers("a")) for _ in range(2)]
        for st in streams:
            next(st)
        refused(t.post("a", COMP, GEN), "RATE_LIMITED", "a third")
        equal(t.post("b", COMP, GEN).status, 200, "another tenant")
        streams[0].close()  # the client leaves: its place is free
        wait_for(lambda: t.post("a", COMP, GEN).status == 200, "the place of who left")
        streams[1].close()


def usage_of(t, n):
    wait_for(lambda: sum(e.get("event") == "usage" for e in t.s.log()) >= n, f"{n} records", 5)
    return [e for e in t.s.log() if e.get("event") == "usage"]


@case
def each_request_leaves_a_record_of_what_it_used():
    with Tenants(a=(), b=("--requests-per-minute", "1")) as t:
        r = t.post("a", COMP, GEN)
        equal(r.status, 200, "generated")
        two = t.post("a", COMP, {**GEN, "prompt": ["one two", "three four five"]}, X_Request_Id="i" * 64)
        equal(two.status, 200, "two prompts")
        e = t.post("b", EMBED, TEXT)
        equal(e.status, 200, "embedded")
        equal(t.post("b", EMBED, TEXT).status, 429, "refused: no record")
        equal(t.post("a", COMP, {**GEN, "max_tokens": -1}).status, 400, "a mistake: no record")
        seen = usage_of(t, 3)
        equal([(u["tenant"], u["model"]) for u in seen], [("a", TINY_GEMMA), ("a", TINY_GEMMA), ("b", TINY_BERT)], "whose and which")
        for u, answer in zip(seen, (r, two)):
            told = answer.json["usage"]
            equal((u["prompt_tokens"], u["answer_tokens"]), (told["prompt_tokens"], told["completion_tokens"]), "tokens")
            equal(u["id"], answer.headers["x-request-id"], "the request's id")
        equal(seen[1]["id"], "i" * 64, "the longest id")
        check(all(u["key_id"] for u in seen), "whose key")
        for tenant in "ab":
            for kind, name in (("prompt", "prompt_tokens"), ("answer", "answer_tokens")):
                total = t.metric(f'inferd_tenant_tokens_total{{tenant="{tenant}",kind="{kind}"}}')
                equal(total or 0, sum(u[name] for u in seen if u["tenant"] == tenant), f"{tenant}'s {kind}")
        check(not any("one two" in line for line in t.s.log_lines), "no text in the log")
    with Tenants(server={"usage_log": False}, a=()) as t:
        equal(t.post("a", COMP, GEN).status, 200, "generated")
        time.sleep(0.2)
        check(not any(e.get("event") == "usage" for e in t.s.log()), "off")


@case
def deadlines():
    with Tenants(server={"max_seqs": 1}, a=()) as t:
        equal(t.post("a", COMP, GEN).status, 200, "the model is loaded")
        begin = time.monotonic()
        r = t.post("a", COMP, LONG, X_Request_Timeout="0.03")
        equal((r.status, r.json["error"]["code"], r.json["error"]["retryable"]), (504, "DEADLINE_EXCEEDED", False), "while running")
        check("retry-after" not in r.headers, "no time to come back")
        check(time.monotonic() - begin < 10, "it stops")
        before = t.metric('inferd_tenant_tokens_total{tenant="a",kind="answer"}')
        stop, out = threading.Event(), []
        threads = flood(t, "a", COMP, LONG, 16, stop, out)  # one at a time: the line is seconds long
        wait_for(lambda: t.metric(f'inferd_tasks_active{{model="{TINY_GEMMA}"}}') == 16, "the line")
        r = t.post("a", COMP, GEN, X_Request_Timeout="0.1")
        equal((r.status, r.json["error"]["code"]), (504, "DEADLINE_EXCEEDED"), "in the queue")
        check("queued" in r.json["error"]["message"], r.json["error"]["message"])
        stop.set()
        for th in threads:
            th.join()
        told = sum(json.loads(o[3])["usage"]["completion_tokens"] for o in out)
        equal(t.metric('inferd_tenant_tokens_total{tenant="a",kind="answer"}'), before + told, "it never started")
        for bad in ("0", "-1", "1s", ""):
            equal(t.post("a", COMP, GEN, X_Request_Timeout=bad).status, 400, f"X-Request-Timeout: {bad!r}")


def flood(t, tenant, path, body, n, stop, out):
    """n clients that ask again at once, whatever they are told."""
    def one():
        c = t.s.conn()
        data = json.dumps(body)
        while not stop.is_set():
            begin = time.monotonic()
            c.request("POST", path, body=data, headers=t.headers(tenant, **{"Content-Type": "application/json"}))
            r = c.getresponse()
            got = r.read()
            out.append((r.status, time.monotonic() - begin, r.headers.get("Retry-After"), got))
        c.close()

    threads = [threading.Thread(target=one, daemon=True) for _ in range(n)]
    for th in threads:
        th.start()
    return threads


def paced(t, tenant, path, body, per_s, seconds):
    took, end = [], time.monotonic() + seconds
    answers = set()
    while time.monotonic() < end:
        begin = time.monotonic()
        r = t.post(tenant, path, body)
        equal(r.status, 200, f"tenant {tenant}: {r.body[:300]!r}")
        took.append(time.monotonic() - begin)
        answers.add(json.dumps(r.json.get("data") or [c["text"] for c in r.json["choices"]]))
        time.sleep(max(0.0, 1 / per_s - took[-1]))
    return sorted(took), answers


@case
def a_noisy_neighbour_is_turned_away():
    """a may ask 5 times a second and floods; b keeps to what it asks and is never refused."""
    with Tenants(a=("--requests-per-minute", "300"), b=()) as t:
        quiet, alone = paced(t, "b", EMBED, TEXT, 20, 2)
        stop, out = threading.Event(), []
        begin = time.monotonic()
        threads = flood(t, "a", EMBED, TEXT, 4, stop, out)
        noisy, beside = paced(t, "b", EMBED, TEXT, 20, 3)
        stop.set()
        for th in threads:
            th.join()
        passed = time.monotonic() - begin
        ok, no = [o for o in out if o[0] == 200], [o for o in out if o[0] == 429]
        equal(len(ok) + len(no), len(out), "nothing but 200 and 429")
        check(300 <= len(ok) <= 300 + 5 * passed + 1 or len(ok) == len(out), f"{len(ok)} let in within {passed:.1f} s: a burst of 300, 5 a second")
        check(len(no) > len(ok), f"{len(no)} refused")
        check(all(o[2] == "1" for o in no), "each is told to come back in a second")
        equal(beside, alone, "b's answers are the same bytes")
        check(noisy[len(noisy) // 2] < 3 * quiet[len(quiet) // 2] + 0.05, f"b's median: {quiet[len(quiet) // 2]:.4f} s alone, {noisy[len(noisy) // 2]:.4f} s beside the flood")


@case
def a_flood_without_limits_waits_for_its_turn():
    """Nobody has a limit: 24 clients of a fill the model's queue; b alone gets its turn as soon as there is room."""
    body = {**GEN, "max_tokens": 48}
    with Tenants(server={"max_seqs": 2}, a=(), b=()) as t:
        _, alone = paced(t, "b", COMP, body, 100, 0.5)
        stop, out = threading.Event(), []
        threads = flood(t, "a", COMP, body, 24, stop, out)
        wait_for(lambda: len(out) > 24, "the flood")
        took, beside = paced(t, "b", COMP, body, 100, 3)
        stop.set()
        for th in threads:
            th.join()
        of_a = sorted(o[1] for o in out if o[0] == 200)
        equal(len(of_a), len(out), "nobody is refused")
        equal(beside, alone, "b's answers are the same bytes")
        check(took[len(took) // 2] < of_a[len(of_a) // 2] / 2, f"b waits {took[len(took) // 2]:.3f} s, a client of the flood {of_a[len(of_a) // 2]:.3f} s")


@case
def a_full_queue_makes_room():
    """max_queue 8, all of one tenant: it may have them; then the other has a right to half."""
    with Tenants(server={"max_seqs": 1, "max_queue": 8}, a=(), b=()) as t:
        equal(t.post("a", COMP, GEN).status, 200, "the model is loaded")
        out = []

        def one(tenant):
            r = t.post(tenant, COMP, {**GEN, "max_tokens": 300})
            out.append((tenant, r.status, r.headers.get("retry-after"), r.json))

        threads = [threading.Thread(target=one, args=("a",)) for _ in range(8)]
        for th in threads:
            th.start()
        wait_for(lambda: t.metric(f'inferd_tasks_active{{model="{TINY_GEMMA}"}}') == 8, "the queue is full")
        r = t.post("a", COMP, GEN)
        equal((r.status, r.json["error"]["code"], r.json["error"]["reason"], r.headers["retry-after"]), (503, "MODEL_RESOURCE_BUSY", "inference_admission", "1"), "a ninth of a")
        more = [threading.Thread(target=one, args=("b",)) for _ in range(2)]
        for th in more:
            th.start()
        for th in threads + more:
            th.join()
        equal([o[1] for o in out if o[0] == "b"], [200, 200], "b was let in")
        lost = [o for o in out if o[1] != 200]
        equal([(o[0], o[1], o[2], o[3]["error"]["code"], o[3]["error"]["reason"]) for o in lost],
              [("a", 503, "1", "MODEL_RESOURCE_BUSY", "inference_admission")] * len(lost), "who made room")
        check(len(lost) <= 2, f"{len(lost)} made room for two")


@case
def who_used_what():
    with Tenants(a=(), b=()) as t:
        r = t.post("a", COMP, GEN)
        t.post("b", EMBED, TEXT)
        u = r.json["usage"]
        equal((t.metric('inferd_tenant_tokens_total{tenant="a",kind="prompt"}'), t.metric('inferd_tenant_tokens_total{tenant="a",kind="answer"}')),
              (u["prompt_tokens"], u["completion_tokens"]), "tokens of a")
        equal(t.metric('inferd_tenant_requests_total{tenant="b"}'), 1, "requests of b")
        wait_for(lambda: sum(e.get("event") == "http_request" and e.get("tenant") in ("a", "b") for e in t.s.log()) >= 2, "the access log")
        for e in t.s.log():
            if e.get("event") == "http_request" and e.get("tenant") in t.key:
                equal(e["key_id"], t.key[e["tenant"]].split("_")[1], "the key's public part")
        check(not any(k in line for line in t.s.log_lines for k in t.key.values()), "no key in the log")


@case
def prompts_are_cached_by_tenant():
    body = {**GEN, "prompt": "the same long beginning " * 12}
    with Tenants(server={"prompt_cache_min_tokens": 16}, a=(), b=(), c=("--cache-percent", "1")) as t:
        cached = lambda who: t.post(who, COMP, body).json["usage"]["prompt_tokens_details"]["cached_tokens"]
        equal(cached("a"), 0, "the first time")
        check(cached("a") > 0, "a's own is found again")
        equal(cached("b"), 0, "b cannot see what a asked")
        text = t.post("a", COMP, body).json["choices"]
        equal(t.post("c", COMP, body).json["choices"], text, "and the answer is the same")


main()
