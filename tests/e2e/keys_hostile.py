"""keys_hostile.py - heads that try to get past the key, or to leave it somewhere.

Each row is bytes as an attacker (or a broken client) would send them, its status, and whether the connection may go on. All
are sent to a server with keys, every one with a second request right behind it that must not be run when the first one ends
the connection. At the end no byte of a secret is in a log line, and a good key still works.
"""
import base64
import json
import re
import socket
import time

from inferd_keys import bearer, folder, hup, keys
from inferd_test import SLOW, TINY_BERT, Server, case, check, equal, main, wait_for

H = b"Host: x\r\n"
GET = b"GET /v1/models HTTP/1.1\r\n" + H
POST = b"POST /ai/v1/embed HTTP/1.1\r\n" + H
BODY = json.dumps({"model": TINY_BERT, "input": "a"}).encode()
SECOND = b"GET /v1/models HTTP/1.1\r\n" + H + b"X-Request-Id: second\r\nConnection: close\r\n\r\n"
CLOSED, OPEN = "closed", "open"


def rows(good, other, revoked, expired):
    """name, bytes, statuses, what becomes of the connection (OPEN: the second request is answered, too)."""
    g = good.encode()
    out = []

    def head(name, line, want=(401,), conn=OPEN, first=GET):
        out.append((name, first + line + b"\r\n\r\n", want, conn))

    def auth(name, value, **kw):
        head(name, b"Authorization: " + value, **kw)

    def key(name, value, **kw):
        head(name, b"x-api-key: " + value, **kw)

    # nothing, or nothing that is a key
    head("no header", b"X-Nothing: 1")
    auth("empty", b"")
    auth("a space", b" ")
    auth("tabs and spaces", b" \t \t ")
    auth("the scheme alone", b"Bearer")
    auth("the scheme and spaces", b"Bearer    ")
    auth("the scheme twice", b"Bearer Bearer " + g)
    auth("Basic", b"Basic " + base64.b64encode(b"user:" + g))
    auth("Digest", b'Digest username="' + g + b'"')
    auth("base64 of the key", b"Bearer " + base64.b64encode(g))
    auth("base64 junk", b"Bearer ////++++====")
    auth("a JSON token", b"Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9.")
    auth("quoted", b'Bearer "' + g + b'"')
    auth("in brackets", b"Bearer <" + g + b">")
    auth("as a parameter", b"Bearer token=" + g)
    auth("the scheme glued to it", b"Bearer" + g)
    auth("a colon behind the scheme", b"Bearer: " + g)
    auth("a tab behind the scheme", b"Bearer\t" + g)
    auth("a dash for the scheme", b"- " + g)
    auth("null", b"Bearer null")
    auth("undefined", b"Bearer undefined")
    auth("a star", b"Bearer *")
    auth("a wildcard id", b"Bearer inf_*_" + g[17:])
    auth("SQL", b"Bearer ' OR '1'='1")
    auth("a path", b"Bearer ../../keys.json")
    auth("a format", b"Bearer %s%n%x%p")
    key("empty x-api-key", b"")
    key("a scheme in x-api-key", b"Bearer " + g)
    # nearly a key
    auth("less one byte", b"Bearer " + g[:-1])
    auth("less all but the id", b"Bearer " + g[:17])
    auth("the id alone", b"Bearer " + g[4:16])
    auth("half of it", b"Bearer " + g[:len(g) // 2])
    auth("one byte more", b"Bearer " + g + b"A")
    auth("a NUL's escape behind it", b"Bearer " + g + b"%00")
    auth("its first byte twice", b"Bearer i" + g)
    auth("its last byte another", b"Bearer " + g[:-1] + (b"A" if g[-1:] != b"A" else b"B"))
    auth("in capitals", b"Bearer " + g.upper())
    auth("case swapped", b"Bearer " + g.swapcase())
    auth("the prefix in capitals", b"Bearer INF" + g[3:])
    auth("escaped", b"Bearer " + b"".join(b"%%%02x" % c for c in g))
    auth("one byte escaped", b"Bearer %69" + g[1:])
    auth("a space inside", b"Bearer " + g[:20] + b" " + g[20:])
    auth("a tab inside", b"Bearer " + g[:20] + b"\t" + g[20:])
    auth("a comma behind it", b"Bearer " + g + b",")
    auth("a list, the good one first", b"Bearer " + g + b", Bearer x")
    auth("a list, the good one last", b"Bearer x, Bearer " + g)
    auth("a semicolon behind it", b"Bearer " + g + b"; a=b")
    auth("the secret of one, the id of another", b"Bearer " + other.encode()[:17] + g[17:])
    auth("revoked", b"Bearer " + revoked.encode())
    auth("expired", b"Bearer " + expired.encode())
    key("revoked in x-api-key", revoked.encode())
    auth("256 bytes", b"Bearer " + b"inf_" + b"a" * 252)
    auth("257 bytes", b"Bearer " + b"inf_" + b"a" * 253)
    auth("8 KiB", b"Bearer " + b"a" * 8192)
    auth("the key and 8 KiB", b"Bearer " + g + b"a" * 8192)
    auth("a MB", b"Bearer " + b"a" * 1000000, want=(431,), conn=CLOSED)
    key("the key and a MB", g + b"a" * 1000000, want=(431,), conn=CLOSED)
    # bytes
    auth("Latin-1 bytes", b"Bearer " + g[:-1] + b"\xe9")
    auth("UTF-8", "Bearer schlüssel".encode())
    auth("invalid UTF-8", b"Bearer \xff\xfe\xc0\xaf")
    auth("a full-width letter", "Bearer \uff49nf_".encode() + g[4:])
    auth("a no-break space for the space", b"Bearer\xc2\xa0" + g)
    auth("a NUL behind it", b"Bearer " + g + b"\0", want=(400,), conn=CLOSED)
    auth("a NUL inside", b"Bearer " + g[:9] + b"\0" + g[9:], want=(400,), conn=CLOSED)
    auth("a bare CR", b"Bearer " + g + b"\rX: y", want=(400,), conn=CLOSED)
    auth("a bare LF", b"Bearer " + g + b"\nX: y", want=(400,), conn=CLOSED)
    auth("DEL", b"Bearer " + g + b"\x7f", want=(400,), conn=CLOSED)
    auth("an escape for a terminal", b"Bearer \x1b[31m" + g, want=(400,), conn=CLOSED)
    auth("folded", b"Bearer\r\n " + g, want=(400,), conn=CLOSED)
    auth("folded with a tab", b"Bearer\r\n\t" + g, want=(400,), conn=CLOSED)
    head("a space before the colon", b"Authorization : Bearer " + g, want=(400,), conn=CLOSED)
    head("a space before the name", b" Authorization: Bearer " + g, want=(400,), conn=CLOSED)
    head("no colon", b"Authorization Bearer " + g, want=(400,), conn=CLOSED)
    head("a NUL in the name", b"Authori\0zation: Bearer " + g, want=(400,), conn=CLOSED)
    # two of them: the first that is not empty counts
    head("two, the first bad", b"Authorization: Bearer x\r\nAuthorization: Bearer " + g)
    head("both headers, the first bad", b"x-api-key: x\r\nAuthorization: Bearer " + g)
    head("both headers, another order", b"Authorization: Bearer x\r\nx-api-key: " + g)
    head("the first Basic", b"Authorization: Basic eDp5\r\nx-api-key: " + g)
    head("two that are empty", b"Authorization: Bearer \r\nx-api-key:")
    # other places
    out.append(("in the query", b"GET /v1/models?api_key=" + g + b" HTTP/1.1\r\n" + H + b"\r\n", (401,), OPEN))
    out.append(("in the query as access_token", b"GET /v1/models?access_token=" + g + b" HTTP/1.1\r\n" + H + b"\r\n", (401,), OPEN))
    out.append(("in the path", b"GET /v1/models/" + g + b" HTTP/1.1\r\n" + H + b"\r\n", (401,), OPEN))
    out.append(("in the authority", b"GET http://" + g + b"@x/v1/models HTTP/1.1\r\n" + H + b"\r\n", (401, 400), None))
    out.append(("an absolute target", b"GET http://x/v1/models HTTP/1.1\r\n" + H + b"\r\n", (401, 400), None))
    out.append(("as a fragment", b"GET /v1/models#" + g + b" HTTP/1.1\r\n" + H + b"\r\n", (400,), CLOSED))
    out.append(("as a method", g[:12] + b" /v1/models HTTP/1.1\r\n" + H + b"\r\n", (400, 501), CLOSED))
    head("in a cookie", b"Cookie: Authorization=" + g + b"; x-api-key=" + g)
    head("Proxy-Authorization", b"Proxy-Authorization: Bearer " + g)
    head("X-Forwarded-Authorization", b"X-Forwarded-Authorization: Bearer " + g)
    head("api-key", b"api-key: " + g)
    head("X_Api_Key", b"X_Api_Key: " + g)
    head("forwarded for loopback", b"X-Forwarded-For: 127.0.0.1\r\nForwarded: for=127.0.0.1\r\nX-Real-IP: ::1")
    head("another path by a header", b"X-Original-URL: /healthz\r\nX-Rewrite-URL: /healthz")
    head("another method by a header", b"X-HTTP-Method-Override: OPTIONS")
    head("upgrade to h2c", b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA", want=(401, 400), conn=None)
    head("upgrade to a websocket", b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: " + g, want=(401, 400), conn=None)
    out.append(("HTTP/1.0", b"GET /v1/models HTTP/1.0\r\n\r\n", (401,), CLOSED))
    out.append(("HTTP/1.0 kept", b"GET /v1/models HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", (401,), OPEN))
    out.append(("HTTP/0.9", b"GET /v1/models\r\n\r\n", (400,), CLOSED))
    out.append(("a probe's path and more", b"GET /healthz/../v1/models HTTP/1.1\r\n" + H + b"\r\n", (404, 400, 401), None))
    out.append(("a probe's path, escaped", b"GET /healthz%2f..%2fv1%2fmodels HTTP/1.1\r\n" + H + b"\r\n", (404, 400, 401), None))
    out.append(("two slashes", b"GET //v1/models HTTP/1.1\r\n" + H + b"\r\n", (404, 400, 401), None))
    # bodies: judged by the head, before a byte of the body is read
    out.append(("a body", POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY, (401,), CLOSED))
    out.append(("a body over the limit", POST + b"Content-Length: 104857600\r\n\r\n" + b"x" * 65536, (401, 413), CLOSED))
    out.append(("a body that never comes", POST + b"Content-Length: 999\r\n\r\n", (401,), CLOSED))
    out.append(("a request inside the body", POST + b"Content-Length: 999\r\n\r\n" + GET + b"Authorization: Bearer " + g + b"\r\n\r\n", (401,), CLOSED))
    out.append(("in a trailer", POST + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(BODY) + BODY + b"\r\n0\r\nAuthorization: Bearer " + g + b"\r\n\r\n",
                (401,), CLOSED))
    out.append(("an announced trailer", POST + b"Trailer: x-api-key\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx-api-key: " + g + b"\r\n\r\n", (401,), CLOSED))
    out.append(("behind 100-continue", POST + b"Expect: 100-continue\r\nContent-Length: 999\r\n\r\n", (401,), CLOSED))
    out.append(("in a chunk's extension", POST + b"Transfer-Encoding: chunked\r\n\r\n1;authorization=" + g + b"\r\n{\r\n0\r\n\r\n", (401,), CLOSED))
    out.append(("length and coding", POST + b"Authorization: Bearer " + g + b"\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", (400,), CLOSED))
    return out


def taken(g):
    """Unusual, and good: name, bytes."""
    return [("lower case scheme", GET + b"authorization: bearer " + g), ("capitals", GET + b"AUTHORIZATION: BEARER " + g),
            ("spaces behind the scheme", GET + b"Authorization: Bearer    " + g), ("white space around it", GET + b"Authorization: \t Bearer " + g + b" \t "),
            ("x-api-key", GET + b"X-API-KEY: " + g), ("the first is empty", GET + b"Authorization: Bearer \r\nx-api-key: " + g),
            ("both, the first good", GET + b"Authorization: Bearer " + g + b"\r\nx-api-key: wrong"),
            ("glued to the colon", GET + b"Authorization:Bearer " + g)]


def talk(s, raw):
    """All that comes until the server closes, or says nothing for a while."""
    out = b""
    with socket.create_connection(("127.0.0.1", s.port), timeout=10 * SLOW) as k:
        try:
            k.sendall(raw)
        except OSError:
            pass  # refused while it was sent: the answer is there
        try:
            while block := k.recv(65536):
                out += block
        except ConnectionResetError:
            pass
    return out


def statuses(raw):
    return [int(x) for x in re.findall(rb"HTTP/1\.1 (\d{3}) ", raw)]


@case
def every_row_is_refused_and_leaves_nothing():
    d = folder()
    good, other = keys(d, "create", "--tenant", "acme"), keys(d, "create")
    revoked, expired = keys(d, "create"), keys(d, "create", "--expires", "1s")
    keys(d, "revoke", revoked.split("_")[1])
    time.sleep(2.1)
    table = rows(good, other, revoked, expired)
    check(len(table) >= 100, f"{len(table)} rows")
    with Server(vault_dir=d, log_level="debug", preload=[TINY_BERT]) as s:
        bad = []
        for name, raw, want, conn in table:
            got = talk(s, raw + SECOND)
            st = statuses(got)
            second = b"X-Request-Id: second\r\n" in got
            if not st or st[0] not in want or any(x not in (400, 401, 404, 413, 431, 501) for x in st):
                bad.append(f"{name}: {st or got[:80]}, expected {want}")
            elif conn is not None and second != (conn == OPEN):
                bad.append(f"{name}: the second request was {'' if second else 'not '}answered")
            elif len(st) > 1 and st[1] != 401:
                bad.append(f"{name}: the second request: {st}")
            if 401 in st and b"WWW-Authenticate: Bearer" not in got:
                bad.append(f"{name}: no challenge")
            for k in (good, other, revoked, expired):
                if k.split("_", 2)[2].encode() in got:
                    bad.append(f"{name}: the answer repeats the secret")
            if b"100 Continue" in got:
                bad.append(f"{name}: was told to go on")
        equal(bad, [], f"{len(bad)} of {len(table)} rows")
        for name, raw in taken(good.encode()):
            equal(statuses(talk(s, raw + b"\r\nConnection: close\r\n\r\n")), [200], name)
        equal(s.post("/ai/v1/embed", BODY, headers=bearer(good)).status, 200, "the good key")
        keys(d, "revoke", good.split("_")[1])
        hup(s)
        equal(s.post("/ai/v1/embed", BODY, headers=bearer(good)).status, 401, "and now it is revoked")
        log = "".join(s.log_lines)
        for k in (good, other, revoked, expired):
            secret = k.split("_", 2)[2]
            for part in (secret, secret.upper(), secret.swapcase(), secret[:20], base64.b64encode(k.encode()).decode()[24:]):
                check(part not in log, "a log line has a part of a key")
        check(len(s.workers()) == 1, "the worker lives")


@case
def a_body_is_not_waited_for():
    """The answer is there though the client has not sent a byte of the body that it announced."""
    with Server(vault_dir=folder_with_a_key(), fill=None, ready=False) as s:
        wait_for(lambda: up(s), "the listener")
        for extra in (b"Content-Length: 1000000\r\n", b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\nContent-Length: 5\r\n"):
            with socket.create_connection(("127.0.0.1", s.port), timeout=10 * SLOW) as k:
                begin = time.monotonic()
                k.sendall(POST + b"Authorization: Bearer inf_x\r\n" + extra + b"\r\n")
                equal(statuses(k.recv(65536)), [401], extra.decode())
                check(time.monotonic() - begin < 2 * SLOW, "at once")


def folder_with_a_key():
    d = folder()
    keys(d, "create")
    return d


def up(s):
    try:
        return s.get("/healthz", timeout=10).status == 200
    except OSError:
        return False


main()
