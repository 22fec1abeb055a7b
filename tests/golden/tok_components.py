#!/usr/bin/env python3
"""Writes tok_components.json: small tokenizer.json files, texts, and what the reference makes of them.

    python3 tok_components.py > tok_components.json            needs: pip install tokenizers==0.23.3

Each file has one component under test over a tiny vocabulary; each text holds a trap of that component.
"""
import base64
import json
import struct

from tokenizers import Tokenizer

META = "\u2581"


def charsmap(rules):
    """A double array as SentencePiece lays it out; the children of each node have 256 units of their own."""
    starts = {"": 0x100}
    for key, _ in rules:
        for n in range(1, len(key.encode()) + 1):
            starts.setdefault(key.encode()[:n], 0x100 * (len(starts) + 1))
    units, text = [0] * (0x100 * (len(starts) + 1)), b""
    starts[b""] = starts.pop("")
    units[0] = starts[b""] << 10
    for key, new in rules:
        key = key.encode()
        for n, c in enumerate(key):
            at, low = starts[key[:n]] ^ c, starts[key[:n + 1]]
            units[at] = c | (at ^ low) << 10 | (1 << 8 if n == len(key) - 1 else 0)
        units[low] = 1 << 31 | len(text)
        text += new.encode() + b"\0"
    blob = struct.pack("<%dI" % len(units), *units)
    return base64.b64encode(struct.pack("<I", len(blob)) + blob + text).decode()


PIECES = ["<s>", "</s>", "<unk>", META, "a", "b", "c", "e", "ab", "abc", META + "a", META + "ab", "\u00e9", "1", "!", " ",
          "bc", "A", "\u0301"]
SCORES = [0, 0, 0, -3, -4, -4, -4, -5, -8, -11, -5, -6, -6, -5, -5, -6, -7.5, -9, -7]
ADDED = [{"id": i, "content": PIECES[i], "single_word": False, "lstrip": i == 1, "rstrip": False, "normalized": False,
          "special": True} for i in range(3)]
TEMPLATE = {"type": "TemplateProcessing", "special_tokens": {s: {"id": s, "ids": [i], "tokens": [s]}
                                                             for i, s in enumerate(("<s>", "</s>"))}}
TEMPLATE["single"] = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                      {"SpecialToken": {"id": "</s>", "type_id": 0}}]
TEMPLATE["pair"] = TEMPLATE["single"] + [{"SpecialToken": {"id": "</s>", "type_id": 0}},
                                         {"Sequence": {"id": "B", "type_id": 1}}]


def meta(scheme="always", split=True):
    return {"type": "Metaspace", "replacement": META, "prepend_scheme": scheme, "split": split}


def unigram(norm=None, pre=None, fallback=False, post=None):
    vocab = [[p, float(s)] for p, s in zip(PIECES, SCORES)]
    if fallback:
        vocab += [["<0x%02X>" % b, -9.0] for b in range(256)]
    return {"version": "1.0", "added_tokens": ADDED, "normalizer": norm, "pre_tokenizer": pre, "post_processor": post,
            "decoder": meta(), "model": {"type": "Unigram", "unk_id": 2, "byte_fallback": fallback, "vocab": vocab}}


def letters():
    """The printable character of each byte."""
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    out, more = {}, 256
    for b in range(256):
        out[b] = chr(b) if b in keep else chr(more)
        more += b not in keep
    return out


def byte_level(pre, suffix="", ignore=False, post=None):
    vocab = {"<s>": 0, "</s>": 1, "<unk>": 2}
    for b, c in letters().items():
        vocab[c] = len(vocab)
    for b, c in letters().items():
        if suffix:
            vocab[c + suffix] = len(vocab)
    merges = [["a", "b" + suffix]]
    if not suffix:  # pairs that only a cut keeps apart
        merges += [x.split() for x in ("\u0120 a|\u0120a b|1 2|3 4|4 5|c '|' s|' L|L L|\u0120 I|\u0120 \u0120|\u010a \u010a|"
                                       "\u010d \u010a|! !|! \u010a|a \u010d|\u010a \u0120|\u010a b|a 1|\u0120 1|"
                                       "\u0120 '|\u0120 x|x '|' '|' r|b \u0120|\u0120 \u0109|\u00c2 \u0142").split("|")]
    for x, y in merges:
        vocab[x + y] = len(vocab)
    vocab["abc"] = len(vocab)
    return {"version": "1.0", "added_tokens": ADDED, "normalizer": None, "pre_tokenizer": pre, "post_processor": post,
            "decoder": bl(),
            "model": {"type": "BPE", "unk_token": None, "end_of_word_suffix": suffix, "fuse_unk": False,
                      "byte_fallback": False, "ignore_merges": ignore, "vocab": vocab, "merges": merges}}


