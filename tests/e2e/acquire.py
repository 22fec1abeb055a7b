"""acquire.py - tests/golden/embeddinggemma2/acquire.py against a hub on loopback that misbehaves on request."""
import contextlib
import hashlib
import http.server
import importlib.util
import io
import json
import os
import tempfile
import threading

from inferd_test import ROOT, case, check, equal, main

TOOL = os.path.join(ROOT, "tests", "golden", "embeddinggemma2", "acquire.py")
spec = importlib.util.spec_from_file_location("eg2_acquire", TOOL)
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)
REVISION = "914f7f89142e33e77833254d9c9b90c3cef7303b"
FILES = {"config.json": b'{"model_type": "embedding_gemma2"}', "model.safetensors": bytes(range(256)) * 9000,
         "tokenizer.json": b"{}" * 500, "processor_config.json": b"{}", "LICENSE": b"terms", "1_Pooling/config.json": b"{}"}
LARGE = ("model.safetensors", "tokenizer.json")
TOKEN = "hf_secret"


class Hub:
    """Two origins: a hub, and a store that large files redirect to. break_: what goes wrong, by file name."""

    def __init__(self, **wrong):
        self.wrong, self.seen, self.lock = wrong, [], threading.Lock()
        self.cuts = dict(wrong.get("cut", {}))
        self.store, self.hub = self.serve("store"), self.serve("hub")

    def serve(self, role):
        outer = self

        class H(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *a):
                pass

            def do_GET(self):
                with outer.lock:
                    outer.seen.append((role, self.path, self.headers.get("Range"), self.headers.get("Authorization")))
                outer.answer(self, role)

        s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), H)
        s.daemon_threads = True
        threading.Thread(target=s.serve_forever, args=(0.01,), daemon=True).start()
        return s

    def listing(self):
        out = []
        for name, data in FILES.items():
            f = {"rfilename": name, "size": len(data), "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()}
            if name in LARGE:
                f["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            out.append(dict(f, **self.wrong.get("entry", {}).get(name, {})))
        out.append({"rfilename": ".gitattributes", "size": 3, "blobId": "0" * 40})
        return {"sha": self.wrong.get("sha", REVISION), "siblings": out + self.wrong.get("extra", [])}

    def answer(self, h, role):
        if h.path.startswith("/api/"):
            return self.send(h, 200, json.dumps(self.listing()).encode())
        name = h.path.partition(f"/resolve/{REVISION}/" if role == "hub" else "/blob/")[2]
        if role == "hub" and name in LARGE:
            to = self.wrong.get("redirect") or f"http://127.0.0.1:{self.store.server_address[1]}/blob/{name}"
            return self.send(h, 302, b"", {"Location": to})
        if name not in FILES:
            return self.send(h, 404, b"")
        data, start = FILES[name], 0
        if name in self.wrong.get("other_bytes", ()):
            data = b"x" + data[1:]
        r = h.headers.get("Range")
        if r and not self.wrong.get("no_ranges"):
            start = int(r.removeprefix("bytes=").rstrip("-"))
        with self.lock:
            cut = self.cuts.pop(name, None)
        headers = {"X-Repo-Commit": self.wrong.get("commit", REVISION)}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self.send(h, 206 if start else 200, data[start:], headers, cut)

    def send(self, h, status, data, headers=None, cut=None):
        h.send_response(status)
        for k, v in {"Content-Length": str(len(data)), **(headers or {})}.items():
            h.send_header(k, v)
        h.end_headers()
        h.wfile.write(data[:cut])
        if cut is not None:
            h.close_connection = True

    def __enter__(self):
        self.tmp = tempfile.TemporaryDirectory(prefix="inferd-acquire-")
        self.dir = os.path.join(self.tmp.name, "model")
        return self

    def __exit__(self, *a):
        for s in (self.hub, self.store):
            s.shutdown()
            s.server_close()
        self.tmp.cleanup()

    def run(self, want, *more):
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            rc = tool.main([self.dir, "--endpoint", f"http://127.0.0.1:{self.hub.server_address[1]}", "--timeout", "10", *more])
        equal(rc, want, err.getvalue())
        return err.getvalue()

    def whole(self):
        with open(os.path.join(self.dir, "embeddinggemma2_receipt.json"), encoding="utf-8") as f:
            receipt = json.load(f)
        equal((receipt["repo"], receipt["revision"]), ("google/embeddinggemma-2", REVISION), "receipt")
        equal({n: (v["bytes"], v["sha256"], v["lfs"]) for n, v in receipt["files"].items()},
              {n: (len(d), hashlib.sha256(d).hexdigest(), n in LARGE) for n, d in FILES.items()}, "files of the receipt")
        for name, data in FILES.items():
            with open(os.path.join(self.dir, name), "rb") as f:
                check(f.read() == data, f"{name} differs")
        equal(os.listdir(self.tmp.name).count("model.partial"), 0, "the folder of parts")

    def token(self, mode=0o600):
        path = os.path.join(self.tmp.name, "token")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, mode), "w") as f:
            f.write(TOKEN + "\n")
        os.chmod(path, mode)
        return path


