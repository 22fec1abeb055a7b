"""sandbox_worker.py - the workers of a running server, looked at from outside, and what doctor says about the machine.

The attempts of a worker that turned are in tests/worker/test_wrk_sandbox.c; here the real server's real workers must carry
the same layers, serve under them, and die with their parent.
"""
import json
import os
import signal
import subprocess
import time

from inferd_test import (BIN, PRESET, SLOW, TINY_BERT, TINY_GEMMA, Server, Skip, case, check, children, equal, main, pid_alive)

WORKER = os.path.join(BIN, "inferd-worker")


def doctor(mode="strict"):
    r = subprocess.run([WORKER, "--doctor", f"--sandbox={mode}"], capture_output=True, timeout=60 * SLOW, check=False)
    return r.returncode, [json.loads(line) for line in r.stdout.splitlines()]


def strict_or_skip():
    code, lines = doctor()
    for line in lines:
        if "layer" in line and not line["holds"] and not line.get("optional"):
            raise Skip(f"strict cannot hold on this machine: {line['layer']}: {line['detail']}")
    equal(code, 0, "doctor")


def workers(s):
    return [pid for pid, name in children(s.proc.pid) if name.startswith("inferd-worker")]


def loaded(s):
    """Loads both golden models and proves that they answer."""
    r = s.post("/v1/embeddings", {"model": TINY_BERT, "input": "harbour"})
    equal(r.status, 200, r.body[:300])
    r = s.post("/v1/completions", {"model": TINY_GEMMA, "prompt": "harbour", "max_tokens": 4, "temperature": 0})
    equal(r.status, 200, r.body[:300])
    pids = workers(s)
    check(len(pids) >= 2, f"{len(pids)} workers run")
    return pids


def status_of(pid):
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
        return dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)


@case
def every_thread_of_a_worker_carries_the_filters():
    strict_or_skip()
    with Server(sandbox="strict") as s:
        for pid in loaded(s):
            tasks = os.listdir(f"/proc/{pid}/task")
            check(len(tasks) >= 1, "no threads")
            for tid in tasks:
                st = status_of(f"{pid}/task/{tid}")
                equal(st["NoNewPrivs"], "1", "no new privileges")
                equal(st["Seccomp"], "2", "seccomp mode")
                check(int(st["Seccomp_filters"]) >= 2, f"the allowlist and the seal: {st['Seccomp_filters']}")
                for caps in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
                    equal(int(st[caps], 16), 0, caps)


@case
def a_worker_has_no_environment_core_or_stray_descriptor():
    strict_or_skip()
    with Server(sandbox="strict", env={"EVIL_SECRET": "hunter2"}) as s:
        for pid in loaded(s):
            try:
                with open(f"/proc/{pid}/environ", "rb") as f:
                    check(b"hunter2" not in f.read(), "a parent's variable arrived")
                fds = {int(fd): os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
            except PermissionError as e:
                raise Skip("only root may look into a process that is not dumpable") from e
            equal(fds[0], "/dev/null", "standard input")
            check(fds[3].startswith("socket:"), f"descriptor 3 is {fds[3]}")
            inside = [p for n, p in fds.items() if n > 4 and not p.startswith("/memfd:")]
            check(all(p.startswith(s.models) for p in inside), f"open: {inside}")
            with open(f"/proc/{pid}/limits", encoding="ascii") as f:
                core = next(line for line in f if line.startswith("Max core file size"))
            equal(core.split()[4:6], ["0", "0"], "core limit")


@case
def a_worker_dies_with_its_parents():
    with Server() as s:
        pids = loaded(s)
        everyone = [pid for pid, _ in children(s.proc.pid)]
        os.kill(s.proc.pid, signal.SIGKILL)
        end = time.monotonic() + 30 * SLOW
        while time.monotonic() < end and any(pid_alive(p) for p in everyone):
            time.sleep(0.02)
        check(not any(pid_alive(p) for p in pids), "workers outlive the server")
        check(not any(pid_alive(p) for p in everyone), "a process outlives the server")


@case
def doctor_names_every_layer():
    code, lines = doctor()
    layers = {line["layer"]: line for line in lines if "layer" in line}
    checks = {line["check"]: line for line in lines if "check" in line}
    for name in ("single-thread", "descriptors", "environment", "namespaces", "capabilities", "limits", "no-dump",
                 "parent-death", "no-new-privs", "landlock", "seccomp"):
        check(name in layers and layers[name]["detail"] or code != 0, f"no layer {name}")
    check("sandbox" in checks, "no verdict")
    equal(checks["sandbox"]["ok"], all(x["holds"] or x.get("optional") for x in layers.values()), "verdict")
    if code == 0:
        check("kernels" in checks and "threads" in checks, f"checks: {sorted(checks)}")
    code, lines = doctor("off")
    equal(code, 0, "sandbox=off always starts")
    check(not any(line["holds"] for line in lines if "layer" in line), "off applies nothing")


@case
def permissive_and_off_serve_too():
    if PRESET == "tsan":
        raise Skip("one round is enough under tsan")
    for mode in ("permissive", "off"):
        with Server(sandbox=mode) as s:
            loaded(s)


main()
