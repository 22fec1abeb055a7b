"""run.py - the tests behind tests/device/run: backend cuda on a real device.

Steps: doctor; conformance of every kernel; golden files and the equality contract at the level of models; the same through a
server with the strict sandbox; telemetry of a decode; first request against the tenth; encoders of real geometry in f16 and tf32
beside exact f32. Programs come from tests/device/pack
(pack.tar.xz, unpacked to a temporary folder), or from --bin and --lib. INFERD_CUDA_LIBRARY names another driver (the emulated
one of tests/cuda_emu). Logs: --out. Speed is measured by tests/bench/run cuda, not here.
"""
import argparse
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CMOCKA = re.compile(r"^\[\s+(OK|FAILED|SKIPPED)\s+\] (\S+)")
passed, failed, skipped = 0, 0, 0


def result(kind, name, why=""):
    global passed, failed, skipped
    if kind == "ok":
        passed += 1
    elif kind == "FAIL":
        failed += 1
    else:
        skipped += 1
    print(f"{kind} - {name}{': ' + why if why else ''}", flush=True)


def end():
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed else 77 if passed == 0 else 0)


def device_missing():
    """Why there is no device here, or None."""
    name = os.environ.get("INFERD_CUDA_LIBRARY") or "libcuda.so.1"
    try:
        cuda = ctypes.CDLL(name)
    except OSError as e:
        return f"no NVIDIA driver ({e})"
    n = ctypes.c_int(0)
    code = cuda.cuInit(0)
    if code == 0:
        code = cuda.cuDeviceGetCount(ctypes.byref(n))
    if code != 0:
        return f"the NVIDIA driver says error {code}"
    return None if n.value > 0 else "the NVIDIA driver sees no device"


class Run:
    def __init__(self, a):
        self.a = a
        self.tmp = tempfile.mkdtemp(prefix="inferd-device-")
        self.out = os.path.abspath(a.out or os.path.join(self.tmp, "logs"))
        os.makedirs(self.out, exist_ok=True)
        self.bin = os.path.abspath(a.bin) if a.bin else None
        if not self.bin:
            with tarfile.open(a.pack) as t:
                t.extractall(self.tmp, filter="data")
            self.bin = os.path.join(self.tmp, "bin")
            a.lib = a.lib or os.path.join(self.tmp, "lib")
        self.env = {**os.environ, "INFERD_BIN": self.bin, "INFERD_PRESET": "release"}
        if a.lib:
            old = os.environ.get("LD_LIBRARY_PATH")
            self.env["LD_LIBRARY_PATH"] = os.path.abspath(a.lib) + (":" + old if old else "")
        os.environ.update(self.env)

    def exe(self, name):
        for path in (os.path.join(self.bin, name), os.path.join(self.bin, "tests", name)):
            if os.path.exists(path):
                return path
        return None

    def sh(self, log, cmd, timeout=300, env=None):
        """Runs cmd from the checkout with output to a log; (status, text). 124 = timed out."""
        path = os.path.join(self.out, log + ".log")
        with open(path, "w", encoding="utf-8", errors="replace") as f:
            p = subprocess.Popen(cmd, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=f, stderr=subprocess.STDOUT,
                                 env={**self.env, **(env or {})}, start_new_session=True)
            try:
                status = p.wait(timeout)
            except subprocess.TimeoutExpired:
                os.killpg(p.pid, 9)
                p.wait()
                status = 124
        with open(path, encoding="utf-8", errors="replace") as f:
            return status, f.read()


