"""cli_bench.py - `inferd bench` on the tiny golden models: that it measures and explains, not how fast."""
import json
import os
import subprocess
import tempfile

from inferd_test import BIN, SLOW, TINY_BERT, TINY_GEMMA, case, check, copy_model, equal, main

INFERD = os.path.join(BIN, "inferd")


def run(args):
    return subprocess.run([INFERD, "bench", *args], stdin=subprocess.DEVNULL, capture_output=True, timeout=120 * SLOW,
                          check=False)


@case
def a_generator_and_an_embedder_are_measured():
    with tempfile.TemporaryDirectory(prefix="inferd-test-") as d:
        gen, emb = copy_model(TINY_GEMMA, d), copy_model(TINY_BERT, d)
        r = run([gen, "--prompt", "16", "--gen", "4", "--context", "40", "--runs", "3", "--threads", "1", "--json"])
        equal(r.returncode, 0, r.stderr.decode())
        o = json.loads(r.stdout)
        equal((len(o["prefill_tok_s_runs"]), len(o["decode_tok_s_runs"]), o["threads"]), (3, 3, 1), "runs")
        check(min(o["decode_tok_s_runs"]) <= o["decode_tok_s"] <= max(o["decode_tok_s_runs"]), "the median")
        equal((o["context_tokens"], o["gen_tokens"]), (40, 4), "tokens before and behind the clock's start")
        equal(o["hot_allocs"], 0, "no allocation in the decode loop")
        r = run([gen, "--prompt", "16", "--gen", "4", "--runs", "2"])
        text = r.stdout.decode()
        check(r.returncode == 0 and "prompt tokens/s" in text and "generated tokens/s" in text, text + r.stderr.decode())
        r = run([emb, "--embed-batch", "2", "--embed-tokens", "8", "--runs", "2"])
        text = r.stdout.decode()
        check(r.returncode == 0 and "embedded texts/s" in text and "MEDIAN" in text, text + r.stderr.decode())


@case
def mistakes_are_explained():
    with tempfile.TemporaryDirectory(prefix="inferd-test-") as d:
        r = run([d + "/nope.gguf"])
        check(r.returncode == 1 and b"nope.gguf" in r.stderr, r.stderr.decode())
        r = run(["/etc/passwd"])
        check(r.returncode == 1 and b"expected a .gguf file" in r.stderr, r.stderr.decode())
        with open(d + "/bad.gguf", "wb") as f:
            f.write(b"GGUF" + b"\xff" * 100)
        r = run([d + "/bad.gguf"])
        check(r.returncode == 1 and len(r.stderr) > 20 and not r.stdout, r.stderr.decode())
        equal(run([]).returncode, 2, "a model is needed")
        equal(run([d, "--runs", "0"]).returncode, 2, "a range")
        equal(run([d, "--context", "15"]).returncode, 2, "a context too short")
        r = run([d, "--worker", "/nonexistent/worker"])
        check(r.returncode == 1 and b"/nonexistent/worker" in r.stderr, r.stderr.decode())


main()
