"""cuda_device.py - the server with backend cuda on the emulated driver (tests/cuda_emu): the same words as on the CPU, and
what clients see when there is no device, too little memory, or the device is lost in mid-stream. Workers have no environment:
each server gets a folder of its own with the driver and a cuda_emu.conf beside it."""
import math
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from inferd_test import BIN, TINY_BERT, TINY_GEMMA, Server, Skip, case, check, equal, main, pid_alive  # noqa: E402

EMU = os.path.join(BIN, "tests", "cuda_emu")
ASK = {"model": TINY_GEMMA, "prompt": "one two three", "max_tokens": 24, "temperature": 0, "ignore_eos": True}


class Device:
    """A Server whose device is the emulated one, with these INFERD_EMU_* settings."""

    def __init__(self, settings=None, **args):
        if not os.path.exists(os.path.join(EMU, "libcuda_emu.so")):
            raise Skip("the emulated driver was not built")
        self.dir = tempfile.mkdtemp(prefix="inferd-emu-")
        for name in ("libcuda_emu.so", "libcuda_emu_kernels.so"):
            shutil.copy(os.path.join(EMU, name), self.dir)
        with open(os.path.join(self.dir, "cuda_emu.conf"), "w") as f:
            f.writelines(f"{k}={v}\n" for k, v in (settings or {}).items())
        self.server = Server(backend="cuda", cuda_library=os.path.join(self.dir, "libcuda_emu.so"), kv_dtype="f32",
                             kv_mb=32, workspace_mb=256, **args)

    def __enter__(self):
        return self.server.__enter__()

    def __exit__(self, *exc):
        try:
            return self.server.__exit__(*exc)
        finally:
            shutil.rmtree(self.dir)


def text_of(s, **more):
    r = s.post("/v1/completions", {**ASK, **more}, timeout=120)
    equal(r.status, 200, r.body.decode()[:300])
    return r.json["choices"][0]["text"]


def vector_of(s):
    r = s.post("/v1/embeddings", {"model": TINY_BERT, "input": "a small sentence"}, timeout=120)
    equal(r.status, 200, r.body.decode()[:300])
    return r.json["data"][0]["embedding"]


def alive(s):
    check(pid_alive(s.proc.pid), "the server died")
    equal(s.get("/readyz").status, 200, "/readyz")


def refused(s, *words):
    """A request that fails in a way that tells why: its message holds one of the words."""
    r = s.post("/v1/completions", ASK, timeout=120)
    check(r.status >= 500, f"status {r.status}: {r.body.decode()[:300]}")
    message = r.json["error"]["message"]
    check(any(w in message for w in words), f"message '{message}', expected one of {words}")
    alive(s)
    return r


@case
def the_words_of_the_cpu():
    with Server(kv_dtype="f32", kv_mb=32) as s:
        want, vector = text_of(s), vector_of(s)
    with Device() as s:
        equal(text_of(s), want, "greedy text on the device")
        equal(text_of(s), want, "again, from the prefix cache")
        check(math.dist(vector_of(s), vector) < 1e-4, "the vector differs")
        first = text_of(s, temperature=1, seed=11)
        equal(text_of(s, temperature=1, seed=11), first, "the same seed, the same text")
        alive(s)


@case
def no_device_is_said_and_the_server_lives():
    with Device({"INFERD_EMU_DEVICES": 0}, ready=False) as s:
        s.wait_ready()
        refused(s, "no CUDA-capable device", "there is no device")


@case
def too_little_device_memory_is_said_and_the_server_lives():
    with Device({"INFERD_EMU_MEM": 20_000_000}) as s:
        refused(s, "on the device")


@case
def kernels_that_do_not_load_are_said():
    with Device({"INFERD_EMU_FAIL": "cuModuleLoadDataEx:1+:218"}) as s:
        refused(s, "CUDA_ERROR_INVALID_PTX")


@case
def a_lost_device_ends_the_worker_and_the_next_one_serves():
    with Device() as s:
        want = text_of(s, max_tokens=4)
    # far enough to be past the load and a short request, within the long one
    with Device({"INFERD_EMU_FAIL": "cuStreamSynchronize:60:719:sticky"}) as s:
        equal(text_of(s, max_tokens=4), want)
        pid = [m for m in s.get("/v1/models").json["data"] if m["id"] == TINY_GEMMA][0]["pid"]
        r = s.post("/v1/completions", {**ASK, "max_tokens": 200, "stream": True}, timeout=120)
        text = r.body.decode()
        check(r.status == 200 and "event: error" in text, f"status {r.status}: {text[-300:]}")
        check("CUDA_ERROR_LAUNCH_FAILED" in text or "WORKER_CRASHED" in text, f"the stream ends with {text[-300:]}")
        # nothing was sent of a whole answer: it is tried on the next worker, which loses its device as well
        r = s.post("/v1/completions", {**ASK, "max_tokens": 200}, timeout=120)
        check(r.status >= 500, f"status {r.status}: {r.body.decode()[:300]}")
        equal(r.json["error"]["code"], "REQUEST_POISONED", r.json["error"]["message"])
        alive(s)
        equal(text_of(s, max_tokens=4), want, "after the loss, from a new worker")
        now = [m for m in s.get("/v1/models").json["data"] if m["id"] == TINY_GEMMA][0]["pid"]
        check(now != pid, "a worker whose device is lost must be replaced")


if __name__ == "__main__":
    main()
