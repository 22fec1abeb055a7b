"""run.py - the test runner behind ./tests/run (which installs packages first).

Steps, in order: kgen --check (the checked-in kernels are current), unit and golden tests (preset dev), end-to-end and
fault scripts against real processes (dev), unit and golden under asan+ubsan, end-to-end under asan (but those of PLAIN_ONLY,
which the pass before had: it names them and counts them nowhere), thread tests under tsan, fuzz targets for a few seconds each on their corpora.
Every case is counted: a cmocka test, a fuzz target, a case of a script. A thing that cannot run here is skipped with its
reason, never passed. Logs: build/test-logs/.
"""
import argparse
import glob
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
import zipfile
from concurrent.futures import ThreadPoolExecutor

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOGS = os.path.join(ROOT, "build", "test-logs")
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "inferd")
PY_PACKAGES = ["openai==3.57.0", "jsonschema==4.26.0", "cohere==7.3.1", "kubernetes-validate==1.37.0", "schemathesis==4.32.5",
               "langchain-openai==1.7.4", "llm==0.36"]
NODE_PACKAGES = ["openai@7.59.0", "@kubernetes-models/keda@2.0.0", "@kubernetes-models/prometheus-operator@6.0.0"]
# Schemas of Kubernetes objects, in modules of Go's proxy: (module, version, SHA-256 of its archive, files of it)
CRD_MODULES = [
    ("sigs.k8s.io/gateway-api-inference-extension", "v1.2.0", "db935d73d874c93173e3a9b3bf29a1e8828eeb8a19bf04aceb80e01bab3ebbe5",
     ["config/crd/bases/inference.networking.k8s.io_inferencepools.yaml",
      "config/crd/bases/inference.networking.x-k8s.io_inferenceobjectives.yaml"]),
    ("sigs.k8s.io/gateway-api", "v1.4.0", "209e17fd8aa93b9444cf358240060e7435668ed7ca80793be160c59a74c4d5bc", ["config/crd/standard/gateway.networking.k8s.io_httproutes.yaml"]),
]
JOBS = min(2, os.cpu_count() or 1)  # programs under test at once
# Programs of cmocka at once: some only wait (test_sup_fleet), and the longest begin first, so that none is left over at the end.
UNIT_JOBS = JOBS + 1
LONGEST = re.compile(r"^(test_mdl_cuda_faults|test_sup_fleet|emu_test_mdl_gemma|test_be_kconf_emu|emu_|test_be_cpu_attn|test_be_cuda_)")
# Scripts that show a person's view or a reference's numbers: the C under them is reached by other scripts and by the unit tests,
# so the sanitized pass leaves them out (named with --match, they run).
PLAIN_ONLY = re.compile(r"^(acquire|api_(docs|properties)|cli_(bench|docs|doctor|models)|clients|contract|deploy|deploy_image|device_emulated|golden_http|openai_.*|qualify_eg2|real_weights|tenants|traces|walk)\.py$")
ALONE = re.compile(r"^cases_(cancel|limits|life)|^real_|^probes|^tenants")  # scripts that compare times or fill the machine
CMOCKA = re.compile(r"^(?:\d+: )?\[\s+(OK|FAILED|SKIPPED)\s+\] (\S+)")
CASE = re.compile(r"^(ok|FAIL|skip) - (.*)$")


class Totals:
    def __init__(self):
        self.lock = threading.Lock()
        self.passed, self.failed, self.skipped = 0, 0, 0
        self.fails, self.skips = [], []

    def ok(self):
        with self.lock:
            self.passed += 1

    def fail(self, name, why):
        with self.lock:
            self.failed += 1
            self.fails.append(f"{name}: {why}")
            print(f"  FAIL {name}: {why}", flush=True)

    def skip(self, name, why):
        with self.lock:
            self.skipped += 1
            self.skips.append(f"{name}: {why}")
            print(f"  skip {name}: {why}", flush=True)


T = Totals()


def session(sid):
    """Living processes of a session: [(pid, name)]."""
    out = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as f:
                name, _, rest = f.read().partition("(")[2].rpartition(")")
        except OSError:
            continue
        state, _, _, of = rest.split()[:4]
        if int(of) == sid and state not in ("Z", "X"):
            out.append((int(entry), name))
    return out


def left_behind(sid, seconds=2):
    """What a program that ended left running, killed now."""
    end = time.monotonic() + seconds
    while (left := session(sid)) and time.monotonic() < end:
        time.sleep(0.05)
    for pid, _ in left:
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            pass
    return left


