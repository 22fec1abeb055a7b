"""torch_eager.py - an encoder in PyTorch without graphs or compilation, as JSON: milliseconds a pass of each shape.

    torch_eager.py FOLDER --dtype f16|f32 --shapes 16x512,1x32 [--runs 20] [--device cuda|cpu]

What transformers' own module does when it is called: its attention for BERT is torch's scaled_dot_product_attention, DeBERTa has
one of its own. Timed: ids to the device, the pass, the first row of each sequence back to the host. f32 is exact (no tf32), as
torch has it by default. FOLDER is what make_encoder.py writes. Checked with torch 2.11, transformers 5.17.
"""
import argparse
import json
import statistics
import time

import torch
from transformers import AutoModel


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--dtype", choices=["f16", "f32"], required=True)
    p.add_argument("--shapes", required=True)
    p.add_argument("--runs", type=int, default=20)
    p.add_argument("--device", default="cuda")
    a = p.parse_args()
    torch.manual_seed(1)
    torch.set_grad_enabled(False)
    model = AutoModel.from_pretrained(a.folder, dtype=torch.float16 if a.dtype == "f16" else torch.float32).eval().to(a.device)
    out = {}
    for shape in a.shapes.split(","):
        batch, tokens = map(int, shape.split("x"))
        host = torch.randint(110, model.config.vocab_size, (batch, tokens))
        times = []
        for _ in range(a.runs + 3):
            begin = time.perf_counter()
            back = model(input_ids=host.to(a.device)).last_hidden_state[:, 0].float().cpu()
            times.append((time.perf_counter() - begin) * 1e3)
        if not torch.isfinite(back).all():
            raise SystemExit("the vectors are not finite")
        out[shape] = statistics.median(times[3:])
    print(json.dumps({"ms": out, "version": torch.__version__}))


if __name__ == "__main__":
    main()
