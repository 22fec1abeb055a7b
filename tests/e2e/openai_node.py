"""openai_node.py - runs openai_node.mjs, the official JavaScript client, against inferd."""
import os
import shutil
import subprocess
import sys

import inferd_api
from inferd_test import ROOT, SLOW, end


def run():
    node, modules = shutil.which("node"), os.environ.get("INFERD_TEST_NODE")
    if not node:
        print("skip - openai_node: node is not installed")
        return 77
    if not modules or not os.path.isdir(os.path.join(modules, "node_modules", "openai")):
        print("skip - openai_node: the openai npm package is not installed (tests/run installs it)")
        return 77
    with inferd_api.target() as t:
        caps = t.get(f"/v1/models/{t.chat}").json.get("capabilities", [])
        env = {**os.environ, "INFERD_BASE_URL": t.base, "INFERD_CHAT_MODEL": t.chat, "INFERD_EMBED_MODEL": t.embed,
               "INFERD_HAS_CHAT": "1" if "chat" in caps else "0"}
        return subprocess.run([node, os.path.join(ROOT, "tests", "e2e", "openai_node.mjs")], env=env,
                              timeout=120 * SLOW, check=False).returncode


if __name__ == "__main__":
    try:
        status = run()
    except Exception as e:
        print(f"FAIL - openai_node: {type(e).__name__}: {e}".splitlines()[0])
        raise
    finally:
        end()
    sys.exit(status)
