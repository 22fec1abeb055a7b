#!/usr/bin/env python3
"""make_real.py - writes an EmbeddingGemma 2 checkpoint of the published geometry, initialised by the reference.

    make_real.py OUT [--seed 1] [--dtype BF16|F32] [--as-drawn] [--check]

The published weights cannot be had everywhere; arithmetic at the published sizes can: the reference class itself draws
the weights (seeded), this file writes them as the published folder has them. BF16 weights are the drawn ones rounded.
The tokenizer has 262,144 pieces, of which every one the model gives a meaning has its published id, the others are
made-up words.

One thing is not as drawn unless --as-drawn is given: the norms of queries and keys, in the text layers and in the eyes,
are head_width^-1/4 instead of 1. Scores are not divided by the width's root in this family; with norms of 1 they spread
by 16 to 23, every row of attention looks at one key, and rounding grows layer by layer until the reference in F32 is
2e-4 to 2e-3 away from itself in F64 (README.md). With this they spread by 1, as training leaves them, and it is 1e-7.

Needs torch and transformers >= 5.23 (embedding_gemma2). --check loads the folder again through the
reference and compares every tensor. About 3 GB of memory (6 with --check), a minute, 1.5 GB on disk in BF16.
"""
import argparse
import json
import os
import shutil
import sys

import checkpoint

SPACE = "\u2581"
VOCABULARY = 262144
LAST_WORD = 255998  # media tokens follow
PARAMETERS = 744371488  # of the published model; its file holds 504 bounds and layer scalars besides: 1,488,915,288 bytes
IDS = {"<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3, "<mask>": 4, "<|tool>": 46, "<tool|>": 47, "<|tool_call>": 48,
       "<tool_call|>": 49, "<|tool_response>": 50, "<tool_response|>": 51, '<|"|>': 52, "<|think|>": 98,
       "<|channel>": 100, "<channel|>": 101, "<|turn>": 105, "<turn|>": 106, "<|image>": 255999, "<|audio>": 256000,
       "<|image|>": 258880, "<|audio|>": 258881, "<image|>": 258882, "<audio|>": 258883, "<|video|>": 258884}
FIRST_RUN = 107  # "\n", then longer runs
PROMPTS = {
    "task: search result | query: ": ["SearchQuery", "query", "Retrieval", "Retrieval-query", "Reranking", "BitextMining"],
    "task: question answering | query: ": ["QuestionAnswering"],
    "task: fact checking | query: ": ["FactChecking"],
    "task: code retrieval | query: ": ["CodeRetrieval", "InstructionRetrieval"],
    "task: classification | query: ": ["Classification", "MultilabelClassification"],
    "task: clustering | query: ": ["Clustering"],
    "task: sentence similarity | query: ": ["SentenceSimilarity", "STS", "PairClassification", "Summarization"],
    "title: none | text: ": ["Document", "document", "Retrieval-document"],
}


# ------------------------------------------------------------ vocabulary

def runs():
    """Whole runs of line ends, tabs and spaces, and the joins that make them."""
    pieces, merges = ["\n"], []
    for one, longest in (("\n", 31), ("\t", 4), (SPACE, 31)):
        for n in range(2, longest + 1):
            pieces.append(one * n)
            merges += [(one * i, one * (n - i)) for i in range(1, n)]
    return pieces, merges


