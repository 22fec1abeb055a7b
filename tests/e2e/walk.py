"""walk.py - the commands of docs/operations.md, "From nothing to two tenants", in the order written.

Only the folder, the port, the hub and the model are others, each replaced wherever it stands.
"""
import os
import re
import socket
import subprocess
import tempfile

from inferd_hub import Hub, minilm
from inferd_test import BIN, ROOT, SLOW, case, check, equal, main

TOKEN = "hf_of_this_walk"


def script():
    """The section's blocks, joined; and the status codes that its comments promise."""
    with open(os.path.join(ROOT, "docs", "operations.md"), encoding="utf-8") as f:
        text = f.read()
    section = text[text.index("## From nothing to two tenants"):]
    section = section[:section.index("\n## ", 5)]
    blocks = re.findall(r"```sh\n(.*?)```", section, re.S)
    check(len(blocks) >= 6, f"{len(blocks)} blocks")
    whole = "".join(blocks)
    return whole, re.findall(r"^ask .*# (\d\d\d)$", whole, re.M)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@case
def the_walk_works_as_written():
    commands, promised = script()
    check(sorted(set(promised)) == ["200", "401", "403", "429"], promised)
    with Hub() as hub, tempfile.TemporaryDirectory(prefix="inferd-walk-") as d:
        hub.repo("acme/mini", minilm()).gated = TOKEN
        for old, new in (("/var/lib/inferd", d), ("8090", str(free_port())), ("https://huggingface.co", hub.url), ("BAAI/bge-m3", "acme/mini")):
            check(old in commands, f"the section says {old}")
            commands = commands.replace(old, new)
        with open(os.path.join(d, "token.txt"), "w", encoding="ascii") as f:
            f.write(TOKEN + "\n")
        env = {k: v for k, v in os.environ.items() if not k.startswith("INFERD_")}
        env["PATH"] = BIN + ":" + env["PATH"]
        trap = "trap 'kill $! 2>/dev/null || :' EXIT\n"  # a failure half way leaves no server
        r = subprocess.run(["bash", "-euc", trap + commands], cwd=d, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                           timeout=120 * SLOW, check=False)
        with open(os.path.join(d, "log"), encoding="utf-8") as f:
            log = f.read()
        equal(r.returncode, 0, f"status\n{r.stdout[-600:]}\n{r.stderr[-600:]}\n{log[-600:]}")
        equal(re.findall(r"^(\d\d\d)$", r.stdout, re.M), promised, "what each may do")
        for word in ('"status":"success"', "acme/mini", 'tenant="beta"', '"act":"key.revoke"', '"act":"vault.reload"'):
            check(word in r.stdout or word in open(os.path.join(d, "vault", "audit.jsonl"), encoding="utf-8").read(), f"{word} in\n{r.stdout[-3000:]}")
        check(TOKEN not in r.stdout + r.stderr + log, "the hub's token is told nowhere")
        check('"stopped"' in log, log[-500:])


if __name__ == "__main__":
    main()