def seq(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def norms(*steps):
    return {"type": "Sequence", "normalizers": list(steps)}


def regex(pattern, content):
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def bl(space=False, use_regex=True):
    return {"type": "ByteLevel", "add_prefix_space": space, "trim_offsets": True, "use_regex": use_regex}


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def roberta(trim, space):
    return {"type": "RobertaProcessing", "sep": ["</s>", 1], "cls": ["<s>", 0], "trim_offsets": trim,
            "add_prefix_space": space}


MAP = {"type": "Precompiled", "precompiled_charsmap":
       charsmap([("A", "a"), ("\x01", ""), ("\u00bd", "1b2"), ("\r", " "), ("\u00aa", "a")])}
SPACE = {"type": "WhitespaceSplit"}
ENDINGS = "'s|'t|'re|'ve|'m|'ll|'d"
TIKTOKEN = ("(?i:" + ENDINGS + r")|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CLIP = ENDINGS + r"|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"

WORDS = ["", "ab abc", " ab  c ", "<s>a </s> b", "x\u4e16y ab", META + "a" + META * 2 + "b"]
MARKS = ["e\u0301a", "\u00e9", "e\u0323\u0301", "\u0301a", "\uac01\u1100\u1161", "\u00bd\u2460", "a\u0345\u0301b"]
CODE = ["ab abc's I'LL", "  a\n\n b \t", "12345 a1", " \u4e16\u754c\U0001f308", "'\u017f x''re", "a\r\n \r\n!!\n\nb", "\u00a0a\u3000"]

FILES = [
    ("Viterbi", unigram(None, meta()), WORDS + ["abcabc", "<unk>a", "\u4e16\u754c"]),
    ("bytes for what is unknown", unigram(None, meta(), True), WORDS + ["\u4e16a", "<0x41>"]),
    ("words of white space, then signs", unigram(None, seq(SPACE, meta())), WORDS + ["a\u3000b\n c"]),
    ("first", unigram(None, meta("first")), WORDS), ("first word", unigram(None, seq(SPACE, meta("first"))), WORDS),
    ("first behind Strip", unigram({"type": "Strip", "strip_left": True, "strip_right": True}, meta("first")), WORDS),
    ("never", unigram(None, meta("never")), WORDS), ("not split", unigram(None, meta("always", False)), WORDS),
    ("map", unigram(MAP, meta()), ["A\u0301b", "\u00bdb", "a\x01b", "\x01ab", "a\x01\x01", "\u00aa\u0301b",
                                   "\u00aa\u0301\u0301\u0301b", "a\r\nb", "\x01", "a\u00bd\x01c"]),
    ("NFC", unigram({"type": "NFC"}), MARKS), ("NFD", unigram({"type": "NFD"}), MARKS),
    ("NFKC", unigram({"type": "NFKC"}), MARKS), ("NFKD", unigram({"type": "NFKD"}), MARKS),
    ("accents", unigram(norms({"type": "NFD"}, {"type": "StripAccents"})), MARKS),
    ("lower case", unigram({"type": "Lowercase"}), ["ABC", "\u0130a", "A\u00c9"]),
    ("Prepend", unigram({"type": "Prepend", "prepend": META}), ["", "ab", "\u00e9"]),
    ("two spaces", unigram(regex(" {2,}", META)), ["a  b", "a b   ", "  "]),
    ("blanks", unigram(regex(r"\s{2,}|[\n\r\t]", " ")), ["a\nb", "a\u3000b", "a \u3000b\t", "\u00a0\n"]),
    ("all blanks", unigram(regex(r"\s+", "!")), ["a\n b", "\u3000a", "ab"]),
    ("Whitespace", unigram(None, {"type": "Whitespace"}), ["ab!!c a", "a\u0301!\u3000b", "!"]),
    ("two texts", unigram(None, seq(SPACE, meta()), False, TEMPLATE), ["ab c"]),
] + [
    ("Punctuation " + b, unigram(None, {"type": "Punctuation", "behavior": b}), ["a!!b", "!a", "ab!", "a!\u3001!b"])
    for b in ("Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext")
] + [
    ("ByteLevel", byte_level(bl()), CODE), ("with a space", byte_level(bl(True)), CODE + ["", "<s>ab"]),
    ("trimmed", byte_level(bl(), "", False, roberta(True, False)), CODE + ["ab </s>"]),
    ("trimmed but for the first", byte_level(bl(True), "", False, roberta(True, True)), CODE),
    ("whole", byte_level(bl(False, False)), CODE[:2]), ("ignore_merges", byte_level(bl(), "", True), CODE[:2]),
    ("Llama 3", byte_level(seq(split(TIKTOKEN % "{1,3}"), bl(False, False))), CODE),
    ("Qwen 2", byte_level(seq(split(TIKTOKEN % ""), bl(False, False))), CODE),
    ("CLIP", byte_level(seq(split(CLIP, "Removed", True), bl()), "</w>"), CODE),
]


def places(e):
    return [[i, a, b] for i, (a, b) in zip(e.ids, e.offsets)]


PAIRS = (("a a a", "b", 0), ("a a a a a", "b b b", 9), ("a", "b b b b b b", 8), ("b b b b b b", "a", 8),
         ("a a a a a a", "b b b b b b b", 11), ("a a a a a a a", "b b b b b b", 11), ("a a a a a a", "b b b b b b", 11),
         ("", "b b b b b b", 7), ("", "", 0))
out = []
for name, f, texts in FILES:
    t, rows, pairs = Tokenizer.from_str(json.dumps(f)), [], []
    for x in texts:
        e = t.encode(x)
        rows.append({"text": x, "tokens": places(e), "whole": t.decode(e.ids, skip_special_tokens=False),
                     "shown": t.decode(e.ids)})
    for a, b, most in PAIRS if name in ("two texts", "trimmed") else ():
        t.no_truncation()
        if most:
            t.enable_truncation(most, strategy="longest_first")
        pairs.append({"a": a, "b": b, "max": most, "tokens": places(t.encode(a, b))})
    out.append({"name": name, "file": f, "rows": rows, "pairs": pairs})
print("[" + ",\n".join(json.dumps(x, separators=(",", ":")) for x in out) + "]")