def words():
    """Made-up words, shorter ones first: each is its beginning and its last letter, or a space and itself."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    level = list(letters)
    while True:
        level = [w + c for w in level for c in letters]
        for w in level:
            yield w, (w[:-1], w[-1])
            yield SPACE + w, (SPACE, w)


def singles():
    """Characters that are pieces of their own: ASCII, Latin, Greek, Cyrillic, Hebrew, Arabic, kana, some ideographs."""
    ranges = [(33, 127), (0xA1, 0x180), (0x391, 0x3CA), (0x410, 0x450), (0x5D0, 0x5EB), (0x627, 0x64B), (0x3041, 0x3097),
              (0x30A1, 0x30FB), (0x4E00, 0x5200)]
    return ["\t", SPACE] + [chr(c) for lo, hi in ranges for c in range(lo, hi) if c != 0xAD]


def pieces():
    """All pieces by id, and the joins by rank."""
    run_pieces, merges = runs()
    fixed = {v: k for k, v in IDS.items()}
    fixed.update({FIRST_RUN + i: p for i, p in enumerate(run_pieces)})
    plain = iter([f"<0x{i:02X}>" for i in range(256)] + singles())
    made, out, unused = words(), [], 0
    for i in range(VOCABULARY):
        if i in fixed:
            p = fixed[i]
        elif i < FIRST_RUN or i > LAST_WORD:
            p, unused = f"<unused{unused}>", unused + 1
        else:
            p = next(plain, None)
            if p is None:
                p, join = next(made)
                merges.append(join)
        out.append(p)
    return out, merges


def tokenizer():
    out, merges = pieces()
    vocab = {p: i for i, p in enumerate(out)}
    if len(vocab) != VOCABULARY:
        raise SystemExit(f"make_real: {VOCABULARY - len(vocab)} pieces appear twice")
    added = [{"id": i, "content": p, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for p, i in sorted(IDS.items(), key=lambda x: x[1])]
    a, b = ({"SpecialToken": {"id": s, "type_id": 0}} for s in ("<bos>", "<eos>"))
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        "post_processor": {
            "type": "TemplateProcessing", "single": [a, {"Sequence": {"id": "A", "type_id": 0}}, b],
            "pair": [a, {"Sequence": {"id": "A", "type_id": 0}}, b, {"SpecialToken": {"id": "<bos>", "type_id": 1}},
                     {"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": "<eos>", "type_id": 1}}],
            "special_tokens": {s: {"id": s, "ids": [IDS[s]], "tokens": [s]} for s in ("<bos>", "<eos>")}},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                                                     {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": vocab, "merges": [list(m) for m in merges]},
    }


# -------------------------------------------------------------- sidecars

def tokenizer_config():
    named = {"audio_token": "<|audio|>", "boa_token": "<|audio>", "eoa_token": "<audio|>", "boi_token": "<|image>",
             "eoi_token": "<image|>", "image_token": "<|image|>", "soc_token": "<|channel>", "eoc_token": "<channel|>",
             "sot_token": "<|turn>", "eot_token": "<turn|>", "stc_token": "<|tool_call>", "etc_token": "<tool_call|>",
             "std_token": "<|tool>", "etd_token": "<tool|>", "str_token": "<|tool_response>",
             "etr_token": "<tool_response|>", "escape_token": '<|"|>', "think_token": "<|think|>"}
    return {"tokenizer_class": "GemmaTokenizer", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>",
            "unk_token": "<unk>", "mask_token": "<mask>", "clean_up_tokenization_spaces": False, "padding_side": "right",
            "model_max_length": 8192, "spaces_between_special_tokens": False, **named,
            "extra_special_tokens": ["<|video|>"], "model_specific_special_tokens": named}


def sidecars():
    picture = {"image_processor_type": "Gemma4ImageProcessor", "do_convert_rgb": True, "do_normalize": False,
               "do_rescale": True, "do_resize": True, "image_mean": [0.0] * 3, "image_std": [1.0] * 3,
               "max_soft_tokens": 280, "patch_size": 16, "pooling_kernel_size": 3, "resample": 3,
               "rescale_factor": 1 / 255}
    sound = {"feature_extractor_type": "Gemma4AudioFeatureExtractor", "feature_size": 128, "sampling_rate": 16000,
             "padding_value": 0.0, "padding_side": "right", "return_attention_mask": True, "frame_length": 320,
             "hop_length": 160, "fft_length": 512, "min_frequency": 0.0, "max_frequency": 8000.0, "preemphasis": 0.0,
             "preemphasis_htk_flavor": True, "fft_overdrive": False, "dither": 0.0, "input_scale_factor": 1.0,
             "mel_floor": 0.001, "per_bin_mean": None, "per_bin_stddev": None}
    video = {"video_processor_type": "EmbeddingGemma2VideoProcessor", "max_soft_tokens": 140, "patch_size": 16,
             "pooling_kernel_size": 3, "num_frames": 32, "do_sample_frames": True}
    kinds = "sentence_transformers.models."
    return {
        "tokenizer_config.json": tokenizer_config(),
        "preprocessor_config.json": picture,
        "processor_config.json": {"processor_class": "EmbeddingGemma2Processor", "image_seq_length": 280,
                                  "audio_seq_length": 280, "audio_ms_per_token": 40, "image_processor": picture,
                                  "feature_extractor": sound, "video_processor": video},
        "modules.json": [{"idx": 0, "name": "0", "path": "", "type": kinds + "Transformer"},
                         {"idx": 1, "name": "1", "path": "1_Pooling", "type": kinds + "Pooling"},
                         {"idx": 2, "name": "2", "path": "2_Normalize", "type": kinds + "Normalize"}],
        "1_Pooling/config.json": {"word_embedding_dimension": 768, "pooling_mode_cls_token": False,
                                  "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False,
                                  "pooling_mode_lasttoken": False, "include_prompt": True},
        "sentence_bert_config.json": {"max_seq_length": 8192, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {k: p for p, ks in PROMPTS.items() for k in ks},
                                              "default_prompt_name": None, "similarity_fn_name": "cosine"},
    }


# --------------------------------------------------------------- weights

def draw(seed, as_drawn):
    """The model with weights as the reference draws them, F32, its scores brought to a spread of 1."""
    import torch
    from transformers import EmbeddingGemma2Config, EmbeddingGemma2Model
    from transformers.models.gemma4.configuration_gemma4 import Gemma4AudioConfig, Gemma4VisionConfig
    torch.manual_seed(seed)
    config = EmbeddingGemma2Config(vision_config=Gemma4VisionConfig(), audio_config=Gemma4AudioConfig())
    model = EmbeddingGemma2Model(config).eval()
    if not as_drawn:
        with torch.no_grad():
            for name, w in model.named_parameters():
                if name.endswith(("self_attn.q_norm.weight", "self_attn.k_norm.weight")):
                    w.fill_(w.numel() ** -0.25)
    return model


def configuration(config, dtype):
    """config.json with every value written out, sub-configurations as the published file has them."""
    c = json.loads(config.to_json_string(use_diff=False))
    c["architectures"] = ["EmbeddingGemma2Model"]
    c["dtype"] = {"BF16": "bfloat16", "F32": "float32"}[dtype]
    for sub in ("text_config", "vision_config", "audio_config"):
        c[sub].pop("dtype", None)
    return c


def write_json(path, value):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=1, ensure_ascii=False)
        f.write("\n")


def check(folder, state):
    """Loads the folder as any user would; every tensor must come back."""
    import torch
    from transformers import AutoModel, AutoTokenizer
    model, info = AutoModel.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    wrong = {k: sorted(v) for k, v in info.items() if v}
    if wrong:
        raise SystemExit(f"make_real: loading {folder} again: {wrong}")
    back = model.state_dict()
    for name, t in state.items():
        if not torch.equal(back[name], t.float()):
            raise SystemExit(f"make_real: tensor {name} came back changed")
    tok = AutoTokenizer.from_pretrained(folder)
    for piece, i in IDS.items():
        if tok.convert_tokens_to_ids(piece) != i:
            raise SystemExit(f"make_real: token {piece} has id {tok.convert_tokens_to_ids(piece)}, not {i}")
    ids = tok("a quiet  harbour\n\n\u6d77")["input_ids"]
    if ids[0] != 2 or ids[-1] != 1 or tok.decode(ids[1:-1]) != "a quiet  harbour\n\n\u6d77":
        raise SystemExit(f"make_real: the tokenizer gives {ids} = {tok.decode(ids[1:-1])!r}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--dtype", choices=["BF16", "F32"], default="BF16")
    p.add_argument("--as-drawn", action="store_true", help="norms of queries and keys stay 1")
    p.add_argument("--check", action="store_true", help="load the folder again and compare")
    a = p.parse_args()
    import torch
    from safetensors.torch import save_file
    model = draw(a.seed, a.as_drawn)
    to = {"BF16": torch.bfloat16, "F32": torch.float32}[a.dtype]
    state = {k: v.to(to).contiguous() for k, v in model.state_dict().items()}
    n = sum(v.numel() for v in model.parameters())
    if n != PARAMETERS:
        raise SystemExit(f"make_real: {n} parameters, the published checkpoint has {PARAMETERS}")
    tmp = f"{a.out.rstrip('/')}.{os.getpid()}"
    os.makedirs(tmp)
    try:
        save_file(state, os.path.join(tmp, "model.safetensors"), metadata={"format": "pt"})
        write_json(os.path.join(tmp, "config.json"), configuration(model.config, a.dtype))
        write_json(os.path.join(tmp, "tokenizer.json"), tokenizer())
        for name, value in sidecars().items():
            write_json(os.path.join(tmp, name), value)
        del model
        if a.check:
            check(tmp, state)
        if os.path.isdir(a.out):
            shutil.rmtree(a.out)
        os.replace(tmp, a.out)
    except BaseException:
        shutil.rmtree(tmp, ignore_errors=True)
        raise
    path = os.path.join(a.out, "model.safetensors")
    print(f"{a.out}: {n} parameters {a.dtype}, {os.path.getsize(path)} bytes, seed {a.seed}, sha256 {checkpoint.sha256(path)}",
          file=sys.stderr)


if __name__ == "__main__":
    main()
