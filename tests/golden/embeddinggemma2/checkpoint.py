"""checkpoint.py - which checkpoint a folder holds: the server's own identity, computed a second time (stdlib).

SHA-256 over the recipe's name and every file that has a say in vectors, each framed by its length as 8 bytes, little
endian; a file that is not there has the length 2^64 - 1. The contract is docs/models/bert.md, "Identity".
"""
import hashlib
import json
import os
import struct

RECIPE = "embeddinggemma2-f32-mean-v1"
FIRST = ["config.json", "model.safetensors.index.json"]
WEIGHTS = "model.safetensors"
SIDE = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "processor_config.json",
        "preprocessor_config.json", "sentence_bert_config.json", "config_sentence_transformers.json", "modules.json"]
BLOCK = 1 << 22


def sha256(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while part := f.read(BLOCK):
            h.update(part)
    return h.hexdigest()


def poolings(folder):
    """config.json of each Pooling that modules.json lists."""
    try:
        with open(os.path.join(folder, "modules.json"), encoding="utf-8") as f:
            modules = json.load(f)
    except FileNotFoundError:
        return []
    return [(m["path"] + "/" if m.get("path") else "") + "config.json" for m in modules if m["type"].endswith("Pooling")]


def identity(folder):
    """(64 hex digits, {file: its own SHA-256})"""
    h, files = hashlib.sha256(), {}

    def add(name):
        h.update(struct.pack("<Q", len(name)) + name.encode())
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            h.update(b"\xff" * 8)
            return
        h.update(struct.pack("<Q", os.path.getsize(path)))
        own = hashlib.sha256()
        with open(path, "rb") as f:
            while part := f.read(BLOCK):
                h.update(part)
                own.update(part)
        files[name] = own.hexdigest()

    h.update(struct.pack("<Q", len(RECIPE)) + RECIPE.encode())
    for name in FIRST + [WEIGHTS] + SIDE + poolings(folder):
        add(name)
    return h.hexdigest(), files


def weights_dtype(folder):
    """The type of the weights as the file names it: BF16 or F32."""
    with open(os.path.join(folder, WEIGHTS), "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        if n > 100 << 20:
            raise ValueError(f"{WEIGHTS}: a header of {n} bytes")
        header = json.loads(f.read(n))
    types = {v["dtype"] for k, v in header.items() if k != "__metadata__"}
    if len(types) != 1:
        raise ValueError(f"{WEIGHTS}: tensors of types {sorted(types)}, expected one")
    return types.pop()
