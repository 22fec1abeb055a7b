#!/usr/bin/env python3
"""make_gliner2.py - writes a folder (safetensors, F32) with an extractor of GLiNER2-base's geometry and random weights.

    make_gliner2.py OUT_DIR [--seed N]

Names, settings and tokenizer are those of tests/golden/gliner2, made as wide as the published model: DeBERTa-v3-base's encoder with
the test's small vocabulary (the table's size does not change the speed). The head that counts says one instance of everything, so
that spans are scored. Needs numpy. The gliner2 package reads the same folder.
"""
import argparse
import json
import os
import re
import shutil
import struct
import sys
import time

import numpy as np

GOLDEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden", "gliner2")
NARROW, WIDE, SMALL = 48, 768, 128  # d_model there and here; SMALL: the count embedding's own width, the same in both
LAYERS, HEADS, FF, BUCKETS, POSITIONS = 12, 12, 3072, 256, 512
DAMP = 0.1  # of what layers add: random ones would make all words alike
SPAN = 0.13  # of the scores of spans: a threshold of 0.9 leaves a few


def widened(name, shape):
    if ".intermediate.dense." in name:
        return [FF] + [WIDE] * (len(shape) - 1)
    if re.search(r"layer\.\d+\.output\.dense\.weight", name):
        return [WIDE, FF]
    if name.endswith("rel_embeddings.weight"):
        return [2 * BUCKETS, WIDE]
    if "word_embeddings" in name:
        return [shape[0], WIDE]
    if name.startswith("count_embed.transformer.transformer."):
        return shape
    if name.startswith("count_embed.transformer."):
        return [WIDE if n == NARROW else SMALL + WIDE if n == SMALL + NARROW else n for n in shape]
    return [n // NARROW * WIDE if n % NARROW == 0 else n for n in shape]


def tensors():
    with open(os.path.join(GOLDEN, "model.safetensors"), "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    out = []
    for name, t in head.items():
        if name == "__metadata__" or re.search(r"encoder\.encoder\.layer\.[1-9]", name):
            continue
        shape = widened(name, t["shape"])
        many = LAYERS if name.startswith("encoder.encoder.layer.0.") else 1
        out += [(name.replace("layer.0.", f"layer.{i}.", 1) if many > 1 else name, shape) for i in range(many)]
    return out


def values(rng, name, shape):
    n = int(np.prod(shape))
    if re.search(r"(LayerNorm|norm\d)\.weight$", name):
        return np.ones(n, np.float32)
    if name == "count_pred.2.bias":
        v = np.zeros(n, np.float32)
        v[1] = 1000
        return v
    scale = 0.02 if len(shape) == 1 or "embeddings" in name else shape[1] ** -0.5
    if re.search(r"encoder\.layer\.\d+\.(attention\.)?output\.dense\.weight", name):
        scale *= DAMP
    if name == "span_rep.span_rep_layer.out_project.3.weight":
        scale *= SPAN
    return rng.standard_normal(n, np.float32) * np.float32(scale)


def side_files(folder):
    os.makedirs(os.path.join(folder, "encoder_config"), exist_ok=True)
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(os.path.join(GOLDEN, name), os.path.join(folder, name))
    with open(os.path.join(GOLDEN, "encoder_config", "config.json"), encoding="utf-8") as f:
        c = json.load(f)
    c.update(hidden_size=WIDE, intermediate_size=FF, num_hidden_layers=LAYERS, num_attention_heads=HEADS, position_buckets=BUCKETS,
             max_position_embeddings=POSITIONS, pooler_hidden_size=WIDE)
    with open(os.path.join(folder, "encoder_config", "config.json"), "w", encoding="utf-8") as f:
        json.dump(c, f)
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]",
                   "sep_token": "[SEP]", "mask_token": "[MASK]"}, f)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    begin, rng, head, at = time.monotonic(), np.random.default_rng(a.seed), {"__metadata__": {"format": "pt"}}, 0
    side_files(a.folder)
    for name, shape in tensors():
        n = int(np.prod(shape)) * 4
        head[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    path = os.path.join(a.folder, "model.safetensors")
    with open(path + ".tmp", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors():
            values(rng, name, shape).tofile(f)
    os.replace(path + ".tmp", path)
    print(f"{a.folder}: {os.path.getsize(path) / 1e6:.0f} MB, {time.monotonic() - begin:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
