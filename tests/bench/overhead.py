"""overhead.py - what the supervisor itself costs. Not a timed test.

    tests/bench/run overhead

/healthz requests per second on one core (server and wrk each pinned to a core where there are two), and the latency of
the null task: HTTP -> front -> worker -> front -> HTTP, one request at a time. Uses wrk.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from inferd_test import Server, TINY_BERT, children  # noqa: E402

SECONDS = os.environ.get("SECONDS_EACH", "5")


def wrk(url, conns, script=None):
    cmd = ["wrk", "-t1", f"-c{conns}", f"-d{SECONDS}s", "--latency"]
    if script:
        cmd += ["-s", script]
    if (os.cpu_count() or 1) > 1:
        cmd = ["taskset", "-c", "1", *cmd]
    out = subprocess.run([*cmd, url], capture_output=True, text=True, check=True).stdout
    pick = lambda pat: (re.search(pat, out) or [None, "?"])[1]
    return {"requests_s": pick(r"Requests/sec:\s+(\S+)"), "p50": pick(r"50%\s+(\S+)"), "p99": pick(r"99%\s+(\S+)"),
            "errors": pick(r"Non-2xx or 3xx responses: (\d+)") if "Non-2xx" in out else "0"}


def main():
    with Server(preload=[TINY_BERT], access_log="false") as s:
        s.post("/ai/v1/models/load", {"model": TINY_BERT})
        if (os.cpu_count() or 1) > 1:  # the front on core 0; the null task's worker shares it unless it has its own
            for pid, name in children(s.proc.pid):
                if not name.startswith("inferd-worker"):
                    subprocess.run(["taskset", "-a", "-cp", "0", str(pid)], capture_output=True, check=False)
        base = f"http://127.0.0.1:{s.port}"
        result = {"healthz_64_connections": wrk(base + "/healthz", 64)}
        with tempfile.NamedTemporaryFile("w", suffix=".lua") as lua:
            lua.write('wrk.method = "POST"\nwrk.body = "ping"\n')
            lua.flush()
            result["null_task_1_connection"] = wrk(f"{base}/ai/v1/echo?model={TINY_BERT}", 1, lua.name)
            result["null_task_16_connections"] = wrk(f"{base}/ai/v1/echo?model={TINY_BERT}", 16, lua.name)
        print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
