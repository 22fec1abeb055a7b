"""pull_http.py - POST /ai/v1/models/pull: an administrator fetches a model into a running server."""
import os
import signal
import subprocess
import tempfile
import threading
import time

from inferd_hub import Fault, Hub, minilm
from inferd_test import BIN, SLOW, Server, case, check, equal, main, wait_for


def server(hub, **kw):
    return Server(fill=None, hub_endpoint=hub.url, allow_pull=True, **kw)


@case
def a_pulled_model_serves():
    with Hub() as hub, server(hub) as s:
        repo = hub.repo("a/mini", minilm())
        equal(s.post("/ai/v1/embed", {"model": "a/mini", "input": "x"}).status, 404, "not here yet")
        check(s.get("/ai/v1/models").json["allow_downloads"] is True, "it is said")
        r = s.post("/ai/v1/models/pull", {"model": "a/mini"})
        equal(r.status, 200, r.body)
        equal((r.json["status"], r.json["model"], r.json["commit"], r.json["unchanged"]),
              ("success", "a/mini", repo.commit, False), r.body)
        r = s.post("/ai/v1/embed", {"model": "a/mini", "input": "x"})
        equal(r.status, 200, r.body[:300])
        check(s.post("/ai/v1/models/pull", {"model": "a/mini"}).json["unchanged"] is True, "a second time")
        check(s.post("/ai/v1/models/pull", {"model": "a/mini", "again": True}).json["unchanged"] is False, "again")
        check(s.metric("inferd_fetches_total", kind="pull", result="OK") == 3, "metric")
        events = [e["event"] for e in s.log() if "event" in e]
        check("pull_started" in events and "pull_ended" in events, events)


@case
def progress_is_streamed():
    with Hub() as hub, server(hub) as s:
        hub.repo("a/b", {"m-Q8_0.gguf": bytes(3 << 20)})
        hub.faults.append(Fault("cdn", "m-Q8_0", slow=0.03))
        events = [d for _, d in s.sse("/ai/v1/models/pull", {"model": "a/b", "stream": True})]
        equal(events[-1], "[DONE]", "the end")
        equal((events[-2]["status"], events[-2]["bytes"]), ("success", 3 << 20), "the last word")
        moving = [e for e in events[:-2] if e["status"] == "fetching" and e["file"]]
        check(moving and all(e["total"] == 3 << 20 and e["files"] == 1 for e in moving), events[:3])
        check(sorted(e["completed"] for e in moving) == [e["completed"] for e in moving], "it grows")


@case
def failures_have_their_codes():
    with Hub() as hub, server(hub) as s:
        hub.repo("a/b", {"m-Q8_0.gguf": b"x" * 2000}).lie["m-Q8_0.gguf"] = {"lfs": {"sha256": "0" * 64, "size": 2000}}
        hub.repo("a/gated", {"m-Q8_0.gguf": b"x" * 2000}).gated = "t"
        hub.repo("a/odd", {"README.md": b"x"})
        for body, status, code, says in (
                ({"model": "nope"}, 400, "INVALID_REQUEST", "owner/name"), ({"model": "file:/etc"}, 400, "INVALID_REQUEST", "file:"),
                ({"model": 7}, 400, "INVALID_REQUEST", "model"), ({}, 400, "INVALID_REQUEST", "model"),
                ({"model": "a/none"}, 404, "MODEL_NOT_FOUND", "not at this hub"), ({"model": "a/odd"}, 404, "MODEL_NOT_FOUND", "no weights"),
                ({"model": "a/b"}, 409, "CONFLICT", "not what was announced"), ({"model": "a/gated"}, 502, "UPSTREAM_FAILURE", "401"),
                ({"model": f"{hub.url}/files/x.gguf"}, 409, "CONFLICT", "no address of the public internet")):
            r = s.post("/ai/v1/models/pull", body)
            equal((r.status, r.json.get("error")), (status, code), r.body)
            check(says in r.json["message"], r.body)
        with_stream = [d for _, d in s.sse("/ai/v1/models/pull", {"model": "a/b", "stream": True})]
        check(with_stream[-1].get("error") == "CONFLICT", with_stream[-1])
        equal(s.get("/healthz").status, 200, "the server lives on")


