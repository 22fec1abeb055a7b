"""peer_llama.py - one measurement of llama.cpp through llama-cpp-python, as JSON.

Run by peer-llama in a process of its own per measurement. Everything is llama.cpp's default except the thread count, the
context length and the batch size, which are made equal to ours; nothing is switched off. The decode loop asks for logits
and feeds back the arg max as plain greedy generation does, computed by numpy outside the timed part of llama_decode: only
llama_decode + llama_synchronize are timed, which is kinder to the peer than a real loop.
"""
import argparse
import json
import time

import llama_cpp
import numpy as np


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("--threads", type=int, required=True)
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--gen", type=int, default=128)
    p.add_argument("--depth", type=int, default=16, help="tokens in the cache before decoding")
    a = p.parse_args()
    llama_cpp.llama_backend_init()
    begin = time.perf_counter()
    mp = llama_cpp.llama_model_default_params()
    mp.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(a.model.encode(), mp)
    cp = llama_cpp.llama_context_default_params()
    cp.n_ctx = max(a.prompt, a.depth + a.gen) + 64
    cp.n_batch = max(512, a.prompt, a.depth)
    cp.n_threads = a.threads
    cp.n_threads_batch = a.threads
    ctx = llama_cpp.llama_init_from_model(model, cp)
    load_ms = (time.perf_counter() - begin) * 1e3
    vocab = llama_cpp.llama_model_get_vocab(model)
    n_vocab = llama_cpp.llama_vocab_n_tokens(vocab)
    mem = llama_cpp.llama_get_memory(ctx)

    def feed(tokens):
        arr = (llama_cpp.llama_token * len(tokens))(*tokens)
        t = time.perf_counter()
        rc = llama_cpp.llama_decode(ctx, llama_cpp.llama_batch_get_one(arr, len(tokens)))
        llama_cpp.llama_synchronize(ctx)
        if rc != 0:
            raise SystemExit(f"llama_decode: {rc}")
        return time.perf_counter() - t

    def best():
        logits = llama_cpp.llama_get_logits_ith(ctx, -1)
        return int(np.ctypeslib.as_array(logits, shape=(n_vocab,)).argmax())

    prompt = [2] + [(i * 7919) % 20000 + 1000 for i in range(max(a.prompt, a.depth) - 1)]
    feed([2, 1000, 1001])  # warm up: page in, start threads
    llama_cpp.llama_memory_clear(mem, True)
    prefill = feed(prompt[:a.prompt])
    llama_cpp.llama_memory_clear(mem, True)
    feed(prompt[:a.depth])
    token, spent, cpu = best(), 0.0, 0.0
    for _ in range(a.gen):
        begin = time.process_time()
        spent += feed([token])
        cpu += time.process_time() - begin
        token = best()
    print(json.dumps({"load_ms": load_ms, "prefill_tok_s": a.prompt / prefill, "decode_tok_s": a.gen / spent,
                      "decode_step_cpu_ms": cpu / a.gen * 1e3,
                      "version": llama_cpp.__version__}))


if __name__ == "__main__":
    main()
