"""torch_encoder.py - one measurement of a BERT encoder in PyTorch, as JSON: f16, scaled_dot_product_attention, CUDA graphs.

    torch_encoder.py FOLDER --batch 16 --tokens 512 [--runs 30] [--device cuda|cpu]

What a careful PyTorch user would serve: fused QKV, torch's attention kernel chosen by torch, the whole pass captured once and
replayed. Timed: ids to the device, the pass, vectors back to the host, as the caller of inferd sees it. FOLDER is what
make_encoder.py writes (or any BERT folder without position offsets). Checked with torch 2.11.
"""
import argparse
import json
import os
import statistics
import struct
import time

import numpy as np
import torch
import torch.nn.functional as F

NP = {"F16": np.float16, "F32": np.float32}


def load(folder, device, dtype):
    path = os.path.join(folder, "model.safetensors")
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        head = json.loads(f.read(n))
    data = np.memmap(path, np.uint8, "r", 8 + n)
    out = {}
    for name, t in head.items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            out[name] = torch.from_numpy(data[a:b].view(NP[t["dtype"]]).reshape(t["shape"]).copy()).to(device, dtype)
    return out


class Encoder:
    def __init__(self, folder, device, dtype):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            c = json.load(f)
        self.heads, self.eps, self.d = c["num_attention_heads"], c["layer_norm_eps"], c["hidden_size"]
        w = load(folder, device, dtype)
        self.embed = [w["embeddings.word_embeddings.weight"], w["embeddings.position_embeddings.weight"],
                      w["embeddings.token_type_embeddings.weight"][0]]
        self.norm0 = (w["embeddings.LayerNorm.weight"], w["embeddings.LayerNorm.bias"])
        self.layers = []
        for i in range(c["num_hidden_layers"]):
            p = f"encoder.layer.{i}."
            qkv = [p + "attention.self." + n for n in ("query", "key", "value")]
            self.layers.append({
                "qkv": (torch.cat([w[n + ".weight"] for n in qkv]), torch.cat([w[n + ".bias"] for n in qkv])),
                **{k: (w[p + n + ".weight"], w[p + n + ".bias"]) for k, n in (
                    ("out", "attention.output.dense"), ("norm1", "attention.output.LayerNorm"),
                    ("up", "intermediate.dense"), ("down", "output.dense"), ("norm2", "output.LayerNorm"))}})

    def norm(self, x, w):
        return F.layer_norm(x, (self.d,), w[0], w[1], self.eps)

    def forward(self, ids):
        n, t = ids.shape
        x = self.norm(F.embedding(ids, self.embed[0]) + self.embed[1][:t] + self.embed[2], self.norm0)
        for layer in self.layers:
            qkv = F.linear(x, *layer["qkv"]).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            a = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2]).transpose(1, 2).reshape(n, t, self.d)
            x = self.norm(F.linear(a, *layer["out"]) + x, layer["norm1"])
            x = self.norm(F.linear(F.gelu(F.linear(x, *layer["up"])), *layer["down"]) + x, layer["norm2"])
        return F.normalize(x[:, 0].float(), dim=-1)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--tokens", type=int, default=512)
    p.add_argument("--runs", type=int, default=30)
    p.add_argument("--device", default="cuda")
    a = p.parse_args()
    gpu = a.device != "cpu"
    torch.manual_seed(1)
    with torch.inference_mode():
        model = Encoder(a.folder, a.device, torch.float16 if gpu else torch.float32)
        vocab = model.embed[0].shape[0]
        host = torch.randint(110, vocab, (a.batch, a.tokens))
        back = torch.empty(a.batch, model.d)
        if gpu:
            host, back = host.pin_memory(), back.pin_memory()
        ids = host.to(a.device)
        out = None
        for _ in range(3):  # choose kernels, allocate
            out = model.forward(ids)
        if gpu:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = model.forward(ids)
        times = []
        for _ in range(a.runs + 3):
            begin = time.perf_counter()
            ids.copy_(host, non_blocking=True)
            if gpu:
                graph.replay()
                back.copy_(out, non_blocking=True)
                torch.cuda.synchronize()
            else:
                back.copy_(model.forward(ids))
            times.append(time.perf_counter() - begin)
        ms = statistics.median(times[3:]) * 1e3
        if not torch.isfinite(back).all():
            raise SystemExit("the vectors are not finite")
    print(json.dumps({"embed_batch": a.batch, "embed_tokens": a.tokens, "ms": ms, "encode_seq_s": a.batch / ms * 1e3,
                      "ms_runs": [round(t * 1e3, 4) for t in times[3:]], "version": torch.__version__}))


if __name__ == "__main__":
    main()
