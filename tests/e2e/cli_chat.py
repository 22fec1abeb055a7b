"""cli_chat.py - `inferd chat` as people and scripts use it.

Against a fake server that can misbehave at will (escape sequences in answers, errors and cuts in mid-stream, a context
that is full), with and without a terminal; and against the real server with the tiny golden models.
"""
import fcntl
import http.server
import json
import os
import pty
import select
import signal
import struct
import subprocess
import tempfile
import termios
import threading
import time

from inferd_test import BIN, SLOW, Failed, Server, TINY_BERT, TINY_GEMMA, case, check, equal, golden_models, main

INFERD = os.path.join(BIN, "inferd")
STATE = tempfile.TemporaryDirectory(prefix="inferd-test-")  # nobody's own history is touched
ENV = {**{k: v for k, v in os.environ.items() if k != "INFERD_SERVER"}, "XDG_STATE_HOME": STATE.name}


class Fake:
    """A server of scripted answers. script(body) yields bytes of an event stream, or returns (status, dict)."""

    def __init__(self, script, models=None):
        fake = self
        self.script, self.bodies, self.gone = script, [], threading.Event()
        self.models = models or [{"id": "toy", "state": "ready", "family": "gemma3", "ctx_tokens": 1000,
                                  "capabilities": ["chat", "completions"]}]

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def send_json(self, status, obj):
                data = json.dumps(obj).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                self.send_json(200, {"object": "list", "data": fake.models})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path == "/ai/v1/tokenize":
                    return self.send_json(200, {"count": len(body["text"].split())})
                fake.bodies.append(body)
                answer = fake.script(body)
                if isinstance(answer, tuple):
                    return self.send_json(*answer)
                self.close_connection = True
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                try:
                    for piece in answer:
                        self.wfile.write(piece)
                        self.wfile.flush()
                except OSError:
                    fake.gone.set()

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exc):
        self.http.shutdown()
        self.http.server_close()


def event(obj, name=None):
    return ((f"event: {name}\n" if name else "") + f"data: {json.dumps(obj)}\n\n").encode()


