"""peer_encoders.py - one measurement of an encoder in PyTorch or ONNX Runtime on the CPU, f32, as JSON.

    peer_encoders.py FOLDER --engine torch|onnx --batch 16 --tokens 68 --threads 2 [--runs 5]

FOLDER is what make_encoder.py writes with --dtype F32. Each rival at its best: PyTorch with fused QKV and
scaled_dot_product_attention for BERT (torch_encoder.py), transformers' own DebertaV2 module for DeBERTa (it has no other
attention); ONNX Runtime with the fused operators that its transformer optimizer puts there, attention with relative positions as
two products and two flat gathers. Sequences are full, so there is no mask. Ids are those of bench-encode.
"""
import argparse
import json
import math
import os
import time

import numpy as np


def ids_of(vocab, batch, tokens):
    i = np.arange(batch * tokens, dtype=np.int64)
    return ((i * 7919 + 10) % (vocab - vocab // 4)).reshape(batch, tokens)


def places(n, k=256, limit=512):
    """delta(i, j) of encoders.md 5.2, in f32."""
    rel = np.arange(n)[:, None] - np.arange(n)[None, :]
    mid, a = k // 2, np.abs(rel)
    f = np.float32
    log = np.ceil(np.log(np.maximum(a, 1).astype(f) / f(mid)) / np.log(f((limit - 1) / mid)) * f(mid - 1)) + f(mid)
    return np.clip(np.where(a <= mid, rel, np.sign(rel) * log).astype(np.int64) + k, 0, 2 * k - 1)


class Graph:
    """An ONNX graph as it grows: f32 initializers and nodes, names made up."""

    def __init__(self):
        from onnx import helper, numpy_helper
        self.helper, self.numpy = helper, numpy_helper
        self.inits, self.nodes, self.n = [], [], 0

    def const(self, v):
        self.n += 1
        v = np.asarray(v, order="C")  # a scalar stays one
        self.inits.append(self.numpy.from_array(v.astype(np.float32) if v.dtype != np.int64 else v, f"c{self.n}"))
        return f"c{self.n}"

    def op(self, name, ins, **kw):
        self.n += 1
        self.nodes.append(self.helper.make_node(name, ins, [f"v{self.n}"], **kw))
        return f"v{self.n}"

    def ms(self, name, ins, **kw):
        return self.op(name, ins, domain="com.microsoft", **kw)

    def model(self, out, width):
        from onnx import TensorProto
        self.nodes.append(self.helper.make_node("Identity", [out], ["out"]))
        info = self.helper.make_tensor_value_info
        g = self.helper.make_graph(self.nodes, "encoder", [info("ids", TensorProto.INT64, ["b", "n"])],
                                   [info("out", TensorProto.FLOAT, ["b", width])], self.inits)
        ops = [self.helper.make_opsetid("", 18), self.helper.make_opsetid("com.microsoft", 1)]
        return self.helper.make_model(g, opset_imports=ops, ir_version=9)


def rest_of_layer(g, w, p, x, a, eps):
    """Behind attention: output, norm, feed-forward, norm."""
    for dense, norm, act in (("attention.output.dense", "attention.output.LayerNorm", None),
                             ("output.dense", "output.LayerNorm", "intermediate.dense")):
        h = a if act is None else g.ms("BiasGelu", [g.op("MatMul", [x, g.const(w[p + act + ".weight"].T)]), g.const(w[p + act + ".bias"])])
        h = g.op("MatMul", [h, g.const(w[p + dense + ".weight"].T)])
        x = g.ms("SkipLayerNormalization", [h, x, g.const(w[p + norm + ".weight"]), g.const(w[p + norm + ".bias"]),
                                            g.const(w[p + dense + ".bias"])], epsilon=eps)
    return x


def layer_norm(g, w, name, x, eps):
    return g.op("LayerNormalization", [x, g.const(w[name + ".weight"]), g.const(w[name + ".bias"])], epsilon=eps, axis=-1)


def bert_graph(w, c, tokens):
    g, eps = Graph(), c["layer_norm_eps"]
    x = g.op("Gather", [g.const(w["embeddings.word_embeddings.weight"]), "ids"])
    pos = w["embeddings.position_embeddings.weight"][:tokens] + w["embeddings.token_type_embeddings.weight"][0]
    x = layer_norm(g, w, "embeddings.LayerNorm", g.op("Add", [x, g.const(pos)]), eps)
    for i in range(c["num_hidden_layers"]):
        p = f"encoder.layer.{i}."
        names = [p + "attention.self." + n for n in ("query", "key", "value")]
        a = g.ms("Attention", [x, g.const(np.concatenate([w[n + ".weight"].T for n in names], axis=1)),
                               g.const(np.concatenate([w[n + ".bias"] for n in names]))], num_heads=c["num_attention_heads"])
        x = rest_of_layer(g, w, p, x, a, eps)
    x = g.op("Gather", [x, g.const(np.array(0, np.int64))], axis=1)
    return g.model(g.op("LpNormalization", [x], axis=-1, p=2), c["hidden_size"])


def host_norm(w, name, x, eps):
    m, v = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - m) / np.sqrt(v + eps) * w[name + ".weight"] + w[name + ".bias"]


def deberta_graph(w, c, tokens):
    g, eps, nh, d = Graph(), c["layer_norm_eps"], c["num_attention_heads"], c["hidden_size"]
    hd, n = d // nh, tokens
    scale = np.float32(1 / math.sqrt(3 * hd))
    at = places(n)
    span = 2 * c["position_buckets"]
    by_query = g.const((np.arange(n)[:, None] * span + at).reshape(-1))
    by_key = g.const((np.arange(n)[None, :] * span + at).reshape(-1))
    flat, square = g.const(np.array([0, 0, -1], np.int64)), g.const(np.array([0, 0, n, n], np.int64))
    split, joined = g.const(np.array([0, 0, nh, hd], np.int64)), g.const(np.array([0, 0, d], np.int64))
    table = host_norm(w, "deberta.encoder.LayerNorm", w["deberta.encoder.rel_embeddings.weight"], eps)
    x = g.op("Gather", [g.const(w["deberta.embeddings.word_embeddings.weight"]), "ids"])
    x = layer_norm(g, w, "deberta.embeddings.LayerNorm", x, eps)
    for i in range(c["num_hidden_layers"]):
        p = f"deberta.encoder.layer.{i}."
        s = p + "attention.self."
        names = [s + m for m in ("query_proj", "key_proj", "value_proj")]
        # the scale is in the projection of queries, and once in what meets the keys
        by = [scale, 1, 1]
        qkv = g.op("MatMul", [x, g.const(np.concatenate([w[m + ".weight"].T * f for m, f in zip(names, by)], axis=1))])
        qkv = g.op("Add", [qkv, g.const(np.concatenate([w[m + ".bias"] * f for m, f in zip(names, by)]))])
        g.n += 1
        parts = [f"s{g.n}_{k}" for k in range(3)]
        g.nodes.append(g.helper.make_node("Split", [qkv], parts, axis=2, num_outputs=3))
        q, k, v = (g.op("Transpose", [g.op("Reshape", [t, split])], perm=[0, 2, 1, 3]) for t in parts)
        kt = g.op("Transpose", [k], perm=[0, 1, 3, 2])
        rk = (table @ w[s + "key_proj.weight"].T + w[s + "key_proj.bias"]).reshape(span, nh, hd).transpose(1, 2, 0)
        rq = (table @ w[s + "query_proj.weight"].T + w[s + "query_proj.bias"]).reshape(span, nh, hd).transpose(1, 2, 0) * scale
        score = g.op("MatMul", [q, kt])
        for rows, cols, index in ((q, rk, by_query), (k, rq, by_key)):
            t = g.op("Reshape", [g.op("MatMul", [rows, g.const(cols)]), flat])
            score = g.op("Add", [score, g.op("Reshape", [g.op("Gather", [t, index], axis=2), square])])
        a = g.op("MatMul", [g.op("Softmax", [score], axis=-1), v])
        a = g.op("Reshape", [g.op("Transpose", [a], perm=[0, 2, 1, 3]), joined])
        x = rest_of_layer(g, w, p, x, a, eps)
    x = g.op("Gather", [x, g.const(np.array(0, np.int64))], axis=1)
    x = g.ms("BiasGelu", [g.op("MatMul", [x, g.const(w["pooler.dense.weight"].T)]), g.const(w["pooler.dense.bias"])])
    x = g.op("Add", [g.op("MatMul", [x, g.const(w["classifier.weight"].T)]), g.const(w["classifier.bias"])])
    return g.model(x, 1)


def onnx_runner(a, c):
    import onnxruntime as ort
    from safetensors.numpy import load_file

    w = load_file(os.path.join(a.folder, "model.safetensors"))
    build = deberta_graph if c["model_type"] == "deberta-v2" else bert_graph
    path = os.path.join(a.folder, f"peer-{a.tokens}.onnx")
    import onnx
    onnx.save(build(w, c, a.tokens), path, save_as_external_data=True, location=os.path.basename(path) + ".data")
    so = ort.SessionOptions()
    so.intra_op_num_threads = a.threads
    session = ort.InferenceSession(path, so, providers=["CPUExecutionProvider"])
    return (lambda ids: session.run(None, {"ids": ids})[0]), f"onnxruntime {ort.__version__}"


def torch_runner(a, c):
    import torch

    torch.set_num_threads(a.threads)
    torch.set_grad_enabled(False)
    if c["model_type"] == "deberta-v2":
        from transformers import DebertaV2ForSequenceClassification

        model = DebertaV2ForSequenceClassification.from_pretrained(a.folder, dtype=torch.float32).eval()
        return (lambda ids: model(input_ids=torch.from_numpy(ids)).logits.numpy()), f"torch {torch.__version__}"
    import torch_encoder

    model = torch_encoder.Encoder(a.folder, "cpu", torch.float32)
    return (lambda ids: model.forward(torch.from_numpy(ids)).numpy()), f"torch {torch.__version__}"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--engine", choices=["torch", "onnx"], required=True)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--tokens", type=int, default=512)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--runs", type=int, default=5)
    a = p.parse_args()
    with open(os.path.join(a.folder, "config.json"), encoding="utf-8") as f:
        c = json.load(f)
    run, version = (onnx_runner if a.engine == "onnx" else torch_runner)(a, c)
    ids = ids_of(c["vocab_size"], a.batch, a.tokens)
    out = run(ids)  # warms up
    wall, cpu = [], []
    for _ in range(a.runs):
        t, u = time.perf_counter(), time.process_time()
        run(ids)
        wall.append(1e3 * (time.perf_counter() - t))
        cpu.append(1e3 * (time.process_time() - u))
    print(json.dumps({"ms_runs": wall, "cpu_ms_runs": cpu, "first": [float(v) for v in out[0][:4]], "version": version}))


if __name__ == "__main__":
    main()
