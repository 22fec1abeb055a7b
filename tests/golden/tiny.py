"""tiny.py - what the scripts share that make tiny checkpoints with random weights: spread, save."""
import json
import os

import torch
from safetensors.torch import save_file


def spread(model):
    """Weights large enough that outputs differ; biases and norms away from 0 and 1. Seed 1."""
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:
                p.copy_(torch.randn(p.shape, generator=g) * (1.0 if "embeddings" in name else 1.5 / p.shape[1] ** 0.5))
            elif "norm" in name.lower() and name.endswith(".weight"):
                p.copy_(1 + 0.2 * torch.randn(p.shape, generator=g))
            else:
                p.copy_(0.2 * torch.randn(p.shape, generator=g))
    return model.eval()


def save(folder, model, arch, keep, cases):
    """config.json with the keys of keep, model.safetensors, cases.json."""
    os.makedirs(folder, exist_ok=True)
    config = json.loads(model.config.to_json_string(use_diff=False))
    config = {k: config[k] for k in keep if k in config} | {"architectures": [arch]}
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=1)
    path = os.path.join(folder, "model.safetensors")
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, path, metadata={"format": "pt"})
    os.chmod(path, 0o644)
    with open(os.path.join(folder, "cases.json"), "w", encoding="utf-8") as f:
        json.dump(cases, f)
