"""eg2.py - EmbeddingGemma 2 at its real geometry on the CPU: inferd against the reference implementation in PyTorch, alternating.

    tests/bench/run eg2 FOLDER [--threads 2] [--rounds 3] [--tokens 512,8192] [--image 960x672] [--sound 30] [--clock cpu]

FOLDER is a checkpoint of the published size: tests/golden/embeddinggemma2/make_real.py writes one with the reference's own random
initialisation, acquire.py fetches the published one. Each measurement is a process of its own that warms up once and then runs 20
times (512 tokens or fewer) or 5; rounds alternate who begins. Timed on both sides: ids on the host to the vector on the host
(media: patches or mel features to the vector). A ratio below 1 means inferd needs less time; asked: text <= 0.95, media <= 1.5, and
at most 512 MiB of workspace at 8,192 tokens. --clock cpu compares processor time, for one thread on a machine that others use.
"""
import argparse
import json
import os
import statistics
import sys

import bench_common as b


def ours(folder, threads, runs, what, clock):
    exe = os.path.join(os.environ.get("INFERD_BIN") or os.path.join(b.ROOT, "build", "release"), "tests", "bench-encode")
    if not os.path.exists(exe):
        raise SystemExit(f"{exe} is not there: use tests/bench/run, or build the target bench-encode of the release preset first")
    r = b.run_json([exe, folder, str(threads), str(runs), *what])
    r["runs"] = r["ms_runs" if clock == "wall" else "cpu_ms_runs"]
    return r


def peer(python, folder, threads, runs, what, clock):
    r = b.run_json([python, b.here("torch_eg2.py"), folder, "--threads", str(threads), "--runs", str(runs), "--clock", clock, *what],
                   env={**b.CLEAN, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)})
    r["runs"] = r["ms_runs"]
    return r


def compare(a, python, name, runs, us, them):
    mine, other, sides = [], [], [lambda: mine.append(ours(a.folder, a.threads, runs, us, a.clock)),
                                  lambda: other.append(peer(python, a.folder, a.threads, runs, them, a.clock))]
    for i in range(a.rounds):
        for side in sides if i % 2 == 0 else sides[::-1]:
            side()
        print(f"  {name}: round {i + 1}/{a.rounds}: {statistics.median(mine[-1]['runs']):.0f} ms, {statistics.median(other[-1]['runs']):.0f} ms",
              file=sys.stderr)
    x, y = ([t for r in side for t in r["runs"]] for side in (mine, other))
    px, py = statistics.median(x), statistics.median(y)
    m = mine[0]
    if m["hot_allocs"]:
        raise SystemExit(f"{name}: {m['hot_allocs']} allocations while it ran")
    print(f"| {name} | {px:.0f} | {py:.0f} | **{px / py:.2f}** | {min(x):.0f}..{max(x):.0f} / {min(y):.0f}..{max(y):.0f} | "
          f"{(m['workspace_bytes'] + m['media_bytes']) / 2**20:.0f} MiB |", flush=True)
    return {"case": name, "p50_ms": px, "peer_p50_ms": py, "ratio": px / py, "runs": x, "peer_runs": y,
            "workspace_bytes": m["workspace_bytes"], "media_bytes": m["media_bytes"], "peer": other[0]["version"]}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--runs", type=int, help="instead of 20 and 5")
    p.add_argument("--tokens", default="512,8192", help='"" = no text')
    p.add_argument("--image", help="WIDTHxHEIGHT of a picture that is cut to patches")
    p.add_argument("--sound", type=float, help="seconds")
    p.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    p.add_argument("--json", help="file for every run")
    a = p.parse_args()
    python = b.peer_python(["torch==2.15.0", "transformers==5.24.0", "safetensors", "numpy"], "peer-eg2")
    done = []
    print(f"\nEmbeddingGemma 2, {a.threads} thread(s), {a.rounds} rounds, {a.clock} clock")
    print("| input | inferd p50 ms | PyTorch p50 ms | ratio | spread | workspace |")
    print("|---|---|---|---|---|---|", flush=True)
    for n in [int(t) for t in a.tokens.split(",") if t]:
        done.append(compare(a, python, f"{n} tokens", a.runs or (20 if n <= 512 else 5), ["tokens", str(n)], ["--tokens", str(n)]))
    if a.image:
        w, h = a.image.split("x")
        done.append(compare(a, python, f"picture {a.image}", a.runs or 5, ["image", w, h], ["--image", a.image]))
    if a.sound:
        done.append(compare(a, python, f"sound of {a.sound:g} s", a.runs or 5, ["sound", str(int(a.sound * 16000))], ["--sound", str(a.sound)]))
    if a.json:
        with open(a.json, "w", encoding="utf-8") as f:
            json.dump(done, f, indent=1)


if __name__ == "__main__":
    main()
