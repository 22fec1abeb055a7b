"""keys.py - API keys from the command line to the answer: who is let in, who is not, and that no key is left anywhere.

The vault, the front and the command all take part: keys are made with `inferd keys`, asked for over HTTP, rotated and
revoked while requests run. Reading /proc/PID/mem needs root or the same user with a dumpable process: else that case skips.
"""
import json
import os
import random
import shutil
import re
import signal
import subprocess
import tempfile
import threading
import time

from inferd_keys import bearer, folder, hup, keys
from inferd_test import (BIN, PRESET, SLOW, TINY_BERT, TINY_GEMMA, Server, Skip, case, check, children, equal, free_port, main,
                         wait_for)

EMBED = "/ai/v1/embed"
TEXT = {"model": TINY_BERT, "input": ["one text"]}
SANITIZED = PRESET in ("asan", "tsan")  # memory is not searched there: see no_key_is_left_in_memory_or_logs


@case
def who_is_let_in():
    d = folder()
    good = keys(d, "create", "--tenant", "acme")
    admin = keys(d, "create", "--tenant", "ops", "--admin")
    with Server(vault_dir=d) as s:
        for path in ("/healthz", "/livez", "/readyz", "/startupz"):  # probes need no key
            equal(s.get(path).status, 200, path)
        r = s.post("/v1/embeddings", TEXT)
        equal((r.status, r.json["error"]["code"], r.json["error"]["type"]), (401, "UNAUTHENTICATED", "authentication_error"), "no key, /v1")
        equal(r.headers["www-authenticate"], 'Bearer realm="inferd"', "the challenge")
        r = s.post(EMBED, TEXT)
        equal((r.status, r.json["error"]), (401, "UNAUTHENTICATED"), "no key, /ai/v1")
        wrong = good[:-1] + ("A" if good[-1] != "A" else "B")
        for key in (wrong, "sk-something", "inf_aaaaaaaaaaaa_" + good[17:], "x" * 5000, "Bearer"):
            r = s.post(EMBED, TEXT, headers=bearer(key))
            equal((r.status, r.json["error"]), (401, "UNAUTHENTICATED"), f"key of {len(key)} letters")
        for h in (bearer(good), {"x-api-key": good}, {"Authorization": f"bearer  {good}"}):
            equal(s.post(EMBED, TEXT, headers=h).status, 200, f"{list(h)}")
        r = s.post("/ai/v1/models/load", {"model": TINY_BERT}, headers=bearer(good))
        equal((r.status, r.json["error"]), (403, "FORBIDDEN"), "a load by who is no administrator")
        equal(s.post("/ai/v1/models/load", {"model": TINY_BERT}, headers=bearer(admin)).status, 200, "a load by an administrator")
        text = s.get("/metrics", headers=bearer(admin)).body.decode()
        for what in ('inferd_auth_results_total{result="no_key"} 2', 'inferd_auth_results_total{result="bad_key"} 5',
                     'inferd_auth_results_total{result="scope"} 1', "inferd_vault_keys 2", 'inferd_auth_cache_total{outcome="hit"}'):
            check(what in text, f"metric {what}")
        equal(s.get("/metrics").status, 401, "metrics without a key")
        def acts_of():
            return [json.loads(line) for line in open(os.path.join(d, "audit.jsonl"), encoding="utf-8")]

        wait_for(lambda: len(acts_of()) == 3, "the line of the load", 10)
        acts = acts_of()
        equal([a["act"] for a in acts], ["key.create", "key.create", "model.load"], "the audit log")
        equal(acts[2]["who"], admin.split("_")[1], "who loaded")


@case
def what_a_key_is_narrowed_to():
    d = folder()
    bert = keys(d, "create", "--model", "minil*", "--endpoints", "embed,watch")
    with Server(vault_dir=d) as s:
        h = bearer(bert)
        equal([m["id"] for m in s.get("/v1/models", headers=h).json["data"]], [TINY_BERT], "the models that it sees")
        equal(s.post(EMBED, TEXT, headers=h).status, 200, "its endpoint")
        r = s.post("/v1/completions", {"model": TINY_GEMMA, "prompt": "a"}, headers=h)
        equal((r.status, r.json["error"]["code"]), (403, "FORBIDDEN"), "another endpoint")
        r = s.post(EMBED, {**TEXT, "model": TINY_GEMMA}, headers=h)
        equal((r.status, r.json["error"]), (403, "FORBIDDEN"), "another model")
        equal(s.get(f"/v1/models/{TINY_GEMMA}", headers=h).status, 403, "another model's card")
        equal(s.get("/metrics", headers=h).status, 200, "watching")


