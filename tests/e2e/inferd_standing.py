"""inferd_standing.py - what every public bug case ends with: the three standing checks.

A script of cases shares one server (on the tiny golden models); @standing runs the case with it, then checks that the
supervisor has the same process ids, that /readyz answers 200 within a second, and that the same normal requests give the
same bytes as before the first case. @case of inferd_test remains for cases that need a server of their own; they call
`well` themselves.
"""
import functools
import sys
import time

import inferd_test as t
from inferd_test import Failed, case, children, equal

_server = None
_before = None
_args = {}


def supervisor(s):
    """Launcher and front: the oldest of its children of that name (a younger one becomes a worker in a moment)."""
    def born(pid):
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
                return int(f.read().rpartition(")")[2].split()[19])
        except OSError:
            return 1 << 62
    fronts = sorted((born(pid), pid) for pid, name in children(s.proc.pid) if name == "inferd")
    return [s.proc.pid, fronts[0][1] if fronts else None]


def normal(s):
    """Bytes that must never change: vectors, the choices of greedy answers, token ids."""
    v = s.post("/v1/embeddings", {"model": t.TINY_BERT, "input": ["The same", "every time"]})
    c = s.post("/v1/completions", {"model": t.TINY_GEMMA, "prompt": "The same", "max_tokens": 6, "logprobs": 3,
                                   "return_token_ids": True})
    m = s.post("/v1/chat/completions", {"model": t.TINY_GEMMA, "max_tokens": 4,
                                        "messages": [{"role": "user", "content": "The same"}]})
    k = s.post("/ai/v1/tokenize", {"model": t.TINY_GEMMA, "text": "The same 中 text"})
    for r in (v, c, m, k):
        equal(r.status, 200, f"a normal request: {r.body[:300]!r}")
    return v.body, str(c.json["choices"]), str(m.json["choices"]), k.body


def ready(s):
    """/readyz, asked a few times: once within a second is meant (a loaded test machine may lose one)."""
    for last in (False, False, True):
        begin = time.monotonic()
        try:
            r = s.request("GET", "/readyz", timeout=1 if not last else 5)
        except OSError as e:
            if last:
                raise Failed(f"/readyz: {e}")
            continue
        equal(r.status, 200, f"/readyz {r.body!r}")
        if time.monotonic() - begin < 1 * t.SLOW:
            return
    raise Failed("/readyz took longer than a second three times")


class Before:
    """The state that must still hold: b = Before(s); ...; b.well()."""

    def __init__(self, s):
        self.s, self.pids, self.bytes = s, supervisor(s), normal(s)

    def well(self, what=""):
        equal(supervisor(self.s), self.pids, f"{what} the supervisor's processes")
        ready(self.s)
        equal(normal(self.s), self.bytes, f"{what} the normal requests' bytes")


def options(**args):
    """Options of the shared server; to be called before main."""
    _args.update(args)


def shared():
    global _server, _before
    if _server is None:
        s = t.Server(**_args)
        s.__enter__()
        _server, _before = s, Before(s)
    return _server


def standing(fn):
    @case
    @functools.wraps(fn)
    def run():
        s = shared()
        try:
            fn(s)
            _before.well(f"after {fn.__name__}:")
        except t.Skip:
            raise
        except BaseException:
            sys.stderr.write("".join(s.log_lines[-40:]))
            raise
    return fn
