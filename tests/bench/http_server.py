"""http_server.py - what the HTTP server itself does on one core. Not a timed test.

    tests/bench/run http                 # release build; needs wrk
    SECONDS_EACH=10 tests/bench/run http

Server and wrk are each pinned to a core. Because wall-clock figures suffer when the machine is shared, each row also gives
the processor time the server spent per request and, from that, what one core of its own would do.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from inferd_test import Server, children, wait_for  # noqa: E402

SECONDS = os.environ.get("SECONDS_EACH", "4")
TICK = os.sysconf("SC_CLK_TCK")
TWO = (os.cpu_count() or 1) > 1
PIPELINE = """
local many
function init(args) many = string.rep(wrk.format("GET", "/healthz"), 16) end
function request() return many end
"""


def cpu_seconds(pids):
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            utime, stime = f.read().rpartition(")")[2].split()[11:13]
        total += int(utime) + int(stime)
    return total / TICK


def measure(s, path, conns, script=None):
    pids = [s.proc.pid, *(pid for pid, _ in children(s.proc.pid))]
    cmd = ["wrk", "-t1", f"-c{conns}", f"-d{SECONDS}s", "--latency"]
    if TWO:
        for pid in pids:
            subprocess.run(["taskset", "-a", "-cp", "0", str(pid)], capture_output=True, check=False)
        cmd = ["taskset", "-c", "1", *cmd]
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as lua:
        if script:
            lua.write(script)
            lua.flush()
            cmd += ["-s", lua.name]
        before = cpu_seconds(pids)
        out = subprocess.run([*cmd, f"http://127.0.0.1:{s.port}{path}"], capture_output=True, text=True, check=True).stdout
        used = cpu_seconds(pids) - before
    pick = lambda pat: (re.search(pat, out) or [None, "?"])[1]
    n = int(pick(r"(\d+) requests in"))
    return {"requests_s": float(pick(r"Requests/sec:\s+(\S+)")), "p50": pick(r"50%\s+(\S+)"), "p99": pick(r"99%\s+(\S+)"),
            "cpu_us_per_request": round(used / n * 1e6, 1) if n else None,
            "requests_per_cpu_s": round(n / used) if used else None, "non_2xx": pick(r"Non-2xx or 3xx responses: (\d+)")
            if "Non-2xx" in out else "0"}


def listens(s):
    try:
        return s.get("/healthz", timeout=2).status == 200
    except OSError:
        return False


def main():
    result = {"machine": f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"}
    with Server(fill=None, ready=False, access_log="false") as s:
        wait_for(lambda: listens(s), "the listener")
        for conns in (1, 64, 512):
            result[f"healthz_{conns}_connections"] = measure(s, "/healthz", conns)
        result["healthz_64_connections_pipelined_16"] = measure(s, "/healthz", 64, PIPELINE)
        result["not_found_64_connections"] = measure(s, "/nowhere", 64)
    with Server(fill=None, ready=False, access_log="true") as s:
        wait_for(lambda: listens(s), "the listener")
        result["healthz_64_connections_access_log"] = measure(s, "/healthz", 64)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
