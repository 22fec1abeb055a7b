"""remote_media.py - files that requests name by URL: who may be asked, what comes, and every refusal.

The hub emulator gives the files; its two ports are 127.0.0.1, which is allowed here by media_private_hosts. One server for
the rows that share a configuration.
"""
import base64
import json
import os
import signal
import socket
import threading
import time

from inferd_hub import Fault, Hub
from inferd_test import GOLDEN, SLOW, TINY_GEMMA, Server, case, check, children, copy_model, equal, main, wait_for

MODEL = "embeddinggemma2"
hub = server = None


def blob(name):
    with open(os.path.join(GOLDEN, MODEL, name), "rb") as f:
        return f.read()


PICTURES = sorted(f for f in os.listdir(os.path.join(GOLDEN, MODEL)) if f.endswith(".png"))
SOUND = sorted(f for f in os.listdir(os.path.join(GOLDEN, MODEL)) if f.endswith(".wav"))[0]


def serve():
    global hub, server
    if server is None:
        hub = Hub().__enter__()
        for name in PICTURES + [SOUND]:
            hub.files[name] = blob(name)
        server = Server(fill=lambda d: [copy_model(m, d) for m in (MODEL, TINY_GEMMA)], media_hosts=["127.0.0.1", "localhost", "*.invalid"],
                        media_private_hosts="127.0.0.1", media_fetch_bytes=200000, media_fetch_timeout_ms=3000).__enter__()
    return server


def fresh():
    s = serve()
    hub.forget()
    return s


def url(name):
    return f"{hub.url}/files/{name}"


def image(u):
    return {"content": [{"type": "image_url", "image_url": {"url": u}}]}


def ask(inputs, s=None, **more):
    return (s or serve()).post("/ai/v1/embed", {"model": MODEL, "input": inputs, **more})


def refused(r, status, code, *says):
    equal((r.status, r.json.get("error")), (status, code), r.body[:500])
    for s in says:
        check(s in r.json["message"], r.json["message"])