@case
def one_pull_of_a_model_at_a_time_and_two_in_all():
    with Hub() as hub, server(hub) as s:
        for name in "bcd":
            hub.repo(f"a/{name}", {"m-Q8_0.gguf": name.encode() * (2 << 20)})
        hub.faults.append(Fault("cdn", "m-Q8_0", slow=0.2, times=2))
        got = []
        threads = [threading.Thread(target=lambda n=n: got.append(s.post("/ai/v1/models/pull", {"model": f"a/{n}"}).status)) for n in "bc"]
        for t in threads:
            t.start()
        end = time.monotonic() + 20 * SLOW
        while (s.metric("inferd_fetches_active") or 0) < 2 and time.monotonic() < end:
            time.sleep(0.02)
        r = s.post("/ai/v1/models/pull", {"model": "a/d"})
        equal((r.status, r.json["retryable"]), (503, True), r.body)
        for t in threads:
            t.join()
        equal(got, [200, 200], "both")


@case
def a_client_that_leaves_stops_nothing():
    with Hub() as hub, server(hub) as s:
        hub.repo("a/b", {"m-Q8_0.gguf": bytes(2 << 20)})
        hub.faults.append(Fault("cdn", "m-Q8_0", slow=0.03))
        for _, d in s.sse("/ai/v1/models/pull", {"model": "a/b", "stream": True}):
            break
        end = time.monotonic() + 20 * SLOW
        while not os.path.exists(os.path.join(s.models, "a/b/m-Q8_0.gguf")) and time.monotonic() < end:
            time.sleep(0.05)
        check(os.path.exists(os.path.join(s.models, "a/b/m-Q8_0.gguf")), "it is there")


def inferd(*words, **kw):
    r = subprocess.run([os.path.join(BIN, "inferd"), *words], capture_output=True, text=True, timeout=60 * SLOW, check=False, **kw)
    equal(r.returncode, 0, f"{words}: {r.stderr}")
    return r.stdout.strip()


@case
def the_vaults_secret_goes_to_the_hub_alone():
    with tempfile.TemporaryDirectory(prefix="inferd-test-") as d, Hub() as hub:
        hub.repo("a/b", {"m-Q8_0.gguf": b"x" * 3000}).gated = "va-secret"
        vault, master = os.path.join(d, "vault"), os.path.join(d, "master")
        admin = inferd("keys", "create", "--tenant", "ops", "--admin", "--vault-dir", vault)
        user = inferd("keys", "create", "--tenant", "acme", "--vault-dir", vault)
        inferd("credentials", "make-key", master)
        inferd("credentials", "set", hub.url, "--vault-dir", vault, "--key-file", master, input="va-secret")
        with server(hub, vault_dir=vault, vault_key_file=master) as s:
            def pull(key):
                return s.post("/ai/v1/models/pull", {"model": "a/b"}, headers={"Authorization": f"Bearer {key}"} if key else {})

            equal((pull(None).status, pull(user).status), (401, 403), "who is no administrator")
            r = pull(admin)
            equal((r.status, r.json.get("status")), (200, "success"), r.body)
            equal(set(hub.seen("hub", "authorization")), {"Bearer va-secret"}, "the hub")
            equal(hub.seen("cdn", "authorization"), [], "the second origin")
            with open(os.path.join(vault, "audit.jsonl"), encoding="utf-8") as f:
                acts = f.read()
            check("model.pull" in acts and "va-secret" not in acts, acts)
            check("va-secret" not in "".join(s.log_lines), "no log line has it")


