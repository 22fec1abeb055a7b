#!/usr/bin/env python3
"""acquire.py - fetches the published EmbeddingGemma 2 checkpoint from a hub and proves what it got.

    acquire.py DIR [--endpoint URL] [--repo NAME] [--revision SHA] [--token-file FILE] [--max-bytes N] [--tries N]

The revision named must be the one the hub answers with. Every file is checked by size and by hash: SHA-256 of what the
hub keeps as large files, git's blob hash of the others; licence and model card come along. Files gather in DIR.partial;
when all are right they are synced, embeddinggemma2_receipt.json (SHA-256 of each file) is added and the folder is renamed
to DIR, so DIR is whole or absent. What a broken transfer left is continued, in this run and in the next. The token comes
from a file of its owner alone, goes to the endpoint's own origin and nowhere else, and only over https or loopback.
Where DIR exists its receipt is verified instead. Exit: 0 all there, 3 the hub cannot be reached, 1 anything else.
"""
import argparse
import datetime
import fcntl
import hashlib
import http.client
import json
import os
import re
import ssl
import stat
import sys
import urllib.parse

REPO = "google/embeddinggemma-2"
REVISION = "914f7f89142e33e77833254d9c9b90c3cef7303b"
RECEIPT = "embeddinggemma2_receipt.json"
NEEDED = ["config.json", "model.safetensors", "tokenizer.json", "processor_config.json"]
MAX_FILES, MAX_LIST_BYTES, MAX_REDIRECTS, BLOCK = 64, 4 << 20, 5, 1 << 20
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_][A-Za-z0-9_.+-]*){0,3}")


class Wrong(Exception):
    """What came is not what was asked for."""


class Unreachable(Exception):
    """Nobody answers, or too often not to the end."""


class Cut(Exception):
    """A transfer ended early; it can be continued."""


def say(text):
    print(f"acquire: {text}", file=sys.stderr, flush=True)


# ------------------------------------------------------------------ HTTP

def origin(url):
    u = urllib.parse.urlsplit(url)
    return u.scheme, (u.hostname or "").lower(), u.port or {"https": 443, "http": 80}.get(u.scheme)


def loopback(host):
    return host in ("localhost", "::1") or host.startswith("127.")


class Hub:
    def __init__(self, endpoint, token, timeout):
        self.endpoint, self.token, self.timeout = endpoint.rstrip("/"), token, timeout
        scheme, host, _ = origin(self.endpoint)
        if scheme not in ("https", "http") or not host:
            raise Wrong(f"endpoint '{endpoint}': expected http(s)://host")
        if token and scheme != "https" and not loopback(host):
            raise Wrong(f"endpoint '{endpoint}': a token is sent over https only")

    def open(self, url, headers):
        """The answer behind redirects. The token stays with the endpoint's origin."""
        for _ in range(MAX_REDIRECTS + 1):
            scheme, host, port = origin(url)
            if scheme not in ("https", "http") or not host:
                raise Wrong(f"redirect to '{url[:200]}': expected http(s)")
            if origin(self.endpoint)[0] == "https" and scheme != "https":
                raise Wrong(f"redirect from https to '{scheme}://{host}'")
            more = dict(headers, **{"User-Agent": "inferd-acquire/1", "Accept-Encoding": "identity"})
            if self.token and origin(url) == origin(self.endpoint):
                more["Authorization"] = f"Bearer {self.token}"
            u = urllib.parse.urlsplit(url)
            kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
            args = {"context": ssl.create_default_context()} if scheme == "https" else {}
            c = kind(host, port, timeout=self.timeout, **args)
            try:
                c.request("GET", (u.path or "/") + (f"?{u.query}" if u.query else ""), headers=more)
                r = c.getresponse()
            except (OSError, http.client.HTTPException) as e:
                c.close()
                raise Unreachable(f"{scheme}://{host}:{port}: {e}") from None
            if r.status not in (301, 302, 303, 307, 308):
                return c, r
            to = r.getheader("Location")
            c.close()
            if not to:
                raise Wrong(f"{scheme}://{host}: status {r.status} without Location")
            url = urllib.parse.urljoin(url, to)
        raise Wrong(f"more than {MAX_REDIRECTS} redirects")

    def listing(self, repo, revision):
        url = f"{self.endpoint}/api/models/{repo}/revision/{revision}?blobs=true"
        c, r = self.open(url, {"Accept": "application/json"})
        try:
            if r.status != 200:
                raise Wrong(f"{repo}@{revision}: the hub answers {r.status}" +
                            (" (needs a token that may read it)" if r.status in (401, 403) else ""))
            try:
                data = r.read(MAX_LIST_BYTES + 1)
            except (OSError, http.client.HTTPException) as e:
                raise Unreachable(f"{url}: {e}") from None
        finally:
            c.close()
        if len(data) > MAX_LIST_BYTES:
            raise Wrong(f"{repo}: the list of files is longer than {MAX_LIST_BYTES} bytes")
        try:
            return json.loads(data)
        except ValueError:
            raise Wrong(f"{repo}: the list of files is not JSON") from None


