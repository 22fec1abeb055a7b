#!/usr/bin/env python3
"""cuda.py - backend cuda against llama.cpp and PyTorch on the same device, files and shapes, in alternating runs.

    tests/bench/run cuda [--llama-bench PATH] [--runs N] [--sizes 270m,4b] [--out FILE.json] [--backend cpu]

Decode of 128 tokens at batch 1 and prefill of 2048 against llama-bench (all layers on the GPU, flash attention on; left out
when no path is given); beside it the copy bandwidth of the device, measured in the same minutes, and the share of it that
reading the weights once per token comes to. Encoder of BGE-M3's geometry, 16 x 512 and 1 x 32 tokens, compute f16, against
PyTorch (torch_encoder.py; left out when torch is not there). Files have random weights (make_gemma.py, make_encoder.py) and are
made in --models. Prints a Markdown table of medians; --out keeps every run.
"""
import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import bench_common as b

TYPES = {"270m": ["Q4_K_M"], "1b": ["Q4_K_M"], "4b": ["Q4_0", "Q4_K_M"], "tiny": ["Q4_0"], "e2b": ["Q4_0"], "g4tiny": ["Q4_0"]}
SHAPES = [(16, 512), (1, 32)]


def made(folder, script, name, *args):
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        subprocess.run([sys.executable, b.here(script), path, *args], check=True)
    return path