@case
def all_files_arrive_with_a_receipt_and_the_token_stays_at_home():
    with Hub() as h:
        h.run(0, "--token-file", h.token())
        h.whole()
        check(any(role == "store" for role, *_ in h.seen), "large files came from the other origin")
        for role, path, _, auth in h.seen:
            equal(auth, f"Bearer {TOKEN}" if role == "hub" else None, f"token at {role}{path}")
        n = len(h.seen)
        check("as the receipt says" in h.run(0), "a second run verifies")
        equal(len(h.seen), n, "requests of a second run")
        with open(os.path.join(h.dir, "LICENSE"), "ab") as f:
            f.write(b"!")
        check("LICENSE is not what" in h.run(1), "a changed file is found")


@case
def a_broken_transfer_is_continued_in_the_run_and_by_the_next():
    with Hub(cut={"model.safetensors": 70000, "config.json": 5}) as h:
        h.run(0)
        h.whole()
        equal([r for _, p, r, _ in h.seen if p.startswith("/blob/model")], [None, "bytes=70000-"], "ranges asked")
    with Hub(cut={"model.safetensors": 70001}) as h:
        check("after 70001 of" in h.run(3, "--tries", "1"), "says where it broke")
        check(not os.path.exists(h.dir), "half a model is no model")
        h.run(0)
        h.whole()
        equal([r for _, p, r, _ in h.seen if p.startswith("/blob/model")], [None, "bytes=70001-"], "ranges asked")
        equal(sum(p.endswith("/LICENSE") for _, p, _, _ in h.seen), 1, "what was there is kept")
    with Hub(cut={"model.safetensors": 70000}, no_ranges=True) as h:
        h.run(0)
        h.whole()


@case
def wrong_bytes_names_and_revisions_are_refused():
    rows = [
        (dict(other_bytes=["model.safetensors"]), "model.safetensors: sha256"),
        (dict(other_bytes=["config.json"]), "config.json: blob"),
        (dict(sha="0" * 40), "resolves to revision 0000"),
        (dict(commit="1" * 40), "comes from revision 1111"),
        (dict(entry={"model.safetensors": {"size": 9}}), "9 bytes and 2304000 bytes"),
        (dict(entry={"LICENSE": {"size": 4, "blobId": "0" * 40}}), "longer than 4 bytes"),
        (dict(entry={"LICENSE": {"blobId": None}}), "gives no hash"),
        (dict(entry={"config.json": {"rfilename": "other.json"}}), "lacks config.json"),
        (dict(extra=[{"rfilename": "../evil", "size": 1, "blobId": "0" * 40}]), "is not one of a checkpoint"),
        (dict(extra=[{"rfilename": "a/../../evil", "size": 1, "blobId": "0" * 40}]), "is not one of a checkpoint"),
        (dict(extra=[{"rfilename": "huge", "size": 1 << 40, "blobId": "0" * 40}]), "--max-bytes"),
        (dict(redirect="file:///etc/passwd"), "expected http(s)"),
        (dict(redirect="/google/embeddinggemma-2/resolve/%s/tokenizer.json" % REVISION), "more than 5 redirects"),
    ]
    for wrong, why in rows:
        with Hub(**wrong) as h:
            err = h.run(1)
            check(why in err, f"{wrong}: {err!r} does not say {why!r}")
            check(not os.path.exists(h.dir), f"{wrong}: something was published")
            check(not os.path.exists(os.path.join(h.tmp.name, "evil")), "a file outside")


@case
def a_token_others_may_read_and_a_hub_that_is_not_there_are_said():
    with Hub() as h:
        check("others may read" in h.run(1, "--token-file", h.token(0o644)), "mode of the token")
        equal(h.seen, [], "requests")
        check("over https only" in h.run(1, "--token-file", h.token(), "--endpoint", "http://hub.invalid"), "plain http")
        h.hub.server_close()
        check("cannot be reached" in h.run(3), "nobody answers")


main()
