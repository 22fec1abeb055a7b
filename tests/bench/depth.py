"""depth.py - what a long context costs a decoded token: time against bytes read, at several depths.

    tests/bench/run depth [--model GGUF] [--depths 512,8192,32640] [--threads 1,2] [--runs N] [--gen N] [--kv-mb N]

One process per measurement, the depths in turn, so that a busy minute falls on all of them. A token reads the weights and
the keys and values it may see (`weight_bytes`, `kv_read_bytes` of `inferd bench`; the cache is filled with made-up values).
Printed per depth: tokens/s, processor time a token of all threads (it wanders less than the clock, but with two threads
holds their waiting too), both as ratios to the first depth, beside the ratio of bytes. "beyond bytes" divides the two: at
most 1 means that decoding slows down by no more than what it reads. "GB/s more" is the rate at which the bytes that the
first depth does not read are read.
"""
import argparse
import os
import statistics
import sys

import bench_common as b


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", help="default: Gemma 3 270M")
    p.add_argument("--depths", default="512,8192,32640", type=lambda s: [int(x) for x in s.split(",")])
    p.add_argument("--threads", default="1,2", type=lambda s: [int(x) for x in s.split(",")])
    p.add_argument("--runs", type=int, default=5, help="rounds over all depths (default 5)")
    p.add_argument("--gen", type=int, default=64)
    p.add_argument("--kv-mb", type=int, default=1500)
    a = p.parse_args()
    model = a.model or b.models("gemma-3-270m.gguf")
    for t in a.threads:
        runs = {d: [] for d in a.depths}
        for i in range(a.runs):
            for d in a.depths:
                runs[d].append(b.inferd_bench(model, t, ["--only", "decode", "--gen", str(a.gen), "--context", str(d),
                                                         "--kv-mb", str(a.kv_mb)]))
            print(f"  round {i + 1}/{a.runs}", file=sys.stderr)
        table(f"{os.path.basename(model)}, {t} thread(s), decode of {a.gen}", [(d, runs[d]) for d in a.depths])


def table(title, rows):
    print(f"\n{title}\n| depth | MB read | tok/s | cpu ms | bytes x | time x | cpu x | beyond bytes: time, cpu | GB/s more | spread tok/s |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    first = None
    for depth, runs in rows:
        read = runs[0]["weight_bytes"] + runs[0]["kv_read_bytes"]
        rate, cpu = ([r[k] for r in runs] for k in ("decode_tok_s", "decode_step_cpu_ms"))
        now = (read, 1 / statistics.median(rate), statistics.median(cpu))
        first = first or now
        by, tm, cp = (x / y for x, y in zip(now, first))
        more = "" if now is first else f"{(now[0] - first[0]) / (now[1] - first[1]) * 1e-9:.1f}"
        print(f"| {depth} | {read / 1e6:.1f} | {1 / now[1]:.2f} | {now[2]:.2f} | {by:.3f} | {tm:.3f} | {cp:.3f} | "
              f"{tm / by:.2f}, {cp / by:.2f} | {more} | {min(rate):.1f}..{max(rate):.1f} |", flush=True)


if __name__ == "__main__":
    main()
