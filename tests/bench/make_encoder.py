#!/usr/bin/env python3
"""make_encoder.py - writes a folder (safetensors) with an encoder of a real model's geometry and random weights.

    make_encoder.py OUT_DIR [--size tiny|minilm|bge-m3|deberta-v3-base] [--dtype F16|F32] [--seed N]

bge-m3 is BGE-M3's transformer (24 layers, 1024 wide, 16 heads) as plain BERT with a small vocabulary: the table's size does not
change an encoder's speed. deberta-v3-base is a cross-encoder of that geometry, likewise. Needs numpy. torch_encoder.py reads the same folder.
"""
import argparse
import json
import os
import struct
import sys
import time

import numpy as np

SIZES = {  # layers, d_model, heads, d_ff, vocabulary, positions
    "tiny": (2, 64, 4, 128, 1000, 512),
    "minilm": (6, 384, 12, 1536, 1000, 512),
    "bge-m3": (24, 1024, 16, 4096, 1000, 8192),
    "deberta-v3-base": (12, 768, 12, 3072, 1000, 512),
}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


BUCKETS = 256  # of deberta


def deberta_tensors(size):
    layers, d, _, ff, vocab, _ = SIZES[size]
    out = [("deberta.embeddings.word_embeddings.weight", (vocab, d)), ("deberta.encoder.rel_embeddings.weight", (2 * BUCKETS, d))]
    norms = ["deberta.embeddings.LayerNorm", "deberta.encoder.LayerNorm"]
    dense = [("pooler.dense", d, d), ("classifier", 1, d)]
    for i in range(layers):
        p = f"deberta.encoder.layer.{i}."
        dense += [(p + "attention.self." + n, d, d) for n in ("query_proj", "key_proj", "value_proj")]
        dense += [(p + "attention.output.dense", d, d), (p + "intermediate.dense", ff, d), (p + "output.dense", d, ff)]
        norms += [p + "attention.output.LayerNorm", p + "output.LayerNorm"]
    for n in norms:
        out += [(n + ".weight", (d,)), (n + ".bias", (d,))]
    for n, rows, cols in dense:
        out += [(n + ".weight", (rows, cols)), (n + ".bias", (rows,))]
    return out


def tensors(size):
    if size.startswith("deberta"):
        return deberta_tensors(size)
    layers, d, _, ff, vocab, positions = SIZES[size]
    out = [("embeddings.word_embeddings.weight", (vocab, d)), ("embeddings.position_embeddings.weight", (positions, d)),
           ("embeddings.token_type_embeddings.weight", (2, d)), ("embeddings.LayerNorm.weight", (d,)),
           ("embeddings.LayerNorm.bias", (d,))]
    for i in range(layers):
        p = f"encoder.layer.{i}."
        for name, rows, cols in (("attention.self.query", d, d), ("attention.self.key", d, d),
                                 ("attention.self.value", d, d), ("attention.output.dense", d, d),
                                 ("intermediate.dense", ff, d), ("output.dense", d, ff)):
            out += [(p + name + ".weight", (rows, cols)), (p + name + ".bias", (rows,))]
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            out += [(p + name + ".weight", (d,)), (p + name + ".bias", (d,))]
    return out


def values(rng, name, shape):
    n = int(np.prod(shape))
    if name.endswith("LayerNorm.weight"):
        return np.ones(n, np.float32)
    scale = 0.02 if len(shape) == 1 or "embeddings" in name else shape[1] ** -0.5
    return rng.standard_normal(n, np.float32) * np.float32(scale)


def side_files(folder, size):
    layers, d, heads, ff, vocab, positions = SIZES[size]
    letters = [chr(c) for c in range(33, 127) if not chr(c).isupper()]
    words = SPECIAL + letters + ["##" + c for c in letters if c.isalnum()]
    words += [f"w{i}" for i in range(vocab - len(words))]
    post = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "[SEP]", "type_id": 0}}]
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": w, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i, w in enumerate(SPECIAL)],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
                       "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": post,
                           "pair": post + [{"Sequence": {"id": "B", "type_id": 1}},
                                           {"SpecialToken": {"id": "[SEP]", "type_id": 1}}],
                           "special_tokens": {w: {"id": w, "ids": [SPECIAL.index(w)], "tokens": [w]}
                                              for w in ("[CLS]", "[SEP]")}},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": {w: i for i, w in enumerate(words)}}}
    files = {
        "config.json": {"architectures": ["BertModel"], "model_type": "bert", "hidden_act": "gelu", "hidden_size": d,
                        "intermediate_size": ff, "layer_norm_eps": 1e-5, "max_position_embeddings": positions,
                        "num_attention_heads": heads, "num_hidden_layers": layers, "pad_token_id": 0,
                        "type_vocab_size": 2, "vocab_size": vocab},
        "modules.json": [{"idx": i, "name": str(i), "path": p, "type": "sentence_transformers.models." + t}
                         for i, (p, t) in enumerate((("", "Transformer"), ("1_Pooling", "Pooling"),
                                                     ("2_Normalize", "Normalize")))],
        "sentence_bert_config.json": {"max_seq_length": positions, "do_lower_case": False},
        "1_Pooling/config.json": {"word_embedding_dimension": d, "pooling_mode_cls_token": True,
                                  "pooling_mode_mean_tokens": False},
        "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "model_max_length": positions, "do_lower_case": True,
                                  **{k: w for k, w in zip(("pad_token", "unk_token", "cls_token", "sep_token",
                                                           "mask_token"), SPECIAL)}},
        "tokenizer.json": tokenizer}
    if size.startswith("deberta"):
        files["config.json"].update(
            architectures=["DebertaV2ForSequenceClassification"], model_type="deberta-v2", layer_norm_eps=1e-7, type_vocab_size=0,
            position_biased_input=False, relative_attention=True, position_buckets=BUCKETS, max_relative_positions=-1,
            norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type="p2c|c2p", pooler_hidden_act="gelu",
            pooler_hidden_size=d, pooler_dropout=0, num_labels=1, id2label={"0": "LABEL_0"})
    os.makedirs(os.path.join(folder, "1_Pooling"), exist_ok=True)
    for name, what in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(what, f)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--size", choices=SIZES, default="bge-m3")
    p.add_argument("--dtype", choices=["F16", "F32"], default="F16")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    begin = time.monotonic()
    rng = np.random.default_rng(a.seed)
    side_files(a.folder, a.size)
    width, head, at = (2 if a.dtype == "F16" else 4), {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors(a.size):
        n = int(np.prod(shape)) * width
        head[name] = {"dtype": a.dtype, "shape": list(shape), "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    path = os.path.join(a.folder, "model.safetensors")
    with open(path + ".tmp", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors(a.size):
            values(rng, name, shape).astype(np.float16 if a.dtype == "F16" else np.float32).tofile(f)
    os.replace(path + ".tmp", path)
    print(f"{a.folder}: {a.size}, {a.dtype}, {os.path.getsize(path) / 1e6:.0f} MB, {time.monotonic() - begin:.1f} s",
          file=sys.stderr)


if __name__ == "__main__":
    main()
