"""GGUF of BERT, RoBERTa and XLM-RoBERTa folders, for gguf_from_safetensors.py, which reads the options.

Facts used: encoders.md 11.1. Positions of RoBERTa's kind lose their first pad + 1 rows; the pooler and
language-model heads are not written; a classifier of two layers is cls and cls.output. --synthetic: BERT
of 256 numbers a row, one layer, random weights; the tokenizer of the folder.
"""
import base64
import json
import math
import os
import random

import gguf_from_safetensors as g

LAYER = {"attention.self.query": "attn_q", "attention.self.key": "attn_k",
         "attention.self.value": "attn_v", "attention.output.dense": "attn_output",
         "attention.output.LayerNorm": "attn_output_norm", "intermediate.dense": "ffn_up",
         "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm"}
TOP = {"embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
       "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
       "classifier.dense": "cls", "classifier.out_proj": "cls.output"}
POOLING = {"mean": 1, "cls": 2, "last": 3}


def is_ours(config):
    return config.get("model_type") in ("bert", "roberta", "xlm-roberta")


def gguf_name(hf):
    for prefix in ("bert.", "roberta."):
        hf = hf.removeprefix(prefix)
    stem, kind = hf.rsplit(".", 1)
    if stem in TOP:
        return TOP[stem] + "." + kind
    if not stem.startswith("encoder.layer."):
        return None
    l, rest = stem.removeprefix("encoder.layer.").split(".", 1)
    return "blk.%s.%s.%s" % (l, LAYER[rest], kind)


def tokens_bert(tok):
    vocab = tok["model"]["vocab"]
    pieces = [None] * len(vocab)
    for p, i in vocab.items():
        pieces[i] = p
    special = {t["content"] for t in tok["added_tokens"] if t["special"]}
    words = [p if p in special else p[2:] if p.startswith("##") else "\u2581" + p for p in pieces]
    ids = {p: i for i, p in enumerate(pieces)}
    return [g.kv("tokenizer.ggml.model", "str", "bert"),
            g.kv("tokenizer.ggml.pre", "str", "default"),
            g.kv("tokenizer.ggml.tokens", "strs", words),
            g.kv("tokenizer.ggml.token_type", "i32s", [3 if p in special else 1 for p in pieces]),
            g.kv("tokenizer.ggml.bos_token_id", "u32", ids["[CLS]"]),
            g.kv("tokenizer.ggml.eos_token_id", "u32", ids["[SEP]"]),
            g.kv("tokenizer.ggml.cls_token_id", "u32", ids["[CLS]"]),
            g.kv("tokenizer.ggml.seperator_token_id", "u32", ids["[SEP]"]),
            g.kv("tokenizer.ggml.unknown_token_id", "u32", ids["[UNK]"]),
            g.kv("tokenizer.ggml.padding_token_id", "u32", ids["[PAD]"]),
            g.kv("tokenizer.ggml.mask_token_id", "u32", ids["[MASK]"])]


def charsmap(norm):
    for n in norm.get("normalizers", [norm]):
        if n["type"] == "Precompiled":
            return list(base64.b64decode(n["precompiled_charsmap"]))
    return []


def tokens_t5(tok):
    vocab = tok["model"]["vocab"]
    special = {t["content"] for t in tok["added_tokens"] if t["special"]}
    types = [2 if p == "<unk>" else 3 if p in special else 1 for p, _ in vocab]
    ids = {p: i for i, (p, _) in enumerate(vocab)}
    packed = charsmap(tok["normalizer"])
    array = g.s("tokenizer.ggml.precompiled_charsmap") + g.struct.pack("<IIQ", 9, 0, len(packed))
    return [g.kv("tokenizer.ggml.model", "str", "t5"),
            g.kv("tokenizer.ggml.pre", "str", "default"),
            g.kv("tokenizer.ggml.tokens", "strs", [p for p, _ in vocab]),
            g.kv("tokenizer.ggml.scores", "f32s", [s for _, s in vocab]),
            g.kv("tokenizer.ggml.token_type", "i32s", types),
            g.kv("tokenizer.ggml.add_space_prefix", "bool", True),
            g.kv("tokenizer.ggml.remove_extra_whitespaces", "bool", True),
            array + bytes(packed),
            g.kv("tokenizer.ggml.bos_token_id", "u32", ids["<s>"]),
            g.kv("tokenizer.ggml.eos_token_id", "u32", ids["</s>"]),
            g.kv("tokenizer.ggml.unknown_token_id", "u32", ids["<unk>"]),
            g.kv("tokenizer.ggml.seperator_token_id", "u32", ids["</s>"]),
            g.kv("tokenizer.ggml.padding_token_id", "u32", ids["<pad>"]),
            g.kv("tokenizer.ggml.mask_token_id", "u32", ids["<mask>"]),
            g.kv("tokenizer.ggml.add_bos_token", "bool", True),
            g.kv("tokenizer.ggml.add_eos_token", "bool", True)]


