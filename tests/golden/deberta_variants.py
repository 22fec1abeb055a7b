#!/usr/bin/env python3
"""What published DeBERTa checkpoints turn on and the golden `reranker` does not: golden folders
deberta-abs, deberta-conv, deberta-plain (tokenizer: `reranker`'s).

    deberta_variants.py        with transformers 5.24 and PyTorch 2.15; writes beside itself
"""
import json
import os

import torch
from transformers import DebertaV2Config, DebertaV2ForSequenceClassification, DebertaV2Model

HERE = os.path.dirname(os.path.abspath(__file__))
COMMON = dict(vocab_size=984, hidden_size=24, num_attention_heads=3, intermediate_size=40,
              layer_norm_eps=1e-7, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
VARIANTS = {
    # positions and types in the input, a narrower table, no buckets, keys of positions not shared
    'deberta-abs': (DebertaV2ForSequenceClassification, dict(
        num_hidden_layers=2, embedding_size=16, position_biased_input=True, type_vocab_size=2,
        max_position_embeddings=48, max_relative_positions=20, relative_attention=True,
        pos_att_type=['c2p', 'p2c'], share_att_key=False, norm_rel_ebd='none', num_labels=1,
        pooler_hidden_act='tanh', pooler_hidden_size=24)),
    # a convolution behind the first layer, one term only, buckets that end before the inputs do
    'deberta-conv': (DebertaV2Model, dict(
        num_hidden_layers=2, position_biased_input=False, type_vocab_size=0,
        max_position_embeddings=96, max_relative_positions=32, position_buckets=12,
        relative_attention=True, pos_att_type='p2c', share_att_key=True,
        norm_rel_ebd='layer_norm', conv_kernel_size=3, conv_act='gelu')),
    # no relative positions at all; the scale counts the terms all the same
    'deberta-plain': (DebertaV2Model, dict(
        num_hidden_layers=1, position_biased_input=True, type_vocab_size=0,
        max_position_embeddings=64, relative_attention=False, pos_att_type='c2p',
        conv_kernel_size=5)),
}


def main():
    for name, (cls, extra) in VARIANTS.items():
        torch.manual_seed(1)
        config = DebertaV2Config(**COMMON, **extra)
        model = cls(config).eval()
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.randn(p.shape) * (0.3 if p.dim() > 1 else 0.2) +
                        (1.0 if p.dim() == 1 and p.shape[0] == 24 else 0.0))
        out = os.path.join(HERE, name)
        os.makedirs(out, exist_ok=True)
        model.save_pretrained(out)
        cases = []
        for n in (1, 7, 40, 48 if 'abs' in name else 60):
            ids = torch.randint(4, 984, (1, n))
            ids[0, 0] = 1
            ids[0, -1] = 2
            types = torch.zeros_like(ids)
            if n > 5:
                ids[0, n // 3] = 2
                types[0, n // 3 + 1:] = 1
            with torch.no_grad():
                if cls is DebertaV2Model:
                    r = model(input_ids=ids).last_hidden_state[0].mean(0).tolist()
                else:
                    r = model(input_ids=ids, token_type_ids=types).logits[0].tolist()
            cases.append({'ids': ids[0].tolist(), 'out': r})
        with open(os.path.join(out, 'cases.json'), 'w') as f:
            json.dump(cases, f)


main()