# ------------------------------------------------------------- what is asked

def wanted(listing, repo, revision, max_bytes):
    """[(name, bytes, kind of hash, hash)] of a listing that is what it should be."""
    if not isinstance(listing, dict) or listing.get("sha") != revision:
        raise Wrong(f"{repo}: the hub resolves to revision {str(listing.get('sha') if isinstance(listing, dict) else None)[:64]}, expected {revision}")
    files, total = [], 0
    for s in listing.get("siblings") or []:
        name, size, lfs = s.get("rfilename"), s.get("size"), s.get("lfs")
        if name in (".gitattributes", ".gitignore"):
            continue
        if not isinstance(name, str) or not NAME.fullmatch(name) or name == RECEIPT or len(name) > 200:
            raise Wrong(f"{repo}: file name {str(name)[:80]!r} is not one of a checkpoint")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise Wrong(f"{name}: size {size!r}, expected a number")
        kind, want = ("sha256", lfs.get("sha256")) if lfs else ("blob", s.get("blobId"))
        if not isinstance(want, str) or not re.fullmatch("[0-9a-f]{%d}" % (64 if lfs else 40), want):
            raise Wrong(f"{name}: the hub gives no hash of it")
        if lfs and lfs.get("size") not in (None, size):
            raise Wrong(f"{name}: {size} bytes and {lfs['size']} bytes are both given")
        files.append((name, size, kind, want))
        total += size
    if len(files) > MAX_FILES or len({f[0] for f in files}) != len(files):
        raise Wrong(f"{repo}: {len(files)} files, expected at most {MAX_FILES}, each once")
    if total > max_bytes:
        raise Wrong(f"{repo}: {total} bytes, allowed {max_bytes} (--max-bytes)")
    absent = [n for n in NEEDED if n not in {f[0] for f in files}]
    if absent:
        raise Wrong(f"{repo}@{revision} lacks {', '.join(absent)}")
    return files


def hashes(path, size):
    """SHA-256 and git's hash of a file."""
    sha, blob = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size)
    with open(path, "rb") as f:
        while part := f.read(BLOCK):
            sha.update(part)
            blob.update(part)
    return {"sha256": sha.hexdigest(), "blob": blob.hexdigest()}


# -------------------------------------------------------------- transfers

def fetch_once(hub, url, part, size, revision):
    """Continues part until it has size bytes; Cut when the connection ends before."""
    have = os.path.getsize(part) if os.path.exists(part) else 0
    if have > size:
        os.unlink(part)
        have = 0
    if have == size and have > 0:
        return
    c, r = hub.open(url, {"Range": f"bytes={have}-"} if have else {})
    try:
        commit = r.getheader("X-Repo-Commit")
        if commit and commit != revision:
            raise Wrong(f"{url}: comes from revision {commit[:64]}, expected {revision}")
        if r.status == 206:
            m = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", r.getheader("Content-Range") or "")
            if not m or int(m[1]) != have or m[3] not in ("*", str(size)):
                raise Wrong(f"{url}: part '{r.getheader('Content-Range')}', expected one from {have} of {size}")
        elif r.status in (200, 416):
            have = 0  # the whole again, or a part the hub does not know
        elif r.status >= 500 or r.status == 429:
            raise Cut(f"status {r.status}")
        else:
            raise Wrong(f"{url}: the hub answers {r.status}")
        with open(part, "r+b" if have else "wb") as f:
            f.seek(have)
            if r.status == 416:
                raise Cut("status 416")
            while have < size:
                try:
                    data = r.read(min(BLOCK, size - have))
                except (OSError, http.client.HTTPException) as e:
                    raise Cut(f"after {have} of {size} bytes: {e}") from None
                if not data:
                    raise Cut(f"after {have} of {size} bytes")
                f.write(data)
                have += len(data)
            if r.read(1):
                raise Wrong(f"{url}: longer than {size} bytes")
    finally:
        c.close()