@case
def what_the_processes_say_of_their_walls():
    d = folder()
    key = keys(d, "create", "--endpoints", "watch")
    blind = keys(d, "create", "--endpoints", "embed")
    with Server(vault_dir=d, preload=[TINY_BERT], allow_pull=True, otlp_endpoint=f"http://127.0.0.1:{free_port()}") as s:
        equal(s.get("/ai/v1/security", headers=bearer(blind)).status, 403, "a key that may not watch")
        page = s.get("/ai/v1/security", headers=bearer(key)).json
        equal((page["keys_required"], page["keys"], page["tls"]), (True, 2, False), "the page")
        roles = {p["role"]: p for p in page["processes"]}
        equal([p["role"] for p in page["processes"]], ["front", "vault", "fetcher", "tracer", "launcher", "worker"], "roles")
        equal(roles["launcher"]["pid"], s.proc.pid, "the launcher")
        equal(sorted(p["pid"] for p in page["processes"] if p["role"] != "launcher"), sorted(pid for pid, _ in children(s.proc.pid)),
              "every process of the server, and no other")
        for p in page["processes"]:
            held = {w["name"] for w in p["layers"] if w["holds"]}
            names = {"no_new_privs"} | (set() if p["role"] == "launcher" else {"seccomp"}) | (set() if SANITIZED else {"not_dumpable"})
            check(p["role"] == "worker" or names <= held, f"{p['role']}: {held}")
            # what the kernel says of it, from outside
            with open(f"/proc/{p['pid']}/status", encoding="ascii") as f:
                text = f.read()
            check("NoNewPrivs:\t1" in text and ("Seccomp:\t2" in text) == (p["role"] != "launcher"), f"{p['role']}: {text}")
        vault = {w["name"] for w in roles["vault"]["layers"] if w["holds"]}
        check({"landlock", "seccomp", "no_capabilities", "not_dumpable"} <= vault, f"the vault's layers: {vault}")
        equal({w["name"] for w in roles["fetcher"]["layers"] if w["holds"]},
              {"rlimits", "not_dumpable", "no_new_privs", "landlock", "seccomp"}, "the fetcher's")
        equal([(e["errand"], e["allowed"], e["network"], e["writes"]) for e in roles["fetcher"]["errands"]],
              [("media", False, True, False), ("pull", True, True, True)], "what its children may")
        equal({w["name"] for w in roles["tracer"]["layers"] if w["holds"]}, {"rlimits", "no_new_privs", "not_dumpable", "seccomp"}, "the tracer's")


@case
def walls_that_are_not_there_are_not_said_to_hold():
    d = folder()
    keys(d, "create")
    with Server(sandbox="off", vault_dir=d, require_auth="off", allow_pull=True, otlp_endpoint=f"http://127.0.0.1:{free_port()}") as s:
        page = s.get("/ai/v1/security").json
        equal(page["sandbox"], "off", "the mode")
        for p in page["processes"]:
            if p["role"] != "worker":
                held = {w["name"] for w in p["layers"] if w["holds"]}
                check(held <= {"rlimits", "no_new_privs"} and p["layers"], f"{p['role']}: {p['layers']}")
        wait_for(lambda: {e["event"] for e in s.log() if e.get("event", "").endswith("_sandbox_off")} ==
                 {f"{r}_sandbox_off" for r in ("front", "vault", "fetcher", "tracer")}, "each says so", 10)


