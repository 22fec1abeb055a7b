"""cli_models.py - `inferd list`, `load`, `unload`, `version`, `help` against the real server."""
import json
import os
import re
import subprocess
import tempfile

from inferd_test import BIN, SLOW, ROOT, Server, TINY_BERT, TINY_GEMMA, case, check, equal, main

INFERD = os.path.join(BIN, "inferd")
ENV = {k: v for k, v in os.environ.items() if k != "INFERD_SERVER"}


def run(args, timeout=60, env=None):
    return subprocess.run([INFERD, *args], stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout * SLOW,
                          env={**ENV, **(env or {})}, check=False)


def states(url):
    r = run(["list", "--json", "--server", url])
    equal(r.returncode, 0, r.stderr.decode())
    return {m["id"]: m["state"] for m in json.loads(r.stdout)["data"]}


@case
def models_are_listed_loaded_and_unloaded():
    with Server() as s:
        url = f"http://127.0.0.1:{s.port}"
        equal(sorted(states(url)), sorted([TINY_GEMMA, TINY_BERT]), "models")
        r = run(["load", TINY_GEMMA, "--server", url])
        equal((r.returncode, r.stdout.decode()), (0, f"{TINY_GEMMA}: ready\n"), r.stderr.decode())
        equal(states(url)[TINY_GEMMA], "ready", "state")
        text = run(["list"], env={"INFERD_SERVER": url}).stdout.decode()
        head, *rows = text.splitlines()
        check(re.match(r"MODEL +FAMILY +KIND +STATE +SIZE +LIMIT +LAST ERROR", head), text)
        row = next(line for line in rows if line.startswith(TINY_GEMMA))
        check("chat" in row and "ready" in row and "tokens" in row, text)
        check("embed" in next(line for line in rows if line.startswith(TINY_BERT + " ")), text)
        r = run(["unload", TINY_GEMMA, "--server", url, "--json"])
        equal(r.returncode, 0, r.stderr.decode())
        equal(json.loads(r.stdout)["state"], "absent", "answer")
        equal(states(url)[TINY_GEMMA], "absent", "state")


@case
def loads_that_fail_say_why():
    def fill(d):
        os.mkdir(os.path.join(d, "broken"))
        with open(os.path.join(d, "broken", "config.json"), "w", encoding="ascii") as f:
            f.write("{nonsense")
        with open(os.path.join(d, "broken", "model.safetensors"), "wb") as f:
            f.write(b"\xff" * 64)

    with Server(fill=fill) as s:
        url = f"http://127.0.0.1:{s.port}"
        r = run(["load", "nope", "--server", url])
        check(r.returncode == 1 and b"nope" in r.stderr, r.stderr.decode())
        r = run(["load", "broken", "--server", url])
        check(r.returncode == 1 and not r.stdout and len(r.stderr) > 20, r.stderr.decode())
        check("broken" in run(["list", "--server", url]).stdout.decode(), "it is listed")
        equal(s.get("/healthz").status, 200, "the server lives on")


@case
def an_empty_folder_is_no_failure():
    with Server(fill=None) as s:
        r = run(["list", "--server", f"http://127.0.0.1:{s.port}"])
        equal((r.returncode, r.stdout), (0, b""), "list")
        check(b"empty" in r.stderr, r.stderr.decode())


@case
def a_unix_socket_serves_too():
    with tempfile.TemporaryDirectory(prefix="inferd-test-") as d:
        path = os.path.join(d, "s")
        with Server(unix_socket=path):
            equal(sorted(states("unix:" + path)), sorted([TINY_GEMMA, TINY_BERT]), "models")


@case
def version_and_help():
    r = run(["version", "--json"])
    equal(r.returncode, 0, r.stderr.decode())
    v = json.loads(r.stdout)
    check(re.match(r"\d+\.\d+\.\d+$", v["inferd"]), v)
    check(v["worker"].startswith("inferd-worker ") and v["libuv"].startswith("1."), v)
    check(run(["--version"]).stdout.startswith(b"inferd "), "--version")
    for words in (["help"], ["--help"], ["-h"], ["help", "config"], ["serve", "--help"], ["doctor", "-h"]):
        r = run(words)
        check(r.returncode == 0 and len(r.stdout) > 200 and not r.stderr, words)
    for cmd in ("serve", "chat", "embed", "pull", "rm", "verify", "list", "load", "unload", "doctor", "bench", "verify-kernels", "version",
                "help"):
        one, two = run(["help", cmd]), run([cmd, "--help"])
        check(one.returncode == 0 and two.returncode == 0, cmd)
        check(b"Examples:" in one.stdout and b"Examples:" in two.stdout, cmd)
        check(f"usage: inferd {cmd}".encode() in two.stdout, cmd)
    with open(os.path.join(ROOT, "docs", "configuration.md"), "rb") as f:
        equal(run(["help", "config", "--markdown"]).stdout, f.read(), "the page is what the program prints")
    equal(run(["help", "nope"]).returncode, 2, "unknown topic")


@case
def bad_configurations_are_refused_with_2():
    with tempfile.TemporaryDirectory(prefix="inferd-test-") as d:
        path = os.path.join(d, "c.json")
        with open(path, "w", encoding="ascii") as f:
            f.write('{"prot": 1}')
        rows = ((["--prot=1"], {}, b"did you mean '--port'"), (["--port=65536"], {}, b"from 0 to 65535"),
                ([], {"INFERD_PROT": "1"}, b"did you mean 'INFERD_PORT'"), (["--config", path], {}, b"key 'prot'"),
                ([], {"INFERD_CONFIG": path}, b"did you mean 'port'"), (["extra"], {}, b"'extra'"),
                (["--host", "0.0.0.0"], {}, b"--allow-insecure-public-bind"))
        for words, env, says in rows:
            r = run(["serve", *words], env=env)
            check(r.returncode == 2 and says in r.stderr, f"{words} {env}: {r.returncode} {r.stderr.decode()}")


main()
