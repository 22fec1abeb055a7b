"""peer_onnx.py - one measurement of ONNX Runtime's CPU provider on MiniLM's own weights, as JSON.

Builds the graph from the safetensors file with the fused operators that ONNX Runtime's transformer optimizer would put
there (Attention with packed QKV, SkipLayerNormalization, BiasGelu), so the rival runs at its best; no padding mask, since
every sequence here is full. Also prints a checksum vector, so that the caller can see both sides computed the same thing.
"""
import argparse
import json
import time

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file


def build(path, n_layers=6, n_heads=12, eps=1e-12):
    w = load_file(path)
    inits, nodes = [], []

    def init(name, value):
        inits.append(numpy_helper.from_array(np.ascontiguousarray(value, dtype=np.float32 if value.dtype != np.int64 else np.int64), name))
        return name

    def node(op, ins, outs, **kw):
        nodes.append(helper.make_node(op, ins, outs, **kw))
        return outs[0]

    ms = "com.microsoft"
    init("word", w["embeddings.word_embeddings.weight"])
    init("pos", w["embeddings.position_embeddings.weight"][:128] + w["embeddings.token_type_embeddings.weight"][0])
    x = node("Gather", ["word", "ids"], ["e0"])
    x = node("Add", [x, "pos"], ["e1"])
    x = node("LayerNormalization", [x, init("ln_w", w["embeddings.LayerNorm.weight"]), init("ln_b", w["embeddings.LayerNorm.bias"])],
             ["e2"], epsilon=eps, axis=-1)
    for i in range(n_layers):
        p = f"encoder.layer.{i}."
        q, k, v = (w[p + f"attention.self.{n}.weight"].T for n in ("query", "key", "value"))
        b = np.concatenate([w[p + f"attention.self.{n}.bias"] for n in ("query", "key", "value")])
        a = node("Attention", [x, init(f"qkv{i}", np.concatenate([q, k, v], axis=1)), init(f"qkvb{i}", b)], [f"a{i}"],
                 domain=ms, num_heads=n_heads)
        a = node("MatMul", [a, init(f"o{i}", w[p + "attention.output.dense.weight"].T)], [f"ao{i}"])
        x = node("SkipLayerNormalization", [a, x, init(f"g1{i}", w[p + "attention.output.LayerNorm.weight"]),
                                            init(f"b1{i}", w[p + "attention.output.LayerNorm.bias"]),
                                            init(f"ob{i}", w[p + "attention.output.dense.bias"])], [f"x1{i}"], domain=ms, epsilon=eps)
        h = node("MatMul", [x, init(f"f1{i}", w[p + "intermediate.dense.weight"].T)], [f"h{i}"])
        h = node("BiasGelu", [h, init(f"f1b{i}", w[p + "intermediate.dense.bias"])], [f"hg{i}"], domain=ms)
        h = node("MatMul", [h, init(f"f2{i}", w[p + "output.dense.weight"].T)], [f"h2{i}"])
        x = node("SkipLayerNormalization", [h, x, init(f"g2{i}", w[p + "output.LayerNorm.weight"]),
                                            init(f"b2{i}", w[p + "output.LayerNorm.bias"]),
                                            init(f"f2b{i}", w[p + "output.dense.bias"])], [f"x2{i}"], domain=ms, epsilon=eps)
    x = node("ReduceMean", [x, init("axes", np.array([1], dtype=np.int64))], ["pooled"], keepdims=0)
    node("LpNormalization", [x], ["out"], axis=-1, p=2)
    graph = helper.make_graph(nodes, "minilm", [helper.make_tensor_value_info("ids", TensorProto.INT64, ["b", 128])],
                              [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["b", w["embeddings.LayerNorm.weight"].shape[0]])], inits)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(ms, 1)], ir_version=9)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model", help="folder of all-MiniLM-L6-v2")
    p.add_argument("--threads", type=int, required=True)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--passes", type=int, default=3)
    a = p.parse_args()
    so = ort.SessionOptions()
    so.intra_op_num_threads = a.threads
    sess = ort.InferenceSession(build(a.model + "/model.safetensors").SerializeToString(), so, providers=["CPUExecutionProvider"])
    ids = np.fromfunction(lambda s, t: 1000 + (s * 131 + t * 7919) % 20000, (a.batch, 128)).astype(np.int64)
    ids[:, 0], ids[:, -1] = 101, 102
    out = sess.run(None, {"ids": ids})[0]  # warm-up
    times = []
    for _ in range(a.passes):
        t = time.perf_counter()
        sess.run(None, {"ids": ids})
        times.append(time.perf_counter() - t)
    best = sorted(times)[len(times) // 2]
    print(json.dumps({"seq_s": a.batch / best, "tok_s": a.batch * 128 / best, "first": [float(v) for v in out[0][:4]],
                      "version": ort.__version__}))


if __name__ == "__main__":
    main()
