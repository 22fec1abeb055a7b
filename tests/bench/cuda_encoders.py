#!/usr/bin/env python3
"""cuda_encoders.py - encoders of real geometry on a GPU beside PyTorch in eager mode, in alternating runs.

    tests/bench/run cuda-encoders [--rounds 3] [--models DIR] [--out FILE.json] [--backend cuda|cpu] [--tiny]

Each round measures every shape once with inferd (`inferd bench --only=embed`, 9 passes, their median) and once with PyTorch
(torch_eager.py; left out when torch is not there), one after the other on the same card. Prints a Markdown table of the medians
over the rounds: ours with its range, theirs, the ratio. Folders have random weights (make_encoder.py); DeBERTa is opened as an
embedder, so that its scores' head is not part of it. --out keeps every number.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

import bench_common as b

XLMR, DEBERTA = ["16x512", "64x512", "1x8192", "1x32"], ["16x215", "16x430", "1x430"]
CASES = [  # geometry, type of the file, PyTorch's type, what of ours stands beside it, shapes
    ("bge-m3", "F16", "f16", ["f16"], XLMR),
    ("deberta-v3-base", "F16", "f16", ["f16"], DEBERTA),
    ("deberta-v3-base", "F32", "f32", ["tf32", "exact_f32"], DEBERTA),
]


def made(folder, size, dtype):
    path = os.path.join(folder, f"{size}-{dtype}")
    if not os.path.exists(path):
        subprocess.run([sys.executable, b.here("make_encoder.py"), path, "--size", size, "--dtype", dtype], check=True,
                       stdout=sys.stderr)
        config = os.path.join(path, "config.json")
        with open(config, encoding="utf-8") as f:
            c = json.load(f)
        if c["model_type"] == "deberta-v2":
            c["architectures"] = ["DebertaV2ForMaskedLM"]
            with open(config, "w", encoding="utf-8") as f:
                json.dump(c, f)
    return path


def ours(a, folder, compute, shape):
    batch, tokens = shape.split("x")
    r = b.run_json([b.inferd(), "bench", folder, f"--backend={a.backend}", "--json", "--only=embed", f"--embed-batch={batch}",
                    f"--embed-tokens={tokens}", "--batch-tokens=8192", "--runs=9",
                    *([f"--compute={compute}"] if a.backend == "cuda" else [])])
    return int(batch) * 1e3 / statistics.median(r["encode_seq_s_runs"])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--models", help="folder for the files made (default: a temporary one)")
    p.add_argument("--out", help="JSON of every number")
    p.add_argument("--backend", default="cuda", choices=["cuda", "cpu"], help="cpu: to try this script")
    p.add_argument("--tiny", action="store_true", help="a tiny model, one shape: to try this script")
    a = p.parse_args()
    tmp = None if a.models else tempfile.TemporaryDirectory(prefix="inferd-bench-")
    a.models = a.models or tmp.name
    os.makedirs(a.models, exist_ok=True)
    cases = [("tiny", "F32", "f32", ["exact_f32"], ["2x32"])] if a.tiny else CASES
    torch = subprocess.run([sys.executable, "-c", "import torch, transformers"], capture_output=True, check=False).returncode == 0
    got = {}
    for i in range(a.rounds):
        for size, dtype, peer, computes, shapes in cases:
            folder = made(a.models, size, dtype)
            if torch:
                r = b.run_json([sys.executable, b.here("torch_eager.py"), folder, "--dtype", peer, "--shapes", ",".join(shapes),
                                "--device", a.backend])
                for shape, ms in r["ms"].items():
                    got.setdefault((size, peer, shape), []).append(ms)
            for compute in computes:
                for shape in shapes:
                    got.setdefault((size, peer, shape, compute), []).append(ours(a, folder, compute, shape))
        print(f"  round {i + 1}/{a.rounds}", file=sys.stderr)
    print("| encoder | ours | PyTorch | ratio |\n|---|---|---|---|")
    for key, v in got.items():
        if len(key) < 4:
            continue
        peer = got.get(key[:3])
        theirs = f"{statistics.median(peer):.2f} ms ({key[1]})" if peer else ""
        ratio = f"{statistics.median(v) / statistics.median(peer):.2f}" if peer else ""
        print(f"| {key[0]} {key[2].replace('x', ' x ')} `{key[3]}` | {statistics.median(v):.2f} ms ({min(v):.2f} to {max(v):.2f}) | "
              f"{theirs} | {ratio} |", flush=True)
    if a.out:
        with open(a.out, "w", encoding="ascii") as f:
            json.dump({" ".join(k): v for k, v in got.items()}, f, indent=1)
    if tmp:
        tmp.cleanup()


if __name__ == "__main__":
    main()
