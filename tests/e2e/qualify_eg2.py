"""qualify_eg2.py - the campaign of tests/golden/embeddinggemma2 on the tiny checkpoint: the contract over sockets, clients
at once, overload, and the suite of compare.py against what the reference gave for it.

The weights amplify rounding, so the bound is 3e-4 (tests/golden/README.md); equality between answers is exact.
"""
import contextlib
import io
import json
import os
import shutil
import sys
import tempfile

from inferd_test import BIN, GOLDEN, Server, SLOW, case, check, copy_model, equal, main

TOOLS = os.path.join(GOLDEN, "embeddinggemma2")
TOLERANCE = "3e-4"
sys.path.insert(0, TOOLS)
import compare  # noqa: E402
import media  # noqa: E402
import qualify  # noqa: E402

MODEL = "embeddinggemma2"


def fill(to_dir):
    copy_model(MODEL, to_dir)


@contextlib.contextmanager
def folder(kind):
    """A folder of results as in the repository, with the pictures and sounds that belong to it."""
    with tempfile.TemporaryDirectory(prefix="inferd-eg2-") as tmp:
        to = os.path.join(tmp, kind)
        shutil.copytree(os.path.join(TOOLS, kind), to)
        media.write(to, "small")
        yield to


def run(tool, *args):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        rc = tool.main(list(args))
    return rc, out.getvalue()


def url(s):
    return f"http://127.0.0.1:{s.port}/ai/v1"


@case
def the_contract_holds_alone_in_a_crowd_and_when_there_are_too_many():
    with folder("oracle") as oracle, Server(fill=fill, max_queue=4) as s:
        report = os.path.join(oracle, "report.json")
        rc, out = run(qualify, "--url", url(s), "--model", MODEL, "--oracle", oracle, "--output", report, "--tolerance", TOLERANCE,
                      "--iterations", "2", "--concurrency", "2", "--max-tokens", "130", "--overload", "6", "--expect-busy",
                      "--timeout", str(60 * SLOW), "--binary", os.path.join(BIN, "inferd"))
        equal(rc, 0, out)
        with open(report, encoding="utf-8") as f:
            r = json.load(f)
        check(r["passed"] and len(r["checks"]) == len(qualify.CHECKS), "every check is in the report")
        check(0 < r["figures"]["largest_difference"] <= float(TOLERANCE), f"figures {r['figures']}")
        # a campaign that cannot fail proves nothing
        with open(os.path.join(oracle, "oracle.json"), encoding="utf-8") as f:
            other = json.load(f)
        other["cases"] = other["cases"][:1]
        other["cases"][0]["vector"][0] += 1e-3
        with open(os.path.join(oracle, "oracle.json"), "w", encoding="utf-8") as f:
            json.dump(other, f)
        rc, out = run(qualify, "--url", url(s), "--model", MODEL, "--oracle", oracle, "--output", report, "--tolerance", TOLERANCE,
                      "--only", "vectors_match_the_reference_at_every_size")
        check(rc == 1 and "off by 0.001" in out, f"a vector that is wrong by 1e-3: {rc}, {out}")


@case
def the_suite_gives_what_the_reference_gave():
    with folder("suite") as suite, Server(fill=fill) as s:
        want, got = os.path.join(suite, "torch.json"), os.path.join(suite, "server.json")
        rc, out = run(compare, "run", "--backend", "server", "--url", url(s), "--model", MODEL, "--model-dir",
                      os.path.join(s.models, MODEL), "--suite", suite, "--output", got, "--samples", "1", "--warm", "0")
        equal(rc, 0, out)
        rc, out = run(compare, "compare", want, got, "--tolerance", TOLERANCE)
        equal(rc, 0, out)
        with open(got, encoding="utf-8") as f:
            result = json.load(f)

        def changed(**more):
            with open(got, "w", encoding="utf-8") as f:
                json.dump(dict(result, **more), f)
            return run(compare, "compare", want, got, "--tolerance", TOLERANCE)

        for key in ("suite_sha256", "model_identity", "weights", "precision"):
            rc, out = changed(**{key: "another"})
            check(rc == 2 and f"compare: {key} is" in out, f"{key}: {rc}, {out}")
        query, order = next(iter(result["rankings"].items()))
        rc, out = changed(rankings=dict(result["rankings"], **{query: order[::-1]}))
        check(rc == 1 and f"ranking of '{query}'" in out, f"a ranking turned round: {rc}, {out}")
        rc, out = changed(choice=dict(result["choice"], choice="nothing"))
        check(rc == 1 and "choice 'nothing'" in out, f"another choice: {rc}, {out}")


main()