def last(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"


# ----------------------------------------------------------------- steps

def doctor(r):
    status, text = r.sh("doctor", [r.exe("inferd"), "doctor"], env={"INFERD_BACKEND": "cuda"})
    print(text)
    if re.search(r"sm_\d\d", text):
        result("ok", "doctor names the device")
    else:
        result("FAIL", "doctor", f"exit {status}, no device in its words: {last(text)}")


def kernels(r):
    """N/N kernels on the device; the page for docs/kernel-conformance.md goes to the logs."""
    for arch in r.a.arch:
        page = os.path.join(r.out, f"kernel-conformance{'' if arch == 0 else f'-sm{arch}'}.md")
        cmd = [r.exe("inferd-worker"), "verify-kernels", f"--markdown={page}"] + ([f"--arch={arch}"] if arch else [])
        begin = time.monotonic()
        status, text = r.sh(f"verify-kernels-{arch}", cmd, 550)
        m = re.search(r"(\d+)/(\d+) kernels, (\d+)/(\d+) cases", text)
        name = f"conformance{f' of the sm_{arch} kernels' if arch else ''}"
        for line in text.splitlines():
            if line.startswith(("FAIL", "skip")):
                print("  " + line[:400])
        if status == 0 and m and m[3] == m[4] and (m[1] == m[2] or arch):
            result("ok", f"{name}: {m[0]} ({time.monotonic() - begin:.0f} s)")
        else:
            result("FAIL", name, f"exit {status}: {m[0] if m else last(text)}")


def models(r):
    """C tests of models/ on the device: golden files, chunked = whole, alone = in a batch, quantized formats."""
    os.makedirs(os.path.join(ROOT, ".device", "tmp"), exist_ok=True)
    for test in ("test_mdl_gemma_golden", "test_mdl_gemma4_golden", "test_mdl_bert_golden", "test_mdl_xlmr_golden",
                 "test_mdl_deberta_golden", "test_mdl_modernbert_golden", "test_wrk_extract_golden", "test_mdl_gemma",
                 "test_mdl_gemma4", "test_mdl_gemma4_draft", "test_mdl_bert", "test_mdl_xlmr", "test_mdl_deberta",
                 "test_mdl_gliner2"):
        # arithmetics that a test has bounds for
        many = re.search("golden|xlmr|deberta|gliner2", test) and "modernbert" not in test
        for compute in r.a.compute if many else ["exact_f32"]:
            exe = r.exe(test)
            if not exe:
                result("skip", test, f"not in {r.bin}")
                continue
            status, text = r.sh(f"{test}-{compute}", [exe], 300,
                                {"INFERD_TEST_BACKEND": "cuda", "INFERD_TEST_COMPUTE": compute})
            seen = {}
            for line in text.splitlines():
                m = CMOCKA.match(line)
                if m and m[2] not in ("tests:", "test(s),") and not m[2].isdigit():
                    seen[m[2]] = m[1]
            for case, what in seen.items():
                why = next((line for line in text.splitlines() if "ERROR" in line), "")
                result({"OK": "ok", "FAILED": "FAIL"}.get(what, "skip"), f"{test} {compute} {case}",
                       f"{why[:300]} ({test}-{compute}.log)" if what == "FAILED" else "")
            for line in text.splitlines():
                if "largest difference" in line:
                    print("  " + line)
            if status == 77:
                result("skip", f"{test} {compute}", last(text))
            elif not seen or (status != 0 and "FAILED" not in seen.values()):
                result("FAIL", f"{test} {compute}", f"exit {status}: {last(text)}")


def script(r, name):
    """A script of this folder prints one line per case, as every end-to-end script does."""
    status, text = r.sh(name, [sys.executable, os.path.join(ROOT, "tests", "device", name + ".py")], 500,
                        {"PYTHONPATH": os.path.join(ROOT, "tests", "e2e"), "INFERD_TEST_DEVICE_MODELS": r.models})
    n = 0
    for line in text.splitlines():
        m = re.match(r"(ok|FAIL|skip) - (.*)$", line)
        if m:
            result(m[1], m[2])
            n += 1
        elif re.match(r"  [a-z-].*: ", line):
            print(line[:300])
    if n == 0 or status not in (0, 1, 77):
        result("FAIL", f"cases of {name}.py", f"exit {status}: {last(text)}")


def servers(r):
    script(r, "serve")


def encoders(r):
    script(r, "encoders")


def make_models(r):
    """Random weights of real geometry, for cases that need more than the golden checkpoints."""
    r.models = os.path.abspath(r.a.models) if r.a.models else os.path.join(r.tmp, "models")
    os.makedirs(r.models, exist_ok=True)
    bench = os.path.join(ROOT, "tests", "bench")
    for name, cmd in (("gemma-tiny-q4.gguf", ["make_gemma.py", "--size", "tiny", "--type", "Q4_0"]),
                      ("gemma-270m.gguf", ["make_gemma.py", "--size", "270m"]),
                      ("bge-m3", ["make_encoder.py", "--size", "bge-m3", "--dtype", "F32"]),
                      ("deberta-v3-base", ["make_encoder.py", "--size", "deberta-v3-base", "--dtype", "F32"])):
        path = os.path.join(r.models, name)
        if not os.path.exists(path) and not (r.a.quick and not name.startswith("gemma-tiny")):
            status, text = r.sh("make-" + name, [sys.executable, os.path.join(bench, cmd[0]), path, *cmd[1:]])
            if status != 0:
                print(f"  {name} was not made: {last(text)}")


STEPS = {"doctor": doctor, "kernels": kernels, "models": models, "servers": servers, "encoders": encoders}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", help="folder of built programs (build/release) instead of the pack")
    p.add_argument("--lib", help="folder of shared libraries for LD_LIBRARY_PATH")
    p.add_argument("--pack", default=os.path.join(ROOT, ".device", "pack.tar.xz"))
    p.add_argument("--models", help="folder for made models (default: a temporary one)")
    p.add_argument("--out", help="folder for logs and the conformance page")
    p.add_argument("--only", help="steps, by comma: " + ", ".join(STEPS))
    p.add_argument("--arch", default="0,75", help="kernels to verify: 0 = the device's own, 75 = those for older devices")
    p.add_argument("--compute", default="exact_f32,tf32,f16", help="arithmetics of the golden tests")
    p.add_argument("--quick", action="store_true", help="no large models")
    a = p.parse_args()
    a.arch = [int(x) for x in a.arch.split(",")]
    a.compute = a.compute.split(",")
    why = device_missing()
    if why:
        result("skip", "all device tests", why)
        end()
    if not a.bin and not os.path.exists(a.pack):
        result("skip", "all device tests", f"{a.pack} is not there: tests/device/pack makes it")
        end()
    r = Run(a)
    try:
        status, text = r.sh("version", [r.exe("inferd") or "inferd", "version"])
        print(text.strip())
        if status != 0:
            result("FAIL", "the programs start", last(text))
            end()
        make_models(r)
        for name, step in STEPS.items():
            if not a.only or name in a.only.split(","):
                step(r)
    finally:
        shutil.rmtree(r.tmp, ignore_errors=True)
        shutil.rmtree(os.path.join(ROOT, ".device", "tmp"), ignore_errors=True)
    with open(os.path.join(a.out, "summary.json"), "w", encoding="ascii") if a.out else open(os.devnull, "w") as f:
        json.dump({"passed": passed, "failed": failed, "skipped": skipped}, f)
    end()


if __name__ == "__main__":
    main()
