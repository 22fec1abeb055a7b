#!/usr/bin/env python3
"""Makes nomic/: a tiny NomicBERT checkpoint and what the reference computes.

    nomic.py OUT_DIR             (needs transformers with nomic_bert, torch; seed 1)

Weights are random, by NomicBertModel; eager attention, float32; written by save_pretrained, so the tensors
have the names of the published checkpoints. Ids are random too (lengths to 60); the tokenizer is minilm/'s.
config.json is what the published NomicBERT has, config_native.json what transformers writes.
"""
import json
import os
import shutil
import sys

import torch
from transformers import NomicBertConfig, NomicBertModel

LENGTHS = [2, 3, 9, 17, 33, 60]


def main():
    config = NomicBertConfig(vocab_size=1100, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
                             num_attention_heads=2, max_position_embeddings=64, type_vocab_size=2,
                             layer_norm_eps=1e-6, attn_implementation="eager")
    model = NomicBertModel(config)
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:
                p.copy_(torch.randn(p.shape, generator=g) * (1.0 if "embeddings" in name else 1.5 / p.shape[1] ** 0.5))
            else:
                p.copy_((1 if name.endswith("weight") else 0) + 0.2 * torch.randn(p.shape, generator=g))
    model.eval()
    cases = []
    g = torch.Generator().manual_seed(2)
    for n in LENGTHS:
        ids = torch.randint(5, 1100, (1, n), generator=g)
        ids[0, 0], ids[0, -1] = 2, 3
        with torch.no_grad():
            h = model(input_ids=ids).last_hidden_state[0]
        cases.append({"ids": ids[0].tolist(), "mean": h.mean(0).tolist(), "cls": h[0].tolist()})
    folder = os.path.join(sys.argv[1], "nomic")
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    os.rename(os.path.join(folder, "config.json"), os.path.join(folder, "config_native.json"))
    json.dump({"model_type": "nomic_bert", "architectures": ["NomicBertModel"], "activation_function": "swiglu",
               "causal": False, "layer_norm_epsilon": config.layer_norm_eps, "mlp_fc1_bias": False, "mlp_fc2_bias": False,
               "n_embd": 32, "n_head": 2, "n_inner": 48, "n_layer": 3, "n_positions": 64, "parallel_block": False,
               "prenorm": False, "qkv_proj_bias": False, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0,
               "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None,
               "type_vocab_size": 2, "use_rms_norm": False, "vocab_size": 1100},
              open(os.path.join(folder, "config.json"), "w"), indent=1)
    os.chmod(os.path.join(folder, "model.safetensors"), 0o644)
    json.dump({"cases": cases}, open(os.path.join(folder, "cases.json"), "w"))


main()
