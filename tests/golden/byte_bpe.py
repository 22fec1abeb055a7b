#!/usr/bin/env python3
"""Makes byte_bpe/: tiny byte-level BPE tokenizers as RoBERTa and ModernBERT have them, and their ids.

    byte_bpe.py OUT_DIR          (needs tokenizers; made with 0.23.3)

Both are trained on the words below (400 pieces and the special ones). roberta: <s> </s>, RobertaProcessing;
modernbert: NFC, [CLS] [SEP], and runs of spaces as tokens of their own, as the published file has them.
"""
import json
import os
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

WORDS = """The harbour lies still, and the wind carries the smell of salt over the old walls. It's 1234 steps to
the lighthouse; she's counted them twice. They'll say that we've never been there, won't they? Le café est
fermé à midi, où êtes-vous? Der Hafen liegt ruhig im Nebel, 57 Boote. def f(x):\n    return x + 1\n"""
TEXTS = ["", "The wind", " The  wind", "the wind carries\tthe  salt\n\nover it", "It's 1234 o'clock, they'll say",
         "caf\u00e9 and cafe\u0301", "\u65e5\u672c\u8a9e \U0001f30a!", "    return x", "x" * 70, "a\u00a0b\u200bc",
         "Straße 57,5 %", "end   ", "\r\n \r\n", "We'VE never, they'll", "<mask> [MASK] </s>"]
PAIRS = [("the wind", "over the walls"), ("", "salt"), ("caf\u00e9", "cafe\u0301")]


def roberta():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True)
    return t, ["<s>", "<pad>", "</s>", "<unk>"], AddedToken("<mask>", lstrip=True, special=True), []


def modernbert():
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True)
    runs = [AddedToken(" " * n, normalized=True, special=False) for n in (4, 3, 2)]
    return t, ["[PAD]", "[UNK]", "[CLS]", "[SEP]"], AddedToken("[MASK]", lstrip=True, special=True), runs


def post(t, name):
    if name == "roberta":
        t.post_processor = processors.RobertaProcessing(("</s>", t.token_to_id("</s>")), ("<s>", t.token_to_id("<s>")),
                                                        trim_offsets=True, add_prefix_space=False)
    else:
        t.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[(s, t.token_to_id(s)) for s in ("[CLS]", "[SEP]")])


def main():
    for name, make in (("roberta", roberta), ("modernbert", modernbert)):
        t, special, mask, runs = make()
        t.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=404, special_tokens=special, show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        t.train_from_iterator([WORDS] * 4, trainer)
        t.add_special_tokens([mask])
        t.add_tokens(runs)
        post(t, name)
        folder = os.path.join(sys.argv[1], name)
        os.makedirs(folder, exist_ok=True)
        t.save(os.path.join(folder, "tokenizer.json"))
        out = {"cases": [{"text": x, "ids": t.encode(x).ids, "tokens_only": t.encode(x, add_special_tokens=False).ids,
                          "decoded": t.decode(t.encode(x, add_special_tokens=False).ids, skip_special_tokens=False)}
                         for x in TEXTS],
               "pairs": [{"a": a, "b": b, "ids": t.encode(a, b).ids} for a, b in PAIRS]}
        json.dump(out, open(os.path.join(folder, "cases.json"), "w"), indent=1)


main()