def inline(name):
    return {"content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(blob(name)).decode()}}]}


@case
def a_remote_file_is_the_same_as_an_inline_one():
    fresh()
    one, two = ask([image(url(PICTURES[0]))]), ask([inline(PICTURES[0])])
    equal((one.status, two.status), (200, 200), one.body[:300])
    equal(one.json["data"], two.json["data"], "vectors")
    r = ask([{"content": [{"type": "media", "url": url(SOUND)}, {"type": "text", "text": "a"}]}])
    equal(r.status, 200, r.body[:300])
    r = ask([{"content": [{"type": "image_url", "image_url": url(PICTURES[0])}]}, inline(PICTURES[1]), {"content": [{"type": "text", "text": "text"}]}])
    equal(r.status, 200, r.body[:300])
    equal(hub.seen("hub", "authorization") + hub.seen("hub", "cookie"), [], "nothing of the client's goes along")


@case
def the_same_url_twice_is_fetched_once():
    fresh()
    r = ask([image(url(PICTURES[0])) for _ in range(20)])
    equal((r.status, len(r.json["data"])), (200, 20), r.body[:300])
    equal(len(hub.paths("hub")), 1, "requests")


@case
def redirects_are_looked_at_again():
    fresh()
    hub.faults.append(Fault("hub", PICTURES[0], location=f"{hub.cdn_url}/files/{PICTURES[0]}"))
    equal(ask([image(url(PICTURES[0]))]).status, 200, "to an allowed host")
    for to, says in ((hub.url.replace("127.0.0.1", "10.0.0.1"), "over https only"), ("https://example.com/x.png", "not among the hosts"),
                     ("https://user@127.0.0.1/x", "user name"), ("file:///etc/passwd", "no http(s) URL"),
                     ("gopher://127.0.0.1/x", "no http(s) URL")):
        hub.forget()
        hub.faults.append(Fault("hub", PICTURES[0], location=to))
        refused(ask([image(url(PICTURES[0]))]), 403, "CONTENT_NOT_ALLOWED", says)
    hub.forget()
    hub.faults.append(Fault("hub", PICTURES[0], location=url(PICTURES[0]), times=9))
    refused(ask([image(url(PICTURES[0]))]), 403, "CONTENT_NOT_ALLOWED", "after 3 redirects")


@case
def who_is_not_allowed_is_not_asked():
    fresh()
    for u, says in (("https://example.com/x.png", "not among the hosts that media_hosts allows"),
                    ("http://example.invalid/x.png", "over https only"), ("https://a:b@x.invalid/x", "user name"),
                    ("https://127.0.0.1.example.com/x", "not among the hosts")):
        refused(ask([image(u)]), 403, "CONTENT_NOT_ALLOWED", says)
    # localhost is allowed as a name and is no public address, and not in media_private_hosts
    refused(ask([image(url(PICTURES[0]).replace("127.0.0.1", "localhost"))]), 403, "CONTENT_NOT_ALLOWED",
            "no address of the public internet")
    equal(hub.paths("hub"), [], "nobody was asked")
    refused(ask([image("file:///etc/passwd")]), 403, "CONTENT_NOT_ALLOWED", "remote media is off")


@case
def all_urls_are_looked_at_before_one_is_asked():
    fresh()
    refused(ask([image(url(PICTURES[0])), image("https://example.com/x.png")]), 403, "CONTENT_NOT_ALLOWED")
    equal(hub.paths("hub"), [], "nobody was asked")
    refused(ask([image(f"{url(PICTURES[0])}?{i}") for i in range(17)]), 400, "INVALID_REQUEST", "more than 16 remote files")
    equal(hub.paths("hub"), [], "nobody was asked")
    r = ask([image(f"{url(PICTURES[0])}?{i}") for i in range(16)])
    equal((r.status, len(hub.paths("hub"))), (200, 16), f"sixteen: {r.body[:200]!r}")


@case
def what_is_too_large_or_of_another_type_is_refused():
    fresh()
    hub.files["big.png"] = b"x" * 200001
    refused(ask([image(url("big.png"))]), 413, "CONTENT_TOO_LARGE", "more than 200000 bytes")
    hub.faults.append(Fault("hub", "big.png", headers={"Content-Length": None, "Transfer-Encoding": None, "Connection": "close"}))
    refused(ask([image(url("big.png"))]), 413, "CONTENT_TOO_LARGE", "more than 200000 bytes")
    hub.files["page.html"] = b"<html>"
    refused(ask([image(url("page.html"))]), 403, "CONTENT_NOT_ALLOWED", "application/octet-stream")
    r = ask([image(url(SOUND))])
    equal(r.status, 400, r.body[:300])


@case
def the_other_sides_faults_are_told_as_such():
    fresh()
    refused(ask([image(url("absent.png"))]), 502, "UPSTREAM_FAILURE", "404")
    for fault, says in ((Fault("hub", PICTURES[0], status=500), "500"), (Fault("hub", PICTURES[0], status=401), "401"),
                        (Fault("hub", PICTURES[0], cut=10), "127.0.0.1"), (Fault("hub", PICTURES[0], body=b""), "empty file")):
        hub.forget()
        hub.faults.append(fault)
        refused(ask([image(url(PICTURES[0]))]), 502, "UPSTREAM_FAILURE", says)
    refused(ask([image("http://127.0.0.1:9/x.png")]), 502, "UPSTREAM_FAILURE", "127.0.0.1:9")
    refused(ask([image("https://nobody.invalid/x.png")]), 502, "UPSTREAM_FAILURE", "resolve host")


@case
def a_slow_server_is_given_its_time_and_no_more():
    fresh()
    hub.files["slow.png"] = b"x" * 190000
    hub.faults.append(Fault("hub", "slow.png", slow=5 * SLOW))
    begin = time.monotonic()
    refused(ask([image(url("slow.png"))]), 502, "UPSTREAM_FAILURE", "3000 ms")
    check(2.5 < time.monotonic() - begin < 8 * SLOW, "time")
    hub.faults.append(Fault("hub", "slow.png", slow=5 * SLOW))
    r = ask([image(url("slow.png"))], timeout_ms=500)
    equal((r.status, r.json["error"]), (504, "DEADLINE_EXCEEDED"), r.body)


def children_of_the_fetcher(s):
    return [p for p in s.get("/ai/v1/security").json["processes"] if p["role"] == "fetcher_child"]


@case
def a_child_says_which_walls_it_has():
    s = fresh()
    hub.files["slow.png"] = b"x" * 190000
    hub.faults.append(Fault("hub", "slow.png", slow=1))
    t = threading.Thread(target=lambda: ask([image(url("slow.png"))]))
    t.start()
    wait_for(lambda: children_of_the_fetcher(s), "a child", 10)
    child, = children_of_the_fetcher(s)
    equal((child["errand"], [w["name"] for w in child["layers"] if not w["holds"]]), ("media", []), child)
    equal({w["name"] for w in child["layers"]}, {"rlimits", "not_dumpable", "no_new_privs", "landlock", "seccomp"}, "layers")
    with open(f"/proc/{child['pid']}/status", encoding="ascii") as f:
        text = f.read()
    check("Seccomp:\t2" in text and "NoNewPrivs:\t1" in text, text)
    fetcher, = [p for p in s.get("/ai/v1/security").json["processes"] if p["role"] == "fetcher"]
    check(f"PPid:\t{fetcher['pid']}\n" in text, "it is the fetcher's")
    equal([(e["errand"], e["allowed"], set(e["layers"])) for e in fetcher["errands"]],
          [("media", True, {w["name"] for w in child["layers"]}), ("pull", False, {w["name"] for w in child["layers"]})], "the policy")
    t.join()
    equal(children_of_the_fetcher(s), [], "gone with its file")


@case
def a_child_that_dies_is_one_failed_file():
    s = fresh()
    hub.files["slow.png"] = b"x" * 190000
    hub.faults.append(Fault("hub", "slow.png", slow=2))
    before = set(children(s.proc.pid))
    got = []
    t = threading.Thread(target=lambda: got.append(ask([image(url("slow.png"))])))
    t.start()
    end = time.monotonic() + 2 * SLOW
    while not hub.paths("hub") and time.monotonic() < end:
        time.sleep(0.01)
    new = [pid for pid, name in set(children(s.proc.pid)) - before if name == "inferd"]
    equal(len(new), 1, f"children of the fetcher: {new}")
    os.kill(new[0], signal.SIGKILL)
    t.join()
    refused(got[0], 502, "UPSTREAM_FAILURE", "died")
    equal(ask([image(url(PICTURES[0]))]).status, 200, "the next one")


@case
def a_client_that_leaves_ends_its_fetch():
    s = fresh()
    hub.files["slow.png"] = b"x" * 190000
    hub.faults.append(Fault("hub", "slow.png", slow=2))
    before = set(children(s.proc.pid))
    body = json.dumps({"model": MODEL, "input": [image(url("slow.png"))]}).encode()
    with socket.create_connection(("127.0.0.1", s.port)) as c:
        c.sendall(b"POST /ai/v1/embed HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        wait_for(lambda: s.metric("inferd_fetches_active") == 1, "the fetch", 5)
    wait_for(lambda: s.metric("inferd_fetches_active") == 0, "its end", 5)
    wait_for(lambda: set(children(s.proc.pid)) == before, "the end of its child", 5)
    equal(s.metric("inferd_request_held_bytes"), 0, "held")
    check(s.metric("inferd_fetches_total", kind="media", result="CANCELLED") >= 1, "metric")


@case
def nothing_is_fetched_before_the_model_is_known():
    s = fresh()
    r = s.post("/ai/v1/embed", {"model": "nope", "input": [image(url(PICTURES[0]))]})
    equal((r.status, hub.paths("hub")), (404, []), r.body[:200])


def talked(s, path, part, **more):
    key = "input" if path.endswith("responses") else "messages"
    text = {"type": "input_text" if key == "input" else "text", "text": "What is this?"}
    r = s.post(path, {"model": TINY_GEMMA, key: [{"role": "user", "content": [text, part]}], **more})
    return r.status, r.body


@case
def chat_refuses_a_remote_picture_as_it_refuses_an_inline_one():
    """No model here sees in chat: a URL is refused before anyone is asked for it, in the words that a data: URL meets."""
    fresh()
    data = inline(PICTURES[0])["content"][0]["image_url"]["url"]
    places = [url(PICTURES[0]), url("absent.png"), "https://example.com/x.png", "http://10.0.0.1/x.png", "file:///etc/passwd", "s3://a/b", data]
    shapes = [("/v1/chat/completions", lambda u: {"type": "image_url", "image_url": {"url": u}}),
              ("/v1/chat/completions", lambda u: {"type": "image_url", "image_url": u}),
              ("/ai/v1/chat/completions", lambda u: {"type": "media", "url": u}),
              ("/ai/v1/generate", lambda u: {"type": "image_url", "image_url": {"url": u, "detail": "low"}}),
              ("/v1/responses", lambda u: {"type": "input_image", "image_url": u}),
              ("/ai/v1/responses", lambda u: {"type": "input_image", "image_url": {"url": u}})]
    with Server(fill=lambda d: copy_model(TINY_GEMMA, d)) as off:
        for s in (serve(), off):
            for path, part in shapes:
                for more in ({}, {"stream": True}):
                    got = {talked(s, path, part(u), **more) for u in places}
                    equal(len(got), 1, f"{path}: answers differ: {got}")
                    status, body = got.pop()
                    equal(status, 400, f"{path}: {body}")
                    names = "input_text" if path.endswith("responses") else f'\\"{part("")["type"]}\\"'  # what is taken, or what is not
                    check(b"INVALID_REQUEST" in body and names.encode() in body, f"{path}: {body}")
            ok = s.post("/v1/chat/completions", {"model": TINY_GEMMA, "max_tokens": 1, "messages": [{"role": "user", "content": url(PICTURES[0])}]})
            equal(ok.status, 200, "a URL in a text is text")
    equal(hub.paths("hub") + hub.paths("cdn"), [], "nobody was asked")
    equal(serve().metric("inferd_request_held_bytes"), 0, "held")


@case
def metrics_count_them():
    s = serve()
    check(s.metric("inferd_fetches_total", kind="media", result="OK") >= 4, "ok")
    check(s.metric("inferd_fetches_total", kind="media", result="TOO_LARGE") >= 2, "too large")
    check(s.metric("inferd_fetch_bytes_total", kind="media") >= len(blob(PICTURES[0])), "bytes")
    equal(s.metric("inferd_fetches_active"), 0, "active")
    equal(s.metric("inferd_request_held_bytes"), 0, "held")


@case
def without_media_hosts_nothing_is_fetched():
    fresh()
    with Server(fill=lambda d: copy_model(MODEL, d)) as s:
        refused(ask([image(url(PICTURES[0]))], s), 403, "CONTENT_NOT_ALLOWED", "remote media is off")
        # an earlier case's fetch that was given up may still be noted now
        check(not any(PICTURES[0] in p for p in hub.paths("hub")), f"nobody was asked: {hub.paths('hub')}")


@case
def the_server_ends_well():
    global server
    s = serve()
    equal(s.stop(), 0, "status")
    check(not any(e.get("event") == "fetcher_lost" for e in s.log()), "no complaint")
    server = None


if __name__ == "__main__":
    main()