def weight_bytes(path):
    """Bytes of the tensors of a GGUF file that each token reads whole (the table of a tied model as its head): all, but for
    Gemma 4's table of per-layer embeddings, of which a token takes one row."""
    widths = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    with open(path, "rb") as f:
        def num(fmt):
            return struct.unpack(fmt, f.read(struct.calcsize(fmt)))[0]

        def skip(kind, n=1):
            if kind == 8:
                for _ in range(n):
                    f.seek(num("<Q"), 1)
            else:
                f.seek(widths[kind] * n, 1)

        if f.read(4) != b"GGUF":
            raise SystemExit(f"{path} is no GGUF file")
        num("<I")
        n_tensors, n_keys = num("<Q"), num("<Q")
        for _ in range(n_keys):
            f.seek(num("<Q"), 1)
            kind = num("<I")
            if kind == 9:
                kind = num("<I")
                skip(kind, num("<Q"))
            else:
                skip(kind)
        at = {}
        for _ in range(n_tensors):
            name = f.read(num("<Q"))
            f.seek(8 * num("<I") + 4, 1)
            at[name] = num("<Q")
        size = os.path.getsize(path) - -(-f.tell() // 32) * 32
        rows = at.get(b"per_layer_token_embd.weight")
        return size if rows is None else size - (min([o for o in at.values() if o > rows] + [size]) - rows)


COPY = """
import json, torch
n = 1 << 32
a = torch.empty(n, dtype=torch.uint8, device="cuda"); c = torch.empty_like(a)
best = []
for _ in range(12):
    s, e = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    s.record(); c.copy_(a); e.record(); torch.cuda.synchronize()
    best.append(2 * n / (s.elapsed_time(e) * 1e-3))
print(json.dumps({"bytes_s": sorted(best[2:])[len(best[2:]) // 2]}))
"""


def copy_bandwidth():
    """Bytes read and written per second by a copy within the device, or None without torch and a GPU."""
    r = subprocess.run([sys.executable, "-c", COPY], capture_output=True, text=True, check=False)
    return json.loads(r.stdout)["bytes_s"] if r.returncode == 0 else None


def has_torch(device):
    test = "import torch; assert torch.cuda.is_available()" if device == "cuda" else "import torch"
    return subprocess.run([sys.executable, "-c", test], capture_output=True, check=False).returncode == 0


def ours(a, model, *extra, runs=1):
    return b.run_json([b.inferd(), "bench", model, f"--backend={a.backend}", f"--runs={runs}", "--json", *extra, *a.extra])


def llama(a, model):
    out = subprocess.run([a.llama_bench, "-m", model, "-p", str(a.prompt), "-n", str(a.gen), "-r", "1", "-ngl", "99", "-fa", "1",
                          "-o", "json"], check=True, capture_output=True, text=True).stdout
    got = {}
    for e in json.loads(out[out.index("["):]):
        got["decode_tok_s" if e["n_gen"] else "prefill_tok_s"] = e["avg_ts"]
    return got


def med(runs, key):
    v = [r[key] for r in runs if r]
    return statistics.median(v) if v else None


def cell(v, fmt="{:.1f}"):
    return fmt.format(v) if v is not None else ""


def decoders(a, rows, keep):
    for size in a.sizes:
        for kind in TYPES[size]:
            path = made(a.models, "make_gemma.py", f"gemma-{size}-{kind}.gguf", "--size", size, "--type", kind)
            n_bytes, o, p, copy = weight_bytes(path), [], [], []
            for i in range(a.runs):
                o.append(ours(a, path, "--only=prompt,decode", f"--prompt={a.prompt}", f"--gen={a.gen}"))
                p.append(llama(a, path) if a.llama_bench else None)
                copy.append(copy_bandwidth() if a.backend == "cuda" else None)
                print(f"  {size} {kind}: pair {i + 1}/{a.runs}", file=sys.stderr)
            bw = [c for c in copy if c]
            bw = statistics.median(bw) if bw else None
            name = f"Gemma {4 if size in ('e2b', 'g4tiny') else 3} {size} {kind}"
            dec, pre = med(o, "decode_tok_s"), med(o, "prefill_tok_s")
            rows.append((name + " decode", dec, med(p, "decode_tok_s"), "tok/s", dec * n_bytes / bw if bw else None))
            rows.append((f"{name} prefill {a.prompt}", pre, med(p, "prefill_tok_s"), "tok/s", None))
            keep.append({"model": name, "weight_bytes": n_bytes, "copy_bytes_s": copy, "ours": o, "llama": p})


def encoders(a, rows, keep):
    size = "bge-m3" if "tiny" not in a.sizes else "tiny"
    folder = made(a.models, "make_encoder.py", f"encoder-{size}", "--size", size)
    torch = has_torch(a.backend)
    for batch, tokens in SHAPES:
        o, p = [], []
        for i in range(a.runs):
            o.append(ours(a, folder, "--only=embed", f"--embed-batch={batch}", f"--embed-tokens={tokens}",
                          *(["--compute=f16"] if a.backend == "cuda" else []), runs=9))  # the first captures the graph
            p.append(b.run_json([sys.executable, b.here("torch_encoder.py"), folder, "--batch", str(batch), "--tokens",
                                 str(tokens), "--device", a.backend]) if torch else None)
            print(f"  encoder {batch} x {tokens}: pair {i + 1}/{a.runs}", file=sys.stderr)
        rows.append((f"encoder {size} {batch} x {tokens}", med(o, "encode_seq_s"), med(p, "encode_seq_s"), "texts/s", None))
        keep.append({"model": f"encoder {size}", "batch": batch, "tokens": tokens, "ours": o, "torch": p})


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--llama-bench", help="llama.cpp's llama-bench, built with CUDA")
    p.add_argument("--runs", type=int, default=5, help="alternating pairs (default 5)")
    p.add_argument("--sizes", default="270m,4b", type=lambda s: s.split(","))
    p.add_argument("--prompt", type=int, default=2048)
    p.add_argument("--gen", type=int, default=128)
    p.add_argument("--models", help="folder for the files made (default: a temporary one)")
    p.add_argument("--only", choices=["decoder", "encoder"])
    p.add_argument("--backend", default="cuda", choices=["cuda", "cpu"], help="cpu: to try this script")
    p.add_argument("--out", help="JSON of every run")
    p.add_argument("extra", nargs="*", help="more options of inferd bench, after --")
    a = p.parse_args()
    tmp = None if a.models else tempfile.TemporaryDirectory(prefix="inferd-bench-")
    a.models = a.models or tmp.name
    os.makedirs(a.models, exist_ok=True)
    rows, keep, begin = [], [], time.monotonic()
    if a.only != "encoder":
        decoders(a, rows, keep)
    if a.only != "decoder":
        encoders(a, rows, keep)
    print("| what | ours | peer | ratio | unit | weights read, share of copy bandwidth |\n|---|---|---|---|---|---|")
    for name, o, peer, unit, share in rows:
        print(f"| {name} | {cell(o)} | {cell(peer)} | {cell(o / peer if peer else None, '{:.2f}')} | {unit} | "
              f"{cell(share, '{:.0%}')} |", flush=True)
    print(f"medians of {a.runs} alternating runs, {time.monotonic() - begin:.0f} s", file=sys.stderr)
    if a.out:
        with open(a.out, "w", encoding="ascii") as f:
            json.dump(keep, f, indent=1)
    if tmp:
        tmp.cleanup()


if __name__ == "__main__":
    main()
