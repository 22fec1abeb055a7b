"""inferd_test.py - what every end-to-end and fault script shares.

A script is a list of @case functions and main(); each case prints one line `ok - name`, `FAIL - name: why` or
`skip - name: why`, which tests/run.py counts. Servers listen on loopback only, on a port the kernel picked, with a
models folder made for them, and are stopped by pid: at the end of their `with`, else when the script ends.

    from inferd_test import Server, case, main, golden_models, check

    @case
    def health_answers():
        with Server() as s:
            check(s.get("/healthz").status == 200, "healthz")

    main()

Environment: INFERD_BIN folder of the binaries (default build/dev), INFERD_PRESET its preset, INFERD_TEST_MODELS folder of
real weights (absent: such cases skip), INFERD_TEST_NODE folder with node_modules.
"""
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("INFERD_BIN") or os.path.join(ROOT, "build", "dev")
PRESET = os.environ.get("INFERD_PRESET", "dev")
SLOW = 6 if PRESET in ("asan", "tsan") else 1  # patience under a sanitizer
GOLDEN = os.path.join(ROOT, "tests", "golden")
TINY_GEMMA = "gemma3_text"
TINY_GEMMA_BF16 = "gemma3_text-bf16"
TINY_BERT = "minilm"
NO_CHECKPOINT = ("cases.json", "golden.safetensors", "*.py", "*.md", "*.png", "*.wav", "oracle", "suite", "__pycache__")
REAL_GEMMA = "gemma-3-270m.gguf"
REAL_MINILM = "all-MiniLM-L6-v2"


class Skip(Exception):
    pass


class Failed(Exception):
    pass


def check(truth, what):
    if not truth:
        raise Failed(what)


def equal(got, want, what=""):
    if got != want:
        raise Failed(f"{what}: got {got!r}, expected {want!r}"[:2000])


_cases = []
_running = set()  # servers that were started and not stopped


def case(fn):
    _cases.append(fn)
    return fn


def end():
    """Stops what no `with` stopped: a server that cases of a script share."""
    for s in list(_running):
        s.stop()


