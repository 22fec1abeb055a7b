"""cli_doctor.py - `inferd doctor`: findings, verdict and exit status, with things right and with things wrong."""
import json
import os
import socket
import subprocess
import tempfile

from inferd_test import BIN, PRESET, SLOW, Server, case, check, copy_model, equal, golden_models, main, TINY_BERT

INFERD = os.path.join(BIN, "inferd")
ENV = {k: v for k, v in os.environ.items() if k != "INFERD_SERVER"}


def run(args, env=None):
    return subprocess.run([INFERD, "doctor", *args], stdin=subprocess.DEVNULL, capture_output=True, timeout=120 * SLOW,
                          env={**ENV, **(env or {})}, check=False)


def findings(args, env=None):
    """(exit status, {name: (status, detail)}, whole object)"""
    r = run(["--json", *args], env)
    check(r.stdout, f"no output: {r.stderr.decode()}")
    o = json.loads(r.stdout)
    return r.returncode, {c["name"]: (c["status"], c["detail"]) for c in o["checks"]}, o


class Models:
    def __enter__(self):
        self.tmp = tempfile.TemporaryDirectory(prefix="inferd-test-")
        copy_model(TINY_BERT, self.tmp.name)
        copy_model(TINY_BERT, self.tmp.name, "owner/second")
        return self.tmp.name

    def __exit__(self, *exc):
        self.tmp.cleanup()


@case
def a_good_machine_gets_a_good_verdict():
    with Models() as d:
        status, f, o = findings(["--models-dir", d, "--port", "0"])
        bad = {k: v for k, v in f.items() if v[0] == "fail"}
        equal((status, o["verdict"], bad), (0, "ok", {}), "verdict")
        for layer in ("seccomp", "landlock", "no-new-privs"):
            equal(f[layer][0], "ok", layer)
        check("holds 2: " in f["models_dir"][1] and "owner/second" in f["models_dir"][1], f["models_dir"])
        equal(o["config"]["port"], {"value": 0, "from": "flag"}, "origin")
        equal(o["config"]["sandbox"], {"value": "strict", "from": "default"}, "origin")
        text = run(["--models-dir", d, "--port", "0"]).stdout.decode()
        check("verdict: 'inferd serve' can run here" in text, text[-300:])
        check("\x1b" not in text, "no colour without a terminal")


@case
def what_serve_needs_and_lacks_is_exit_1():
    with Models() as d:
        status, f, o = findings(["--models-dir", d + "/nope", "--port", "0"])
        equal((status, f["models_dir"][0], o["verdict"]), (1, "fail", "fail"), "models_dir")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            port = s.getsockname()[1]
            status, f, o = findings(["--models-dir", d, "--port", str(port)])
            equal((status, f["port"][0]), (1, "fail"), f["port"])
        status, f, o = findings(["--models-dir", d, "--port", "0", "--worker", "/nonexistent/worker"])
        equal((status, f["inferd-worker"][0]), (1, "fail"), "worker")
        check("/nonexistent/worker" in f["inferd-worker"][1], f["inferd-worker"])
        check("verdict: 1 thing that" in run(["--models-dir", d + "/nope", "--port=0"]).stdout.decode(), "text verdict")


@case
def a_layer_that_does_not_hold_counts_only_in_strict():
    with Models() as d, tempfile.TemporaryDirectory(prefix="inferd-test-") as w:
        fake = os.path.join(w, "worker")
        with open(fake, "w", encoding="ascii") as f:
            f.write('#!/bin/sh\necho \'{"layer":"landlock","holds":false,"detail":"kernel too old"}\'\n'
                    'echo \'{"check":"openblas","ok":true,"detail":"self-check passed"}\'\n'
                    'echo \'{"check":"kernels","ok":false,"detail":"slow ones"}\'\necho nonsense\n')
        os.chmod(fake, 0o755)
        args = ["--models-dir", d, "--port", "0", "--worker", fake]
        status, f, _ = findings(args)
        equal((status, f["landlock"], f["openblas"][0], f["kernels"][0], f["worker"][0]),
              (1, ("fail", "kernel too old"), "ok", "warn", "warn"), "strict")
        status, f, _ = findings([*args, "--sandbox", "permissive"])
        equal((status, f["landlock"][0], f["sandbox"][0]), (0, "warn", "warn"), "permissive")


@case
def a_bad_configuration_is_a_finding():
    status, f, _ = findings(["--port", "99999"])
    equal((status, f["options"][0]), (1, "fail"), "flag")
    check("99999" in f["options"][1], f["options"])
    status, f, _ = findings([], {"INFERD_PROT": "1"})
    check(status == 1 and "did you mean 'INFERD_PORT'" in f["options"][1], f["options"])


@case
def a_running_server_is_seen():
    with Server() as s:
        status, f, _ = findings(["--models-dir", s.models, "--port", str(s.port)])
        equal((status, f["port"][0], f["server"][0]), (0, "note", "ok"), f"{f['port']} {f['server']}")
        check("/readyz 200" in f["server"][1], f["server"])
        status, f, _ = findings(["--models-dir", s.models, "--port", "0", "--server", f"http://127.0.0.1:{s.port}"])
        equal((status, f["port"][0], f["server"][0]), (0, "ok", "ok"), "by name")


main()