@case
def a_vault_that_is_silent_is_not_one_that_keeps_nothing():
    with tempfile.TemporaryDirectory(prefix="inferd-test-") as d, Hub() as hub:
        hub.repo("a/b", {"m-Q8_0.gguf": b"x" * (3 << 20)}).gated = "va-secret"
        vault, master = os.path.join(d, "vault"), os.path.join(d, "master")
        admin = {"Authorization": "Bearer " + inferd("keys", "create", "--tenant", "ops", "--admin", "--vault-dir", vault)}
        inferd("credentials", "make-key", master)
        inferd("credentials", "set", hub.url, "--vault-dir", vault, "--key-file", master, input="va-secret")
        with server(hub, vault_dir=vault, vault_key_file=master) as s:
            def processes():
                return s.get("/ai/v1/security", headers=admin).json["processes"]

            silent = next(p["pid"] for p in processes() if p["role"] == "vault")
            os.kill(silent, signal.SIGSTOP)
            try:
                r = s.post("/ai/v1/models/pull", {"model": "a/b"}, headers=admin)
            finally:
                os.kill(silent, signal.SIGCONT)
            equal((r.status, r.json["retryable"]), (503, True), r.body)
            check("the vault does not say which secret" in r.json["message"], r.body)
            equal(hub.paths("hub"), [], "the hub was asked nothing")
            check(b'inferd_fetches_total{kind="pull",result="BUSY"} 1' in s.get("/metrics", headers=admin).body, "it is counted")
            wait_for(lambda: any(e.get("event") == "pull_refused" and e["result"] == "BUSY" for e in s.log()), "and logged", 10)
            hub.faults.append(Fault("cdn", "m-Q8_0", slow=0.05))
            got = []
            t = threading.Thread(target=lambda: got.append(s.post("/ai/v1/models/pull", {"model": "a/b"}, headers=admin)))
            t.start()
            wait_for(lambda: any(p.get("errand") == "pull" for p in processes()), "its child says which walls it has", 10)
            t.join()
            equal(got[0].status, 200, got[0].body)
            check(not any("errand" in p for p in processes()), "and is gone")


@case
def a_longest_secret_arrives_whole_and_a_missing_one_is_named():
    longest = "v" * (8192 - len("Bearer "))
    with tempfile.TemporaryDirectory(prefix="inferd-test-") as d, Hub() as hub:
        hub.repo("a/b", {"m-Q8_0.gguf": b"x" * 3000}).gated = longest
        vault, master = os.path.join(d, "vault"), os.path.join(d, "master")
        admin = inferd("keys", "create", "--tenant", "ops", "--admin", "--vault-dir", vault)
        inferd("credentials", "make-key", master)
        with server(hub, vault_dir=vault, vault_key_file=master) as s:
            r = s.post("/ai/v1/models/pull", {"model": "a/b"}, headers={"Authorization": f"Bearer {admin}"})
            equal((r.status, r.json["error"]), (502, "UPSTREAM_FAILURE"), r.body)
            check(f"inferd credentials set {hub.url}" in r.json["message"] and "--token-file" not in r.json["message"], r.body)
        words = ["credentials", "set", hub.url, "--vault-dir", vault, "--key-file", master]
        r = subprocess.run([os.path.join(BIN, "inferd"), *words], input=longest + "v", capture_output=True, text=True, timeout=60, check=False)
        check(r.returncode != 0 and "8193 bytes: expected 1 to 8192" in r.stderr, r.stderr)
        inferd(*words, input=longest)
        hub.forget()
        with server(hub, vault_dir=vault, vault_key_file=master) as s:
            r = s.post("/ai/v1/models/pull", {"model": "a/b"}, headers={"Authorization": f"Bearer {admin}"})
            equal((r.status, r.json.get("status")), (200, "success"), r.body)
            equal(set(hub.seen("hub", "authorization")), {f"Bearer {longest}"}, "the hub gets all of it")


@case
def it_is_off_unless_allowed():
    with Hub() as hub, Server(fill=None, hub_endpoint=hub.url) as s:
        hub.repo("a/b", {"m-Q8_0.gguf": b"x"})
        r = s.post("/ai/v1/models/pull", {"model": "a/b"})
        equal((r.status, r.json["error"]), (403, "FORBIDDEN"), r.body)
        check("--allow-pull" in r.json["message"] and not hub.paths("hub"), r.body)


if __name__ == "__main__":
    main()
