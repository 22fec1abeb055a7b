"""torch_eg2.py - measurements of EmbeddingGemma 2 in PyTorch on the CPU, as JSON: transformers' own model, F32, its sdpa.

    torch_eg2.py FOLDER --threads 2 --tokens 512 [--runs 20]      from ids to the vector
    torch_eg2.py FOLDER --threads 2 --image 2520 | --sound 750    one tower and its projector: patches, frames / 4 to soft tokens

Timed is what inferd's side times: embedding lookup, encoder, mean, norm, the vector on the host. Ids and both masks are there
before the clock starts, as the reference would make them. --clock cpu takes the process's processor time: on a loaded machine,
with one thread. Checked with transformers 5.24, torch 2.15.
"""
import argparse
import json
import os
import statistics
import time

import torch
import transformers
from safetensors import safe_open
from transformers import AutoConfig, AutoModel
from transformers.masking_utils import create_bidirectional_mask, create_bidirectional_sliding_window_mask


def part(config, folder, prefix):
    """The sub-model whose tensors begin with prefix, in F32."""
    state = {}
    with safe_open(os.path.join(folder, "model.safetensors"), "pt") as f:
        for name in f.keys():
            if name.startswith(prefix):
                state[name[len(prefix):]] = f.get_tensor(name).float()
    model = AutoModel.from_config(config, attn_implementation="sdpa")
    missing, extra = model.load_state_dict(state, strict=False)
    if extra or any(name in dict(model.named_parameters()) for name in missing):
        raise SystemExit(f"weights do not fit: {extra[:3]} too many, {missing[:3]} missing")
    return model.eval().float()


def text(config, folder, n):
    model = part(config.text_config, folder, "language_model.")
    ids = torch.randint(10, 200000, (1, n))
    x = model.embed_tokens(ids)
    kw = {"config": model.config, "inputs_embeds": x, "attention_mask": None}
    masks = {"full_attention": create_bidirectional_mask(**kw), "sliding_attention": create_bidirectional_sliding_window_mask(**kw)}

    def run():
        h = model(input_ids=ids, attention_mask=masks).last_hidden_state
        return torch.nn.functional.normalize(h.mean(1), dim=-1).numpy()
    return run


def image(config, folder, n):
    tower = part(config.vision_config, folder, "vision_tower.")
    side = int(n ** 0.5)
    while n % side:
        side -= 1
    pixels = torch.rand(1, n, 3 * config.vision_config.patch_size ** 2)
    pos = torch.stack([torch.arange(n) % (n // side), torch.arange(n) // (n // side)], -1)[None]
    return lambda: tower(pixel_values=pixels, pixel_position_ids=pos).last_hidden_state.numpy()


def sound(config, folder, n):
    tower = part(config.audio_config, folder, "audio_tower.")
    mel = torch.rand(1, 4 * n, 128)
    return lambda: tower(mel, torch.ones(1, 4 * n, dtype=torch.bool)).last_hidden_state.numpy()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--tokens", type=int, default=512)
    p.add_argument("--image", type=int)
    p.add_argument("--sound", type=int)
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    config = AutoConfig.from_pretrained(a.folder)
    clock = time.perf_counter if a.clock == "wall" else time.process_time
    with torch.inference_mode():
        run = image(config, a.folder, a.image) if a.image else sound(config, a.folder, a.sound) if a.sound else text(config, a.folder, a.tokens)
        run()
        times = []
        for _ in range(a.runs):
            begin = clock()
            run()
            times.append((clock() - begin) * 1e3)
    print(json.dumps({"ms": statistics.median(times), "ms_runs": [round(t, 2) for t in times],
                      "version": f"transformers {transformers.__version__}, torch {torch.__version__}"}))


if __name__ == "__main__":
    main()