# Before a program that may have only the time that others leave: the kernel may weigh sessions (autogroup) as well as programs.
IDLE = ["sh", "-c", 'echo 19 2>/dev/null >/proc/self/autogroup; exec nice -n 19 "$@"', "idle"]


def run(cmd, log, timeout, env=None, left=None, idle=False):
    """Runs cmd with its output in a log; returns (status, text). 124 = timed out. left: a list for what it left running.
    idle: it may have only the time that other programs leave."""
    path = os.path.join(LOGS, log + ".log")
    with open(path, "w", encoding="utf-8", errors="replace") as out:
        p = subprocess.Popen([*IDLE, *cmd] if idle else cmd, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                             env={**os.environ, **(env or {})}, start_new_session=True)
        try:
            status = p.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, 9)
            p.wait()
            status = 124
    if left is not None:
        left += left_behind(p.pid)
    with open(path, encoding="utf-8", errors="replace") as f:
        return status, f.read()


# Programs of later steps are built while those of earlier steps are tried: many of these only wait.
AHEAD = {}


def build_ahead(presets):
    pool = ThreadPoolExecutor(1)
    for preset in presets:
        AHEAD[preset] = pool.submit(build_now, preset, True)


def build(preset):
    return AHEAD.pop(preset).result() if preset in AHEAD else build_now(preset)


def build_now(preset, idle=False):
    targets = TARGETS.get(preset, list)()
    if shutil.which("ccache") and "CMAKE_C_COMPILER_LAUNCHER" not in os.environ:
        os.environ["CMAKE_C_COMPILER_LAUNCHER"] = "ccache"
    begin = time.monotonic()
    status, text = run(["cmake", "--preset", preset], f"configure-{preset}", 300, idle=idle)
    if status == 0:
        status, text = run(["cmake", "--build", "--preset", preset, *(["--target", *targets] if targets else [])], f"build-{preset}", 1500,
                           idle=idle)
    if status != 0:
        errors = [line for line in text.splitlines() if "error" in line or "Error" in line][:10]
        T.fail(f"build {preset}", f"see build/test-logs/build-{preset}.log\n    " + "\n    ".join(errors))
        return False
    print(f"built {preset} in {time.monotonic() - begin:.0f} s", flush=True)
    return True


def every(jobs, names, fn):
    """fn(name) of each name, some at once; returns [(seconds, name)]."""
    took = []

    def one(name):
        begin = time.monotonic()
        fn(name)
        took.append((time.monotonic() - begin, name))

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, names))
    return took


def slowest(took):
    return "  longest: " + ", ".join(f"{name} {s:.0f} s" for s, name in sorted(took, reverse=True)[:8])


def ctest_one(preset, bdir, name, env):
    status, text = run(["ctest", "--test-dir", bdir, "-R", f"^{re.escape(name)}$", "-V"], f"{preset}-{name}", 900, env)
    seen_fail = False
    counted = 0
    seen = set()
    for line in text.splitlines():
        m = CMOCKA.match(line.strip())
        if not m or m[0].split(":", 1)[-1].strip() in seen:  # cmocka lists the odd ones once more at its end
            continue
        seen.add(m[0].split(":", 1)[-1].strip())
        if m[1] == "OK":
            T.ok()
            counted += 1
        elif m[1] == "FAILED" and m[2] not in ("tests:", "test(s),"):
            if not re.match(r"\d+$", m[2]):
                T.fail(f"{preset} {name}: {m[2]}", f"build/test-logs/{preset}-{name}.log")
                seen_fail = True
        elif m[1] == "SKIPPED" and not re.match(r"\d+$", m[2]):
            T.skip(f"{preset} {name}: {m[2]}", "the test says why in its log")
            counted += 1
    skipped = re.search(r"\*\*\*Skipped", text)
    if skipped and counted == 0:
        why = [re.sub(r"^\d+: ", "", line) for line in text.splitlines() if re.match(r"^\d+: .*[Ss]kip", line)]
        T.skip(f"{preset} {name}", why[0] if why else "exit 77 without a reason")
    elif status != 0 and not seen_fail and not skipped:
        T.fail(f"{preset} {name}", f"exit {status}; build/test-logs/{preset}-{name}.log")
    elif counted == 0 and not seen_fail and not skipped:
        T.ok()