def skipped(config):
    return config["pad_token_id"] + 1 if config["model_type"] != "bert" else 0


def pooling(config, folder):
    if config["architectures"][0].endswith("ForSequenceClassification"):
        return 4
    path = os.path.join(folder, "1_Pooling", "config.json")
    flags = json.load(open(path)) if os.path.exists(path) else {}
    return POOLING["cls" if flags.get("pooling_mode_cls_token") else "mean"]


def tokens(tok):
    import gguf_encoders  # it imports this file
    kinds = {"Unigram": tokens_t5, "WordPiece": tokens_bert,
             "BPE": lambda t: gguf_encoders.tokens_gpt2(t, "roberta-bpe")}
    return kinds[tok["model"]["type"]](tok)


def metadata(config, folder, tok_folder):
    tok = json.load(open(os.path.join(tok_folder, "tokenizer.json"), encoding="utf-8"))
    return [
        g.kv("general.architecture", "str", "bert"),
        g.kv("bert.context_length", "u32", config["max_position_embeddings"] - skipped(config)),
        g.kv("bert.embedding_length", "u32", config["hidden_size"]),
        g.kv("bert.block_count", "u32", config["num_hidden_layers"]),
        g.kv("bert.feed_forward_length", "u32", config["intermediate_size"]),
        g.kv("bert.attention.head_count", "u32", config["num_attention_heads"]),
        g.kv("bert.attention.layer_norm_epsilon", "f32", config["layer_norm_eps"]),
        g.kv("bert.attention.causal", "bool", False),
        g.kv("bert.pooling_type", "u32", pooling(config, folder)),
        g.kv("tokenizer.ggml.token_type_count", "u32", config["type_vocab_size"]),
    ] + tokens(tok)


def synthetic(config):
    config.update(hidden_size=256, intermediate_size=256, num_attention_heads=4, num_hidden_layers=1)
    r = random.Random(3)
    h = 256
    shapes = {"embeddings.word_embeddings.weight": [config["vocab_size"], h],
              "embeddings.position_embeddings.weight": [config["max_position_embeddings"], h],
              "embeddings.token_type_embeddings.weight": [config["type_vocab_size"], h],
              "embeddings.LayerNorm.weight": [h], "embeddings.LayerNorm.bias": [h]}
    for hf in LAYER:
        name = "encoder.layer.0." + hf
        shapes[name + ".weight"] = [h] if "LayerNorm" in hf else [h, h]
        shapes[name + ".bias"] = [h]
    out = {}
    for name, shape in shapes.items():
        n = math.prod(shape)
        mid = 1 if name.endswith("LayerNorm.weight") else 0
        s = 0.2 if len(shape) == 1 else 1 if "embeddings" in name else 1.5 / math.sqrt(shape[1])
        out[name] = ("F32", shape, [g.f32(r.gauss(mid, s)) for _ in range(n)])
    return out


def write(a, config):
    tensors = (synthetic(config) if a.synthetic else
               g.read_safetensors(os.path.join(a.folder, "model.safetensors")))
    keys = metadata(config, a.folder, a.tokenizer or a.folder)
    files = [g.Gguf(a.out, keys)] + ([g.Gguf(a.dequant, keys)] if a.dequant else [])
    for hf, (dtype, shape, values) in tensors.items():
        name = gguf_name(hf)
        if name is None or name == a.drop:
            continue
        if name.startswith("position_embd"):
            values, shape = values[skipped(config) * shape[1]:], [shape[0] - skipped(config), shape[1]]
        # what is added or looked up by position is never quantized
        t = a.type if a.type and len(shape) > 1 and not name.startswith(("position", "token_types")) else "F32"
        if shape[-1] % g.TYPES[t][1]:
            t = "F32"
        if a.flat and len(shape) == 2 and shape[0] == 1:
            shape = shape[1:]
        data = g.encode(values, t)
        files[0].add(name, shape, t, data)
        if a.dequant:
            files[1].add(name, shape, "F32", g.encode(g.decode(data, t), "F32"))
    for f in files:
        f.write()
