#!/usr/bin/env python3
"""oracle.py - what the reference computes from an EmbeddingGemma 2 checkpoint, written down for our tests.

    oracle.py MODEL_DIR OUT [--threads 2] [--only short|long|all] [--media large|small]

Cases that OUT holds of the same checkpoint and versions already are kept: short ones first, long ones later.
OUT gets oracle.json (cases with token ids, inputs and vectors at every size; versions; hashes of the checkpoint and of
the media), means.safetensors (mean over tokens before normalising, F32, in the order of the cases) and the pictures and
sounds (media.py; NAME.raw are the pixels). Cases: texts of exactly 511, 512, 513, 8,191 and 8,192 tokens, eight task
types, titles, groups, a picture, sounds, mixed groups. Real geometry: a few gigabytes and some minutes for the long
ones; the folder stays outside the repository. Read by tests/models/test_mdl_eg2_real.c and qualify.py.
"""
import argparse
import json
import os
import sys
import time

import checkpoint
import media
import reference

QUERY = "where do the small boats wait for the wind"
DOCUMENT = ("The harbour is a quiet place where the boats wait for the wind, and the children of the town know the names of "
            "all of them.\n\nIn winter 1987 only 3 ships came.")
FOREIGN = "\u6d77\u306f\u9759\u304b\u3067\u3059\u3002 \u043c\u043e\u0440\u0435 est calme \U0001F308 \u0627\u0644\u0628\u062d\u0631 \u05d9\u05dd"


def cases(ref, folder, which):
    """name, parts, task, title, group. Parts as reference.Reference.prepare takes them."""
    def at(name):
        return os.path.join(folder, name)

    wide, tall = ("image", at("wide.png")), ("image", at("tall.png"))
    second, short, long = (("audio", at(n + ".wav")) for n in ("second", "short", "long"))
    doc, code = "RETRIEVAL_DOCUMENT", "CODE_RETRIEVAL_QUERY"
    if which in ("short", "all"):
        for task in reference.PROMPT_OF_TASK:
            yield f"task {task}", [("text", DOCUMENT if task == doc else QUERY)], task, None, False
        yield "foreign", [("text", FOREIGN)], doc, None, False
        yield "one letter", [("text", "a")], "CLUSTERING", None, False
        yield "titled", [("text", DOCUMENT)], doc, " The harbour ", True
        yield "title none", [("text", DOCUMENT)], doc, "none", True
        yield "two texts", [("text", QUERY), ("text", DOCUMENT)], doc, None, True
        yield "two texts of a query", [("text", QUERY), ("text", FOREIGN)], code, None, True
        for n in (128, 511, 512, 513):
            yield f"{n} tokens", [("text", ref.text_of(n))], doc, None, False
        yield "picture", [wide], doc, None, False
        yield "picture with alpha", [tall], "RETRIEVAL_QUERY", None, False
        yield "sound", [second], doc, None, False
        yield "short sound", [short], doc, None, False
        yield "long sound", [long], doc, None, False
        yield "picture and sound", [tall, short], doc, None, True
        yield "two pictures", [tall, wide], doc, None, True
        yield "text, sound, picture", [("text", QUERY), second, tall], doc, None, True
        yield "titled mix", [wide, ("text", DOCUMENT), short, ("text", FOREIGN), long, tall], doc, "The harbour", True
        yield "mix for clustering", [short, ("text", QUERY)], "CLUSTERING", None, True
    if which in ("long", "all"):
        for n in (8191, 8192):
            yield f"{n} tokens", [("text", ref.text_of(n, seed=n))], doc, None, False


def part_json(part):
    kind, value = part
    return {"text": value} if kind == "text" else {kind: os.path.basename(value)}


def before(out, identity):
    """Cases and means that an earlier run left."""
    from safetensors.numpy import load_file
    path = os.path.join(out, "oracle.json")
    if not os.path.exists(path):
        return [], []
    with open(path, encoding="utf-8") as f:
        old = json.load(f)
    if (old["model_identity"], old["versions"]) != (identity, reference.versions()):
        raise SystemExit(f"oracle: {out} holds cases of another checkpoint or other versions")
    return old["cases"], list(load_file(os.path.join(out, "means.safetensors"))["means"])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("out")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--only", choices=["short", "long", "all"], default="all")
    p.add_argument("--media", choices=list(media.SETS), default="large", help="size of pictures and sounds")
    a = p.parse_args()
    media.write(a.out, a.media)
    ref = reference.Reference(a.model, a.threads)
    identity, files = checkpoint.identity(a.model)
    done, means = before(a.out, identity)
    for name, parts, task, title, group in cases(ref, a.out, a.only):
        if any(d["name"] == name for d in done):
            continue
        begin = time.monotonic()
        ids, more = ref.prepare(parts, task, title)
        if len(ids) > 8192:
            print(f"oracle: case '{name}' has {len(ids)} tokens and is left out", file=sys.stderr)
            continue
        layers = [] if len(ids) <= 600 and a.media == "large" else None
        mean = ref.run(ids, more, layers)
        full = ref.vector(mean)
        rec = {"name": name, "task_type": task, "title": title, "group": group, "parts": [part_json(x) for x in parts],
               "ids": ids, "vector": reference.round32(full),
               "reduced": {str(d): reference.round32(ref.vector(mean, d)) for d in ref.dims}}
        if layers:
            rec["layers"] = layers
        done.append(rec)
        means.append(mean.float().numpy())
        print(f"{name}: {len(ids)} tokens, {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)
        save(a, ref, identity, files, done, means)
    print(f"{a.out}: {len(done)} cases, identity {identity[:12]}", file=sys.stderr)


def save(a, ref, identity, files, done, means):
    """After each case, so that what a long run has is of use while it runs."""
    import numpy as np
    from safetensors.numpy import save_file
    pictures, sounds = media.SETS[a.media]
    names = [n + e for n in pictures for e in (".png", ".raw")] + [n + ".wav" for n in sounds]
    out = {"schema": 1, "model": os.path.basename(a.model.rstrip("/")), "model_identity": identity,
           "files": files, "precision": "f32", "versions": reference.versions(),
           "dim": ref.dim, "dims": ref.dims,
           "pictures": {n: {"width": w, "height": h, "channels": c} for n, (w, h, c) in pictures.items()},
           "media_set": a.media,
           "media": {n: checkpoint.sha256(os.path.join(a.out, n)) for n in names}, "cases": done}
    save_file({"means": np.stack(means)}, os.path.join(a.out, "means.safetensors"))
    tmp = os.path.join(a.out, f"oracle.json.{os.getpid()}")
    with open(tmp, "w", encoding="utf-8") as f:
        json.dump(out, f, ensure_ascii=False)
    os.replace(tmp, os.path.join(a.out, "oracle.json"))


if __name__ == "__main__":
    main()