def ctest(preset, args, label):
    begin = time.monotonic()
    before = (T.passed, T.failed, T.skipped)
    bdir = os.path.join(ROOT, "build", preset)
    listing = subprocess.run(["ctest", "--test-dir", bdir, "-N", *args], capture_output=True, text=True, check=False)
    names = re.findall(r"Test\s+#\d+: (\S+)", listing.stdout)
    if not names:
        T.fail(f"{label}", "no test matched; the build made none")
        return
    env = {"ASAN_OPTIONS": "abort_on_error=1", "UBSAN_OPTIONS": "print_stacktrace=1",
           "TSAN_OPTIONS": "halt_on_error=1"}
    names.sort(key=lambda name: not LONGEST.search(name))
    took = every(UNIT_JOBS, names, lambda name: ctest_one(preset, bdir, name, env))
    p, f, s = (a - b for a, b in zip((T.passed, T.failed, T.skipped), before))
    print(f"{label}: {p} passed, {f} failed, {s} skipped ({time.monotonic() - begin:.0f} s)\n{slowest(took)}", flush=True)


def step_unit():
    if build("dev"):
        ctest("dev", ["-L", "unit|golden"], "unit and golden (dev)")


def step_kernels():
    """Checked-in kernels against what the catalog generates now: each stale, missing or extra file is a failure."""
    if not build("dev"):
        return
    status, text = run([os.path.join(ROOT, "build", "dev", "kgen"), "--check"], "kgen-check", 120)
    lines = [line for line in text.splitlines() if re.match(r"(stale|missing|extra): ", line)]
    for line in lines:
        T.fail("kgen --check", line)
    if status != 0 and not lines:
        T.fail("kgen --check", f"exit {status}: {text.strip()[:300]}")
    elif status == 0:
        T.ok()
    print(f"kernel artifacts: {'as generated' if status == 0 else 'run kgen --write (docs/kernels.md)'}", flush=True)


# Long runs of generated kernel text on the emulated device: the text carries the same checks in every preset, and the
# backend's own tests (test_be_cuda_*, emu_test_mdl_bert_golden) are in every one. These are run by the unit step alone.
EMULATED = "^(test_mdl_cuda_faults|emu_tf32_test_mdl_.*|emu_test_mdl_(gemma|bert|gliner2|gemma_golden|gemma4_golden)|test_be_kconf_emu|test_be_kattn_(emu|packed)|test_be_klinear)$"


def step_asan():
    if build("asan"):
        ctest("asan", ["-L", "unit|golden", "-E", EMULATED], "unit and golden (asan, ubsan)")


# Programs with threads, each with a test of that name; nothing else is built under tsan.
THREADED = "pool|thread|engine|wrk_serve|be_cpu"


def threaded():
    sources = [os.path.basename(p)[:-2] for p in glob.glob(os.path.join(ROOT, "tests", "*", "test_*.c"))]
    return sorted(n for n in sources if re.search(THREADED, n))


TARGETS = {"tsan": threaded}  # of a preset: else all


def step_tsan():
    if build("tsan"):
        ctest("tsan", ["-L", "unit", "-R", THREADED], "threads (tsan)")


