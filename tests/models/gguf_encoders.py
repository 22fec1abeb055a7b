"""GGUF of ModernBERT and NomicBERT folders, for gguf_from_safetensors.py, which reads the options; and
byte-level BPE as GGUF has it, for gguf_bert.py too.

Names of keys and tensors are those of gguf 0.19 (constants.py: MODERN_BERT, NOMIC_BERT), the package that
converters write with. ModernBERT's Wi stays one matrix (ffn_up); NomicBERT's query, key and value are one.
"""
import json
import os

import gguf_bert
import gguf_from_safetensors as g

MODERN = {"attn_norm": "attn_norm", "attn.Wqkv": "attn_qkv", "attn.Wo": "attn_output", "mlp_norm": "ffn_norm",
          "mlp.Wi": "ffn_up", "mlp.Wo": "ffn_down"}
MODERN_TOP = {"embeddings.tok_embeddings": "token_embd", "embeddings.norm": "token_embd_norm",
              "final_norm": "output_norm", "head.dense": "cls", "head.norm": "cls.norm", "classifier": "cls.output"}
NOMIC = {"attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output", "norm1": "attn_output_norm",
         "mlp.fc11": "ffn_up", "mlp.fc12": "ffn_gate", "mlp.fc2": "ffn_down", "norm2": "layer_output_norm"}
NOMIC_TOP = {"embeddings.word_embeddings": "token_embd", "embeddings.token_type_embeddings": "token_types",
             "emb_ln": "token_embd_norm"}
ARCH = {"modernbert": ("modern-bert", MODERN, MODERN_TOP, "layers."),
        "nomic_bert": ("nomic-bert", NOMIC, NOMIC_TOP, "encoder.layers.")}


def is_ours(config):
    return config.get("model_type") in ARCH


def tokens_gpt2(tok, pre):
    vocab = dict(tok["model"]["vocab"])
    special = {t["content"] for t in tok["added_tokens"] if t["special"]}
    added = {t["content"]: t["id"] for t in tok["added_tokens"]}
    vocab.update(added)
    pieces = [None] * len(vocab)
    for p, i in vocab.items():
        pieces[i] = p
    types = [3 if p in special else 4 if p in added else 1 for p in pieces]
    merges = [" ".join(m) if isinstance(m, list) else m for m in tok["model"]["merges"]]
    cls, sep = ("[CLS]", "[SEP]") if "[CLS]" in vocab else ("<s>", "</s>")
    mask = "[MASK]" if "[MASK]" in vocab else "<mask>"
    return [g.kv("tokenizer.ggml.model", "str", "gpt2"),
            g.kv("tokenizer.ggml.pre", "str", pre),
            g.kv("tokenizer.ggml.tokens", "strs", pieces),
            g.kv("tokenizer.ggml.token_type", "i32s", types),
            g.kv("tokenizer.ggml.merges", "strs", merges),
            g.kv("tokenizer.ggml.bos_token_id", "u32", vocab[cls]),
            g.kv("tokenizer.ggml.eos_token_id", "u32", vocab[sep]),
            g.kv("tokenizer.ggml.seperator_token_id", "u32", vocab[sep]),
            g.kv("tokenizer.ggml.mask_token_id", "u32", vocab[mask]),
            g.kv("tokenizer.ggml.add_bos_token", "bool", True),
            g.kv("tokenizer.ggml.add_eos_token", "bool", True),
            g.kv("tokenizer.ggml.add_sep_token", "bool", True)]


# the published NomicBERT's words for numbers
OLDER = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_inner": "intermediate_size",
         "n_head": "num_attention_heads", "n_positions": "max_position_embeddings",
         "layer_norm_epsilon": "layer_norm_eps"}


def metadata(config, folder, tok_folder, pooling, pre):
    a = ARCH[config["model_type"]][0]
    tok = json.load(open(os.path.join(tok_folder, "tokenizer.json"), encoding="utf-8"))
    out = [
        g.kv("general.architecture", "str", a),
        g.kv(a + ".context_length", "u32", config["max_position_embeddings"]),
        g.kv(a + ".embedding_length", "u32", config["hidden_size"]),
        g.kv(a + ".block_count", "u32", config["num_hidden_layers"]),
        g.kv(a + ".feed_forward_length", "u32", config["intermediate_size"]),
        g.kv(a + ".attention.head_count", "u32", config["num_attention_heads"]),
        g.kv(a + ".attention.layer_norm_epsilon", "f32", config.get("norm_eps") or config["layer_norm_eps"]),
        g.kv(a + ".attention.causal", "bool", False),
        g.kv(a + ".pooling_type", "u32", pooling),
    ]
    rope = config.get("rope_parameters") or {"rope_theta": config["rotary_emb_base"]}
    if a == "modern-bert":
        out += [g.kv(a + ".attention.sliding_window", "u32", config["local_attention"]),
                g.kv(a + ".attention.sliding_window_pattern", "u32", 3),
                g.kv(a + ".rope.freq_base", "f32", rope["full_attention"]["rope_theta"]),
                g.kv(a + ".rope.freq_base_swa", "f32", rope["sliding_attention"]["rope_theta"]),
                g.kv(a + ".rope.scaling.type", "str", "none")]
    else:
        out += [g.kv(a + ".rope.freq_base", "f32", rope["rope_theta"]),
                g.kv("tokenizer.ggml.token_type_count", "u32", config["type_vocab_size"])]
    return out + (tokens_gpt2(tok, pre) if tok["model"]["type"] == "BPE" else gguf_bert.tokens_bert(tok))


def gguf_name(hf, layer, top, prefix):
    stem, kind = hf.removeprefix("model.").rsplit(".", 1)
    if stem in top:
        return top[stem] + "." + kind
    if not stem.startswith(prefix):
        return None
    l, rest = stem.removeprefix(prefix).split(".", 1)
    return "blk.%s.%s.%s" % (l, layer[rest], kind)


def write(a, config):
    config = {OLDER.get(k, k): v for k, v in config.items()}
    _, layer, top, prefix = ARCH[config["model_type"]]
    ranks = config["architectures"][0].endswith("ForSequenceClassification")
    pooling = 4 if ranks else {"mean": 1, "cls": 2}[a.pooling or "mean"]
    f = g.Gguf(a.out, metadata(config, a.folder, a.tokenizer or a.folder, pooling, a.pre))
    for hf, (_, shape, values) in g.read_safetensors(os.path.join(a.folder, "model.safetensors")).items():
        name = gguf_name(hf, layer, top, prefix)
        if name is None or name == a.drop:
            continue
        t = a.type if a.type and len(shape) > 1 and not name.startswith("token_types") else "F32"
        if shape[-1] % g.TYPES[t][1]:
            t = "F32"
        if a.flat and len(shape) == 2 and shape[0] == 1:
            shape = shape[1:]
        f.add(name, shape, t, g.encode(values, t))
    f.write()
