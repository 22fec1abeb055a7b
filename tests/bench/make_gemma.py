#!/usr/bin/env python3
"""make_gemma.py - writes a Gemma 3 or 4 GGUF file of a real model's geometry with random weights.

    make_gemma.py OUT.gguf [--size tiny|270m|1b|4b|g4tiny|e2b|e4b] [--type Q4_0|Q4_K_M|Q8_0|F16|BF16] [--seed N]

g4tiny, e2b and e4b are Gemma 4 (Q4_0, Q8_0, F16 or BF16); the others Gemma 3.

For benchmarks on machines that cannot fetch models: time depends on shapes and formats, not on values. Q4_K_M mixes types
as llama.cpp does (270m: as in the published file). Scales are chosen so that activations stay near 1, so neither side meets
NaN. The vocabulary is synthetic (bytes, letters, made-up words) and has the real size. Needs numpy. Loads in inferd and in
llama.cpp (Gemma 4: llama-cpp-python 0.3.36 does). Layout facts: engine.md 2.1 to 2.3, gemma.md 11.1, 11.3.
"""
import argparse
import os
import struct
import sys
import time

import numpy as np

SIZES = {  # layers, d_model, heads, kv heads, head_dim, d_ff, vocabulary, window, context, rope factor
    "tiny": (7, 512, 4, 1, 128, 1024, 4096, 64, 4096, 1.0),
    "270m": (18, 640, 4, 1, 256, 2048, 262144, 512, 32768, 1.0),
    "1b": (26, 1152, 4, 1, 256, 6912, 262144, 512, 32768, 1.0),
    "4b": (34, 2560, 8, 4, 256, 10240, 262144, 1024, 131072, 8.0),
}
SIZES4 = {  # layers, d_model, heads, kv heads, d_ff, vocabulary, window, global every, shared layers, wide, per-layer width
    "g4tiny": (10, 256, 4, 1, 512, 4096, 64, 5, 5, True, 64),
    "e2b": (35, 1536, 8, 1, 6144, 262144, 512, 5, 20, True, 256),
    "e4b": (42, 2560, 8, 2, 10240, 262144, 512, 6, 18, False, 256),
}
SLIDE, FULL = 256, 512  # head widths of Gemma 4's layers
TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q5_0": (6, 32, 22), "Q8_0": (8, 32, 34),
         "Q4_K": (12, 256, 144), "Q6_K": (14, 256, 210), "BF16": (30, 1, 2)}


# ------------------------------------------------------------- weights

def halves(x):
    return np.asarray(x, np.float16).view(np.uint8).reshape(len(x), 2)


def spread(rng, n, mean):
    """n positive scales around mean, 20 % either way."""
    return (mean * (0.8 + 0.4 * rng.random(n, np.float32))).astype(np.float32)