@case
def commands_send_the_key_too():
    d = folder()
    key = keys(d, "create", "--admin")
    with Server(vault_dir=d) as s:
        cmd = [os.path.join(BIN, "inferd"), "load", TINY_BERT, "--server", f"http://127.0.0.1:{s.port}"]
        r = subprocess.run(cmd, capture_output=True, text=True, timeout=60)
        check(r.returncode == 1 and "asks for an API key" in r.stderr, r.stderr)
        r = subprocess.run(cmd, capture_output=True, text=True, timeout=60, env={**os.environ, "INFERD_API_KEY": key})
        equal(r.returncode, 0, r.stderr)
        cmd[1:3] = ["list"]
        r = subprocess.run(cmd, capture_output=True, text=True, timeout=60, env={**os.environ, "INFERD_API_KEY": key})
        check(r.returncode == 0 and TINY_BERT in r.stdout, f"a GET has the key too: {r.stderr}")


@case
def rotated_revoked_expired():
    d = folder()
    first = keys(d, "create")
    kid = first.split("_")[1]
    short = keys(d, "create", "--expires", "6s")
    with Server(vault_dir=d) as s:
        equal(s.post(EMBED, TEXT, headers=bearer(first)).status, 200, "the first secret")
        equal(s.post(EMBED, TEXT, headers=bearer(short)).status, 200, "a key that will expire")
        second = keys(d, "rotate", kid, "--grace", "1h")
        check(second != first and second.split("_")[1] == kid, "same id, new secret")
        equal(s.post(EMBED, TEXT, headers=bearer(second)).status, 401, "the new one before the server heard of it")
        hup(s)
        for k in (first, second):
            equal(s.post(EMBED, TEXT, headers=bearer(k)).status, 200, "both within the grace")
        third = keys(d, "rotate", kid, "--grace", "0")
        hup(s)
        equal([s.post(EMBED, TEXT, headers=bearer(k)).status for k in (first, second, third)], [401, 401, 200], "no grace")
        keys(d, "revoke", kid)
        hup(s)
        equal(s.post(EMBED, TEXT, headers=bearer(third)).status, 401, "revoked")
        wait_for(lambda: s.post(EMBED, TEXT, headers=bearer(short)).status == 401, "the end of the key that expires", 20)
        check("expired" in s.post(EMBED, TEXT, headers=bearer(short)).json["message"], "it says that it expired")
        # a file that cannot be read leaves the old keys in force
        keys(d, "rotate", short.split("_")[1])
        with open(os.path.join(d, "keys.json"), "w", encoding="utf-8") as f:
            f.write("{")
        live = keys(folder(), "create")
        hup(s)
        equal(s.post(EMBED, TEXT, headers=bearer(live)).status, 401, "a key of another folder")
        check(any(e.get("event") == "vault_reload_failed" for e in s.log()), "the failed reload is in the log")
        equal(s.get("/readyz").status, 200, "ready")


@case
def how_a_start_is_refused():
    d = folder()
    keys(d, "create")
    os.chmod(d, 0o755)

    def ends(**args):
        s = Server(ready=False, **args)
        s.start()
        status = s.proc.wait(20 * SLOW)
        time.sleep(0.1)
        log = "".join(s.log_lines)
        s.stop()
        return status, log

    status, log = ends(vault_dir=d)
    check(status == 1 and "open to others" in log and '"vault_start_failed"' in log, f"an open folder: {status} {log[-300:]}")
    os.chmod(d, 0o700)
    status, log = ends(vault_dir=d + "x")
    check(status == 1 and "No such file" in log, f"no folder: {log[-300:]}")
    with open(os.path.join(d, "keys.json"), "a", encoding="utf-8") as f:
        f.write("x")
    status, log = ends(vault_dir=d)
    check(status == 1 and "keys.json" in log, f"a broken file: {log[-300:]}")
    status, log = ends(require_auth="on")
    check(status == 2 and "vault_dir" in log, f"keys asked for without a folder: {log[-300:]}")
    status, log = ends(host="0.0.0.0")
    check(status == 2 and "no API key is asked for" in log, f"a public host without keys: {log[-300:]}")


@case
def keys_that_are_optional():
    d = folder()
    key = keys(d, "create", "--model", "nothing")
    with Server(vault_dir=d, require_auth="off") as s:
        equal(s.post(EMBED, TEXT).status, 200, "no key")
        equal(s.post(EMBED, TEXT, headers=bearer("wrong")).status, 401, "a wrong key")
        equal(s.post(EMBED, TEXT, headers=bearer(key)).status, 403, "a key and what it is narrowed to")