def main():
    """Runs the cases (or those named on the command line) and exits 0, 1, or 77 when all were skipped. No server stays."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(run_cases())
    finally:
        end()


def run_cases():
    want = sys.argv[1:]
    failed = passed = 0
    for fn in _cases:
        if want and fn.__name__ not in want:
            continue
        begin = time.monotonic()
        try:
            fn()
            print(f"ok - {fn.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)
            passed += 1
        except Skip as e:
            print(f"skip - {fn.__name__}: {e}", flush=True)
        except Failed as e:
            print(f"FAIL - {fn.__name__}: {str(e).splitlines()[0][:400] if str(e) else 'no reason'}", flush=True)
            traceback.print_exc()
            failed += 1
        except Exception as e:  # a broken test is a failed test
            print(f"FAIL - {fn.__name__}: {type(e).__name__}: {e}".splitlines()[0], flush=True)
            traceback.print_exc()
            failed += 1
    return 1 if failed else 0 if passed else 77


def real_models():
    """Folder of real weights, or Skip with the reason."""
    path = os.environ.get("INFERD_TEST_MODELS")
    if not path or not os.path.exists(os.path.join(path, REAL_GEMMA)):
        raise Skip("real weights are not here (tests/models/get could not fetch them)")
    return path


def copy_model(name, to_dir, as_name=None):
    """A golden checkpoint (folder) copied below to_dir, without the expected outputs, tools and media that lie beside it."""
    src = os.path.join(GOLDEN, name)
    dst = os.path.join(to_dir, as_name or name)
    shutil.copytree(src, dst, ignore=shutil.ignore_patterns(*NO_CHECKPOINT))
    return dst


def golden_models(to_dir):
    for name in (TINY_GEMMA, TINY_BERT):
        copy_model(name, to_dir)


def golden_cases(name):
    with open(os.path.join(GOLDEN, name, "cases.json"), encoding="utf-8") as f:
        return json.load(f)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def pid_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            return f.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def children(pid):
    """All living descendants of pid: [(pid, name)]."""
    kids = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as f:
                text = f.read()
        except OSError:
            continue
        name = text[text.index("(") + 1:text.rindex(")")]
        state, ppid = text.rpartition(")")[2].split()[:2]
        if state not in ("Z", "X"):
            kids.setdefault(int(ppid), []).append((int(entry), name))
    out, todo = [], [pid]
    while todo:
        for kid in kids.get(todo.pop(), []):
            out.append(kid)
            todo.append(kid[0])
    return out


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)


class Server:
    """An `inferd serve` on loopback. args: option name -> value (underscores). models: a folder to use as it is; else a
    temporary one filled by fill(dir) (default: the golden models)."""

    def __init__(self, models=None, fill=golden_models, env=None, ready=True, **args):
        self.own = None
        if models is None:
            self.own = tempfile.mkdtemp(prefix="inferd-test-")
            models = os.path.join(self.own, "models")
            os.mkdir(models)
            if fill:
                fill(models)
        self.models = models
        self.port = int(args.pop("port", 0) or free_port())
        self.args = args
        self.want_ready = ready
        self.env = env or {}
        self.log_lines = []
        self.proc = None

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc):
        if exc[0] is not None and not issubclass(exc[0], Skip):
            sys.stderr.write("".join(self.log_lines[-60:]))
        self.stop()

    def start(self):
        cmd = [os.path.join(BIN, "inferd"), "serve", f"--port={self.port}", f"--models-dir={self.models}"]
        for k, v in self.args.items():
            for one in v if isinstance(v, (list, tuple)) else [v]:
                cmd.append(f"--{k.replace('_', '-')}={str(one).lower() if isinstance(one, bool) else one}")
        self.proc = subprocess.Popen(cmd, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                     env={**os.environ, **self.env}, text=True, errors="replace")
        _running.add(self)
        threading.Thread(target=self._read_log, args=(self.proc,), daemon=True).start()
        if self.want_ready:
            self.wait_ready()

    def _read_log(self, proc):
        for line in proc.stderr:
            self.log_lines.append(line)

    def log(self):
        """The JSON log lines so far; lines that are no JSON come as {"raw": line}."""
        out = []
        for line in list(self.log_lines):
            try:
                out.append(json.loads(line))
            except ValueError:
                out.append({"raw": line})
        return out

    def wait_ready(self, seconds=30):
        end = time.monotonic() + seconds * SLOW
        while time.monotonic() < end:
            if self.proc.poll() is not None:
                raise Failed(f"the server ended with {self.proc.returncode}: {''.join(self.log_lines[-5:])}")
            try:
                if self.get("/readyz", timeout=10).status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.02)
        raise Failed("the server was not ready in time: " + "".join(self.log_lines[-5:]))

    def stop(self, sig=signal.SIGTERM, seconds=20):
        status = None
        _running.discard(self)
        if self.proc and self.proc.poll() is None:
            self.proc.send_signal(sig)
            try:
                status = self.proc.wait(seconds * SLOW)
            except subprocess.TimeoutExpired:
                self.proc.kill()
                status = self.proc.wait()
        if self.own:
            shutil.rmtree(self.own, ignore_errors=True)
        return status

    def conn(self, timeout=60):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * SLOW)

    def request(self, method, path, body=None, headers=None, timeout=60):
        c = self.conn(timeout)
        try:
            h = dict(headers or {})
            if isinstance(body, (dict, list)):
                body = json.dumps(body)
                h.setdefault("Content-Type", "application/json")
            if isinstance(body, str):
                body = body.encode()
            c.request(method, path, body=body, headers=h)
            r = c.getresponse()
            return Reply(r.status, {k.lower(): v for k, v in r.getheaders()}, r.read())
        finally:
            c.close()

    def get(self, path, **kw):
        return self.request("GET", path, **kw)

    def post(self, path, body, **kw):
        return self.request("POST", path, body=body, **kw)

    def raw(self, data, timeout=10, shut=False):
        """Sends bytes as they are, returns everything until the server closes or falls silent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as s:
            s.sendall(data)
            if shut:
                s.shutdown(socket.SHUT_WR)
            out = b""
            try:
                while block := s.recv(65536):
                    out += block
            except (socket.timeout, ConnectionResetError):
                pass
            return out

    def sse(self, path, body, timeout=60, headers=None):
        """Generator of (event, data) of a stream; data is parsed JSON or the string "[DONE]"."""
        c = self.conn(timeout)
        try:
            c.request("POST", path, body=json.dumps(body), headers={"Content-Type": "application/json", **(headers or {})})
            r = c.getresponse()
            if r.status != 200:
                raise Failed(f"{path}: {r.status} {r.read()[:500]!r}")
            event = None
            for line in r:
                line = line.decode().rstrip("\r\n")
                if line.startswith("event: "):
                    event = line[7:]
                elif line.startswith("data: "):
                    data = line[6:]
                    yield event, data if data == "[DONE]" else json.loads(data)
                elif line == "":
                    event = None
        finally:
            c.close()

    def metric(self, name, **labels):
        """Sum of the series of a metric whose labels include those given; None when there is none."""
        total = None
        for line in self.get("/metrics").body.decode().splitlines():
            if not line.startswith(name) or line.startswith("#"):
                continue
            head, _, value = line.rpartition(" ")
            if head.split("{")[0] != name:
                continue
            if all(f'{k}="{v}"' in head for k, v in labels.items()):
                total = (total or 0) + float(value)
        return total

    def workers(self):
        return [pid for pid, name in children(self.proc.pid) if name.startswith("inferd-worker")]


def wait_for(fn, what, seconds=30):
    """What fn gives, once that is true. A test that is well waits for none of the time: it is patience for a machine of two
    cores that does much else, and says nothing of how fast a thing is."""
    end = time.monotonic() + seconds * SLOW
    while time.monotonic() < end:
        v = fn()
        if v:
            return v
        time.sleep(0.02)
    raise Failed(f"timed out waiting for {what}")
