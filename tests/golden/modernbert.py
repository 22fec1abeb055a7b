#!/usr/bin/env python3
"""Makes modernbert/ and cross-modernbert/: tiny ModernBERT checkpoints and what the reference computes.

    modernbert.py OUT_DIR        (needs transformers, torch; seed 1)

Weights are random, by ModernBertModel and ModernBertForSequenceClassification (one logit, mean pooling);
eager attention, float32. Ids are random too (lengths to 60, the window is 16 wide); the tokenizer is
minilm/'s.
"""
import os
import sys

import torch
from tiny import save, spread
from transformers import ModernBertConfig, ModernBertForSequenceClassification, ModernBertModel

LENGTHS = [2, 3, 9, 17, 33, 60]
KEEP = ["model_type", "hidden_activation", "hidden_size", "intermediate_size", "norm_eps",
        "max_position_embeddings", "num_attention_heads", "num_hidden_layers", "vocab_size",
        "local_attention", "layer_types", "rope_parameters", "classifier_pooling", "norm_bias",
        "attention_bias", "mlp_bias", "classifier_bias", "classifier_activation", "id2label"]


def write(out, name, model, arch, run):
    g = torch.Generator().manual_seed(2)
    cases = []
    for n in LENGTHS:
        ids = torch.randint(5, 1100, (1, n), generator=g)
        ids[0, 0], ids[0, -1] = 2, 3
        with torch.no_grad():
            cases.append({"ids": ids[0].tolist(), **run(model, ids)})
    save(os.path.join(out, name), model, arch, KEEP, {"cases": cases})


def hidden(model, ids):
    h = model(input_ids=ids).last_hidden_state[0]
    return {"mean": h.mean(0).tolist(), "cls": h[0].tolist()}


def logit(model, ids):
    return {"logit": model(input_ids=ids).logits[0, 0].item()}


def main():
    common = dict(vocab_size=1100, hidden_size=32, intermediate_size=48, num_hidden_layers=4,
                  num_attention_heads=2, max_position_embeddings=64, local_attention=16, num_labels=1,
                  pad_token_id=0, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3,
                  attn_implementation="eager")
    out = sys.argv[1]
    write(out, "modernbert", spread(ModernBertModel(ModernBertConfig(**common))), "ModernBertModel", hidden)
    write(out, "cross-modernbert", spread(ModernBertForSequenceClassification(
        ModernBertConfig(classifier_pooling="mean", **common))), "ModernBertForSequenceClassification", logit)


main()
