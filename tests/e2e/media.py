"""media.py - pictures, sounds and pages of PDFs through the real server and its sandboxed worker, tiny EmbeddingGemma 2."""
import base64
import json
import os
import subprocess
import tempfile

from inferd_test import BIN, ROOT, SLOW, Server, case, check, copy_model, equal, main, wait_for, Skip

MODEL = "embeddinggemma2"
MEDIA = os.path.join(ROOT, "tests", "worker", "media")
TYPES = {"png": "image/png", "jpg": "image/jpeg", "webp": "image/webp", "gif": "image/gif", "wav": "audio/wav",
         "flac": "audio/flac", "ogg": "audio/ogg", "mp3": "audio/mpeg"}


def part(name, mime=None):
    with open(os.path.join(MEDIA, name), "rb") as f:
        data = base64.b64encode(f.read()).decode()
    return {"type": "media", "mime_type": mime or TYPES[name.rpartition(".")[2]], "data": data}


def names():
    with open(os.path.join(MEDIA, "expect.txt"), encoding="utf-8") as f:
        pictures = [line.split()[0] for line in f]
    return pictures + sorted(n[:-4] for n in os.listdir(MEDIA) if n.endswith(".f32"))


def pages(n):
    """A PDF of n pages, page i with i + 1 black bars."""
    out = b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Count " + str(n).encode()
    out += b"/Kids[" + b" ".join(b"%d 0 R" % (10 + i) for i in range(n)) + b"]>>endobj\n"
    for i in range(n):
        bars = b" ".join(b"%d 5 6 60 re f" % (10 * k) for k in range(i + 1))
        out += b"%d 0 obj<</Length %d>>stream\n%s\nendstream endobj\n" % (100 + i, len(bars), bars)
        out += b"%d 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 100 80]/Contents %d 0 R>>endobj\n" % (10 + i, 100 + i)
    return out + b"trailer<</Root 1 0 R>>\n%%EOF\n"


def embed(s, body):
    return s.post("/ai/v1/embed", {"model": MODEL, **body})


def cli(s, *args):
    return subprocess.run([os.path.join(BIN, "inferd"), "embed", MODEL, "--server", f"http://127.0.0.1:{s.port}", *args],
                          capture_output=True, timeout=120 * SLOW, check=False)


def every_coding(s):
    todo = names()
    r = embed(s, {"input": [part(n) for n in todo if n != "pixel.png"]})
    equal(r.status, 200, r.body[:300])
    vec = dict(zip([n for n in todo if n != "pixel.png"], [d["embedding"] for d in r.json["data"]]))
    for a, b in (("adam7.png", "lossless.webp"), ("adam7.png", "lossless_alpha.webp"), ("adam7.png", "moving.webp")):
        equal(vec[a], vec[b], f"{a} and {b} have the same pixels")
    check(vec["adam7.png"] != vec["444.jpg"] and vec["s16.wav"] != vec["u8.wav"], "others are others")
    one = embed(s, {"input": [part("cmyk.jpg")]})
    equal(one.json["data"][0]["embedding"], vec["cmyk.jpg"], "alone as in company")


def bad_files(s):
    bad = [(part("420.jpg", "image/png"), "image_decode", 400), (part("scans.jpg"), "image_decode", 413),
           (part("long.flac"), "audio_decode", 413), (part("adpcm.wav"), "audio_decode", 400),
           ({**part("s16.wav"), "data": part("s16.wav")["data"][:800]}, "audio_decode", 400)]
    items = [b for b, _, _ in bad] + ["a text", part("rgb8.png")]
    r = embed(s, {"input": items, "error_policy": "per_item"})
    equal(r.status, 200, r.body[:300])
    got = sorted((e["index"], e["stage"], e["status"]) for e in r.json["errors"])
    equal(got, [(i, stage, status) for i, (_, stage, status) in enumerate(bad)], "errors")
    for item, _, status in bad:
        equal(embed(s, {"input": [item]}).status, status, "as a whole request")
    r = embed(s, {"input": [{"type": "media", "mime_type": "application/pdf",
                             "data": base64.b64encode(pages(1)).decode()}]})
    check(r.status == 400 and "application/pdf" in r.json["message"], r.body)


def nothing_is_left(s):
    equal(wait_for(lambda: s.metric("inferd_media_bytes", model=MODEL) == 0 and "idle", "media bytes are 0"), "idle")
    # a worker tells its counts ten times a second at most
    for result, least in (("decoded", 51), ("refused", 10)):
        wait_for(lambda r=result, n=least: (s.metric("inferd_media_files_total", result=r) or 0) >= n, f"{result} files are counted")
    check(s.metric("inferd_media_decode_seconds_total", model=MODEL) > 0, "and the time they took")


@case
def files_of_every_coding_make_vectors_and_bad_ones_are_named():
    with Server(fill=lambda d: copy_model(MODEL, d)) as s:
        every_coding(s)
        bad_files(s)
        nothing_is_left(s)


@case
def pages_of_a_pdf_make_vectors_and_bad_ones_are_named():
    if not os.path.exists(os.path.join(BIN, "inferd-pdf")):
        raise Skip("inferd-pdf is not built: poppler-glib, cairo or fontconfig is missing")
    with Server(fill=lambda d: copy_model(MODEL, d)) as s, tempfile.TemporaryDirectory() as d:
        file = os.path.join(d, "p.pdf")
        with open(file, "wb") as f:
            f.write(pages(6))
        r = cli(s, "--json", "--text", "before", "--pdf", file, "--text", "behind")
        equal(r.returncode, 0, r.stderr)
        rows = [json.loads(line) for line in r.stdout.splitlines()]
        equal([(o.get("pdf", o.get("text")), o.get("page")) for o in rows],
              [("before", None)] + [(file, i) for i in range(1, 7)] + [("behind", None)], "pages in order")
        equal(len({tuple(o["embedding"]) for o in rows}), 8, "different vectors")
        r = cli(s, "--similarity", "--pdf", file)
        check(r.returncode == 0 and b"p.pdf, page 1  |" in r.stdout, r.stdout + r.stderr)
        with open(file, "wb") as f:
            f.write(pages(2)[:60])
        for path, word in ((file, b"broken PDF"), (os.path.join(ROOT, "tests", "pdf", "encrypted.pdf"), b"encrypted"),
                           (os.path.join(MEDIA, "444.jpg"), b"no PDF"), (d, b"no plain file"),
                           (file + "x", b"No such file")):
            r = cli(s, "--pdf", path)
            check(r.returncode == 1 and word in r.stderr, (path, r.returncode, r.stderr))
        equal(cli(s, "--pdf", file, "--group").returncode, 2, "pages are no parts of a group")


main()
