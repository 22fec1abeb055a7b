"""inferd_hub.py - a hub on loopback: lists, files with redirects to a second port, and every misbehaviour a test asks for.

    with Hub() as hub:
        hub.repo("a/b", {"model.gguf": b"..."})          # one commit
        hub.faults.append(Fault("cdn", path="model.gguf", status=503, times=2, headers={"Retry-After": "0"}))
        ... inferd pull a/b --hub hub.url ...
        hub.seen("cdn", "authorization")                 # header values that reached the second origin

The first port is the hub (the list and /resolve, which redirects), the second ("cdn") gives the bytes, with ranges and
ETags. Requests are kept in hub.requests as (origin, method, path, headers).
"""
import fnmatch
import hashlib
import http.server
import json
import os
import threading
import time
import urllib.parse

from inferd_test import GOLDEN, NO_CHECKPOINT


def blob_id(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()  # as git hashes a file


class Fault:
    """origin: "hub" or "cdn"; path: a part of the request's path. Of the answers that match, the first `times` are changed:
    status and headers replaced; cut: only that many bytes of the body, then the connection is closed; location: a redirect;
    slow: seconds between blocks of 64 KiB; body: other bytes."""

    def __init__(self, origin, path="", times=1, status=None, headers=None, cut=None, location=None, slow=None, body=None,
                 no_ranges=False, after=0):
        self.origin, self.path, self.times, self.status = origin, path, times, status
        self.headers, self.cut, self.location, self.slow, self.body = headers or {}, cut, location, slow, body
        self.no_ranges, self.after = no_ranges, after


class Repo:
    def __init__(self, files, lfs_from=1024):
        self.files, self.lfs_from = dict(files), lfs_from
        self.commit = hashlib.sha1(repr(sorted((k, hashlib.sha256(v).hexdigest()) for k, v in files.items())).encode()).hexdigest()
        self.gated = None      # the token that is asked for
        self.listing = None    # another answer to the list: bytes
        self.lie = {}          # path -> fields of its entry that are changed

    def entries(self):
        out = []
        for path, data in sorted(self.files.items()):
            e = {"rfilename": path, "size": len(data), "blobId": blob_id(data)}
            if len(data) >= self.lfs_from:
                e["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            e.update(self.lie.get(path, {}))
            out.append(e)
        return out


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    @property
    def hub(self):
        return self.server.hub

    def answer(self, status, body=b"", headers=None, fault=None):
        headers = dict(headers or {})
        send = body
        if fault:
            status = fault.status or status
            if fault.status and not fault.body and not 200 <= status < 300:
                body = send = b"the hub is not well"
            if fault.body is not None:
                body = send = fault.body
            if fault.cut is not None:
                send = body[:fault.cut]
            headers.update(fault.headers)
        self.send_response(status)
        headers.setdefault("Content-Length", str(len(body)))
        for k, v in headers.items():
            if v is not None:
                self.send_header(k, v)
        self.end_headers()
        try:
            if fault and fault.slow:
                for i in range(0, len(send), 65536):
                    self.wfile.write(send[i:i + 65536])
                    time.sleep(fault.slow)
            else:
                self.wfile.write(send)
        except OSError:
            self.close_connection = True
        if len(send) != len(body):
            self.close_connection = True

    def do_GET(self):
        origin = self.server.origin
        path = urllib.parse.unquote(self.path.partition("?")[0])
        with self.hub.lock:
            self.hub.requests.append((origin, "GET", self.path, {k.lower(): v for k, v in self.headers.items()}))
            fault = next((f for f in self.hub.faults if f.origin == origin and f.path in path and f.times > 0), None)
            if fault and fault.after > 0:
                fault.after -= 1
                fault = None
            elif fault:
                fault.times -= 1
        if fault and fault.location:
            self.answer(302, b"", {"Location": fault.location})
        elif origin == "hub":
            self.on_hub(path, fault)
        else:
            self.on_cdn(path, fault)

    def on_hub(self, path, fault):
        words = path.strip("/").split("/")
        if words[:2] == ["api", "models"] and len(words) >= 6 and words[4] == "revision":
            repo = self.hub.repos.get(("/".join(words[2:4]), "/".join(words[5:])))
            if self.refused(repo):
                return
            body = repo.listing if repo.listing is not None else json.dumps(
                {"id": "x", "sha": repo.commit, "siblings": repo.entries()}).encode()
            self.answer(200, body, {"Content-Type": "application/json"}, fault)
        elif len(words) > 4 and words[2] == "resolve":
            name, commit, file = "/".join(words[:2]), words[3], "/".join(words[4:])
            repo = next((r for (n, _), r in self.hub.repos.items() if n == name and r.commit == commit), None)
            if self.refused(repo):
                return
            if file not in repo.files:
                self.answer(404, b"Entry not found")
            elif self.hub.redirect and not fault:
                self.answer(302, b"", {"Location": f"{self.hub.cdn_url}/{name}/{commit}/{urllib.parse.quote(file)}?sig=1"})
            else:
                self.give(repo.files[file], fault)
        elif words[0] == "files":
            self.on_cdn(path, fault)
        else:
            self.answer(404, b"Repository not found")

    def refused(self, repo):
        if repo is None:
            self.answer(404, b"Repository not found")
        elif repo.gated and self.headers.get("Authorization") != f"Bearer {repo.gated}":
            self.answer(403 if self.headers.get("Authorization") else 401, b"Access to this model is restricted")
        else:
            return False
        return True

    def on_cdn(self, path, fault):
        words = path.strip("/").split("/")
        if words[0] == "files":
            data = self.hub.files.get("/".join(words[1:]))
        else:
            repo = next((r for (n, _), r in self.hub.repos.items() if n == "/".join(words[:2]) and r.commit == words[2]), None)
            data = repo.files.get("/".join(words[3:])) if repo else None
        if data is None:
            self.answer(404, b"no such file")
        else:
            self.give(data, fault)

    def give(self, data, fault):
        if fault and fault.body is not None:
            data = fault.body
        etag = self.hub.etag(data) if not fault or fault.body is None else '"%s"' % hashlib.md5(data).hexdigest()
        type_ = {".png": "image/png", ".wav": "audio/wav"}.get(self.path.partition("?")[0][-4:], "application/octet-stream")
        headers = {"ETag": etag, "Content-Type": type_, "Accept-Ranges": "bytes"}
        rng, cond = self.headers.get("Range"), self.headers.get("If-Range")
        if rng and rng.startswith("bytes=") and (cond is None or cond == etag) and not (fault and fault.no_ranges) \
                and not self.hub.no_ranges:
            first, _, last = rng[6:].partition("-")
            first, last = int(first), min(int(last) if last else len(data) - 1, len(data) - 1)
            if first >= len(data):
                self.answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
                return
            if fault and fault.body is not None:
                fault.body = data[first:last + 1]
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            self.answer(206, data[first:last + 1], headers, fault)
        else:
            self.answer(200, data, headers, fault)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass


class Hub:
    def __init__(self):
        self.repos, self.files, self.faults, self.requests, self.etags = {}, {}, [], [], {}
        self.redirect, self.no_ranges = True, False
        self.lock = threading.Lock()
        self.servers = []
        for origin in ("hub", "cdn"):
            s = Server(("127.0.0.1", 0), Handler)
            s.hub, s.origin = self, origin
            self.servers.append(s)
        self.url, self.cdn_url = (f"http://127.0.0.1:{s.server_address[1]}" for s in self.servers)

    def __enter__(self):
        for s in self.servers:
            threading.Thread(target=s.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *exc):
        for s in self.servers:
            s.shutdown()
            s.server_close()

    def repo(self, name, files, revision="main", **kw):
        r = Repo(files, **kw)
        self.repos[name, revision] = r
        self.repos.setdefault((name, r.commit), r)
        return r

    def etag(self, data):
        """Of a file that stays: computed once, or a large one would be hashed for each of its pieces."""
        with self.lock:
            known = self.etags.get(id(data))
            if known is None or known[0] is not data:
                known = self.etags[id(data)] = (data, '"%s"' % hashlib.md5(data).hexdigest())
        return known[1]

    def seen(self, origin, header):
        with self.lock:
            return [h[header] for o, _, _, h in self.requests if o == origin and header in h]

    def paths(self, origin):
        with self.lock:
            return [p for o, _, p, _ in self.requests if o == origin]

    def forget(self):
        with self.lock:
            self.requests.clear()
            self.faults.clear()


def minilm():
    """The files of the tiny sentence encoder of tests/golden, as a repository has them."""
    root = os.path.join(GOLDEN, "minilm")
    out = {}
    for base, _, files in os.walk(root):
        for name in files:
            if not any(fnmatch.fnmatch(name, p) for p in NO_CHECKPOINT):
                path = os.path.join(base, name)
                with open(path, "rb") as f:
                    out[os.path.relpath(path, root)] = f.read()
    return out
