"""torch_eg2.py - measurements of EmbeddingGemma 2 in PyTorch on the CPU, as JSON: transformers' own model, F32, its sdpa.

    torch_eg2.py FOLDER --threads 2 --tokens 512 [--runs 20]      from ids to the vector
    torch_eg2.py FOLDER --threads 2 --image 960x672 | --sound 30    from patches or mel features, made up, to the vector

Timed is what inferd's side times: embedding lookup (and tower), encoder, mean, norm, the vector on the host. The picture's sides
must be the size that pictures are brought to: 960x672 is 2,520 patches, 280 soft tokens. Ids and both masks are there
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
from transformers.models.embedding_gemma2.modeling_embedding_gemma2 import EmbeddingGemma2MultimodalEmbedder


def part(config, folder, prefix):
    """The sub-model whose tensors begin with prefix, in F32."""
    state = {}
    with safe_open(os.path.join(folder, "model.safetensors"), "pt") as f:
        for name in f.keys():
            if name.startswith(prefix):
                state[name[len(prefix):]] = f.get_tensor(name).float()
    model = AutoModel.from_config(config, attn_implementation={"text_config": "sdpa", "vision_config": "sdpa", "audio_config": "eager"})  # its ears have no sdpa
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


def media(config, folder, kind, n_soft, tower_run):
    """Soft tokens of a tower through its projector into the text encoder, its marks and <bos>, <eos> around them."""
    name, sub = ("embed_vision.", config.vision_config) if kind == "image" else ("embed_audio.", config.audio_config)
    bridge = EmbeddingGemma2MultimodalEmbedder(sub, config.text_config)
    with safe_open(os.path.join(folder, "model.safetensors"), "pt") as f:
        bridge.load_state_dict({k[len(name):]: f.get_tensor(k).float() for k in f.keys() if k.startswith(name)}, strict=False)
    model = part(config.text_config, folder, "language_model.")
    ids = torch.randint(10, 200000, (1, n_soft + 4))

    def run():
        x = model.embed_tokens(ids)
        soft = bridge(inputs_embeds=tower_run()).reshape(-1, x.shape[-1])
        if len(soft) != n_soft:
            raise SystemExit(f"{len(soft)} soft tokens, expected {n_soft}")
        x[0, 2:2 + n_soft] = soft
        h = model(inputs_embeds=x).last_hidden_state
        return torch.nn.functional.normalize(h.mean(1), dim=-1).numpy()
    return run


def image(config, folder, size):
    tower = part(config.vision_config, folder, "vision_tower.")
    cols, rows = (int(v) // config.vision_config.patch_size for v in size.split("x"))
    n = cols * rows
    pixels = torch.rand(1, n, 3 * config.vision_config.patch_size ** 2)
    pos = torch.stack([torch.arange(n) % cols, torch.arange(n) // cols], -1)[None]
    return media(config, folder, "image", n // config.vision_config.pooling_kernel_size ** 2,
                 lambda: tower(pixel_values=pixels, pixel_position_ids=pos).last_hidden_state)


def sound(config, folder, seconds):
    tower = part(config.audio_config, folder, "audio_tower.")
    n = int(seconds * 100)
    mel, mask = torch.rand(1, n, 128), torch.ones(1, n, dtype=torch.bool)
    return media(config, folder, "sound", (n + 3) // 4, lambda: tower(mel, mask).last_hidden_state)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--tokens", type=int, default=512)
    p.add_argument("--image")
    p.add_argument("--sound", type=float)
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
