#!/usr/bin/env python3
"""Makes cross-bert/ and cross-xlmr/: tiny cross-encoders of one logit, with pairs of texts.

    cross_encoders.py OUT_DIR        (needs transformers, torch, tokenizers; seed 1)

Weights are random, by the reference classes BertForSequenceClassification and
XLMRobertaForSequenceClassification; RobertaForSequenceClassification has the same tensors and must give
the same numbers, which is checked here. Tokenizers are those of minilm/ and bge-m3/; "max_length" cases
are cut longest first.
"""
import os
import sys

import torch
from tiny import save, spread
from tokenizers import Tokenizer
from transformers import (BertConfig, BertForSequenceClassification, RobertaConfig,
                          RobertaForSequenceClassification, XLMRobertaConfig,
                          XLMRobertaForSequenceClassification)

KEEP = ["architectures", "model_type", "hidden_act", "hidden_size", "intermediate_size", "layer_norm_eps", "max_position_embeddings",
        "num_attention_heads", "num_hidden_layers", "type_vocab_size", "vocab_size", "pad_token_id", "id2label"]
HERE = os.path.dirname(os.path.abspath(__file__))
QUERY = "Which ferry leaves for the northern islands?"
DOCS = ["The last ferry left for the northern islands.", "A small dog chased the red ball.",
        "Lisbon is the capital of Portugal.", "", "ferry ferry ferry",
        "The harbour was quiet when the last ferry left for the northern islands. " * 12]
PAIRS = [(QUERY, d) for d in DOCS] + [("", ""), ("how do plants make food", "Photosynthesis turns "
                                                 "light, water and carbon dioxide into sugar.")]


def logit(model, ids, types):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([types])).logits[0].tolist()


def write(out, name, model, tokenizer, max_length, arch, also=None):
    tok = Tokenizer.from_file(os.path.join(HERE, tokenizer, "tokenizer.json"))
    tok.no_padding()
    tok.enable_truncation(max_length, strategy="longest_first")
    cases = []
    for q, d in PAIRS:
        e = tok.encode(q, d)
        [score] = logit(model, e.ids, e.type_ids)
        if also:
            [other] = logit(also, e.ids, e.type_ids)
            assert abs(score - other) < 1e-6
        cases.append({"query": q, "doc": d, "ids": e.ids, "type_ids": e.type_ids, "logit": score})
    save(os.path.join(out, name), model, arch, KEEP, {"max_length": max_length, "cases": cases})
    print(name, [round(c["logit"], 4) for c in cases], max(len(c["ids"]) for c in cases))


def main():
    out = sys.argv[1]
    common = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                  num_labels=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    bert = spread(BertForSequenceClassification(BertConfig(
        vocab_size=1100, max_position_embeddings=64, type_vocab_size=2, pad_token_id=0, **common)))
    write(out, "cross-bert", bert, "minilm", 64, "BertForSequenceClassification")
    rob = dict(vocab_size=984, max_position_embeddings=66, type_vocab_size=1, pad_token_id=1,
               layer_norm_eps=1e-5, **common)
    xlmr = spread(XLMRobertaForSequenceClassification(XLMRobertaConfig(**rob)))
    also = RobertaForSequenceClassification(RobertaConfig(**rob)).eval()
    also.load_state_dict(xlmr.state_dict())
    write(out, "cross-xlmr", xlmr, "bge-m3", 64, "XLMRobertaForSequenceClassification", also)


main()