def blocks(rng, t, n_rows, k):
    """Bytes of a random n_rows x k matrix whose values have deviation 1 / sqrt(k)."""
    s = 1 / np.sqrt(k)
    if t in ("F32", "F16", "BF16"):
        x = rng.standard_normal(n_rows * k, np.float32) * np.float32(s)
        if t == "F32":
            return x.view(np.uint8)
        if t == "F16":
            return x.astype(np.float16).view(np.uint8)
        return (x.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    n = n_rows * k // TYPES[t][1]
    b = np.frombuffer(rng.bytes(n * TYPES[t][2]), np.uint8).reshape(n, TYPES[t][2]).copy()
    if t in ("Q4_0", "Q5_0", "Q8_0"):  # codes uniform over 2^bits: deviation 2^bits / sqrt(12)
        b[:, :2] = halves(spread(rng, n, s / {"Q4_0": 4.6, "Q5_0": 9.2, "Q8_0": 73.9}[t]))
    elif t == "Q6_K":
        b[:, 192:208] = rng.integers(64, 128, (n, 16), np.uint8)
        b[:, 208:] = halves(spread(rng, n, s / 18.5 / 96))
    else:  # Q4_K: minimum = 7.5 steps of the same scale, so the mean is zero
        sc = rng.integers(32, 64, (n, 8), np.uint8)
        lo, hi = sc[:, :4], sc[:, 4:]
        b[:, 4:8] = b[:, 8:12] = lo | (hi >> 4) << 6
        b[:, 12:16] = (hi & 15) | (hi & 15) << 4
        d = spread(rng, n, s / 4.6 / 48)
        b[:, :2] = halves(d)
        b[:, 2:4] = halves(7.5 * d)
    return b.reshape(-1)


def type_of(name, want, size, layer, n_layers):
    """Type of a matrix. Q4_K_M: the last and first eighth of layers and every third keep more bits."""
    if want != "Q4_K_M":
        return want
    more = layer < n_layers // 8 or layer >= 7 * n_layers // 8 or (layer - n_layers // 8) % 3 == 2
    if size in ("270m", "1b"):  # rows of 640 and 1152 are no multiple of 256
        return {"token_embd": "Q8_0", "attn_v": "Q8_0" if more else "Q5_0", "attn_output": "Q4_K",
                "ffn_down": "Q6_K" if more else "Q4_K"}.get(name, "Q5_0")
    if name == "token_embd":
        return "Q6_K"
    return "Q6_K" if more and name in ("attn_v", "ffn_down") else "Q4_K"


def plan(size, want):
    n_layers, d, heads, kv, hd, ff, vocab = SIZES[size][:7]
    out = [("token_embd.weight", (vocab, d), type_of("token_embd", want, size, 0, n_layers)),
           ("output_norm.weight", (d,), "F32")]
    for l in range(n_layers):
        for name, rows, cols in (("attn_q", heads * hd, d), ("attn_k", kv * hd, d), ("attn_v", kv * hd, d),
                                 ("attn_output", d, heads * hd), ("ffn_gate", ff, d), ("ffn_up", ff, d),
                                 ("ffn_down", d, ff)):
            out.append((f"blk.{l}.{name}.weight", (rows, cols), type_of(name, want, size, l, n_layers)))
        for name, n in (("attn_norm", d), ("attn_q_norm", hd), ("attn_k_norm", hd), ("post_attention_norm", d),
                        ("ffn_norm", d), ("post_ffw_norm", d)):
            out.append((f"blk.{l}.{name}.weight", (n,), "F32"))
    return out


def heads4(size):
    """Head width of each layer."""
    return [FULL if (l + 1) % SIZES4[size][7] == 0 else SLIDE for l in range(SIZES4[size][0])]


def ff4(size):
    n, _, _, _, ff, _, _, _, shared, wide, _ = SIZES4[size]
    return [2 * ff if wide and l >= n - shared else ff for l in range(n)]


def plan4(size, t):
    """Scores are not divided by the head width's root: q and k norms keep them near 1 instead."""
    n, d, heads, kv, _, vocab, _, _, shared, _, p = SIZES4[size]
    out = [("token_embd.weight", (vocab, d), t), ("per_layer_token_embd.weight", (vocab, n * p), t),
           ("per_layer_model_proj.weight", (n * p, d), t), ("per_layer_proj_norm.weight", (p,), "F32"),
           ("output_norm.weight", (d,), "F32"), ("rope_freqs.weight", (FULL // 2,), "F32")]
    for l, (hd, ff) in enumerate(zip(heads4(size), ff4(size))):
        own = l < n - shared
        for name, rows, cols in (("attn_q", heads * hd, d), ("attn_k", kv * hd, d), ("attn_v", kv * hd, d),
                                 ("attn_output", d, heads * hd), ("ffn_gate", ff, d), ("ffn_up", ff, d),
                                 ("ffn_down", d, ff), ("inp_gate", p, d), ("proj", d, p)):
            if own or name not in ("attn_k", "attn_v"):
                out.append((f"blk.{l}.{name}.weight", (rows, cols), t))
        for name, k in (("attn_norm", d), ("attn_q_norm", hd), ("attn_k_norm", hd), ("post_attention_norm", d),
                        ("ffn_norm", d), ("post_ffw_norm", d), ("post_norm", d), ("layer_output_scale", 1)):
            if own or name != "attn_k_norm":
                out.append((f"blk.{l}.{name}.weight", (k,), "F32"))
    return out


def vector4(name, n):
    if name == "rope_freqs.weight":
        return np.where(np.arange(n) < n // 4, 1, 1e30).astype(np.float32)
    return np.full(n, n ** -0.25 if "_q_norm" in name or "_k_norm" in name else 1, np.float32)


# ------------------------------------------------------------ vocabulary

CONTROL4 = ["<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>", "<|tool>", "<tool|>", "<|tool_call>",
            "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>']


def merges_of(pieces, types):
    """A made-up word is its beginning and its last letter, with a space in front that space and the word;
    what is joined comes before its join."""
    words = [w for w, t in zip(pieces, types) if t == 1 and len(w) > 1]
    return ["\u2581 " + w[1:] if w[0] == "\u2581" else w[:-1] + " " + w[-1] for w in words]


def vocabulary(n, control=("<start_of_turn>", "<end_of_turn>")):
    """Pieces, scores, types (1 normal, 2 unknown, 3 control, 6 byte)."""
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>"]
    types = [3, 3, 3, 2]
    pieces += [f"<0x{i:02X}>" for i in range(256)]
    types += [6] * 256
    pieces += control
    types += [3] * len(control)
    single = ["\u2581"] + [chr(c) for c in range(33, 127)]
    pieces += single
    letters = "abcdefghijklmnopqrstuvwxyz"
    i = 0
    while len(pieces) < n:  # two-letter joins first, so longer words can be built from them
        w, j = "", i
        while True:
            w = letters[j % 26] + w
            j = j // 26 - 1
            if j < 0:
                break
        if len(w) > 1:
            pieces.append(w)
            if len(pieces) < n:
                pieces.append("\u2581" + w)
        i += 1
    types += [1] * (n - len(types))
    scores = [-1000.0 if t != 1 else -float(i) for i, t in enumerate(types)]
    return pieces, scores, types


# ---------------------------------------------------------------- writer

def text(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def key(name, kind, v):
    if kind == "str":
        return text(name) + struct.pack("<I", 8) + text(v)
    if kind == "strs":
        return text(name) + struct.pack("<IIQ", 9, 8, len(v)) + b"".join(map(text, v))
    if kind == "bools":
        return text(name) + struct.pack("<IIQ", 9, 7, len(v)) + bytes(v)
    if kind in ("f32s", "i32s"):
        code, dt = (6, np.float32) if kind == "f32s" else (5, np.int32)
        return text(name) + struct.pack("<IIQ", 9, code, len(v)) + np.asarray(v, dt).tobytes()
    code, fmt = {"u32": (4, "<I"), "f32": (6, "<f"), "bool": (7, "<?")}[kind]
    return text(name) + struct.pack("<I", code) + struct.pack(fmt, v)


def metadata(size):
    n_layers, d, heads, kv, hd, ff, vocab, window, ctx, factor = SIZES[size]
    pieces, scores, types = vocabulary(vocab)
    g = "gemma3."
    out = [key("general.architecture", "str", "gemma3"), key("general.name", "str", f"random Gemma 3 {size}"),
           key(g + "context_length", "u32", ctx), key(g + "embedding_length", "u32", d),
           key(g + "block_count", "u32", n_layers), key(g + "feed_forward_length", "u32", ff),
           key(g + "attention.head_count", "u32", heads), key(g + "attention.head_count_kv", "u32", kv),
           key(g + "attention.key_length", "u32", hd), key(g + "attention.value_length", "u32", hd),
           key(g + "attention.layer_norm_rms_epsilon", "f32", 1e-6), key(g + "attention.sliding_window", "u32", window),
           key(g + "rope.freq_base", "f32", 1e6)]
    if factor != 1:
        out += [key(g + "rope.scaling.type", "str", "linear"), key(g + "rope.scaling.factor", "f32", factor)]
    t = "tokenizer.ggml."
    return out + [key(t + "model", "str", "llama"), key(t + "pre", "str", "default"),
                  key(t + "tokens", "strs", pieces), key(t + "scores", "f32s", scores),
                  key(t + "token_type", "i32s", types), key(t + "bos_token_id", "u32", 2),
                  key(t + "eos_token_id", "u32", 1), key(t + "unknown_token_id", "u32", 3),
                  key(t + "padding_token_id", "u32", 0), key(t + "eot_token_id", "u32", pieces.index("<end_of_turn>")),
                  key(t + "add_bos_token", "bool", True), key(t + "add_space_prefix", "bool", False)]


def metadata4(size):
    n, d, heads, kv, _, vocab, window, _, shared, _, p = SIZES4[size]
    pieces, scores, types = vocabulary(vocab, CONTROL4)
    hds = heads4(size)
    g, t = "gemma4.", "tokenizer.ggml."
    return [key("general.architecture", "str", "gemma4"), key("general.name", "str", f"random Gemma 4 {size}"),
            key(g + "context_length", "u32", 131072), key(g + "embedding_length", "u32", d),
            key(g + "embedding_length_per_layer_input", "u32", p), key(g + "block_count", "u32", n),
            key(g + "feed_forward_length", "i32s", ff4(size)), key(g + "attention.head_count", "u32", heads),
            key(g + "attention.head_count_kv", "i32s", [kv] * n), key(g + "attention.key_length", "u32", FULL),
            key(g + "attention.value_length", "u32", FULL), key(g + "attention.key_length_swa", "u32", SLIDE),
            key(g + "attention.value_length_swa", "u32", SLIDE), key(g + "attention.layer_norm_rms_epsilon", "f32", 1e-6),
            key(g + "attention.sliding_window", "u32", window), key(g + "attention.shared_kv_layers", "u32", shared),
            key(g + "attention.sliding_window_pattern", "bools", [h == SLIDE for h in hds]),
            key(g + "rope.freq_base", "f32", 1e6), key(g + "rope.freq_base_swa", "f32", 1e4),
            key(g + "rope.dimension_count", "u32", FULL), key(g + "rope.dimension_count_swa", "u32", SLIDE),
            key(g + "final_logit_softcapping", "f32", 30.0),
            key(t + "model", "str", "gemma4"), key(t + "tokens", "strs", pieces), key(t + "scores", "f32s", scores),
            key(t + "token_type", "i32s", types), key(t + "merges", "strs", merges_of(pieces, types)),
            key(t + "bos_token_id", "u32", 2), key(t + "eos_token_id", "u32", 1), key(t + "unknown_token_id", "u32", 3),
            key(t + "padding_token_id", "u32", 0), key(t + "eot_token_id", "u32", pieces.index("<turn|>")),
            key(t + "add_bos_token", "bool", True), key(t + "add_space_prefix", "bool", False)]


def pieces_of(rng, t, shape):
    """A matrix a few hundred megabytes at a time."""
    step = max(1, (256 << 20) // (shape[1] * 4))
    for r in range(0, shape[0], step):
        yield blocks(rng, t, min(step, shape[0] - r), shape[1])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--size", choices=[*SIZES, *SIZES4], default="270m")
    p.add_argument("--type", choices=["Q4_0", "Q4_K_M", "Q8_0", "F16", "BF16"], default=None)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    gemma4 = a.size in SIZES4
    a.type = a.type or ("Q4_0" if gemma4 else "Q4_K_M")
    if gemma4 and a.type == "Q4_K_M":
        p.error("Gemma 4 files have one type of matrix: Q4_0, Q8_0, F16 or BF16")
    begin = time.monotonic()
    rng = np.random.default_rng(a.seed)
    tensors, infos, at = (plan4 if gemma4 else plan)(a.size, a.type), [], 0
    for name, shape, t in tensors:
        n = int(np.prod(shape)) // TYPES[t][1] * TYPES[t][2]
        infos.append(text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", s) for s in reversed(shape)) +
                     struct.pack("<IQ", TYPES[t][0], at))
        at += -(-n // 32) * 32
    keys = (metadata4 if gemma4 else metadata)(a.size)
    head = b"GGUF" + struct.pack("<Iqq", 3, len(infos), len(keys)) + b"".join(keys) + b"".join(infos)
    tmp = f"{a.out}.{os.getpid()}"
    with open(tmp, "wb") as f:
        f.write(head + bytes(-len(head) % 32))
        for name, shape, t in tensors:
            if len(shape) == 1:
                parts = [(vector4(name, shape[0]) if gemma4 else np.ones(shape, np.float32)).view(np.uint8)]
            else:
                parts = pieces_of(rng, t, shape) if gemma4 else [blocks(rng, t, *shape)]
            n = 0
            for data in parts:
                data.tofile(f)
                n += data.size
            f.write(bytes(-n % 32))
    os.replace(tmp, a.out)
    print(f"{a.out}: Gemma {4 if gemma4 else 3} {a.size}, {a.type}, {os.path.getsize(a.out) / 1e6:.0f} MB, {time.monotonic() - begin:.1f} s",
          file=sys.stderr)


if __name__ == "__main__":
    main()
