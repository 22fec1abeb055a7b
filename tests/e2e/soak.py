#!/usr/bin/env python3
"""soak.py - ten seconds of tests/bench/soak.py: afterwards pages, tasks and the ledger are what they were before."""
import importlib.util
import os

from inferd_test import SLOW, Server, case, check, copy_model, main, wait_for

_spec = importlib.util.spec_from_file_location(
    "bench_soak", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench", "soak.py"))
bench = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(bench)


@case
def everything_is_idle_again():
    with Server(fill=lambda d: copy_model(bench.MODEL, d), **bench.OPTIONS) as s:
        wait_for(lambda: s.metric("inferd_ledger_bytes", kind="kv"), "the model")
        before = bench.idle(s)
        soak = bench.Soak(s)
        soak.run(8, 6)
        check(all(soak.done[x] > 0 for x in ("answered", "cancelled", "known", "several", "bound")), f"all kinds: {soak.done}")
        bench.idle_again(s, before, 10 * SLOW)


main()
