"""eg2_http.py - one running server, as qualify.py and compare.py speak with it (stdlib)."""
import base64
import http.client
import json
import math
import os
import struct
import time
import urllib.parse

MIME = {".png": "image/png", ".wav": "audio/wav"}
MAX_WAIT_S = 5  # of one retry, whatever the server asks


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        try:
            return json.loads(self.body)
        except ValueError:
            return {}

    @property
    def short(self):
        return f"{self.status} {self.body[:300]!r}"


class Client:
    """Thread-safe: each request has a connection of its own."""

    def __init__(self, url, model, timeout):
        u = urllib.parse.urlsplit(url)
        if u.scheme != "http" or not u.hostname:
            raise ValueError(f"--url '{url}': expected http://host:port/ai/v1")
        self.host, self.port, self.base = u.hostname, u.port or 80, u.path.rstrip("/")
        self.model, self.timeout = model, timeout

    def send(self, method, path, body=None, headers=None):
        """path below the API base, or of the server when it begins with //"""
        if isinstance(body, dict):
            body = json.dumps(body).encode()
        where = path[1:] if path.startswith("//") else self.base + path
        c = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        try:
            c.request(method, where, body=body, headers={"Content-Type": "application/json", **(headers or {})})
            r = c.getresponse()
            return Reply(r.status, {k.lower(): v for k, v in r.getheaders()}, r.read())
        finally:
            c.close()

    def post(self, path, body, headers=None):
        return self.send("POST", path, dict(body, model=self.model), headers)

    def finish(self, path, body, tries=40, on_busy=None):
        """As a well-mannered client: a 503 that says so is tried again after the time it names, at most tries times."""
        for left in range(tries - 1, -1, -1):
            r = self.post(path, body)
            if r.status != 503 or r.json.get("retryable") is not True or not left:
                return r
            if on_busy:
                on_busy(r)
            ms = r.json.get("retry_after_ms")
            time.sleep(min(MAX_WAIT_S, ms / 1000 if isinstance(ms, (int, float)) and ms > 0 else 1))
        return r


def part_of(part, folder, url_form=False):
    """A part of an oracle's or suite's case as the API takes it."""
    if "text" in part:
        return {"type": "text", "text": part["text"]}
    name = part.get("image") or part["audio"]
    with open(os.path.join(folder, name), "rb") as f:
        data = base64.b64encode(f.read()).decode()
    mime = MIME[os.path.splitext(name)[1]]
    if url_form and "image" in part:
        return {"type": "image_url", "image_url": {"url": f"data:{mime};base64,{data}"}}
    return {"type": "media", "data": data, "mime_type": mime}


def input_of(case, folder):
    """What a case is as `input` of a request for one vector."""
    parts = [part_of(p, folder, i % 2 == 0) for i, p in enumerate(case["parts"])]
    if not case["group"]:
        return parts[0]["text"] if parts[0]["type"] == "text" else [parts[0]]
    group = {"content": parts}
    if case["title"] is not None:
        group["title"] = case["title"]
    return [group]


def body_of(case, folder, dims=None):
    body = {"input": input_of(case, folder), "task_type": case["task_type"]}
    return dict(body, dimensions=dims) if dims else body


def vectors(reply):
    return [d["embedding"] for d in reply.json.get("data", [])]


def difference(got, want):
    """Largest distance of two vectors, a wrong length or a value that is no number counting as infinite."""
    if not isinstance(got, list) or len(got) != len(want) or not all(isinstance(x, (int, float)) for x in got):
        return math.inf
    worst = max((abs(a - b) for a, b in zip(got, want)), default=math.inf)
    return worst if worst == worst else math.inf


def float32(values):
    return list(struct.unpack(f"<{len(values)}f", struct.pack(f"<{len(values)}f", *values)))


def attachments(metadata, files):
    """Body of application/vnd.antfly.attachments.v1: [(mime, data)]."""
    meta = json.dumps(metadata).encode()
    out = b"AFATT001" + struct.pack("<QII", len(meta), len(files), 0)
    out += b"".join(struct.pack("<IIQ", len(m), 0, len(d)) for m, d in files) + meta
    return out + b"".join(m.encode() + d for m, d in files)


def numeric(body):
    """(kind, rows) of application/vnd.antfly.numeric.v1"""
    magic, kind, rows, columns = struct.unpack_from("<4sIQQ", body)
    if magic != b"AFN1" or len(body) != 24 + 4 * rows * columns:
        raise ValueError(f"not a numeric frame: {body[:24]!r}, {len(body)} bytes")
    flat = struct.unpack_from(f"<{rows * columns}f", body, 24)
    return kind, [list(flat[i * columns:(i + 1) * columns]) for i in range(rows)]


def write_report(path, report):
    tmp = f"{path}.{os.getpid()}"
    with open(tmp, "w", encoding="utf-8") as f:
        json.dump(report, f, indent=1, ensure_ascii=False)
        f.write("\n")
    os.replace(tmp, path)
