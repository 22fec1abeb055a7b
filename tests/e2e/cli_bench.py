"""cli_bench.py - `inferd bench` on the tiny golden models: that it measures and explains, not how fast."""
import json
import math
import os
import shutil
import signal
import subprocess
import tempfile
import time

from inferd_test import BIN, GOLDEN, SLOW, TINY_BERT, TINY_GEMMA, case, check, copy_model, equal, main

INFERD = os.path.join(BIN, "inferd")


def run(args):
    return subprocess.run([INFERD, "bench", *args], stdin=subprocess.DEVNULL, capture_output=True, timeout=120 * SLOW,
                          check=False)


def figure(o, key, n):
    """A median with its runs beside it: all above 0, none of them timed against anything."""
    runs = o[key + "_runs"]
    equal(len(runs), n, key)
    check(all(0 < x < math.inf for x in runs) and min(runs) <= o[key] <= max(runs) and o[key + "_spread"] >= 0, f"{key}: {o}")


def measured(args):
    r = run([*args, "--json"])
    equal(r.returncode, 0, r.stderr.decode())
    return json.loads(r.stdout)


@case
def all_of_a_generator_is_measured():
    with tempfile.TemporaryDirectory(prefix="inferd-test-") as d:
        gen = copy_model(TINY_GEMMA, d)
        o = measured([gen, "--prompt", "16", "--gen", "24", "--context", "40", "--prefix", "1024", "--runs", "3", "--threads", "1"])
        for key in ("prefill_tok_s", "ttft_ms", "decode_tok_s", "decode_step_cpu_ms"):
            figure(o, key, 3)
        check(0 < o["kv_read_bytes"] < o["kv_bytes"], f"{o}")
        equal((o["prompt_tokens"], o["context_tokens"], o["gen_tokens"], o["seqs"], o["threads"], o["runs"]), (16, 40, 24, 1, 1, 3),
              "what was asked")
        equal((o["family"], o["backend"], o["hot_allocs"]), ("gemma3", "cpu", 0), "what ran")
        check(o["load_ms"] > 0 and o["weight_bytes"] > 0 and o["kv_bytes"] > 0 and o["ctx_tokens"] > 0, f"{o}")
        equal(([r["seqs"] for r in o["batch"]], o["batch_steps"], o["batch_context_tokens"]), ([1, 2, 4, 8, 16, 32], 24, 40), "batch")
        for r in o["batch"]:
            check(r["fits"], f"{r}")
            figure(r, "decode_tok_s", 3)
            check(0 < r["scaling"] < math.inf, f"{r}")
        p = o["prefix"]
        equal((p["prefix_tokens"], p["cached_tokens"]), (1024, 1024), "the shared beginning is found")
        for key in ("cold_ttft_ms", "hit_ttft_ms", "ratio"):
            figure(p, key, 3)
        equal([(s["mode"], s["text"]) for s in o["speculation"]], [("lookup", "repeating"), ("lookup", "prose")], "no drafter")
        for s in o["speculation"]:
            figure(s, "plain_tok_s", 3)
            figure(s, "spec_tok_s", 3)
            check(0 <= s["accepted"] <= s["offered"] and 0 <= s["acceptance"] <= 1 and 0 < s["gain"] < math.inf, f"{s}")
            check(s["same_tokens"] is True and s["rests"] in (True, False), f"{s}")
        equal(o["not_applicable"], {"embed": "the model makes no embeddings"}, "what is left out, and why")


@case
def sections_can_be_chosen_and_are_tabled():
    with tempfile.TemporaryDirectory(prefix="inferd-test-") as d:
        gen, emb = copy_model(TINY_GEMMA, d), copy_model(TINY_BERT, d)
        o = measured([gen, "--only", "batch", "--context", "200", "--gen", "8", "--kv-mb", "1", "--runs", "1"])
        check("prefill_tok_s" not in o and "speculation" not in o and "prefix" not in o, f"{sorted(o)}")
        check(o["batch"][0]["fits"] and not o["batch"][-1]["fits"] and "KV cache" in o["batch"][-1]["why"], f"{o['batch']}")
        text = run([gen, "--gen", "8", "--prompt", "16", "--prefix", "128", "--runs", "1"]).stdout.decode()
        for word in ("prompt tokens/s", "first token", "generated tokens/s", "SEQUENCES", "known", "GUESSED AHEAD"):
            check(word in text, f"{word}: {text}")
        check(max(map(len, text.splitlines())) <= 80, text)
        o = measured([emb, "--embed-batch", "2", "--embed-tokens", "8", "--runs", "2"])
        figure(o, "encode_seq_s", 2)
        figure(o, "encode_tok_s", 2)
        equal([r["texts"] for r in o["embed_scaling"]], [1, 2, 4, 8, 16, 32], "texts in a request")
        equal(sorted(o["not_applicable"]), ["decode", "prefix", "prompt", "spec"], "of a model that only embeds")
        text = run([emb, "--only", "embed", "--runs", "2"]).stdout.decode()
        check("embedded texts/s" in text and "MEDIAN" in text and "not applicable" not in text, text)


@case
def a_drafter_is_measured_beside_lookups():
    with tempfile.TemporaryDirectory(prefix="inferd-test-") as d:
        model = copy_model("gemma4_text", d)
        shutil.copytree(os.path.join(GOLDEN, "gemma4_assistant"), os.path.join(model, "assistant"))
        o = measured([model, "--only", "spec", "--gen", "24", "--runs", "1"])
        equal([(s["mode"], s["text"]) for s in o["speculation"]],
              [("mtp", "repeating"), ("lookup", "repeating"), ("mtp", "prose"), ("lookup", "prose")], "both ways to guess")
        check(all(s["same_tokens"] and 0 <= s["acceptance"] <= 1 for s in o["speculation"]), f"{o['speculation']}")
        check(o["speculation"][0]["offered"] > 0, "the drafter was asked")


@case
def ctrl_c_shows_what_there_is():
    with tempfile.TemporaryDirectory(prefix="inferd-test-") as d:
        p = subprocess.Popen([INFERD, "bench", copy_model(TINY_GEMMA, d), "--runs", "100", "--gen", "1500", "--json"],
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(1.5)  # somewhere within it
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=60 * SLOW)
        equal(p.returncode, 130, err.decode())
        check(b"interrupted" in err and (not out or json.loads(out)["interrupted"] is True), f"{out[:200]} {err}")


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
        gen = copy_model(TINY_GEMMA, d)
        for words, says in ((("--only", "speed"), "'speed' is no section"), (("--only", "batch,"), "'' is no section"),
                            (("--sandbox", "none"), "expected strict, permissive or off"), (("--prompt", "9999"), "--prompt 9999"),
                            (("--prefix", "9999"), "--prefix 9999"), (("--gen", "9999"), "--gen 9999")):
            r = run([gen, *words])
            check(r.returncode == 2 and says in r.stderr.decode() and not r.stdout, f"{words}: {r.returncode} {r.stderr.decode()}")
        r = run([d, "--worker", "/nonexistent/worker"])
        check(r.returncode == 1 and b"/nonexistent/worker" in r.stderr, r.stderr.decode())


main()
