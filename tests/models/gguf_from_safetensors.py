#!/usr/bin/env python3
"""Writes a GGUF (v3) out of a Gemma 3 or 4 safetensors folder (a drafter's too), or of one of BERT's
kind (gguf_bert.py), or of ModernBERT's and NomicBERT's (gguf_encoders.py). For tests; pure stdlib.

    gguf_from_safetensors.py IN_DIR OUT.gguf [--type T] [--synthetic] [--dequant OUT2.gguf]
                             [--drop NAME] [--tokenizer DIR] [--flat]

--type      F32, F16, BF16 (default: as the checkpoint), Q4_0 .. Q6_K for every matrix whose row
            length allows it, or "mixed": another type for each matrix in turn.
--synthetic takes only tokenizer and vocabulary size from IN_DIR; the weights are random (fixed
            seed) in a shape that 256-value blocks divide.
--dequant   also writes the F32 values that a reader of the quantized file computes with.
--drop      leaves one tensor out.
--tokenizer, --flat  encoders: tokenizer.json from another folder; a dimension of 1 is dropped.
--pooling   ModernBERT and NomicBERT: mean (default) or cls. --pre: another word for how words are split.

Facts used: gemma.md 11.1 (names, keys, Gemma 3's norms stored as w + 1), 11.3 and 11.4 (Gemma 4
and its drafter), engine.md 2.1-2.4 (file layout, block layouts, quantisers). Gemma 3's format has no key for query_pre_attn_scalar (readers
assume head_dim), so a different one is folded into the q norm: (w + 1) * sqrt(head_dim / qpas).
The K-quantisers here are the simplest that are right, not the best.
"""
import argparse
import json
import math
import os
import random
import struct

TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20),
         "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144),
         "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210), "BF16": (30, 1, 2)}
MIXED = ["Q4_K", "Q6_K", "Q5_K", "Q4_0", "Q5_0", "Q8_0", "Q4_1", "Q5_1", "F16", "BF16", "F32"]

LAYER = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "post_feedforward_layernorm": "post_ffw_norm"}
LAYER4 = {"per_layer_input_gate": "inp_gate", "per_layer_projection": "proj",
          "post_per_layer_input_norm": "post_norm", "layer_scalar": "layer_output_scale"}
TOP = {"embed_tokens.weight": "token_embd", "norm.weight": "output_norm", "lm_head.weight": "output",
       "embed_tokens_per_layer.weight": "per_layer_token_embd",
       "per_layer_model_projection.weight": "per_layer_model_proj",
       "per_layer_projection_norm.weight": "per_layer_proj_norm",
       "pre_projection.weight": "nextn.pre_projection",
       "post_projection.weight": "nextn.post_projection"}


# ---------------------------------------------------------------- numbers

def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def half(x):
    return struct.pack("<e", x)


def h2f(b):
    return struct.unpack("<e", b)[0]


def bf16(x):
    u = struct.unpack("<I", struct.pack("<f", x))[0]
    return struct.pack("<H", (u + 0x7FFF + ((u >> 16) & 1)) >> 16)


def nibbles(q):
    return bytes(q[i] | (q[i + 16] << 4) for i in range(16))


def extreme(x):
    return max(x, key=abs)


def q_simple(x, bits, with_min):
    top = (1 << bits) - 1
    if with_min:
        m, d = min(x), (max(x) - min(x)) / top
        codes = [min(top, int((v - m) / d + 0.5)) if d else 0 for v in x]
        head = half(d) + half(m)
    else:
        mid = 1 << (bits - 1)
        d = extreme(x) / -mid
        codes = [max(0, min(top, int(v / d + mid + 0.5))) if d else mid for v in x]
        head = half(d)
    if bits == 4:
        return head + nibbles(codes)
    qh = sum((c >> 4) << i for i, c in enumerate(codes))
    return head + struct.pack("<I", qh) + nibbles([c & 15 for c in codes])


