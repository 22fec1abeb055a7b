#!/usr/bin/env python3
"""Prints the tables of models/tokenizers/mdl_tok_chars.c from the reference itself.

    python3 gen_tok_chars.py            needs: pip install tokenizers==0.23.3

Runs normalizers and pre-tokenizers over every code point: which are dropped by clean_text, which vanish as
accents, which are split off as punctuation, which StripAccents drops; and which letters, numbers and word characters
are newer than libutf8proc's, and which of its compatibility decompositions the reference lacks.
"""
import ctypes

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
marks = normalizers.StripAccents()
table("marks", [c for c in points if marks.normalize_str("a" + chr(c) + "b") == "ab"])
utf8proc = ctypes.CDLL("libutf8proc.so.2")
bytes_, word = pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.Whitespace()
category = {c: utf8proc.utf8proc_category(c) for c in points}
table("new_letters", [c for c in points if len(bytes_.pre_tokenize_str("a" + chr(c))) == 1 and
                      category[c] not in (1, 2, 3, 4, 5)])
table("new_numbers", [c for c in points if len(bytes_.pre_tokenize_str("1" + chr(c))) == 1 and
                      category[c] not in (9, 10, 11)])
unassigned = [c for c in points if category[c] == 0]
table("new_words", [c for c in unassigned if len(word.pre_tokenize_str("a" + chr(c))) == 1])
nfkd = normalizers.NFKD()


def decomposes(c):
    out = (ctypes.c_int32 * 32)()
    boundary = ctypes.c_int(0)
    n = utf8proc.utf8proc_decompose_char(c, out, 32, 1 << 2 | 1 << 4, ctypes.byref(boundary))
    return list(out[:n]) != [c]


table("no_compat", [c for c in points if decomposes(c) and nfkd.normalize_str(chr(c)) == chr(c)])