@case
def a_vault_that_dies_ends_the_server():
    d = folder()
    key = keys(d, "create")
    with Server(vault_dir=d) as s:
        equal(s.post(EMBED, TEXT, headers=bearer(key)).status, 200, "before")
        vault = min(pid for pid, _ in children(s.proc.pid))  # the first that was forked
        os.kill(vault, signal.SIGKILL)
        equal(s.proc.wait(20 * SLOW), 1, "exit status")
        time.sleep(0.1)
        check(any(e.get("event") == "role_ended" and e.get("role") == "vault" for e in s.log()), "the log names the vault")


def memory_has(pid, needle):
    """Whether a process's readable memory holds the bytes; None when it may not be read."""
    try:
        maps = open(f"/proc/{pid}/maps", encoding="ascii", errors="replace").read().splitlines()
        mem = open(f"/proc/{pid}/mem", "rb", 0)
    except OSError:
        return None
    with mem:
        for line in maps:
            m = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+) ", line)
            if not m or m[3][0] != "r" or "[vvar" in line or "[vsyscall" in line:
                continue
            at, end = int(m[1], 16), int(m[2], 16)
            tail = b""
            while at < end:
                try:
                    mem.seek(at)
                    block = mem.read(min(1 << 24, end - at))
                except (OSError, ValueError, OverflowError):
                    break
                if not block:
                    break
                if needle in tail + block:
                    return True
                tail = block[-len(needle):]
                at += len(block)
    return False


