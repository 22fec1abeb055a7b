#!/usr/bin/env python3
"""Prints the tables of models/tokenizers/mdl_tok_chars.c from the reference itself.

    python3 gen_tok_chars.py            needs: pip install tokenizers==0.23.3

Runs BertNormalizer and BertPreTokenizer over every code point: which are dropped by clean_text, which vanish as
accents, which are split off as punctuation.
"""
import tokenizers
from tokenizers import normalizers, pre_tokenizers


def bert(**on):
    opts = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    opts.update(on)
    return normalizers.BertNormalizer(**opts)


def table(name, points):
    ranges = []
    for c in points:
        if ranges and ranges[-1][1] == c - 1:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    print("static const struct range %s[] = {" % name)
    line = "   "
    for a, b in ranges:
        item = " { 0x%X, 0x%X }," % (a, b)
        if len(line) + len(item) > 100:
            print(line)
            line = "   "
        line += item
    print(line + "\n};\n")


clean, strip, pre = bert(clean_text=True), bert(strip_accents=True), pre_tokenizers.BertPreTokenizer()
points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
print("/* tokenizers %s */" % tokenizers.__version__)
table("controls", [c for c in points if clean.normalize_str("a" + chr(c) + "b") == "ab"])
table("accents", [c for c in points if strip.normalize_str(chr(c)) == ""])
table("puncts", [c for c in points if c >= 0x80 and
                 [w for w, _ in pre.pre_tokenize_str("a" + chr(c) + "b")] == ["a", chr(c), "b"]])
