"""peer_gliner2.py - one measurement of the gliner2 package on the CPU, f32, as JSON.

    peer_gliner2.py FOLDER --threads 2 --threshold 0.9 --labels a,b [--runs 5] < TEXTS

Texts a line each, all in one batch; what is found comes as bench-extract prints it.
"""
import argparse
import importlib.metadata
import json
import os
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.pop(0)  # gliner2.py beside this file is not the package

import torch
from gliner2 import GLiNER2


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--threshold", type=float, default=0.5)
    p.add_argument("--labels", required=True)
    p.add_argument("--runs", type=int, default=5)
    a = p.parse_args()
    texts, labels = sys.stdin.read().splitlines(), a.labels.split(",")
    torch.set_num_threads(a.threads)
    torch.set_grad_enabled(False)
    model = GLiNER2.from_pretrained(a.folder).float().eval()

    def run():
        return model.batch_extract_entities(texts, labels, batch_size=len(texts), threshold=a.threshold, include_confidence=True,
                                            include_spans=True)

    out = run()  # warms up
    wall, cpu = [], []
    for _ in range(a.runs):
        t, u = time.perf_counter(), time.process_time()
        run()
        wall.append(1e3 * (time.perf_counter() - t))
        cpu.append(1e3 * (time.process_time() - u))
    found = [[i, labels.index(k), e["start"], e["end"], e["confidence"]]
             for i, o in enumerate(out) for k, v in o["entities"].items() for e in v]
    version = " ".join(f"{n} {importlib.metadata.version(n)}" for n in ("gliner2", "torch", "transformers"))
    print(json.dumps({"ms_runs": wall, "cpu_ms_runs": cpu, "found": found, "version": version}))


if __name__ == "__main__":
    main()