@case
def no_key_is_left_in_memory_or_logs():
    """Under load of every kind of request, a canary's secret is in no process but the vault, and in no log line."""
    if SANITIZED:
        raise Skip("a sanitizer keeps freed memory as it was, and maps terabytes of its own")
    d = folder()
    canary = keys(d, "create")
    secret = canary.split("_", 2)[2]
    with Server(vault_dir=d, log_level="debug", preload=[TINY_BERT]) as s:
        equal(s.post(EMBED, TEXT, headers=bearer(canary)).status, 200, "the canary works")
        stop = time.monotonic() + 4
        seen = []

        def load(i):
            h = [bearer(canary), {"x-api-key": canary}][i % 2]
            while time.monotonic() < stop:
                seen.append(s.post(EMBED, TEXT, headers=h).status)
                seen.append(s.post("/v1/nothing", TEXT, headers=h).status)
                s.raw(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Api-Key: " + canary.encode() + b"\r\n\r\n"  # two at once
                      b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Api-Key: " + canary.encode() + b"\r\n\r\n", 5)
                s.raw(b"GET /v1/models HTTP/1.1\r\nX-Api-Key: " + canary.encode() + b"\n\r\n", 5)  # malformed
                s.raw(b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\nX-Api-Key: " + canary.encode() + b"\r\n\r\n{", 0.1)

        threads = [threading.Thread(target=load, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        check(seen.count(200) > 20 and seen.count(404) > 20, f"the load ran: {len(seen)}")
        s.proc.send_signal(signal.SIGHUP)  # and once more through the vault
        time.sleep(0.2)
        equal(s.post(EMBED, TEXT, headers=bearer(canary)).status, 200, "after a reload")
        parts = [pid for pid, _ in children(s.proc.pid)]
        vault = min(parts)
        found = {pid: memory_has(pid, secret.encode()) for pid in [s.proc.pid] + parts if pid != vault}
        # that the search can find anything: the model's name is in the front
        check("".join(s.log_lines).find(secret) < 0, "no log line has the secret")
        for name in os.listdir(d):
            check(secret not in open(os.path.join(d, name), encoding="utf-8", errors="replace").read(), f"{name} has the secret")
        if None in found.values():
            raise Skip("the memory of the server's processes may not be read here (needs root)")
        check(any(memory_has(pid, TINY_BERT.encode()) for pid in found), "the search finds what is there")
        check(not any(found.values()), f"the secret is in the memory of {[p for p, f in found.items() if f]}")


@case
def a_full_disk_stops_acts_and_not_answers():
    """A folder in place of the audit log fails like a full disk: nothing can be appended."""
    d = folder()
    key = keys(d, "create", "--admin")
    with Server(vault_dir=d) as s:
        h = bearer(key)
        log = os.path.join(d, "audit.jsonl")
        os.rename(log, log + ".kept")
        os.mkdir(log, 0o700)
        s.post("/ai/v1/models/load", {"model": TINY_BERT}, headers=h)  # this one finds out
        wait_for(lambda: any(e.get("event") == "audit_failed" for e in s.log()), "the failed line")
        time.sleep(0.1)
        r = s.post("/ai/v1/models/unload", {"model": TINY_BERT}, headers=h)
        check(r.status == 503 and "audit log" in r.json["message"], f"an act: {r.status} {r.body}")
        equal(s.post(EMBED, TEXT, headers=h).status, 200, "an answer")
        equal(keys(d, "create", ok=False).returncode, 1, "a command")
        equal(len(keys(d, "list", "--json").splitlines()), 1, "nothing was made")
        os.rmdir(log)
        os.rename(log + ".kept", log)
        s.post("/ai/v1/models/unload", {"model": TINY_BERT}, headers=h)  # this one finds out
        time.sleep(0.2)
        equal(s.post("/ai/v1/models/unload", {"model": TINY_BERT}, headers=h).status, 200, "an act when it works again")


@case
def many_clients_with_many_keys():
    d = folder()
    made = [keys(d, "create", "--tenant", f"t{i}") for i in range(12)]
    with Server(vault_dir=d, preload=[TINY_BERT]) as s:
        out = []

        def client(i):
            for n in range(25):
                good = n % 3 != 2
                key = made[i] if good else made[i][:-4] + "0000"
                out.append((good, s.post(EMBED, TEXT, headers=bearer(key)).status))

        threads = [threading.Thread(target=client, args=(i,)) for i in range(12)]
        for t in threads:
            t.start()
        for _ in range(5):  # the cache is emptied under them
            s.proc.send_signal(signal.SIGHUP)
            time.sleep(0.1)
        for t in threads:
            t.join()
        check(all(status == (200 if good else 401) for good, status in out) and len(out) == 300, f"{[o for o in out if o[1] not in (200, 401)][:5]}")


def credentials(d, *args, secret=None, ok=True):
    r = subprocess.run([os.path.join(BIN, "inferd"), "credentials", *args, *(["--vault-dir", d] if d else [])], input=secret or "",
                       capture_output=True, text=True, timeout=60)
    if ok:
        equal(r.returncode, 0, f"credentials {args}: {r.stderr}")
    return r


@case
def credentials_are_sealed_and_never_shown():
    d = folder()
    keys(d, "create")
    key, next_key = os.path.join(d, "..", "master"), os.path.join(d, "..", "next")
    credentials(None, "make-key", key)
    credentials(None, "make-key", next_key)
    equal(os.stat(key).st_mode & 0o777, 0o400, "mode of the master key")
    k = ["--key-file", key]
    secret = "hf_canary_of_this_test"
    credentials(d, "set", "https://Hub.example", *k, secret=secret + "\n")
    credentials(d, "set", "https://files.example:8443", "--as", "basic", *k, secret="user:" + secret)
    credentials(d, "rotate", "https://hub.example:443", *k, secret=secret + "2")
    rows = [json.loads(line) for line in credentials(d, "list", "--json").stdout.splitlines()]
    equal([r["origin"] for r in rows], ["https://files.example:8443", "https://hub.example:443"], "list")
    for name in os.listdir(d):
        check("canary" not in open(os.path.join(d, name), encoding="utf-8").read(), f"{name} has a secret")
    for args, want in ((["set", "https://hub.example", "a-secret", *k], "never from the command line"), (["set", "hub", *k], "https://HOST"),
                       (["set", "https://a", "--as", "x", *k], "bearer"), (["set", "https://a"], "no master key"),
                       (["rotate", "https://a", *k], "no credential"), (["remove", "https://a"], "no credential"),
                       (["set", "https://a", "--key-file", next_key], "another master key"), (["rotate-master", *k], "new-key-file"),
                       (["frob"], "expected set"), (["make-key", key], "File exists")):
        r = credentials(d, *args, secret="x", ok=False)
        check(r.returncode in (1, 2) and want in r.stderr, f"{args}: {r.returncode} {r.stderr}")
    with Server(vault_dir=d, vault_key_file=key) as s:
        equal([e["credentials"] for e in s.log() if e.get("event") == "vault_ready"], [2], "what the server opened")
        credentials(d, "remove", "https://files.example:8443")
        hup(s)
        equal([e["credentials"] for e in s.log() if e.get("event") == "vault_reloaded"], [1], "after a removal")
        credentials(d, "rotate-master", *k, "--new-key-file", next_key)
        hup(s)  # the running server has the old key and goes on with what it had
        check(any("another master key" in e.get("error", "") for e in s.log() if e.get("event") == "vault_reload_failed"), "it says why")
        for pid, _ in children(s.proc.pid):
            if pid != min(p for p, _ in children(s.proc.pid)) and not SANITIZED:
                check(not memory_has(pid, secret.encode()), "a credential in the memory of another process")
    with Server(vault_dir=d, vault_key_file=next_key) as s:
        equal([e["credentials"] for e in s.log() if e.get("event") == "vault_ready"], [1], "under the new key")
    with Server(vault_dir=d) as s:
        equal([e["credentials"] for e in s.log() if e.get("event") == "vault_ready"], [0], "without a key they stay sealed")
        check(any(e.get("event") == "credentials_sealed" for e in s.log()), "and the log says so")
    with Server(vault_dir=d, vault_key_file=key, ready=False) as s:
        equal(s.proc.wait(20 * SLOW), 1, "a wrong master key")
    acts = [json.loads(line)["act"] for line in open(os.path.join(d, "audit.jsonl"), encoding="utf-8")]
    for act in ("credential.set", "credential.rotate", "credential.remove", "master_key.rotate", "master_key.refused", "vault.reload"):
        check(act in acts, f"{act} in the audit log")


@case
def the_master_key_is_replaced_while_the_server_runs():
    d = folder()
    key, one, two = (os.path.join(d, "..", n) for n in ("in_force", "one", "two"))
    keys(d, "create")
    for path in (one, two):
        credentials(None, "make-key", path)
    shutil.copy(one, key)

    def put(path):  # as an operator does: whole or not at all
        shutil.copy(path, key + ".new")
        os.replace(key + ".new", key)

    def last(s, event):
        return [e for e in s.log() if e.get("event") == event][-1]

    credentials(d, "set", "https://hub.example", "--key-file", one, secret="a")
    with Server(vault_dir=d, vault_key_file=key) as s:
        before = sorted(p for p, _ in children(s.proc.pid))
        credentials(d, "rotate-master", "--key-file", one, "--new-key-file", two)
        hup(s)  # the file of the key is still the old one: what was opened goes on
        check("another master key" in last(s, "vault_reload_failed")["error"], "it says why")
        put(two)
        hup(s)
        equal(last(s, "vault_reloaded")["credentials"], 1, "under the new key")
        equal(last(s, "master_key_taken")["credentials"], 1, "and it says so")
        credentials(d, "set", "https://more.example", "--key-file", two, secret="b")
        hup(s)
        equal(last(s, "vault_reloaded")["credentials"], 2, "what is sealed under it from then on")
        put(one)  # a key that opens nothing: the one of before goes on
        hup(s)
        equal(last(s, "vault_reloaded")["credentials"], 2, "with a key file that does not fit")
        check("another master key" in last(s, "master_key_refused")["error"], "it is named")
        put(two)
        os.unlink(key)
        hup(s)
        check("No such file" in last(s, "master_key_refused")["error"], "no key file")
        equal(last(s, "vault_reloaded")["credentials"], 2, "without a key file")
        put(two)
        equal(sorted(p for p, _ in children(s.proc.pid)), before, "nothing was started again")

        # killed at any moment, the folder opens under one of the two keys, and the server never loses what it has
        rnd, turned, now, other = random.Random(7), 0, two, one
        for i in range(60):
            p = subprocess.Popen([os.path.join(BIN, "inferd"), "credentials", "rotate-master", "--key-file", now, "--new-key-file", other,
                                  "--vault-dir", d], stderr=subprocess.DEVNULL)
            time.sleep(rnd.uniform(0, 0.02) * SLOW)
            p.kill()
            p.wait()
            opens = [f for f in (now, other) if credentials(d, "set", "https://probe.example", "--key-file", f, secret="c", ok=False).returncode == 0]
            equal(len(opens), 1, f"round {i}: keys that open the folder")
            if opens[0] == other:
                turned, now, other = turned + 1, other, now
                put(now)
            if i % 6 == 5:
                hup(s)
                equal(last(s, "vault_reloaded")["credentials"], 3, f"round {i}")
        put(now)
        hup(s)
        check(0 < turned < 60, f"{turned} of 60 came through before they were killed")
    with Server(vault_dir=d, vault_key_file=key) as s:
        equal(last(s, "vault_ready")["credentials"], 3, "after a restart")
    acts = [json.loads(line)["act"] for line in open(os.path.join(d, "audit.jsonl"), encoding="utf-8")]
    check("master_key.taken" in acts, "in the audit log")


@case
def doctor_looks_at_the_folder():
    def doctor(**env):
        r = subprocess.run([os.path.join(BIN, "inferd"), "doctor", "--json"], capture_output=True, text=True, timeout=120,
                           env={**os.environ, **env})
        return {f["name"]: f for f in json.loads(r.stdout)["checks"] if f["group"] == "Keys"}

    d = folder()
    equal(doctor()["vault_dir"]["status"], "note", "no folder")
    equal(doctor(INFERD_VAULT_DIR=d)["vault_dir"]["status"], "fail", "a folder that is not there")
    keys(d, "revoke", keys(d, "create").split("_")[1])
    equal(doctor(INFERD_VAULT_DIR=d)["keys"]["status"], "warn", "no active key")
    keys(d, "create")
    check("2 keys, 1 active" in doctor(INFERD_VAULT_DIR=d)["keys"]["detail"], "an active key")
    os.chmod(os.path.join(d, "keys.json"), 0o644)
    equal(doctor(INFERD_VAULT_DIR=d)["keys"]["status"], "fail", "a file that is open to others")


@case
def what_the_command_says():
    d = folder()
    r = keys(d, "list", ok=False)
    check(r.returncode == 1 and "No such file" in r.stderr, r.stderr)
    key = keys(d, "create", "--name", "a name", "--tenant", "acme")
    kid = key.split("_")[1]
    check(re.fullmatch(r"inf_[a-z0-9]{12}_[A-Za-z0-9_-]{43}", key), "the form of a key")
    rows = [json.loads(line) for line in keys(d, "list", "--json").splitlines()]
    equal((rows[0]["id"], rows[0]["tenant"], rows[0]["name"], rows[0]["state"]), (kid, "acme", "a name", "active"), "list --json")
    check("hash" not in rows[0] and "salt" not in rows[0], "no hash is shown")
    equal(oct(os.stat(os.path.join(d, "keys.json")).st_mode & 0o777), "0o600", "mode of the file")
    for args, want in ((["show", "nobodyhere12"], "no key"), (["show", key], "not the key"), (["rotate"], "which key"),
                       (["create", "--tenant", "a b"], "tenant"), (["create", "--endpoints", "fly"], "fly"),
                       (["create", "--model", "a*b"], "models"), (["create", "--expires", "soon"], "expires"),
                       (["create", "--expires", "2001-01-01"], "is over"), (["create", "--weight", "0"], "weight"),
                       (["rotate", kid, "--grace", "x"], "grace"), (["frob"], "expected create"), (["list", "x"], "too many")):
        r = keys(d, *args, ok=False)
        check(r.returncode in (1, 2) and want in r.stderr, f"{args}: {r.returncode} {r.stderr}")
    equal(len(keys(d, "list", "--json").splitlines()), 1, "nothing was made")
    keys(d, "revoke", kid)
    r = keys(d, "rotate", kid, ok=False)
    check(r.returncode == 1 and "revoked" in r.stderr, r.stderr)
    keys(d, "revoke", kid, "--forget")
    equal(keys(d, "list", "--json"), "", "forgotten")
    with tempfile.NamedTemporaryFile("w") as f:
        f.write("nonsense")
        f.flush()
        r = keys(d, "create", "--pid-file", f.name, ok=False)
        check(r.returncode == 2 and "no process number" in r.stderr, r.stderr)


main()
