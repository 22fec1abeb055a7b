#!/usr/bin/env python3
"""How far the references themselves move in less than f32.

    compute_bounds.py [tf32|f16]

tf32: their products round both factors to tf32. f16: weights and activations are halves, as PyTorch runs a model loaded in float16.
Prints the largest differences from cases.json that the golden tests look at; the bounds of `compute = tf32` and `compute = f16` in
tests/models/test_mdl_*_golden.c come from these. Needs torch and transformers; not part of ./tests/run.
"""
import json, pathlib, sys
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

HERE = pathlib.Path(__file__).parent


def tf32(x):
    """Nearest with 10 bits behind the point, half away from zero (cvt.rna.tf32.f32)."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def linear(self, x):
    return torch.nn.functional.linear(tf32(x), tf32(self.weight.detach()), self.bias)


F16 = sys.argv[1:] == ["f16"]
DTYPE = torch.float16 if F16 else torch.float32
if not F16:
    torch.nn.Linear.forward = linear
torch.set_grad_enabled(False)


def gemma(name):
    m = AutoModelForCausalLM.from_pretrained(HERE / name, dtype=DTYPE, attn_implementation="eager").eval()
    logits = stream = 0.0
    for c in json.load(open(HERE / name / "cases.json"))["logits"]:
        out = m(torch.tensor([c["ids"]]), output_hidden_states=True)
        for row in c["rows"]:
            for i, want in row["top"]:
                logits = max(logits, abs(out.logits.float()[0, row["pos"], i].item() - want))
        for n, layer in enumerate(c["layers"][:-1]):
            h = out.hidden_states[n + 1][0].float()
            pairs = [(h.norm().item(), layer["norm"]), (h[-1].norm().item(), layer["norm_last_pos"])]
            pairs += list(zip(h[-1].tolist(), layer["last_pos_first"]))
            stream = max([stream] + [abs(g - w) / (1 + abs(w)) for g, w in pairs])
    print(f"{name}: logits {logits:.2g}, stream {stream:.2g} relative")


def bert():
    m = AutoModel.from_pretrained(HERE / "minilm", dtype=DTYPE, attn_implementation="eager").eval()
    worst = {}
    for c in json.load(open(HERE / "minilm/cases.json"))["cases"]:
        h = m(input_ids=torch.tensor([c["ids"]])).last_hidden_state[0].float()
        mean = h.mean(0)
        for name, got, want in (("hidden", h.flatten(), c["hidden"]["first"]), ("cls", h[0], c["cls"]), ("mean", mean, c["mean"]),
                                ("embedding", mean / mean.norm(), c["embedding"]), ("cls_embedding", h[0] / h[0].norm(), c["cls_embedding"])):
            worst[name] = max(worst.get(name, 0.0), max(abs(g - w) for g, w in zip(got.tolist(), want)))
    print("minilm: " + ", ".join(f"{k} {v:.2g}" for k, v in worst.items()))


def deberta():
    """Logits; in tf32 the products of attention round their factors too, as compute = tf32 does there."""
    m = AutoModelForSequenceClassification.from_pretrained(HERE / "reranker", dtype=DTYPE, attn_implementation="eager").eval()
    plain = torch.bmm
    if not F16:
        torch.bmm = lambda a, b: plain(tf32(a), tf32(b))
    cases = json.load(open(HERE / "reranker/cases.json"))
    worst = max(abs(m(input_ids=torch.tensor([c["ids"]])).logits.float().item() - c["logit"])
                for c in cases["cases"] + cases["truncated"])
    torch.bmm = plain
    print(f"reranker: logits {worst:.2g}")


gemma("gemma3_text")
gemma("gemma4_text")
bert()
deberta()
