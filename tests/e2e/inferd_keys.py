"""inferd_keys.py - API keys for scripts: made, revoked and read again with the operator's own commands."""
import os
import signal
import subprocess
import tempfile
import time

from inferd_test import BIN, equal, wait_for


def keys(folder, *args, ok=True, **env):
    r = subprocess.run([os.path.join(BIN, "inferd"), "keys", *args, "--vault-dir", folder], capture_output=True, text=True,
                       timeout=60, env={**os.environ, **env})
    if ok:
        equal(r.returncode, 0, f"keys {args}: {r.stderr}")
    return r if not ok else r.stdout.strip()


def folder():
    return os.path.join(tempfile.mkdtemp(prefix="inferd-test-"), "vault")


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def hup(s, n=1):
    before = sum(e.get("event") in ("vault_reloaded", "vault_reload_failed") for e in s.log())
    s.proc.send_signal(signal.SIGHUP)
    wait_for(lambda: sum(e.get("event") in ("vault_reloaded", "vault_reload_failed") for e in s.log()) >= before + n, "the reload")
    time.sleep(0.05)  # the front hears of it right after
