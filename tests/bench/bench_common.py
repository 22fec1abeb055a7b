"""bench_common.py - what the peer benchmarks share: peers in venvs of the user's cache, alternation, tables."""
import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "inferd")
# OPENBLAS_* work around old OpenBLAS builds on some machines; a peer's own BLAS must choose freely
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}


def here(name):
    return os.path.join(HERE, name)


def parser(doc):
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--runs", type=int, default=5, help="alternating pairs (default 5)")
    p.add_argument("--threads", default="1,2", type=lambda s: [int(x) for x in s.split(",")])
    return p


def args(doc):
    return parser(doc).parse_args()


def models(name):
    """Path of a real model; tests/bench/run says where they are, else tests/models/get does."""
    folder = os.environ.get("INFERD_TEST_MODELS")
    if not folder:
        r = subprocess.run([os.path.join(ROOT, "tests", "models", "get")], stdout=subprocess.PIPE, text=True, check=False)
        if r.returncode != 0:
            raise SystemExit("real weights cannot be fetched")
        folder = r.stdout.strip()
    return os.path.join(folder, name)


def inferd():
    exe = os.path.join(os.environ.get("INFERD_BIN") or os.path.join(ROOT, "build", "release"), "inferd")
    if not os.path.exists(exe):
        raise SystemExit(f"{exe} is not there: use tests/bench/run, or build the release preset first")
    return exe


def peer_python(packages, name, env=None):
    """The python of a venv with the peer; INFERD_BENCH_PYTHON names one that is already there."""
    given = os.environ.get("INFERD_BENCH_PYTHON")
    if given:
        return given
    path = os.path.join(CACHE, name)
    py = os.path.join(path, "bin", "python")
    mark = os.path.join(path, ".packages")
    if not (os.path.exists(mark) and open(mark, encoding="ascii").read() == "\n".join(packages)):
        print(f"installing {', '.join(packages)} into {path} (once; building takes minutes)", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", path], check=True)
        subprocess.run([py, "-m", "pip", "install", "-q", *packages], check=True, env={**os.environ, **(env or {})})
        with open(mark, "w", encoding="ascii") as f:
            f.write("\n".join(packages))
    return py


def run_json(cmd, env=None):
    out = subprocess.run(cmd, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env or CLEAN).stdout
    return json.loads(out[out.index("{"):])


def inferd_bench(model, threads, extra):
    return run_json([inferd(), "bench", model, "--threads", str(threads), "--runs", "1",
                     "--json", *extra])


def alternate(runs, ours, peer):
    a, b = [], []
    for i in range(runs):
        a.append(ours())
        b.append(peer())
        print(f"  pair {i + 1}/{runs}", file=sys.stderr)
    return a, b


def table(title, rows):
    print(f"\n{title}")
    print(f"| {'':<16} | {'ours':>10} | {'peer':>10} | {'ratio':>6} | spread ours / peer |")
    print("|---|---|---|---|---|")
    for name, o, p in rows:
        mo, mp = statistics.median(o), statistics.median(p)
        print(f"| {name:<16} | {mo:>10.2f} | {mp:>10.2f} | {mo / mp:>6.2f} | {min(o):.2f}..{max(o):.2f} / {min(p):.2f}..{max(p):.2f} |", flush=True)
