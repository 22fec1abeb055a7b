"""reference.py - EmbeddingGemma 2 as the reference computes it, for oracle.py and compare.py.

The model class of transformers (>= 5.23), its picture processor and its sound features; ordered inputs are written out
here, by the rules of the published processor: one prompt, parts joined by line ends, marks around media. F32, one input
at a time. Needs torch, transformers, numpy and pillow.
"""
import json
import os
import sys
import wave

PROMPT_OF_TASK = {  # task type of the API: prompt name in config_sentence_transformers.json
    "RETRIEVAL_DOCUMENT": "Document", "RETRIEVAL_QUERY": "SearchQuery", "QUESTION_ANSWERING": "QuestionAnswering",
    "FACT_VERIFICATION": "FactChecking", "CODE_RETRIEVAL_QUERY": "CodeRetrieval", "SEMANTIC_SIMILARITY": "SentenceSimilarity",
    "CLASSIFICATION": "Classification", "CLUSTERING": "Clustering"}
MARKS = {"image": ("<|image>", "<|image|>", "<image|>"), "audio": ("<|audio>", "<|audio|>", "<audio|>")}
WORDS = ("the harbour lies quiet under a grey sky and small boats wait for wind while children of our town learn names of "
         "all ships that come from far away with salt timber wool copper letters news songs about rivers mountains winter "
         "bread lamps markets bridges clocks gardens stone paper glass").split()


def versions():
    import numpy
    import PIL
    import tokenizers
    import torch
    import transformers
    return {"python": sys.version.split()[0], "torch": torch.__version__, "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__, "numpy": numpy.__version__, "pillow": PIL.__version__}


def round32(values):
    """Numbers of a float32 list in as few digits as tell them apart."""
    return [float(f"{v:.9g}") for v in values]


class Reference:
    def __init__(self, folder, threads=2):
        import torch
        from tokenizers import Tokenizer
        from transformers import EmbeddingGemma2Model
        from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor
        from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
        torch.set_num_threads(threads)
        self.folder = folder
        self.model = EmbeddingGemma2Model.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.prompts = self.json("config_sentence_transformers.json")["prompts"]
        p = self.json("processor_config.json")
        image = p["image_processor"]
        self.see = Gemma4ImageProcessorPil(patch_size=image["patch_size"], max_soft_tokens=image["max_soft_tokens"],
                                           pooling_kernel_size=image["pooling_kernel_size"])
        self.hear = Gemma4AudioFeatureExtractor(**{k: v for k, v in p["feature_extractor"].items()
                                                   if k != "feature_extractor_type"})
        self.dim = self.model.config.text_config.embedding_dim
        self.dims = [d for d in ((512, 256, 128) if self.dim == 768 else (64, 32, 16)) if d < self.dim]

    def json(self, name):
        with open(os.path.join(self.folder, name), encoding="utf-8") as f:
            return json.load(f)

    # ----------------------------------------------------------- inputs

    def prompt(self, task, title=None):
        if title is not None:
            title = title.strip()
        if task == "RETRIEVAL_DOCUMENT" and title:
            return f"title: {title} | text: "
        return self.prompts[PROMPT_OF_TASK[task]]

    def picture(self, path):
        """Inputs of the vision tower and how many tokens it gives. Transparency is dropped, as the golden files' processor
        (5.17) did; newer ones lay the picture on white."""
        from PIL import Image
        r = self.see([Image.open(path).convert("RGB")], return_tensors="pt")
        return r["pixel_values"].float(), r["image_position_ids"], int(r["num_soft_tokens_per_image"][0])

    def sounds(self, paths):
        """Inputs of the audio tower, padded to the longest as one batch, and the tokens of each."""
        import numpy as np
        import torch
        waves = []
        for path in paths:
            with wave.open(path) as f:
                if (f.getnchannels(), f.getsampwidth(), f.getframerate()) != (1, 2, 16000):
                    raise ValueError(f"{path}: not 16-bit mono of 16000 Hz")
                waves.append(np.frombuffer(f.readframes(f.getnframes()), "<i2").astype(np.float32) / 32768)
        r = self.hear(waves, return_tensors="pt", sampling_rate=16000)
        mask = torch.as_tensor(r["input_features_mask"]).to(torch.bool)
        return torch.as_tensor(r["input_features"]).float(), mask, mask[:, ::2][:, ::2].sum(-1).tolist()

    def prepare(self, parts, task, title=None):
        """ids and model arguments of [("text", s) | ("image", path) | ("audio", path)]."""
        import torch
        pictures = [self.picture(v) for k, v in parts if k == "image"]
        heard = [v for k, v in parts if k == "audio"]
        features, mask, lengths = self.sounds(heard) if heard else (None, None, [])
        left = {"image": [p[2] for p in pictures], "audio": list(lengths)}
        written = []
        for kind, value in parts:
            if kind == "text":
                written.append(value)
            else:
                begin, soft, end = MARKS[kind]
                written.append(begin + soft * left[kind].pop(0) + end)
        text = "\n".join(written)
        if any(kind == "text" for kind, _ in parts):
            text = self.prompt(task, title) + text
        more = {}
        if pictures:
            more["pixel_values"] = torch.cat([p[0] for p in pictures])
            more["image_position_ids"] = torch.cat([p[1] for p in pictures])
        if heard:
            more["input_features"], more["input_features_mask"] = features, mask
        return self.tokenizer.encode(text).ids, more

    def count(self, text, task="RETRIEVAL_DOCUMENT"):
        return len(self.tokenizer.encode(self.prompt(task) + text).ids)

    def text_of(self, n, task="RETRIEVAL_DOCUMENT", seed=1):
        """A text that makes n tokens, prompt and specials included."""
        words, state = [], seed * 2654435761 % 2**32
        per_word = 1.0
        while True:
            room = n - 40 - self.count(" ".join(words), task)
            if room <= 0:
                break
            for _ in range(max(1, int(room / (2 * per_word + 4)))):
                state = (state * 1664525 + 1013904223) % 2**32
                words.append(WORDS[(state >> 12) % len(WORDS)])
            per_word = self.count(" ".join(words), task) / len(words)
        text = " ".join(words)
        while self.count(text, task) > n - 2 and words:
            words.pop()
            text = " ".join(words)
        for i in range(n):
            have = self.count(text, task)
            if have == n:
                return text
            text += str(i % 10)
        raise ValueError(f"no text of {n} tokens found")

    # ---------------------------------------------------------- vectors

    def run(self, ids, more, layers=None):
        """Mean over all tokens, float64; layers, a list, takes a summary of the stream after each layer."""
        import torch
        hooks = []
        if layers is not None:
            def look(_, __, out):
                x = (out[0] if isinstance(out, tuple) else out)[0].float()
                layers.append({"norm": x.norm().item(), "norm_last_pos": x[-1].norm().item(),
                               "last_pos_first": round32(x[-1][:4].tolist())})
            hooks = [l.register_forward_hook(look) for l in self.model.language_model.layers]
        try:
            with torch.no_grad():
                out = self.model(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                                 **more)
        finally:
            for h in hooks:
                h.remove()
        return out.last_hidden_state[0].double().mean(0)

    def vector(self, mean, dims=None):
        v = mean[:dims] if dims else mean
        return (v / v.norm()).tolist()

    def embed(self, parts, task="RETRIEVAL_DOCUMENT", title=None, dims=None):
        """Unit vector and number of tokens."""
        ids, more = self.prepare(parts, task, title)
        return self.vector(self.run(ids, more), dims), len(ids)
