"""api_docs.py - every curl of docs/api.md works as printed, on the real weights."""
import json
import os
import re
import shutil
import subprocess

from inferd_test import PRESET, ROOT, SLOW, Server, Skip, case, check, equal, main, real_models


def blocks():
    with open(os.path.join(ROOT, "docs", "api.md"), encoding="utf-8") as f:
        return re.findall(r"^```sh\n(.*?)^```$", f.read(), re.M | re.S)


def commands(block):
    """A block holds one or more curls, each of which begins its line."""
    return [c for c in re.split(r"^(?=curl )", block, flags=re.M) if c.strip()]


@case
def every_example_works():
    models = real_models()
    if PRESET == "asan":
        raise Skip("real weights are too slow under a sanitizer")
    if not shutil.which("curl"):
        raise Skip("curl is not installed")
    n = 0
    with Server(models=models) as s:
        for block in blocks():
            for cmd in commands(block):
                n += 1
                check("http://127.0.0.1:8090/" in cmd, f"the example names the default address: {cmd}")
                here = cmd.replace("http://127.0.0.1:8090", f"http://127.0.0.1:{s.port}").replace("curl ", "curl -f ", 1)
                r = subprocess.run(["sh", "-c", here], capture_output=True, text=True, timeout=120 * SLOW, check=False)
                equal(r.returncode, 0, f"exit of {cmd!r}: {r.stderr} {r.stdout[:300]}")
                if '"stream": true' in cmd:
                    check(r.stdout.rstrip().endswith("data: [DONE]"), f"stream of {cmd!r}")
                else:
                    answer = json.loads(r.stdout)
                    if '"prompt"' in cmd:
                        check("Thursday" in answer["choices"][0]["text"], f"the answer: {r.stdout[:300]}")
                    if "tokenize" in cmd and "detokenize" not in cmd:
                        ids = answer["tokens"]
                        check(str(ids[1:])[1:-1] in open(os.path.join(ROOT, "docs", "api.md"), encoding="utf-8").read(),
                              f"the ids of the next example: {ids}")
                    if "per_item" in cmd:
                        equal([d["index"] for d in answer["data"]], [0, 2], "per_item data")
                        equal(answer["summary"], {"total": 3, "succeeded": 2, "failed": 1}, "per_item summary")
    check(n >= 9, f"found {n} examples")


if __name__ == "__main__":
    main()