def fetch(hub, repo, revision, file, folder, tries):
    name, size, kind, want = file
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.exists(path) and os.path.getsize(path) == size:
        h = hashes(path, size)
        if h[kind] == want:
            return h["sha256"]
    part = path + ".part"
    url = f"{hub.endpoint}/{repo}/resolve/{revision}/{urllib.parse.quote(name)}"
    for left in range(tries - 1, -1, -1):
        try:
            fetch_once(hub, url, part, size, revision)
            break
        except (Cut, Unreachable) as e:
            if not left:
                raise Unreachable(f"{name}: {e} ({tries} tries)") from None
            say(f"{name}: {e}, trying again")
    if size == 0:
        open(part, "ab").close()
    h = hashes(part, size)
    if h[kind] != want:
        os.unlink(part)
        raise Wrong(f"{name}: {kind} {h[kind]}, expected {want}")
    os.replace(part, path)
    say(f"{name}: {size} bytes")
    return h["sha256"]


# ---------------------------------------------------------------- publish

def sync(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def publish(folder, to, receipt):
    with open(os.path.join(folder, RECEIPT), "w", encoding="utf-8") as f:
        json.dump(receipt, f, indent=1, sort_keys=True)
        f.write("\n")
    for base, dirs, names in os.walk(folder, topdown=False):
        for n in names:
            rel = os.path.relpath(os.path.join(base, n), folder)
            if rel not in receipt["files"] and rel != RECEIPT:
                os.unlink(os.path.join(base, n))  # of another listing
            else:
                sync(os.path.join(base, n))
        sync(base)
    os.rename(folder, to)
    sync(os.path.dirname(os.path.abspath(to)))


def verify(folder, repo, revision):
    """A folder that is there already: its receipt must hold."""
    path = os.path.join(folder, RECEIPT)
    try:
        with open(path, encoding="utf-8") as f:
            r = json.load(f)
        named = (r["repo"], r["revision"])
        files = {n: (v["bytes"], v["sha256"]) for n, v in r["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise Wrong(f"{folder} exists and has no {RECEIPT} that can be read: {e}") from None
    if named != (repo, revision):
        raise Wrong(f"{folder} holds {named[0]}@{named[1]}, expected {repo}@{revision}")
    for name, (size, sha) in files.items():
        p = os.path.join(folder, name)
        if not os.path.isfile(p) or os.path.getsize(p) != size or hashes(p, size)["sha256"] != sha:
            raise Wrong(f"{p} is not what {RECEIPT} says")
    return len(files)


def token_of(path):
    with open(path, "rb") as f:
        mode = os.fstat(f.fileno()).st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise Wrong(f"{path}: others may read this token (mode {mode & 0o777:o}, expected 600)")
        token = f.read(4097).strip()
    if not 1 <= len(token) <= 4096 or not re.fullmatch(rb"[!-~]+", token):
        raise Wrong(f"{path}: not a token of 1 to 4096 visible characters")
    return token.decode()


def acquire(a):
    if os.path.lexists(a.dir):
        say(f"{a.dir}: {verify(a.dir, a.repo, a.revision)} files are as the receipt says")
        return
    hub = Hub(a.endpoint, token_of(a.token_file) if a.token_file else None, a.timeout)
    files = wanted(hub.listing(a.repo, a.revision), a.repo, a.revision, a.max_bytes)
    folder = a.dir.rstrip("/") + ".partial"
    os.makedirs(folder, mode=0o755, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Wrong(f"{folder} is being filled by another run") from None
        got = {}
        for f in sorted(files, key=lambda f: f[1]):
            got[f[0]] = {"bytes": f[1], "sha256": fetch(hub, a.repo, a.revision, f, folder, a.tries), "lfs": f[2] == "sha256"}
        publish(folder, a.dir, {
            "schema": 1, "repo": a.repo, "revision": a.revision, "endpoint": hub.endpoint, "files": got,
            "acquired": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")})
    finally:
        os.close(lock)
    say(f"{a.dir}: {len(got)} files, {sum(f['bytes'] for f in got.values())} bytes of {a.repo}@{a.revision}")


def main(args=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("dir")
    p.add_argument("--endpoint", default="https://huggingface.co")
    p.add_argument("--repo", default=REPO)
    p.add_argument("--revision", default=REVISION)
    p.add_argument("--token-file")
    p.add_argument("--timeout", type=float, default=60)
    p.add_argument("--tries", type=int, default=5, help="of one file")
    p.add_argument("--max-bytes", type=int, default=4 << 30)
    a = p.parse_args(args)
    if not re.fullmatch("[0-9a-f]{40}", a.revision):
        p.error("--revision: 40 hex digits (a name such as main can change under us)")
    if not re.fullmatch(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+", a.repo) or a.tries < 1:
        p.error("--repo: owner/name; --tries: at least 1")
    try:
        acquire(a)
    except Unreachable as e:
        say(f"cannot be reached: {e}")
        return 3
    except (Wrong, OSError) as e:
        say(str(e))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
