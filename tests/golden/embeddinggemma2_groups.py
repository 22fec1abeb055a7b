#!/usr/bin/env python3
"""Makes embeddinggemma2_groups.json: groups of texts, pictures and sounds, embedded by the published model code.

    embeddinggemma2_groups.py CHECKPOINT_DIR OUT.json

CHECKPOINT_DIR: the folder embeddinggemma2 beside this script. Needs transformers >= 5.24 (EmbeddingGemma2Model), torch,
pillow; the sounds must be 16-bit WAV at 16 kHz. A group is one sequence: BOS, the prompt of its task in front
where there is any text, its parts joined by one newline, EOS; a picture or a sound is its mark, its placeholders, its
closing mark.
"""
import json
import os
import sys
import wave

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer
from transformers import AutoModel
from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

DIMS = (64, 32, 16)
DOCUMENT = "title: %s | text: "
GROUPS = [
    ("texts", "RETRIEVAL_DOCUMENT", None, ["a quiet harbour", "the boats wait"]),
    ("titled", "RETRIEVAL_DOCUMENT", "The harbour", ["a quiet harbour", {"image": "wide_rgb.png"}]),
    ("all_kinds", "RETRIEVAL_DOCUMENT", None,
     ["before", {"image": "grey.png"}, "middle", {"audio": "short.wav"}, "after"]),
    ("media_first", "CLUSTERING", None, [{"audio": "second.wav"}, {"image": "tall_rgba.png"}, "what is seen and heard"]),
    ("media_only", "RETRIEVAL_QUERY", None, [{"image": "grey.png"}, {"audio": "short.wav"}, {"image": "wide_rgb.png"}]),
]
PROMPTS = {"CLUSTERING": "task: clustering | query: ", "RETRIEVAL_QUERY": "task: search result | query: "}


def picture(path, conf):
    proc = Gemma4ImageProcessorPil(patch_size=conf["patch_size"], max_soft_tokens=conf["max_soft_tokens"],
                                   pooling_kernel_size=conf["pooling_kernel_size"])
    # alpha is dropped, as when the checkpoint was made; transformers 5.24 would put the picture on white instead
    r = proc([Image.open(path).convert("RGB")], return_tensors="pt")
    return r["pixel_values"].float(), r["image_position_ids"], int(r["num_soft_tokens_per_image"][0])


def sound(paths):
    waves = []
    for p in paths:
        with wave.open(p) as w:
            assert (w.getnchannels(), w.getsampwidth(), w.getframerate()) == (1, 2, 16000), p
            waves.append(np.frombuffer(w.readframes(w.getnframes()), "<i2").astype(np.float32) / 32768)
    r = Gemma4AudioFeatureExtractor()(waves, return_tensors="pt", sampling_rate=16000)
    return torch.as_tensor(r["input_features"]).float(), torch.as_tensor(r["input_features_mask"]).to(torch.bool)


def sound_tokens(mask):
    for _ in range(2):
        mask = mask[:, ::2]
    return int(mask.sum())


def embed(folder, model, tok, conf, task, title, parts):
    out, pixels, places, sounds, n_media, any_text = [], [], [], [], 0, False
    for p in parts:
        if isinstance(p, str):
            out.append(p)
            any_text = True
        elif "image" in p:
            pv, pos, n = picture(os.path.join(folder, p["image"]), conf)
            pixels.append(pv)
            places.append(pos)
            out.append("<|image>" + "<|image|>" * n + "<image|>")
            n_media += n
        else:
            path = os.path.join(folder, p["audio"])
            sounds.append(path)
            n = sound_tokens(sound([path])[1])
            out.append("<|audio>" + "<|audio|>" * n + "<audio|>")
            n_media += n
    text = "\n".join(out)
    if any_text:
        text = (PROMPTS.get(task) or DOCUMENT % (title or "none")) + text
    kw = {}
    if pixels:
        kw["pixel_values"], kw["image_position_ids"] = torch.cat(pixels), torch.cat(places)
    if sounds:
        kw["input_features"], kw["input_features_mask"] = sound(sounds)
    ids = tok.encode(text).ids
    with torch.no_grad():
        h = model(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), **kw)
    v = h.last_hidden_state[0].float().mean(0)
    rows = {"full": v / v.norm()}
    for d in DIMS:
        rows[f"dim{d}"] = v[:d] / v[:d].norm()
    return len(ids), n_media, {k: [float(f"{x:.8g}") for x in r.tolist()] for k, r in rows.items()}


def main():
    folder, to = sys.argv[1:3]
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    tok = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "processor_config.json"), encoding="utf-8") as f:
        conf = json.load(f)["image_processor"]
    cases = []
    for name, task, title, parts in GROUPS:
        n_ids, n_media, vec = embed(folder, model, tok, conf, task, title, parts)
        cases.append({"name": name, "task_type": task, "title": title, "parts": parts, "n_tokens": n_ids,
                      "n_media_tokens": n_media, "embedding": vec})
        print(name, n_ids, n_media)
    # one picture and one sound, as cases.json of the checkpoint has them: the two scripts agree
    with open(os.path.join(folder, "cases.json"), encoding="utf-8") as f:
        known = {c["name"]: c for c in json.load(f)["mixed"]}
    for name, part in (("picture_only", {"image": "wide_rgb.png"}), ("sound_only", {"audio": "second.wav"})):
        vec = embed(folder, model, tok, conf, "CLUSTERING", None, [part])[2]["full"]
        print(name, "differs by", max(abs(a - b) for a, b in zip(vec, known[name]["embedding"]["full"])))
    with open(to, "w", encoding="utf-8") as f:
        json.dump({"checkpoint": "embeddinggemma2", "groups": cases}, f, separators=(",", ":"))
        f.write("\n")


main()