def fuzz_one(src, t, seconds):
    exe = os.path.join(ROOT, "build", "fuzz", "tests", t)
    seeds = os.path.join(src, "corpus", t[len("fuzz_"):])
    work = os.path.join(ROOT, "build", "fuzz-work", t)
    if t == "fuzz_pdf" and not os.path.exists(exe):
        T.skip(t, "poppler-glib, cairo or fontconfig is not installed")
        return
    os.makedirs(work, exist_ok=True)
    cmd = [exe, work, f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=3000", f"-artifact_prefix={work}/"]
    if os.path.isdir(seeds):
        cmd.insert(2, seeds)
    status, text = run(cmd, t, seconds + 120, {"ASAN_OPTIONS": "allocator_may_return_null=1"})
    if status == 0:
        T.ok()
    else:
        why = next((line for line in text.splitlines() if "ERROR" in line or "SUMMARY" in line), f"exit {status}")
        T.fail(t, why.strip()[:200])


def step_fuzz(seconds):
    if not shutil.which("clang"):
        T.skip("fuzz", "clang is not installed")
        return
    if not build("fuzz"):
        return
    src = os.path.join(ROOT, "tests", "fuzz")
    targets = sorted(n[:-2] for n in os.listdir(src) if n.startswith("fuzz_") and n.endswith(".c"))
    begin = time.monotonic()
    before = T.failed
    every(JOBS, targets, lambda t: fuzz_one(src, t, seconds))
    failed = T.failed - before
    print(f"fuzz: {len(targets)} targets x {seconds} s, {failed} failed ({time.monotonic() - begin:.0f} s)", flush=True)


def venv():
    """A venv with the official clients; None (with a reason) when the registry cannot be reached."""
    path = os.path.join(CACHE, "test-venv")
    py = os.path.join(path, "bin", "python")
    mark = os.path.join(path, ".packages")
    want = "\n".join(PY_PACKAGES)
    try:
        with open(mark, encoding="ascii") as f:
            if f.read() == want and os.path.exists(py):
                return py
    except OSError:
        pass
    # one that stands only gets what it lacks: others may be using it
    status = 0 if os.path.exists(py) else run([sys.executable, "-m", "venv", "--clear", path], "venv", 120)[0]
    if status == 0:
        status, _ = run([py, "-m", "pip", "install", "-q", "--disable-pip-version-check", *PY_PACKAGES], "venv-pip", 600)
    if status != 0:
        return None
    with open(mark, "w", encoding="ascii") as f:
        f.write(want)
    return py


def node_modules():
    if not shutil.which("node") or not shutil.which("npm"):
        return None
    path = os.path.join(CACHE, "test-node")
    os.makedirs(path, exist_ok=True)
    mark = os.path.join(path, ".packages")
    want = "\n".join(NODE_PACKAGES)
    try:
        with open(mark, encoding="ascii") as f:
            if f.read() == want:
                return path
    except OSError:
        pass
    status, _ = run(["npm", "install", "--prefix", path, "--no-audit", "--no-fund", "--silent", *NODE_PACKAGES], "npm", 300)
    if status != 0:
        return None
    with open(mark, "w", encoding="ascii") as f:
        f.write(want)
    return path


def crds():
    """A folder with the schemas of CRD_MODULES; None when the proxy cannot be reached or serves other bytes."""
    path = os.path.join(CACHE, "test-crds")
    os.makedirs(path, exist_ok=True)
    for module, version, sha256, names in CRD_MODULES:
        if all(os.path.exists(os.path.join(path, f"{version}-{os.path.basename(n)}")) for n in names):
            continue
        try:
            with urllib.request.urlopen(f"https://proxy.golang.org/{module}/@v/{version}.zip", timeout=60) as r:
                archive = r.read()
        except OSError:
            return None
        if hashlib.sha256(archive).hexdigest() != sha256:
            return None
        with zipfile.ZipFile(io.BytesIO(archive)) as z:
            for n in names:
                text = z.read(f"{module}@{version}/{n}")
                tmp = os.path.join(path, f".{os.getpid()}-{os.path.basename(n)}")
                with open(tmp, "wb") as f:
                    f.write(text)
                os.rename(tmp, os.path.join(path, f"{version}-{os.path.basename(n)}"))
    return path


def models():
    cmd = [sys.executable, os.path.join(ROOT, "tests", "models", "get")]
    r = subprocess.run(cmd, stdout=subprocess.PIPE, text=True, check=False)
    return r.stdout.strip() if r.returncode == 0 else None


def clients():
    """What scripts need of the registries: (python, folder of weights, folder of node modules, folder of schemas), each None when out of reach."""
    return venv(), models(), node_modules(), crds()


def script_one(py, src, folder, preset, n, timeout, env):
    left = []
    status, text = run([py, os.path.join(src, n)], f"{preset}-{folder}-{n[:-3]}", timeout, env, left)
    seen = fails = 0
    for line in text.splitlines():
        m = CASE.match(line)
        if not m:
            continue
        seen += 1
        if m[1] == "ok":
            T.ok()
        elif m[1] == "skip":
            T.skip(f"{preset} {folder}/{n}", m[2])
        else:
            fails += 1
            T.fail(f"{preset} {folder}/{n}", m[2])
    if status not in (0, 77) and not fails:
        T.fail(f"{preset} {folder}/{n}", f"exit {status}; build/test-logs/{preset}-{folder}-{n[:-3]}.log")
    elif seen == 0 and status == 0:
        T.fail(f"{preset} {folder}/{n}", "reported no case")
    if left and status != 124:
        T.fail(f"{preset} {folder}/{n}", f"left running: {', '.join(f'{name} ({pid})' for pid, name in left)}")


def scripts(folder, preset, label, fetched, only=None, timeout=600, without=None):
    """Each tests/<folder>/*.py is a script whose cases print `ok - `, `FAIL - `, `skip - ` lines; 77 = all skipped."""
    begin = time.monotonic()
    before = (T.passed, T.failed, T.skipped)
    src = os.path.join(ROOT, "tests", folder)
    names = sorted(n for n in os.listdir(src) if n.endswith(".py") and not n.startswith("inferd_") and n != "__init__.py")
    if only:
        names = [n for n in names if re.search(only, n)]
    elif without:
        print(f"{label}: without {', '.join(n[:-3] for n in names if without.search(n))}", flush=True)
        names = [n for n in names if not without.search(n)]
    py, weights, nm, schemas = fetched.result()
    py = py or sys.executable
    env = {"INFERD_BIN": os.path.join(ROOT, "build", preset), "INFERD_PRESET": preset,
           "PYTHONPATH": os.path.join(ROOT, "tests", "e2e"), "PYTHONUNBUFFERED": "1"}
    if weights:
        env["INFERD_TEST_MODELS"] = weights
    if nm:
        env["INFERD_TEST_NODE"] = nm
    if schemas:
        env["INFERD_TEST_CRDS"] = schemas
    took = every(JOBS, [n for n in names if not ALONE.search(n)], lambda n: script_one(py, src, folder, preset, n, timeout, env))
    took += every(1, [n for n in names if ALONE.search(n)], lambda n: script_one(py, src, folder, preset, n, timeout, env))
    p, f, s = (a - b for a, b in zip((T.passed, T.failed, T.skipped), before))
    print(f"{label}: {p} passed, {f} failed, {s} skipped ({time.monotonic() - begin:.0f} s)\n{slowest(took)}", flush=True)


def main():
    steps = ["kernels", "unit", "e2e", "fault", "asan", "e2e-asan", "tsan", "fuzz"]
    p = argparse.ArgumentParser(prog="tests/run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", help="comma list of steps: " + ", ".join(steps))
    p.add_argument("--match", help="end-to-end scripts whose name matches this regular expression")
    p.add_argument("--fuzz-seconds", type=int, default=4, help="per target (default 4)")
    p.add_argument("--list", action="store_true", help="print the steps and stop")
    a = p.parse_args()
    if a.list:
        print("\n".join(steps))
        return 0
    chosen = a.only.split(",") if a.only else steps
    bad = [s for s in chosen if s not in steps]
    if bad:
        p.error(f"unknown step {bad[0]!r}; steps are {', '.join(steps)}")
    os.makedirs(LOGS, exist_ok=True)
    begin = time.monotonic()
    # fetched while programs are built
    fetched = ThreadPoolExecutor(1).submit(clients) if {"e2e", "fault", "e2e-asan"} & set(chosen) else None
    if {"kernels", "unit", "e2e", "fault"} & set(chosen) and build("dev"):
        later = {"asan": {"asan", "e2e-asan"}, "tsan": {"tsan"}, "fuzz": {"fuzz"} if shutil.which("clang") else set()}
        build_ahead([preset for preset, of in later.items() if of & set(chosen)])
    for s in steps:
        if s not in chosen:
            continue
        print(f"== {s}", flush=True)
        if s == "kernels":
            step_kernels()
        elif s == "unit":
            step_unit()
        elif s == "asan":
            step_asan()
        elif s == "tsan":
            step_tsan()
        elif s == "fuzz":
            step_fuzz(a.fuzz_seconds)
        elif s == "e2e" and build("dev"):
            scripts("e2e", "dev", "end to end (dev)", fetched, a.match)
        elif s == "fault" and build("dev"):
            scripts("fault", "dev", "faults (dev)", fetched, a.match)
        elif s == "e2e-asan" and build("asan"):
            scripts("e2e", "asan", "end to end (asan)", fetched, a.match, without=PLAIN_ONLY)
    if T.skips:
        print("skipped:")
        for s in T.skips:
            print(f"  {s}")
    if T.fails:
        print("failed:")
        for f in T.fails:
            print(f"  {f}")
    print(f"took {time.monotonic() - begin:.0f} s")
    print(f"{T.passed} passed, {T.failed} failed, {T.skipped} skipped")
    return 1 if T.failed or T.passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