def q8_0(x):
    d = abs(extreme(x)) / 127
    return half(d) + struct.pack("32b", *[int(math.copysign(math.floor(abs(v / d) + 0.5), v))
                                          if d else 0 for v in x])


def q45_k(x, bits):
    """x[i] = d * sc * q - dmin * m per 32 values; scales and mins of 6 bits."""
    top = (1 << bits) - 1
    mins = [max(0.0, -min(x[32 * j:32 * j + 32])) for j in range(8)]
    scales = [(max(x[32 * j:32 * j + 32]) + mins[j]) / top for j in range(8)]
    d, dmin = h2f(half(max(scales) / 63)), h2f(half(max(mins) / 63))
    sc = [min(63, round(s / d)) if d else 0 for s in scales]
    mn = [min(63, round(m / dmin)) if dmin else 0 for m in mins]
    codes = []
    for i, v in enumerate(x):
        step = d * sc[i // 32]
        codes.append(max(0, min(top, round((v + dmin * mn[i // 32]) / step))) if step else 0)
    packed = bytearray(12)
    for j in range(4):
        packed[j] = sc[j] | (sc[j + 4] >> 4) << 6
        packed[j + 4] = mn[j] | (mn[j + 4] >> 4) << 6
        packed[j + 8] = (sc[j + 4] & 15) | (mn[j + 4] & 15) << 4
    qs = bytes((codes[64 * g + l] & 15) | (codes[64 * g + 32 + l] & 15) << 4
               for g in range(4) for l in range(32))
    qh = b"" if bits == 4 else bytes(sum((codes[32 * j + l] >> 4) << j for j in range(8))
                                     for l in range(32))
    return half(d) + half(dmin) + bytes(packed) + qh + qs


def q6_k(x):
    scales = [extreme(x[16 * j:16 * j + 16]) / -32 for j in range(16)]
    d = h2f(half(abs(extreme(scales)) / 127))
    sc = [max(-128, min(127, round(s / d))) if d else 0 for s in scales]
    c = []
    for i, v in enumerate(x):
        step = d * sc[i // 16]
        c.append(max(0, min(63, round(v / step) + 32)) if step else 32)
    ql, qh = bytearray(128), bytearray(64)
    for i, q in enumerate(c):
        big, s, l = i // 128, (i % 128) // 32, i % 32
        ql[64 * big + 32 * (s & 1) + l] |= (q & 15) << (0 if s < 2 else 4)
        qh[32 * big + l] |= (q >> 4) << (2 * s)
    return bytes(ql) + bytes(qh) + struct.pack("16b", *sc) + half(d)


QUANT = {"Q4_0": lambda x: q_simple(x, 4, False), "Q4_1": lambda x: q_simple(x, 4, True),
         "Q5_0": lambda x: q_simple(x, 5, False), "Q5_1": lambda x: q_simple(x, 5, True),
         "Q8_0": q8_0, "Q4_K": lambda x: q45_k(x, 4), "Q5_K": lambda x: q45_k(x, 5), "Q6_K": q6_k}


def encode(values, t):
    if t == "F32":
        return struct.pack("<%df" % len(values), *values)
    if t == "F16":
        return struct.pack("<%de" % len(values), *values)
    if t == "BF16":
        return b"".join(bf16(v) for v in values)
    n = TYPES[t][1]
    return b"".join(QUANT[t](values[i:i + n]) for i in range(0, len(values), n))


def dequant_block(b, t):
    u = b
    if t in ("Q4_0", "Q4_1", "Q5_0", "Q5_1"):
        with_min, five = t[3] == "1", t[1] == "5"
        d, m, o = h2f(u[:2]), h2f(u[2:4]) if with_min else 0, 4 if with_min else 2
        qh = struct.unpack("<I", u[o:o + 4])[0] if five else 0
        o += 4 if five else 0
        q = [u[o + i] & 15 for i in range(16)] + [u[o + i] >> 4 for i in range(16)]
        q = [c | ((qh >> i) & 1) << 4 for i, c in enumerate(q)]
        if with_min:
            return [f32(f32(d * c) + m) for c in q]
        return [f32(d * (c - (16 if five else 8))) for c in q]
    if t == "Q8_0":
        return [f32(h2f(u[:2]) * c) for c in struct.unpack("32b", u[2:34])]
    if t in ("Q4_K", "Q5_K"):
        d, dmin, s = h2f(u[:2]), h2f(u[2:4]), u[4:16]
        qs, qh = (u[16:], None) if t == "Q4_K" else (u[48:], u[16:48])
        out = []
        for i in range(256):
            j, v = i // 32, qs[32 * (i // 64) + i % 32]
            q = v & 15 if i % 64 < 32 else v >> 4
            if qh:
                q += 16 * ((qh[i % 32] >> j) & 1)
            sc, m = (s[j] & 63, s[j + 4] & 63) if j < 4 else (
                (s[j + 4] & 15) | (s[j - 4] >> 6) << 4, (s[j + 4] >> 4) | (s[j] >> 6) << 4)
            out.append(f32(f32(f32(d * sc) * q) - f32(dmin * m)))
        return out
    ql, qh, sc, d = u[:128], u[128:192], struct.unpack("16b", u[192:208]), h2f(u[208:210])
    out = []
    for i in range(256):
        big, s, l = i // 128, (i % 128) // 32, i % 32
        v = ql[64 * big + 32 * (s & 1) + l]
        q = (v & 15 if s < 2 else v >> 4) | ((qh[32 * big + l] >> (2 * s)) & 3) << 4
        out.append(f32(f32(d * sc[i // 16]) * (q - 32)))
    return out


def decode(data, t):
    if t == "F32":
        return list(struct.unpack("<%df" % (len(data) // 4), data))
    if t == "F16":
        return list(struct.unpack("<%de" % (len(data) // 2), data))
    if t == "BF16":
        u = struct.unpack("<%dH" % (len(data) // 2), data)
        return list(struct.unpack("<%df" % len(u), struct.pack("<%dI" % len(u), *[v << 16 for v in u])))
    n = TYPES[t][2]
    return [v for i in range(0, len(data), n) for v in dequant_block(data[i:i + n], t)]


# ------------------------------------------------------------- checkpoint

def read_safetensors(path):
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        head = json.loads(f.read(n))
        body = f.read()
    out = {}
    for name, t in head.items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            if "tower." in name or name.startswith(("model.embed_", "masked_embedding.")) and (
                    not name.startswith("model.embed_tokens")):
                continue
            name = name.removeprefix("model.").removeprefix("language_model.")
            out[name] = (t["dtype"], t["shape"], decode(body[a:b], t["dtype"]))
    return out


def is_gemma4(config):
    return config.get("model_type", "").startswith("gemma4")


def synthetic4(config, vocab):
    """Rows of 256 values in every matrix; the last two layers read others' keys."""
    config.update(hidden_size=256, intermediate_size=256, num_attention_heads=4,
                  num_key_value_heads=2, head_dim=64, global_head_dim=128, num_hidden_layers=4,
                  sliding_window=16, hidden_size_per_layer_input=64, num_kv_shared_layers=2,
                  use_double_wide_mlp=True, per_layer_config=None,
                  layer_types=["sliding_attention", "full_attention"] * 2)
    r = random.Random(2)
    h, p, n = 256, 64, 4
    shapes = {"embed_tokens.weight": [vocab, h], "norm.weight": [h],
              "embed_tokens_per_layer.weight": [vocab, n * p],
              "per_layer_model_projection.weight": [n * p, h],
              "per_layer_projection_norm.weight": [p]}
    for l in range(n):
        hd, f = 128 if l % 2 else 64, 256 if l < 2 else 512
        widths = {"q_proj": [4 * hd, h], "k_proj": [2 * hd, h], "v_proj": [2 * hd, h],
                  "o_proj": [h, 4 * hd], "gate_proj": [f, h], "up_proj": [f, h],
                  "down_proj": [h, f], "q_norm": [hd], "k_norm": [hd],
                  "per_layer_input_gate": [p, h], "per_layer_projection": [h, p]}
        for hf in list(LAYER) + list(LAYER4):
            if l >= 2 and hf.split(".")[-1] in ("k_proj", "v_proj", "k_norm"):
                continue
            name = "layers.%d.%s" % (l, hf)
            shapes[name if hf == "layer_scalar" else name + ".weight"] = (
                [1] if hf == "layer_scalar" else widths.get(hf.split(".")[-1], [h]))
    out = {}
    for name, shape in shapes.items():
        k = math.prod(shape)
        if len(shape) == 1:
            s = 0.35 if "q_norm" in name or "k_norm" in name else 1  # scores have scale 1
            values = [f32(s * r.uniform(0.7, 1.3)) for _ in range(k)]
        else:
            values = [f32(r.gauss(0, 1.5 / math.sqrt(shape[1]))) for _ in range(k)]
        out[name] = ("F32", shape, values)
    return out


def synthetic(config, vocab):
    config.update(hidden_size=256, intermediate_size=256, num_attention_heads=4,
                  num_key_value_heads=1, head_dim=64, num_hidden_layers=6, sliding_window=16,
                  query_pre_attn_scalar=64, layer_types=None)
    r = random.Random(1)
    h, f, q, k = 256, 256, 256, 64
    shapes = {"embed_tokens.weight": [vocab, h], "norm.weight": [h]}
    widths = {"q_proj": [q, h], "k_proj": [k, h], "v_proj": [k, h], "o_proj": [h, q],
              "gate_proj": [f, h], "up_proj": [f, h], "down_proj": [h, f],
              "q_norm": [64], "k_norm": [64]}
    for l in range(config["num_hidden_layers"]):
        for hf in LAYER:
            shapes["layers.%d.%s.weight" % (l, hf)] = widths.get(hf.split(".")[-1], [h])
    out = {}
    for name, shape in shapes.items():
        n = math.prod(shape)
        s = 0.3 if len(shape) == 1 else 1.5 / math.sqrt(shape[1])
        out[name] = ("F32", shape, [f32(r.gauss(0, s)) for _ in range(n)])
    return out


def gguf_name(hf):
    if hf in TOP:
        return TOP[hf] + ".weight"
    _, l, rest = hf.split(".", 2)
    return "blk.%s.%s.weight" % (l, {**LAYER, **LAYER4}[rest.removesuffix(".weight")])


def rope_theta(config):
    both = config.get("rope_parameters") or {}
    full = both.get("full_attention", {}).get("rope_theta", config.get("rope_theta", 1e6))
    local = both.get("sliding_attention", {}).get("rope_theta",
                                                  config.get("rope_local_base_freq", 1e4))
    return full, local


def tokenizer_arrays(path, n_rows):
    t = json.load(open(path, encoding="utf-8"))
    pieces, types, scores = [None] * n_rows, [5] * n_rows, [-1e6] * n_rows
    for piece, i in t["model"]["vocab"].items():
        pieces[i], types[i], scores[i] = piece, 1, -1e5
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            types[i] = 6
    for rank, m in enumerate(t["model"]["merges"]):
        joined = "".join(m if isinstance(m, list) else m.split(" "))
        i = t["model"]["vocab"][joined]
        scores[i] = max(scores[i], -float(rank))
    for a in t["added_tokens"]:
        if a["id"] < n_rows:
            pieces[a["id"]] = a["content"]
            types[a["id"]] = 3 if a["special"] else 4
    types[t["model"]["vocab"][t["model"]["unk_token"]]] = 2
    return [p if p is not None else "[PAD%d]" % i for i, p in enumerate(pieces)], scores, types, t


# ----------------------------------------------------------------- writer

def s(text):
    b = text.encode("utf-8")
    return struct.pack("<Q", len(b)) + b


def kv(key, kind, value):
    packs = {"u32": (4, "<I"), "f32": (6, "<f"), "bool": (7, "<?")}
    if kind == "str":
        return s(key) + struct.pack("<I", 8) + s(value)
    if kind in packs:
        return s(key) + struct.pack("<I", packs[kind][0]) + struct.pack(packs[kind][1], value)
    if kind == "strs":
        return s(key) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(s, value))
    code, fmt = {"f32s": (6, "f"), "i32s": (5, "i"), "u32s": (4, "I"), "bools": (7, "?")}[kind]
    return s(key) + struct.pack("<IIQ", 9, code, len(value)) + struct.pack(
        "<%d%s" % (len(value), fmt), *value)


def heads_of(config):
    """Head width and key/value heads of each layer, from either spelling."""
    out = []
    for l, kind in enumerate(config["layer_types"]):
        full = kind == "full_attention"
        own = {}
        for k, v in (config.get("per_layer_config") or {}).items():
            own = v if int(k) == l else own
        hd = own.get("head_dim", (full and config.get("global_head_dim")) or config["head_dim"])
        kv_heads = own.get("num_key_value_heads", config["num_key_value_heads"])
        out.append((hd, kv_heads))
    return out


def metadata4(config, outer, n_rows):
    a = "gemma4-assistant" if "backbone_hidden_size" in outer else "gemma4"
    heads = heads_of(config)
    slides = [t == "sliding_attention" for t in config["layer_types"]]
    n, ff = config["num_hidden_layers"], config["intermediate_size"]
    shared = config["num_kv_shared_layers"]
    wide = config.get("use_double_wide_mlp") and shared > 0
    full = next(h for (h, _), s in zip(heads, slides) if not s)
    slide = next((h for (h, _), s in zip(heads, slides) if s), full)
    rope_full, rope_local = rope_theta(config)
    out = [
        kv("general.architecture", "str", a),
        kv(a + ".context_length", "u32", config["max_position_embeddings"]),
        kv(a + ".embedding_length", "u32", config["hidden_size"]),
        kv(a + ".block_count", "u32", n),
        kv(a + ".feed_forward_length", "u32s",
           [2 * ff if wide and l >= n - shared else ff for l in range(n)]),
        kv(a + ".attention.head_count", "u32", config["num_attention_heads"]),
        kv(a + ".attention.head_count_kv", "u32s", [k for _, k in heads]),
        kv(a + ".attention.key_length", "u32", full),
        kv(a + ".attention.value_length", "u32", full),
        kv(a + ".attention.key_length_swa", "u32", slide),
        kv(a + ".attention.value_length_swa", "u32", slide),
        kv(a + ".attention.layer_norm_rms_epsilon", "f32", config["rms_norm_eps"]),
        kv(a + ".attention.sliding_window", "u32", config["sliding_window"]),
        kv(a + ".attention.sliding_window_pattern", "bools", slides),
        kv(a + ".attention.shared_kv_layers", "u32", shared),
        kv(a + ".rope.freq_base", "f32", rope_full),
        kv(a + ".rope.freq_base_swa", "f32", rope_local),
        kv(a + ".rope.dimension_count", "u32", full),
        kv(a + ".rope.dimension_count_swa", "u32", slide),
    ]
    if a == "gemma4":
        out.append(kv(a + ".embedding_length_per_layer_input", "u32",
                      config["hidden_size_per_layer_input"]))
    else:
        out += [kv(a + ".embedding_length_out", "u32", outer["backbone_hidden_size"]),
                kv(a + ".nextn_predict_layers", "u32", n)]
    if config.get("final_logit_softcapping"):
        out.append(kv(a + ".final_logit_softcapping", "f32", config["final_logit_softcapping"]))
    return out, full


def rope_freqs(config, full):
    part = config["rope_parameters"]["full_attention"].get("partial_rotary_factor", 1)
    na = int(part * full / 2)
    return [1.0] * na + [1e30] * (full // 2 - na)


def tokenizer4(pieces, types, tok):
    """Merges instead of scores; control tokens that shall be seen are 'user defined'."""
    seen = ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>",
            "<tool_response|>", '<|"|>']
    types = [4 if p in seen else t for p, t in zip(pieces, types)]
    merges = [" ".join(m) if isinstance(m, list) else m for m in tok["model"]["merges"]]
    return types, merges


def metadata(config, folder, n_rows, outer=None):
    pieces, scores, types, tok = tokenizer_arrays(os.path.join(folder, "tokenizer.json"), n_rows)
    full, local = rope_theta(config)
    ids = {p: i for i, p in enumerate(pieces)}
    gemma4 = is_gemma4(config)
    if gemma4:
        types, merges = tokenizer4(pieces, types, tok)
    out = metadata4(config, outer, n_rows)[0] if gemma4 else [
        kv("general.architecture", "str", "gemma3"),
        kv("gemma3.context_length", "u32", config["max_position_embeddings"]),
        kv("gemma3.embedding_length", "u32", config["hidden_size"]),
        kv("gemma3.block_count", "u32", config["num_hidden_layers"]),
        kv("gemma3.feed_forward_length", "u32", config["intermediate_size"]),
        kv("gemma3.attention.head_count", "u32", config["num_attention_heads"]),
        kv("gemma3.attention.head_count_kv", "u32", config["num_key_value_heads"]),
        kv("gemma3.attention.key_length", "u32", config["head_dim"]),
        kv("gemma3.attention.value_length", "u32", config["head_dim"]),
        kv("gemma3.attention.layer_norm_rms_epsilon", "f32", config["rms_norm_eps"]),
        kv("gemma3.attention.sliding_window", "u32", config["sliding_window"]),
        kv("gemma3.rope.freq_base", "f32", full),
        kv("gemma3.rope.freq_base_swa", "f32", local),
    ]
    out += [
        kv("tokenizer.ggml.model", "str", "gemma4" if gemma4 else "llama"),
        kv("tokenizer.ggml.tokens", "strs", pieces),
        kv("tokenizer.ggml.scores", "f32s", scores),
        kv("tokenizer.ggml.token_type", "i32s", types),
        kv("tokenizer.ggml.bos_token_id", "u32", ids["<bos>"]),
        kv("tokenizer.ggml.eos_token_id", "u32", ids["<eos>"]),
        kv("tokenizer.ggml.unknown_token_id", "u32", ids["<unk>"]),
        kv("tokenizer.ggml.padding_token_id", "u32", ids["<pad>"]),
        kv("tokenizer.ggml.add_bos_token", "bool", True),
        kv("tokenizer.ggml.add_space_prefix", "bool", False),
    ]
    if gemma4:
        out.append(kv("tokenizer.ggml.merges", "strs", merges))
    for turn in ("<end_of_turn>", "<turn|>"):
        if turn in ids:
            out.append(kv("tokenizer.ggml.eot_token_id", "u32", ids[turn]))
    return out


class Gguf:
    def __init__(self, path, keys):
        self.path, self.keys, self.infos, self.blobs, self.at = path, keys, [], [], 0

    def add(self, name, shape, t, data):
        self.infos.append(s(name) + struct.pack("<I", len(shape)) +
                          b"".join(struct.pack("<Q", d) for d in reversed(shape)) +
                          struct.pack("<IQ", TYPES[t][0], self.at))
        data += bytes(-len(data) % 32)
        self.blobs.append(data)
        self.at += len(data)

    def write(self):
        head = (b"GGUF" + struct.pack("<Iqq", 3, len(self.infos), len(self.keys)) +
                b"".join(self.keys) + b"".join(self.infos))
        tmp = "%s.%d" % (self.path, os.getpid())
        with open(tmp, "wb") as f:
            f.write(head + bytes(-len(head) % 32))
            for b in self.blobs:
                f.write(b)
        os.replace(tmp, self.path)


def embedding_keys(keys, config):
    """Gemma 3's keys under EmbeddingGemma's word; it adds <eos>, pools the mean."""
    word = "gemma-embedding"
    out = [s("general.architecture") + struct.pack("<I", 8) + s(word)]
    for k in keys[1:]:
        n = struct.unpack("<Q", k[:8])[0]
        name = k[8:8 + n].decode()
        out.append(s(name.replace("gemma3.", word + ".", 1)) + k[8 + n:] if name.startswith("gemma3.") else k)
    return out + [kv(word + ".pooling_type", "u32", 1), kv("tokenizer.ggml.add_eos_token", "bool", True)]


def dense_steps(folder):
    return {"dense_%d" % i: read_safetensors(os.path.join(folder, "%d_Dense" % i, "model.safetensors"))["linear.weight"]
            for i in (2, 3)}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("folder")
    ap.add_argument("out")
    ap.add_argument("--type")
    ap.add_argument("--synthetic", action="store_true")
    ap.add_argument("--dequant")
    ap.add_argument("--drop")
    ap.add_argument("--tokenizer")
    ap.add_argument("--flat", action="store_true")
    ap.add_argument("--pooling")
    ap.add_argument("--pre", default="modern-bert")
    a = ap.parse_args()
    outer = json.load(open(os.path.join(a.folder, "config.json")))
    import gguf_bert  # it imports this file
    if gguf_bert.is_ours(outer):
        return gguf_bert.write(a, outer)
    import gguf_encoders
    if gguf_encoders.is_ours(outer):
        return gguf_encoders.write(a, outer)
    config = outer.get("text_config", outer)
    gemma4 = is_gemma4(config)
    make = synthetic4 if gemma4 else synthetic
    tensors = (make(config, config["vocab_size"]) if a.synthetic else
               read_safetensors(os.path.join(a.folder, "model.safetensors")))
    keys = metadata(config, a.folder, config["vocab_size"], outer)
    embeds = bool(config.get("use_bidirectional_attention")) and not gemma4
    if embeds:
        keys = embedding_keys(keys, config)
    files = [Gguf(a.out, keys)] + ([Gguf(a.dequant, keys)] if a.dequant else [])
    turn = 0
    if embeds and a.drop != "dense":
        for name, (_, shape, values) in dense_steps(a.folder).items():
            if a.drop != name + ".weight":
                files[0].add(name + ".weight", shape, "F32", encode(values, "F32"))
    if gemma4 and a.drop != "rope_freqs.weight":
        freqs = rope_freqs(config, metadata4(config, outer, 0)[1])
        for f in files:
            f.add("rope_freqs.weight", [len(freqs)], "F32", encode(freqs, "F32"))
    for hf, (dtype, shape, values) in tensors.items():
        name = gguf_name(hf)
        if name == a.drop:
            continue
        t = a.type or dtype
        if gemma4 and len(shape) == 1:
            t = "F32"
        elif len(shape) == 1:  # every vector here is a norm
            k = math.sqrt(config["head_dim"] / config["query_pre_attn_scalar"]) if (
                "q_norm" in hf) else 1
            values, t = [f32(f32(v + 1) * k) for v in values], "F32"
        else:
            if t == "mixed":
                t, turn = MIXED[turn % len(MIXED)], turn + 1
            if shape[1] % TYPES[t][1]:
                t = "F32"
        data = encode(values, t)
        files[0].add(name, shape, t, data)
        if a.dequant:
            files[1].add(name, shape, "F32", encode(decode(data, t), "F32"))
    for f in files:
        f.write()


if __name__ == "__main__":
    main()
