"""encoders.py - encoders of BGE-M3's and DeBERTa-v3-base's geometry on the CPU: inferd against PyTorch and ONNX Runtime, in turns.

    tests/bench/run encoders FOLDER [--threads 2] [--rounds 3] [--runs 5] [--clock cpu] [--only deberta]

FOLDER is where the models with random weights are kept (make_encoder.py writes them, 1.7 GB, the first time). Each measurement is
a process of its own that warms up once; in every round the three follow each other, and rounds alternate who begins. The numbers
of all three are compared too. The ratio is the better peer's median over ours: above 1 means inferd needs less time. Asked: 1.2 for
BGE-M3's geometry (16 x 68) and pairs (16 x 512), 1.3 for GLiNER2's (16 x 215, 16 x 430). --clock cpu compares processor time, for one
thread on a machine that others use. BERT stands for XLM-RoBERTa: the same operations.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

import bench_common as b

CASES = [("bge-m3", 16, 68, 1.2), ("deberta-v3-base", 16, 215, 1.3), ("deberta-v3-base", 16, 430, 1.3), ("deberta-v3-base", 16, 512, 1.2)]
PACKAGES = ["torch==2.15.0", "transformers==5.24.0", "onnxruntime==1.32.0", "onnx==1.23.2", "safetensors", "numpy"]
TOLERANCE = 2e-4  # of the first values: random weights, other orders of sums


def ours(a, folder, batch, tokens):
    exe = os.path.join(os.environ.get("INFERD_BIN") or os.path.join(b.ROOT, "build", "release"), "tests", "bench-encode")
    return b.run_json([exe, folder, str(a.threads), str(a.runs), "seqs", str(tokens), str(batch)])


def peer(a, python, engine, folder, batch, tokens):
    return b.run_json([python, b.here("peer_encoders.py"), folder, "--engine", engine, "--batch", str(batch), "--tokens", str(tokens),
                       "--threads", str(a.threads), "--runs", str(a.runs)],
                      env={**b.CLEAN, "OMP_NUM_THREADS": str(a.threads), "MKL_NUM_THREADS": str(a.threads)})


def compare(a, python, size, batch, tokens, asked):
    folder = os.path.join(a.folder, size)
    if not os.path.exists(os.path.join(folder, "model.safetensors")):
        subprocess.run([python, b.here("make_encoder.py"), folder, "--size", size, "--dtype", "F32"], check=True)
    sides = {"inferd": lambda: ours(a, folder, batch, tokens)}
    for engine in ("torch", "onnx"):
        sides[engine] = lambda engine=engine: peer(a, python, engine, folder, batch, tokens)
    got = {k: [] for k in sides}
    for i in range(a.rounds):
        names = list(sides)[i % 3:] + list(sides)[:i % 3]
        for k in names:
            got[k].append(sides[k]())
        print(f"  {size} {batch} x {tokens}: round {i + 1}/{a.rounds}", file=sys.stderr)
    for k in ("torch", "onnx"):
        for x, y in zip(got["inferd"][0]["first"], got[k][0]["first"]):
            if abs(x - y) > TOLERANCE:
                raise SystemExit(f"{size} {batch} x {tokens}: {k} gives {y}, inferd {x}")
    if got["inferd"][0]["hot_allocs"]:
        raise SystemExit(f"{size}: allocations while it ran")
    field = "ms_runs" if a.clock == "wall" else "cpu_ms_runs"
    runs = {k: [t for r in v for t in r[field]] for k, v in got.items()}
    p50 = {k: statistics.median(v) for k, v in runs.items()}
    ratio = min(p50["torch"], p50["onnx"]) / p50["inferd"]
    print(f"| {size} {batch} x {tokens} | {p50['inferd']:.0f} ({min(runs['inferd']):.0f}..{max(runs['inferd']):.0f}) | "
          f"{p50['torch']:.0f} | {p50['onnx']:.0f} | **{ratio:.2f}** | {asked} |", flush=True)
    return {"case": f"{size} {batch} x {tokens}", "ratio": ratio, "asked": asked, "p50_ms": p50, "runs": runs,
            "versions": [got[k][0]["version"] for k in ("torch", "onnx")]}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--batch", type=int, help="instead of 16")
    p.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    p.add_argument("--only", default="", help="sizes that begin so")
    p.add_argument("--json", help="file for every run")
    a = p.parse_args()
    python = b.peer_python(PACKAGES, "peer-encoders")
    print(f"\n{a.threads} thread(s), {a.rounds} rounds of {a.runs}, {a.clock} clock, f32")
    print("| geometry, sequences x tokens | inferd p50 ms | PyTorch | ONNX Runtime | better peer / inferd | asked |")
    print("|---|---|---|---|---|---|", flush=True)
    done = [compare(a, python, size, a.batch or batch, tokens, asked) for size, batch, tokens, asked in CASES if size.startswith(a.only)]
    if a.json:
        with open(a.json, "w", encoding="utf-8") as f:
            json.dump(done, f, indent=1)


if __name__ == "__main__":
    main()
