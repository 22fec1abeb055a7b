"""gliner2.py - an extractor of GLiNER2-base's geometry on the CPU: inferd against the gliner2 package, in turns.

    tests/bench/run gliner2 FOLDER [--threads 2] [--rounds 3] [--runs 5] [--clock cpu] [--texts 16]

FOLDER is where the model with random weights is kept (make_gliner2.py writes it, 0.4 GB, the first time). Entities of five labels in 16
texts whose sequences, prompt and all, have 215 and 430 tokens; a run is all of it, from texts to what was found. Each measurement is a
process of its own that warms up once; rounds alternate who begins. What both found is compared too. The ratio is the peer's median
over ours: above 1 means inferd needs less time; asked: 1.3. --clock cpu compares processor time, for one thread on a machine that
others use.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys

import bench_common as b

SIZES, ASKED = (215, 430), 1.3
LABELS = ["person", "place", "company", "date", "product"]
THRESHOLD, TOLERANCE = 0.9, 2e-3  # of scores; what is that near to the threshold may be found by one side only
PACKAGES = ["gliner2==2.1.0", "torch==2.15.0", "transformers==5.24.0", "peft", "safetensors", "numpy", "protobuf", "sentencepiece"]
GOLDEN = os.path.join(os.path.dirname(b.HERE), "golden", "gliner2", "tokenizer.json")


def words():
    """Words of one token each."""
    with open(GOLDEN, encoding="utf-8") as f:
        pieces = [p for p, _ in json.load(f)["model"]["vocab"]]
    return [p[1:] for p in pieces if p[0] == "\u2581" and p[1:].isascii() and p[1:].isalpha() and p[1:].islower() and len(p) > 3]


def texts(n, count):
    rng, pool = random.Random(n), words()
    return "".join(" ".join(rng.choice(pool) for _ in range(n - 1)) + ".\n" for _ in range(count))


def run(cmd, text, env):
    out = subprocess.run(cmd, input=text, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env).stdout
    return json.loads(out[out.index("{"):])


def ours(a, text, runs):
    exe = os.path.join(os.environ.get("INFERD_BIN") or os.path.join(b.ROOT, "build", "release"), "tests", "bench-extract")
    return run([exe, a.folder, str(a.threads), str(runs), str(THRESHOLD), ",".join(LABELS)], text, b.CLEAN)


def peer(a, python, text):
    return run([python, b.here("peer_gliner2.py"), a.folder, "--threads", str(a.threads), "--runs", str(a.runs), "--threshold",
                str(THRESHOLD), "--labels", ",".join(LABELS)], text,
               {**b.CLEAN, "OMP_NUM_THREADS": str(a.threads), "MKL_NUM_THREADS": str(a.threads)})


def same(x, y, what):
    x, y = ({tuple(f[:4]): f[4] for f in side} for side in (x, y))
    for k in x.keys() | y.keys():
        score = x.get(k, y.get(k))
        if (k in x and k in y and abs(x[k] - y[k]) <= TOLERANCE) or abs(score - THRESHOLD) <= TOLERANCE:
            continue
        raise SystemExit(f"{what}: text, label, start and end {k}: inferd {x.get(k)}, the package {y.get(k)}")
    if not x:
        raise SystemExit(f"{what}: nothing was found")
    return len(x)


def compare(a, python, size):
    overhead = ours(a, "a.\n", 1)["rows"] - 2  # the prompt's
    text = texts(size - overhead, a.texts)
    sides = {"inferd": lambda: ours(a, text, a.runs), "gliner2": lambda: peer(a, python, text)}
    got = {k: [] for k in sides}
    for i in range(a.rounds):
        for k in list(sides) if i % 2 == 0 else reversed(sides):
            got[k].append(sides[k]())
        print(f"  {a.texts} x {size}: round {i + 1}/{a.rounds}", file=sys.stderr)
    if got["inferd"][0]["rows"] != size:
        raise SystemExit(f"a sequence of {got['inferd'][0]['rows']} tokens, expected {size}")
    found = same(got["inferd"][0]["found"], got["gliner2"][0]["found"], f"{a.texts} x {size}")
    field = "ms_runs" if a.clock == "wall" else "cpu_ms_runs"
    runs = {k: [t for r in v for t in r[field]] for k, v in got.items()}
    p50 = {k: statistics.median(v) for k, v in runs.items()}
    ratio = p50["gliner2"] / p50["inferd"]
    print(f"| {a.texts} x {size} | {p50['inferd']:.0f} ({min(runs['inferd']):.0f}..{max(runs['inferd']):.0f}) | "
          f"{p50['gliner2']:.0f} ({min(runs['gliner2']):.0f}..{max(runs['gliner2']):.0f}) | **{ratio:.2f}** | {ASKED} | {found} |", flush=True)
    return {"case": f"{a.texts} x {size}", "ratio": ratio, "asked": ASKED, "p50_ms": p50, "runs": runs, "found": found,
            "version": got["gliner2"][0]["version"]}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--texts", type=int, default=16, help="16; fewer where time is short")
    p.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    p.add_argument("--json", help="file for every run")
    a = p.parse_args()
    python = b.peer_python(PACKAGES, "peer-gliner2")
    if not os.path.exists(os.path.join(a.folder, "model.safetensors")):
        subprocess.run([python, b.here("make_gliner2.py"), a.folder], check=True)
    print(f"\n{a.threads} thread(s), {a.rounds} rounds of {a.runs}, {a.clock} clock, f32")
    print("| texts x tokens | inferd p50 ms | gliner2 p50 ms | gliner2 / inferd | asked | found |")
    print("|---|---|---|---|---|---|", flush=True)
    done = [compare(a, python, size) for size in SIZES]
    if a.json:
        with open(a.json, "w", encoding="utf-8") as f:
            json.dump(done, f, indent=1)


if __name__ == "__main__":
    main()