def says(*pieces, prompt=10, finish="stop"):
    yield event({"choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]})
    for p in pieces:
        yield event({"choices": [{"index": 0, "delta": {"content": p}, "finish_reason": None}]})
    yield event({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    yield event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": len(pieces)}})
    yield b"data: [DONE]\n\n"


def run(args, text="", timeout=60, env=None):
    return subprocess.run([INFERD, *args], input=text.encode(), capture_output=True, timeout=timeout * SLOW,
                          env={**ENV, **(env or {})}, check=False)


class Terminal:
    """inferd under a pseudo-terminal of 80 columns."""

    def __init__(self, args, env=None):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(INFERD, ["inferd", *args], {**ENV, "TERM": "xterm", **(env or {})})
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.seen = b""
        self.at = 0
        self.status = None

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        os.close(self.fd)
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def _more(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.seen += data
        return bool(data)

    def expect(self, text, seconds=30):
        """Waits for text behind what was expected before."""
        want, end = text.encode(), time.monotonic() + seconds * SLOW
        while True:
            i = self.seen.find(want, self.at)
            if i >= 0:
                self.at = i + len(want)
                return
            if time.monotonic() > end or (not self._more(0.5) and self._ended()):
                raise Failed(f"{text!r} did not come; the terminal shows {self.seen[-1500:]!r}")

    def _ended(self):
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self.status = os.waitstatus_to_exitcode(status)
        return bool(pid)

    def send(self, text):
        os.write(self.fd, text.encode())

    def wait(self, seconds=30):
        end = time.monotonic() + seconds * SLOW
        while self.status is None and time.monotonic() < end:
            self._more(0.1)
            if self._ended():
                return self.status
        if self.status is None:
            raise Failed(f"did not end; the terminal shows {self.seen[-1500:]!r}")
        return self.status


@case
def a_script_gets_answers_on_stdout_and_talk_on_stderr():
    with Fake(lambda b: says("Hel", "lo")) as f:
        r = run(["chat", "--server", f.url, "--max-tokens", "9", "--system", "be brief"], "one\n\ntwo\n")
        equal(r.returncode, 0, r.stderr.decode())
        equal(r.stdout, b"Hello\nHello\n", "stdout")
        check(b"10 prompt + 2 answer tokens" in r.stderr and b"tokens/s, stop]" in r.stderr, r.stderr.decode())
        equal(len(f.bodies), 2, "a blank line is no question")
        equal([m["content"] for m in f.bodies[1]["messages"]], ["be brief", "one", "Hello", "two"], "messages")
        equal((f.bodies[0]["max_tokens"], f.bodies[0]["temperature"], f.bodies[0]["stream"]), (9, 0.7, True), "settings")


@case
def json_is_one_object_per_answer():
    with Fake(lambda b: says("a\x1b[1m", "b")) as f:
        r = run(["chat", "--server", f.url, "--json"], "q\n")
        equal(r.returncode, 0, r.stderr.decode())
        o = json.loads(r.stdout)
        equal((o["content"], o["finish_reason"], o["prompt_tokens"]), ("a\x1b[1mb", "stop", 10), "object")


def choices(*texts):
    for i, t in enumerate(texts):  # the last one first, as a server may
        yield event({"choices": [{"index": len(texts) - 1 - i, "delta": {"content": texts[-1 - i]}, "finish_reason": None}]})
    yield event({"choices": [{"index": 99, "delta": {"content": "nobody's"}, "finish_reason": None}]})
    for i in range(len(texts)):
        yield event({"choices": [{"index": i, "delta": {}, "finish_reason": "length" if i else "stop"}]})
    yield event({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 9}})
    yield b"data: [DONE]\n\n"


@case
def several_choices_are_shown_and_the_talk_goes_on_with_the_first():
    with Fake(lambda b: choices("one", "two\x1b[2J", "three")) as f:
        r = run(["chat", "--server", f.url, "--n", "3"], "q\nagain\n")
        equal((r.returncode, r.stdout), (0, b"one\ntwo\nthree\n" * 2), r.stderr.decode())
        check(b"[choice 2 of 3: length]" in r.stderr, r.stderr.decode())
        equal([m["content"] for m in f.bodies[-1]["messages"]], ["q", "one", "again"], "history")
        equal(f.bodies[-1]["n"], 3, "n")
        r = run(["chat", "--server", f.url, "--n", "3", "--json"], "q\n")
        o = json.loads(r.stdout)
        equal((o["content"], [c["content"] for c in o["choices"]]), ("one", ["one", "two\x1b[2J", "three"]), "as JSON")
        r = run(["chat", "--server", f.url, "--n", "4"], "q\n")
        check(r.returncode == 1 and b"ended before the answer did" in r.stderr, "one of them never ends")


@case
def settings_are_shown_changed_reset_and_sent():
    with Fake(lambda b: says("a")) as f, tempfile.TemporaryDirectory(prefix="inferd-test-") as d:
        schema, gbnf = write(d + "/s.json", b'{"type": "integer"}'), write(d + "/g", b'root ::= "a"')
        r = run(["chat", "--server", f.url, "--stop", '["\\n", "END"]', "--logit-bias", "5:-100,7:2", "--ignore-eos"],
                "q\n/set ignore_eos default\n/set stop ===\n/set logit_bias = 9:1 \n/set response_format " + schema +
                "\nq\n/set response_format default\n/set grammar " + gbnf + "\nq\n/set grammar default\n/set regex=a|b\nq\n"
                "/set stop\n/set regex default\n/set stop default\n/set logit_bias default\nq\n/set\n")
        equal(r.returncode, 0, r.stderr.decode())
        names = ("stop", "logit_bias", "ignore_eos", "response_format", "grammar", "regex", "n")
        equal([{k: b[k] for k in names if k in b} for b in f.bodies], [
            {"stop": ["\n", "END"], "logit_bias": {"5": -100.0, "7": 2.0}, "ignore_eos": True},
            {"stop": ["==="], "logit_bias": {"9": 1.0},
             "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "integer"}}}},
            {"stop": ["==="], "logit_bias": {"9": 1.0}, "grammar": 'root ::= "a"'},
            {"stop": ["==="], "logit_bias": {"9": 1.0}, "regex": "a|b"}, {}], "what is sent")
        lines = r.stderr.decode().splitlines()
        check('  stop                ["==="]    the answer ends before' in r.stderr.decode(), "one is shown")
        for name in names:
            check(any(line.split()[:2] == [name, "default"] for line in lines), f"{name} is shown: {lines[-20:]}")
        for words, status, why in ((["--n", "0"], 2, "option '--n': value '0'"), (["--stop", "[]"], 2, "stop: value '[]'"),
                                   (["--grammar", d + "/none"], 1, "grammar: "),
                                   (["--regex", "a", "--response-format", "json"], 2, "expected one shape")):
            r = run(["chat", "--server", f.url, *words], "q\n")
            check(r.returncode == status and why in r.stderr.decode(), f"{words}: {r.returncode} {r.stderr.decode()}")
        r = run(["chat", "--server", f.url], "/set logit_bias x\nq\n")
        check(r.returncode == 1 and b"logit_bias: value 'x': expected at most 1024 pairs" in r.stderr, r.stderr.decode())
        equal(len(f.bodies), 5, "a refused setting asks nothing")


@case
def a_hostile_model_cannot_drive_the_terminal():
    pieces = ["safe\x1b", "[2J\x1b]0;owned\x07", "\x1b]52;c;ZXZpbA==\x1b\\", "\rfake\b\b", "\u009b31m", "\u202eend"]
    with Fake(lambda b: says(*pieces)) as f:
        r = run(["chat", "--server", f.url], "q\n")
        equal(r.stdout, b"safefakeend\n", "stdout")
        # but the model gets its own text back as it was
        run(["chat", "--server", f.url], "q\nagain\n")
        equal(f.bodies[-1]["messages"][1]["content"], "".join(pieces), "history")


@case
def an_error_event_ends_a_script_with_1():
    def script(body):
        yield from list(says("par", "tial"))[:3]
        yield event({"error": {"message": "worker died", "code": "WORKER_CRASHED"}}, "error")

    with Fake(script) as f:
        r = run(["chat", "--server", f.url], "q\nnever asked\n")
        equal(r.returncode, 1, "status")
        equal(r.stdout, b"partial\n", "what came is shown")
        check(b"worker died" in r.stderr, r.stderr.decode())
        equal(len(f.bodies), 1, "requests")


@case
def a_cut_stream_is_an_error():
    with Fake(lambda b: list(says("half"))[:2]) as f:
        r = run(["chat", "--server", f.url], "q\n")
        equal((r.returncode, r.stdout), (1, b"half\n"), "status and text")
        check(b"ended before the answer did" in r.stderr, r.stderr.decode())


@case
def events_that_are_no_json_are_an_error():
    with Fake(lambda b: [b"data: {nonsense\n\n"]) as f:
        r = run(["chat", "--server", f.url], "q\n")
        equal(r.returncode, 1, "status")
        check(b"no JSON" in r.stderr, r.stderr.decode())


@case
def http_errors_show_the_servers_words():
    with Fake(lambda b: (400, {"error": {"message": "field 'x': bad", "code": "INVALID_REQUEST"}})) as f:
        r = run(["chat", "--server", f.url], "q\n")
        equal(r.returncode, 1, "status")
        check(b"field 'x': bad" in r.stderr, r.stderr.decode())


@case
def a_full_context_forgets_the_oldest_turn_and_goes_on():
    def script(body):
        if len(body["messages"]) > 3:
            return 413, {"error": {"message": "too long", "code": "CONTENT_TOO_LARGE", "n_tokens": 99, "limit": 50}}
        return says("a")

    with Fake(script) as f:
        r = run(["chat", "--server", f.url], "one\ntwo\nthree\n")
        equal((r.returncode, r.stdout), (0, b"a\na\na\n"), r.stderr.decode())
        check(b"forgot the oldest turn" in r.stderr, r.stderr.decode())
        equal([m["content"] for m in f.bodies[-1]["messages"]], ["two", "a", "three"], "the last request")


@case
def the_client_trims_by_itself_before_the_context_is_full():
    with Fake(lambda b: says("a", prompt=400 * len(b["messages"]))) as f:
        r = run(["chat", "--server", f.url, "--max-tokens", "300"], "one\ntwo\n")
        equal(r.returncode, 0, r.stderr.decode())
        check(b"forgot the oldest turn" not in r.stderr, "400 + 300 fit 1000")
        r = run(["chat", "--server", f.url, "--max-tokens", "300"], "one\ntwo\nthree\n")
        equal([m["content"] for m in f.bodies[-1]["messages"]], ["three"], "1200 + 300 do not fit")
        check(b"context of 1000 tokens is full" in r.stderr, r.stderr.decode())


@case
def a_question_that_never_fits_is_said_so():
    with Fake(lambda b: (413, {"error": {"message": "prompt is 99 tokens", "n_tokens": 99, "limit": 50}})) as f:
        r = run(["chat", "--server", f.url], "one\n")
        equal((r.returncode, len(f.bodies)), (1, 1), "status and requests")
        check(b"prompt is 99 tokens" in r.stderr, r.stderr.decode())


@case
def several_models_must_be_named():
    models = [{"id": n, "state": "ready", "family": "gemma3", "capabilities": ["chat"]} for n in ("big", "small")]
    models.append({"id": "emb", "state": "ready", "family": "bert", "capabilities": ["embeddings"]})
    with Fake(lambda b: says("a"), models) as f:
        r = run(["chat", "--server", f.url], "q\n")
        equal(r.returncode, 1, "status")
        check(b"there are several: big, small" in r.stderr, r.stderr.decode())
        equal(run(["chat", "sma", "--server", f.url], "q\n").returncode, 0, "a part of a name")
        equal(f.bodies[-1]["model"], "small", "model")
        r = run(["chat", "emb", "--server", f.url], "q\n")
        check(r.returncode == 1 and b"does not generate text" in r.stderr, r.stderr.decode())


@case
def no_server_and_wrong_words():
    r = run(["chat", "--server", "unix:/nonexistent/socket"], "q\n")
    equal(r.returncode, 1, "status")
    check(b"no server answers at unix:/nonexistent/socket" in r.stderr and b"inferd serve" in r.stderr, r.stderr.decode())
    r = run(["chat"], "q\n", env={"INFERD_SERVER": "unix:/nonexistent/other"})
    check(r.returncode == 1 and b"/nonexistent/other" in r.stderr, "INFERD_SERVER is used")
    for words in (["chat", "--temperature", "3"], ["chat", "--server", "nonsense"], ["chat", "a", "b"], ["chta"], [],
                  ["chat", "--server", "http://x", "--models-dir", "y"]):
        r = run(words)
        equal(r.returncode, 2, words)
        check(r.stderr and not r.stdout, f"{words}: complaints go to stderr")
    r = run(["chat", "--models-dir", "/nonexistent"], "q\n")
    check(r.returncode == 1 and b"/nonexistent" in r.stderr, r.stderr.decode())


@case
def redirects_are_not_followed():
    with Fake(lambda b: says("a")) as target:
        class Redirect(http.server.BaseHTTPRequestHandler):
            def log_message(self, *args):
                pass

            def do_GET(self):
                self.send_response(302)
                self.send_header("Location", target.url + "/ai/v1/models")
                self.send_header("Content-Length", "0")
                self.end_headers()

        s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Redirect)
        threading.Thread(target=s.serve_forever, daemon=True).start()
        try:
            r = run(["list", "--server", f"http://127.0.0.1:{s.server_address[1]}"])
        finally:
            s.shutdown()
            s.server_close()
        check(r.returncode == 1 and b"302" in r.stderr, r.stderr.decode())


@case
def a_conversation_on_a_terminal():
    endless = threading.Event()

    def script(body):
        q = body["messages"][-1]["content"]
        if q == "endless":
            def drip():
                yield from list(says("begin"))[:2]
                while not endless.wait(0.02):
                    yield event({"choices": [{"index": 0, "delta": {"content": " more"}, "finish_reason": None}]})
            return drip()
        if q == "fail":
            return [event({"error": {"message": "it broke"}}, "error")]
        return says(f"<{q}>")

    with Fake(script) as f, Terminal(["chat", "--server", f.url]) as t:
        t.expect("talking to toy")
        t.expect(">>> ")
        t.send("hello\r")
        t.expect("<hello>")
        t.expect("answer tokens")
        t.expect(">>> ")
        t.send("endless\r")
        t.expect("begin more more")
        t.send("\x03")
        t.expect("[stopped]")
        check(f.gone.wait(10 * SLOW), "the server saw the client leave")
        endless.set()
        t.expect(">>> ")
        t.send("\x03")
        t.expect("Ctrl-D or /quit ends")
        t.expect(">>> ")
        t.send("fail\r")
        t.expect("it broke")
        t.expect("the conversation goes on")
        t.expect(">>> ")
        t.send("/nonsense\r")
        t.expect("no command '/nonsense'")
        t.expect("/system")
        t.expect(">>> ")
        t.send("/set temperature 9\r")
        t.expect("expected a number from 0 to 2")
        t.send("/set top-k 40\r")
        t.expect("top_k = 40")
        t.send('"""\r')
        t.expect("... ")
        t.send("line one\r")
        t.expect("... ")
        t.send('line two"""\r')
        t.expect("<line one")
        t.expect("line two>")
        equal(f.bodies[-1]["top_k"], 40, "the setting is sent")
        # the stopped answer stays with its part, the failed question does not
        shape = [m["content"] for m in f.bodies[-1]["messages"]]
        equal(shape[:3], ["hello", "<hello>", "endless"], "history")
        check(shape[3].startswith("begin more"), shape[3])
        equal(shape[4], "line one\nline two", "the last question")
        t.expect(">>> ")
        t.send("\x1b[A\x1b[A\x1b[A")  # history: up to an earlier line
        t.send("\x15/stats\r")
        t.expect("turns    3")
        t.send("/clear\r")
        t.expect("forgot the conversation")
        t.expect(">>> ")  # before it the kernel would take the line, and its erase is by bytes
        t.send("h\xe9llo\x7f\x7f\x7f\x7fi\r")
        t.expect("<hi>")
        equal(len(f.bodies[-1]["messages"]), 1, "a cleared conversation")
        t.send("/quit\r")
        equal(t.wait(), 0, "status")


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)
    return path


@case
def files_go_in_front_of_a_question_or_are_refused_in_words():
    with Fake(lambda b: says("a")) as f, tempfile.TemporaryDirectory(prefix="inferd-test-") as d:
        good = write(d + "/notes.txt", "caf\u00e9 au lait".encode())
        r = run(["chat", "-m", "toy", "--server", f.url, "--file", good], "one\ntwo\n")
        equal(r.returncode, 0, r.stderr.decode())
        check(b"notes.txt: 13 bytes, 3 tokens" in r.stderr, r.stderr.decode())
        asked = [m["content"] for m in f.bodies[-1]["messages"]]
        equal(asked, ["--- notes.txt ---\ncaf\u00e9 au lait\n--- end of notes.txt ---\n\none", "a", "two"], "once")
        os.mkfifo(d + "/pipe")
        n = len(f.bodies)
        for path, why in ((write(d + "/bin", b"ok\xff"), "byte 2 is no UTF-8"), (write(d + "/nul", b"a\0b"), "byte 1"),
                          (d, "no regular file"), (d + "/pipe", "no regular file"), (d + "/none", "No such file"),
                          (write(d + "/long", b"w " * 2000), "has 2000 tokens; with 0 of files before it, 0 of the system text "
                           "and 500 for the answer (max_tokens) that is 2500, the model's context only 1000"),
                          (write(d + "/big", b"x" * ((1 << 20) + 1)), "at most 1048576")):
            r = run(["chat", "--server", f.url], f"/file {path}\nq\n")
            check(r.returncode == 1 and why in r.stderr.decode(), f"{path}: {r.stderr.decode()}")
        equal(len(f.bodies), n, "nothing is asked behind a refusal")
        some = write(d + "/some", b"w " * 300)
        r = run(["chat", "--server", f.url, "--max-tokens", "300"], f"/file {some}\n/file {some}\nq\n/file {some}\nq\n")
        equal((r.returncode, len(f.bodies)), (0, n + 2), r.stderr.decode())
        for max_tokens, files in ((401, 2), (10, 4)):
            r = run(["chat", "--server", f.url, "--max-tokens", str(max_tokens)], f"/file {some}\n" * files + "q\n")
            check(r.returncode == 1 and f"with {300 * (files - 1)} of files before it" in r.stderr.decode() and
                  f"and {max_tokens} for the answer (max_tokens) that is {300 * files + max_tokens}," in r.stderr.decode(),
                  r.stderr.decode())
        equal(len(f.bodies), n + 2, "files that are too much together ask nothing")


@case
def conversations_are_saved_loaded_undone_and_retried():
    n = [0]

    def script(body):
        n[0] += 1
        if body["messages"][-1]["content"] == "fail" or n[0] == 4:
            return [event({"error": {"message": "it broke"}}, "error")]
        return says(f"a{n[0]}")

    with Fake(script) as f, tempfile.TemporaryDirectory(prefix="inferd-test-") as d:
        path = d + "/talk.json"
        r = run(["chat", "--server", f.url, "--system", "S"], f"one\ntwo\n/undo\n/retry\n/save {path}\n/undo\n/undo\n")
        check(r.returncode == 1 and b"nothing was asked yet" in r.stderr, r.stderr.decode())
        equal(r.stdout, b"a1\na2\na3\n", "answers")
        equal([m["content"] for m in f.bodies[-1]["messages"]], ["S", "one"], "the retried question")
        equal(os.stat(path).st_mode & 0o777, 0o600, "mode")
        with open(path, encoding="utf-8") as g:
            saved = json.load(g)
        equal([m["content"] for m in saved["messages"]], ["S", "one", "a3"], "saved")
        equal(os.listdir(d), ["talk.json"], "nothing beside it")
        with Terminal(["chat", "--server", f.url], {"TERM": "dumb"}) as t:
            t.expect(">>> ")
            t.send(f"/load {path}\n")
            t.expect("loaded 2 messages")
            t.expect(">>> ")
            t.send("/retry\n")
            t.expect("it broke")
            t.expect(">>> ")
            t.send("first\\\n")
            t.expect("... ")
            t.send("second\n")
            t.expect("a5")
            t.expect(">>> ")
            t.send("/quit\n")
            equal(t.wait(), 0, "status")
            check(b"\x1b" not in t.seen, f"a dumb terminal gets no escape sequence: {t.seen[-300:]!r}")
        shape = [m["content"] for m in f.bodies[-1]["messages"]]
        equal(shape, ["S", "one", "a3", "first\nsecond"], "a failed retry keeps the old answer")
        user, asst = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
        for text, why in (("[]", "object"), ("{", ""), ('{"messages":[]}', "no saved conversation"),
                          (json.dumps({"inferd_chat": 1, "messages": [asst]}), "role 'assistant', expected 'user'"),
                          (json.dumps({"inferd_chat": 1, "messages": [user]}), "has no answer"),
                          (json.dumps({"inferd_chat": 1, "messages": [user, 3]}), "messages[1]"),
                          ('{"inferd_chat":1,"messages":' + "[" * 5000, "")):
            r = run(["chat", "--server", f.url], f"/load {write(d + '/bad', text.encode())}\nq\n")
            check(r.returncode == 1 and not r.stdout and why in r.stderr.decode(), f"{text[:60]}: {r.stderr.decode()}")
        r = run(["chat", "--server", f.url], "/save /dev/null\n")
        check(r.returncode == 1 and b"no regular file" in r.stderr, r.stderr.decode())


@case
def typed_lines_are_there_in_the_next_session():
    with Fake(lambda b: says("a")) as f, tempfile.TemporaryDirectory(prefix="inferd-test-") as d:
        env, path = {"XDG_STATE_HOME": d}, d + "/inferd/history"
        for args, keys in (([], "re\\member"), (["--no-history"], "secret"), ([], "\x1b[A")):
            with Terminal(["chat", "--server", f.url, *args], env) as t:
                t.expect(">>> ")
                t.send(keys + "\r")
                t.expect("answer tokens")
                t.expect(">>> ")
                t.send("\x03")
                t.expect("once more")
                t.expect(">>> ")
                t.send("\x03")
                equal(t.wait(), 130, "Ctrl-C twice at the prompt ends")
        equal(f.bodies[-1]["messages"][0]["content"], "re\\member", "the last line of the first session")
        with open(path, encoding="utf-8") as g:
            equal(g.read(), "re\\\\member\n" * 2, "the file")
        equal(os.stat(path).st_mode & 0o777, 0o600, "mode")
        write(path, b"".join(b"line %d\n" % i for i in range(500)))
        with Terminal(["chat", "--server", f.url], env) as t:
            t.expect(">>> ")
            t.send("/quit\r")
            equal(t.wait(), 0, "status")
        with open(path, encoding="utf-8") as g:
            lines = g.read().splitlines()
        equal((len(lines), lines[0], lines[-1]), (201, "line 300", "/quit"), "older lines leave")


@case
def end_of_input_ends_and_the_terminal_is_left_in_order():
    with Fake(lambda b: says("a")) as f, Terminal(["chat", "--server", f.url]) as t:
        t.expect(">>> ")
        t.send("\x04")
        equal(t.wait(), 0, "status")
        check(t.seen.rstrip().endswith(b"\x1b[?2004l"), f"bracketed paste is off again: {t.seen[-80:]!r}")


@case
def a_signal_ends_a_script_with_130():
    stop = threading.Event()

    def drip(body):
        yield from list(says("begin"))[:2]
        while not stop.wait(0.02):
            yield b": beat\n\n"

    with Fake(drip) as f:
        p = subprocess.Popen([INFERD, "chat", "--server", f.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, env=ENV)
        p.stdin.write(b"q\n")
        p.stdin.flush()
        equal(p.stdout.read(5), b"begin", "answer")
        p.send_signal(signal.SIGINT)
        equal(p.wait(20 * SLOW), 130, "status")
        stop.set()
        for pipe in (p.stdin, p.stdout, p.stderr):
            pipe.close()


@case
def the_real_server_talks():
    with Server() as s:
        url = f"http://127.0.0.1:{s.port}"
        r = run(["chat", TINY_GEMMA, "--server", url, "--max-tokens", "8", "--temperature", "0", "--json"], "hello\n")
        equal(r.returncode, 0, r.stderr.decode())
        one = json.loads(r.stdout)
        check(one["completion_tokens"] >= 1 and one["prompt_tokens"] > 1, one)
        r = run(["chat", "--server", url, "--max-tokens", "8", "--temperature", "0", "--json"], "hello\n")
        equal(json.loads(r.stdout)["content"], one["content"], "the only generator is found; greedy is deterministic")
        r = run(["chat", TINY_GEMMA, "--server", url, "--max-tokens", "4", "--n", "2", "--regex", "(ab)*", "--logit-bias",
                 "5:-100", "--stop", '["x", "y"]', "--json"], "hello\n")
        equal(r.returncode, 0, "the server takes what chat sends: " + r.stderr.decode())
        said = json.loads(r.stdout)["choices"]
        check(len(said) == 2 and all(c["content"].replace("ab", "") in ("", "a") for c in said), said)
        r = run(["chat", TINY_BERT, "--server", url], "hello\n")
        check(r.returncode == 1 and b"does not generate" in r.stderr, r.stderr.decode())
        r = run(["chat", "nope", "--server", url], "hello\n")
        check(r.returncode == 1 and b"no model 'nope'" in r.stderr, r.stderr.decode())


@case
def a_private_server_lives_as_long_as_the_conversation():
    with Server(ready=False) as s:  # only for its folder of models
        before = set(d for d in os.listdir("/tmp") if d.startswith("inferd-"))
        r = run(["chat", TINY_GEMMA, "--models-dir", s.models, "--max-tokens", "4"], "hello\n",
                env={"XDG_RUNTIME_DIR": ""})
        equal(r.returncode, 0, r.stderr.decode())
        check(r.stdout.strip() != b"" or b"answer tokens" in r.stderr, r.stderr.decode())
        after = set(d for d in os.listdir("/tmp") if d.startswith("inferd-") and not d.startswith("inferd-test-"))
        check(not after - before, f"left behind: {after - before}")


@case
def a_real_conversation_on_a_terminal():
    with Server() as s, Terminal(["chat", TINY_GEMMA, "--server", f"http://127.0.0.1:{s.port}", "--temperature", "0"]) as t:
        t.expect(">>> ")
        t.send("/set max_tokens 6\r")
        t.expect("max_tokens = 6")
        t.send("hello\r")
        t.expect("answer tokens", 60)
        t.send("/stats\r")
        t.expect("turns    1")
        t.send("/bye\r")
        equal(t.wait(), 0, "status")


main()
