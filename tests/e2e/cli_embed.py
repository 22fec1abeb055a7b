"""cli_embed.py - `inferd embed` against the real server with the tiny golden model, and with real weights."""
import json
import math
import os
import subprocess
import tempfile

from inferd_test import BIN, REAL_MINILM, SLOW, Server, TINY_BERT, TINY_GEMMA, case, check, equal, main, real_models

INFERD = os.path.join(BIN, "inferd")
ENV = {k: v for k, v in os.environ.items() if k != "INFERD_SERVER"}


def run(args, text="", timeout=120):
    return subprocess.run([INFERD, "embed", *args], input=text.encode(), capture_output=True, timeout=timeout * SLOW,
                          env=ENV, check=False)


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


@case
def vectors_come_in_order_in_both_forms():
    with Server() as s:
        url = ["--server", f"http://127.0.0.1:{s.port}"]
        r = run([TINY_BERT, "one", "two words", *url])
        equal(r.returncode, 0, r.stderr.decode())
        plain = [[float(x) for x in line.split(" ")] for line in r.stdout.decode().splitlines()]
        equal(len(plain), 2, "lines")
        r = run([TINY_BERT, "--json", *url], "one\n\ntwo words\n")
        objs = [json.loads(line) for line in r.stdout.decode().splitlines()]
        equal([(o["index"], o["text"]) for o in objs], [(0, "one"), (1, "two words")], "stdin gives the same")
        for p, o in zip(plain, objs):
            equal(p, o["embedding"], "numbers")
        # more texts than one request carries
        r = run([TINY_BERT, *url], "".join(f"text {i % 2}\n" for i in range(150)))
        rows = r.stdout.decode().splitlines()
        equal(len(rows), 150, "rows")
        check(rows[0] == rows[148] and rows[1] == rows[149] and rows[0] != rows[1], "order across requests")


@case
def similarity_is_the_cosine():
    with Server() as s:
        url = ["--server", f"http://127.0.0.1:{s.port}"]
        texts = ["a cat", "a kitten", "stocks fell"]
        r = run([TINY_BERT, "--similarity", "--json", *url, *texts])
        equal(r.returncode, 0, r.stderr.decode())
        m = json.loads(r.stdout)
        vec = [json.loads(line)["embedding"] for line in run([TINY_BERT, "--json", *url, *texts]).stdout.splitlines()]
        equal(m["texts"], texts, "texts")
        for i in range(3):
            check(abs(m["similarity"][i][i] - 1) < 1e-6, "a text is like itself")
            for j in range(3):
                check(abs(m["similarity"][i][j] - cosine(vec[i], vec[j])) < 1e-5, (i, j))
        lines = run([TINY_BERT, "--similarity", *url, *texts]).stdout.decode().splitlines()
        equal(len(lines), 3, "pairs")
        check(lines[0].endswith("a cat  |  a kitten"), lines[0])
        check(abs(float(lines[2].split()[0]) - cosine(vec[1], vec[2])) < 1e-4, lines[2])
        r = run([TINY_BERT, "--similarity", *url, "alone"])
        check(r.returncode == 1 and b"two texts" in r.stderr, r.stderr.decode())


@case
def mistakes_are_explained():
    with Server() as s:
        url = ["--server", f"http://127.0.0.1:{s.port}"]
        r = run([TINY_GEMMA, "a", *url])
        check(r.returncode == 1 and b"gives no embeddings" in r.stderr, r.stderr.decode())
        r = run(["nope", "a", *url])
        check(r.returncode == 1 and b"no model 'nope'" in r.stderr, r.stderr.decode())
        equal(run(url).returncode, 2, "a model is needed")
        equal(run([TINY_BERT, "--dimensions", "0", *url]).returncode, 2, "a range")
        for args in (["--title", "t", "a"], ["--group"], ["--group", "--similarity", "a", "b"]):
            equal(run([TINY_BERT, *args, *url]).returncode, 2, f"contradiction {args}")
        # files are looked at here, what the model cannot do is the server's to say
        with tempfile.TemporaryDirectory() as d:
            png, wav, mp3 = (os.path.join(d, n) for n in ("a.txt", "b.png", "c"))
            with open(png, "wb") as f:
                f.write(b"\x89PNG\r\n\x1a\n" + bytes(20))
            with open(wav, "wb") as f:
                f.write(b"RIFF\0\0\0\0WAVEfmt ")
            with open(mp3, "wb") as f:
                f.write(b"\xff\xfa\x90\x00")  # a frame with a checksum
            for args, word in ((["--image", png], b"takes no pictures"), (["--audio", wav], b"takes no sound"), (["--audio", mp3], b"takes no sound"),
                               (["--image", wav], b"is audio/wav, expected a PNG"),
                               (["--audio", png], b"is image/png, expected a WAV"),
                               (["--image", INFERD], b"no known picture or sound"),
                               (["--image", os.path.join(d, "none")], b"No such file"),
                               (["--image", d], b"no regular file"),
                               (["--group", "--title", "t", "a"], b"takes no groups"),
                               (["a", "--model-identity", "12"], b"64 lowercase hexadecimal digits"),
                               (["a", "--model-identity", "0" * 64], b"model"),
                               (["a", "--task-type", "NOPE"], b"task_type"),
                               (["a", "-o", os.path.join(d, "no", "file")], b"cannot write")):
                r = run([TINY_BERT, *args, *url])
                check(r.returncode == 1 and word in r.stderr, (args, r.returncode, r.stderr))
            out = os.path.join(d, "out")
            r = run([TINY_BERT, "--text", "one", "two", "--text", "three", "-o", out, *url])
            equal((r.returncode, r.stdout), (0, b""), r.stderr.decode())
            with open(out, "rb") as f:
                equal(f.read(), run([TINY_BERT, "one", "two", "three", *url]).stdout, "the order of the command line")


@case
def a_private_server_works_for_one_command():
    with Server(ready=False) as s:
        r = run([TINY_BERT, "a", "--models-dir", s.models])
        equal((r.returncode, len(r.stdout.splitlines())), (0, 1), r.stderr.decode())


@case
def real_weights_rank_a_paraphrase_first():
    with Server(models=real_models()) as s:
        r = run([REAL_MINILM, "--similarity", "--json", "--server", f"http://127.0.0.1:{s.port}",
                 "A man is eating food.", "Someone is having a meal.", "The stock market fell."])
        equal(r.returncode, 0, r.stderr.decode())
        m = json.loads(r.stdout)["similarity"]
        check(m[0][1] > 0.5 > 0.3 > m[0][2], m)


main()
