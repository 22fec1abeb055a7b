#!/usr/bin/env python3
"""make_gemma.py - writes a Gemma 3 GGUF file of a real model's geometry with random weights.

    make_gemma.py OUT.gguf [--size tiny|270m|1b|4b] [--type Q4_0|Q4_K_M|Q8_0|F16|BF16] [--seed N]

For benchmarks on machines that cannot fetch models: time depends on shapes and formats, not on values. Q4_K_M mixes types
as llama.cpp does (270m: as in the published file). Scales are chosen so that activations stay near 1, so neither side meets
NaN. The vocabulary is synthetic (bytes, letters, made-up words) and has the real size. Needs numpy. Loads in inferd and in
llama.cpp. Layout facts: engine.md 2.1 to 2.3, gemma.md 11.1.
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


# ------------------------------------------------------------ vocabulary

def vocabulary(n):
    """Pieces, scores, types (1 normal, 2 unknown, 3 control, 6 byte)."""
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>"]
    types = [3, 3, 3, 2]
    pieces += [f"<0x{i:02X}>" for i in range(256)]
    types += [6] * 256
    pieces += ["<start_of_turn>", "<end_of_turn>"]
    types += [3, 3]
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


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--size", choices=SIZES, default="270m")
    p.add_argument("--type", choices=["Q4_0", "Q4_K_M", "Q8_0", "F16", "BF16"], default="Q4_K_M")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    begin = time.monotonic()
    rng = np.random.default_rng(a.seed)
    tensors, infos, at = plan(a.size, a.type), [], 0
    for name, shape, t in tensors:
        n = int(np.prod(shape)) // TYPES[t][1] * TYPES[t][2]
        infos.append(text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", s) for s in reversed(shape)) +
                     struct.pack("<IQ", TYPES[t][0], at))
        at += -(-n // 32) * 32
    keys = metadata(a.size)
    head = b"GGUF" + struct.pack("<Iqq", 3, len(infos), len(keys)) + b"".join(keys) + b"".join(infos)
    tmp = f"{a.out}.{os.getpid()}"
    with open(tmp, "wb") as f:
        f.write(head + bytes(-len(head) % 32))
        for name, shape, t in tensors:
            data = np.ones(shape, np.float32).view(np.uint8) if len(shape) == 1 else blocks(rng, t, *shape)
            data.tofile(f)
            f.write(bytes(-data.size % 32))
    os.replace(tmp, a.out)
    print(f"{a.out}: Gemma 3 {a.size}, {a.type}, {os.path.getsize(a.out) / 1e6:.0f} MB, {time.monotonic() - begin:.1f} s",
          file=sys.stderr)


if __name__ == "__main__":
    main()
