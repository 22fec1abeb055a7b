"""inferd_api.py - which server the API scripts talk to.

Without INFERD_BASE_URL each script starts its own server on the tiny golden models. With it (for example
http://127.0.0.1:8090) the running server is used, with INFERD_CHAT_MODEL and INFERD_EMBED_MODEL.
"""
import contextlib
import http.client
import json
import os
import urllib.parse

import inferd_test as t


class Target:
    def __init__(self, base, chat, embed, server=None):
        self.base, self.chat, self.embed, self.server = base.rstrip("/"), chat, embed, server
        u = urllib.parse.urlsplit(self.base)
        self.host, self.port = u.hostname, u.port or 80

    def request(self, method, path, body=None, headers=None, timeout=60):
        c = http.client.HTTPConnection(self.host, self.port, timeout=timeout * t.SLOW)
        try:
            if isinstance(body, (dict, list)):
                body = json.dumps(body)
            if isinstance(body, str):
                body = body.encode()
            c.request(method, path, body=body, headers=headers or {})
            r = c.getresponse()
            return t.Reply(r.status, {k.lower(): v for k, v in r.getheaders()}, r.read())
        finally:
            c.close()

    def get(self, path, **kw):
        return self.request("GET", path, **kw)

    def post(self, path, body, **kw):
        return self.request("POST", path, body=body, **kw)

    def need_chat(self):
        """Skip unless the chat model has a chat template."""
        m = self.get(f"/v1/models/{self.chat}").json
        if "capabilities" not in m or "chat" not in m["capabilities"]:
            raise t.Skip(f"model '{self.chat}' has no chat template")


_shared = None


@contextlib.contextmanager
def target():
    """One server for all cases of a script."""
    global _shared
    if _shared is None:
        base = os.environ.get("INFERD_BASE_URL")
        if base:
            _shared = Target(base, os.environ.get("INFERD_CHAT_MODEL", t.TINY_GEMMA),
                             os.environ.get("INFERD_EMBED_MODEL", t.TINY_BERT))
        else:
            s = t.Server()
            s.__enter__()
            _shared = Target(f"http://127.0.0.1:{s.port}", t.TINY_GEMMA, t.TINY_BERT, s)
        for name in (_shared.chat, _shared.embed):  # so that what they can do is known
            r = _shared.post("/ai/v1/models/load", {"model": name}, timeout=120)
            t.equal(r.status, 200, f"load of {name}: {r.body[:300]!r}")
    try:
        yield _shared
    except BaseException as e:
        if _shared.server and not isinstance(e, t.Skip):
            import sys
            sys.stderr.write("".join(_shared.server.log_lines[-40:]))
        raise
