"""api_bad_input.py - a table of bad requests, each with its status and code.

After every row: /readyz answers 200, the same good requests give the same bytes as before the first row, and (when the
server is ours) the same processes are alive. Rows marked B.. retell public bug cases.
"""
import json

import inferd_api
from inferd_test import case, check, equal, main, Failed

C, E = "@chat", "@embed"  # replaced by the models' ids
HI = [{"role": "user", "content": "Hi"}]
CHAT, COMP, EMB = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"


def chat(**kw):
    return {"model": C, "messages": HI, "max_tokens": 2, **kw}


def comp(**kw):
    return {"model": C, "prompt": "a", "max_tokens": 2, **kw}


def emb(**kw):
    return {"model": E, "input": "a", **kw}


# name, path, body (dict: JSON; str or bytes: as it is), status, code[, part of the message]
ROWS = [
    # ---- bodies
    ("empty body", COMP, b"", 400, "missing_body"),
    ("no JSON", COMP, "hello", 400, "INVALID_REQUEST", "line 1, column"),
    ("cut JSON", COMP, '{"model":"x"', 400, "INVALID_REQUEST", "line 1"),
    ("mistake on line 3", COMP, '{"model":"x",\n"prompt":"a",\n"n" 1}', 400, "INVALID_REQUEST", "line 3"),
    ("trailing bytes", COMP, "{} {}", 400, "INVALID_REQUEST"),
    ("single quotes", COMP, "{'model':'x'}", 400, "INVALID_REQUEST"),
    ("trailing comma", COMP, '{"model":"x",}', 400, "INVALID_REQUEST"),
    ("NaN", COMP, '{"model":"x","temperature":NaN}', 400, "INVALID_REQUEST"),
    ("array", COMP, "[1,2]", 400, "INVALID_REQUEST", "a JSON object"),
    ("string", COMP, '"x"', 400, "INVALID_REQUEST"),
    ("null", COMP, "null", 400, "INVALID_REQUEST"),
    ("duplicate key", COMP, '{"model":"a","model":"b"}', 400, "INVALID_REQUEST", "duplicate"),
    ("NUL in a key", COMP, '{"mo\\u0000del":"a"}', 400, "INVALID_REQUEST"),
    ("invalid UTF-8", COMP, b'{"model":"\xff\xfe"}', 400, "INVALID_REQUEST"),
    ("lone surrogate", COMP, '{"model":"\\ud800"}', 400, "INVALID_REQUEST"),
    ("UTF-8 surrogate", COMP, b'{"model":"\xed\xa0\x80"}', 400, "INVALID_REQUEST"),
    ("depth 100000", COMP, '{"model":' + "[" * 100000, 400, "INVALID_REQUEST", "nested deeper"),
    ("two million empty lists", EMB, '{"model":"x","input":[' + "[]," * 2000000 + "[]]}", 413, "CONTENT_TOO_LARGE"),
    ("number over a double", COMP, '{"model":"@chat","prompt":"a","temperature":1e999}', 400, "INVALID_REQUEST", "temperature"),
    # ---- models (B7)
    ("no model", COMP, {"prompt": "a"}, 400, "INVALID_REQUEST", "'model': missing"),
    ("model null", COMP, {"model": None, "prompt": "a"}, 400, "INVALID_REQUEST"),
    ("model number", COMP, {"model": 5, "prompt": "a"}, 400, "INVALID_REQUEST"),
    ("model empty", COMP, {"model": "", "prompt": "a"}, 400, "INVALID_REQUEST"),
    ("model of 4 KiB", COMP, {"model": "x" * 4096, "prompt": "a"}, 400, "INVALID_REQUEST"),
    ("model with NUL", COMP, {"model": "a\0b", "prompt": "a"}, 400, "INVALID_REQUEST"),
    ("unknown model", COMP, {"model": "nope", "prompt": "a"}, 404, "MODEL_NOT_FOUND"),
    ("model outside that exists", COMP, {"model": "../../../../../../etc/passwd", "prompt": "a"}, 404, "MODEL_NOT_FOUND"),
    ("model outside that does not", COMP, {"model": "../../../../../../etc/nope", "prompt": "a"}, 404, "MODEL_NOT_FOUND"),
    ("model absolute", COMP, {"model": "/etc/passwd", "prompt": "a"}, 404, "MODEL_NOT_FOUND"),
    ("model through ..", COMP, {"model": "@chat/../@chat", "prompt": "a"}, 404, "MODEL_NOT_FOUND"),
    ("model with //", COMP, {"model": "a//b", "prompt": "a"}, 404, "MODEL_NOT_FOUND"),
    ("model percent", COMP, {"model": "%2e%2e%2fx", "prompt": "a"}, 404, "MODEL_NOT_FOUND"),
    ("model digest", COMP, {"model": "sha256:../../x", "prompt": "a"}, 404, "MODEL_NOT_FOUND"),
    ("model of another kind", COMP, {"model": E, "prompt": "a"}, 400, "INVALID_MODEL", "does not generate"),
    ("chat with an encoder", CHAT, {"model": E, "messages": HI}, 400, "INVALID_MODEL"),
    ("embed with a generator", EMB, {"model": C, "input": "a"}, 400, "INVALID_MODEL"),
    ("retrieve unknown", "GET /v1/models/nope", None, 404, "MODEL_NOT_FOUND"),
    ("retrieve outside", "GET /v1/models/..%2F..%2Fetc%2Fpasswd", None, 404, "MODEL_NOT_FOUND"),
    # ---- messages (B35)
    ("no messages", CHAT, {"model": C}, 400, "INVALID_REQUEST", "'messages': missing"),
    ("messages empty", CHAT, {"model": C, "messages": []}, 400, "INVALID_REQUEST", "empty array"),
    ("messages text", CHAT, {"model": C, "messages": "Hi"}, 400, "INVALID_REQUEST"),
    ("message text", CHAT, {"model": C, "messages": ["Hi"]}, 400, "INVALID_REQUEST", "messages[0]"),
    ("content null", CHAT, {"model": C, "messages": [{"role": "user", "content": None}]}, 400, "INVALID_REQUEST", "messages[0].content"),
    ("content empty list", CHAT, {"model": C, "messages": [{"role": "user", "content": []}]}, 400, "INVALID_REQUEST"),
    ("content number", CHAT, {"model": C, "messages": [{"role": "user", "content": 5}]}, 400, "INVALID_REQUEST"),
    ("no role", CHAT, {"model": C, "messages": [{"content": "x"}]}, 400, "INVALID_REQUEST", "messages[0].role"),
    ("unknown role", CHAT, {"model": C, "messages": [{"role": "king", "content": "x"}]}, 400, "INVALID_REQUEST", "king"),
    ("tool result without a call", CHAT, {"model": C, "messages": HI + [{"role": "tool", "content": "x"}]}, 400, "INVALID_MODEL"),
    ("image part", CHAT, {"model": C, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}]},
     400, "INVALID_REQUEST", "image_url"),
    ("audio part", CHAT, {"model": C, "messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, 400, "INVALID_REQUEST", "input_audio"),
    ("part without type", CHAT, {"model": C, "messages": [{"role": "user", "content": [{"text": "x"}]}]}, 400, "INVALID_REQUEST"),
    # ---- sampling (B15)
    ("top_k -5", CHAT, chat(top_k=-5), 400, "INVALID_REQUEST", "field 'top_k': got -5, expected an integer from 0 to 1000000"),
    ("top_k 1.5", CHAT, chat(top_k=1.5), 400, "INVALID_REQUEST", "top_k"),
    ("temperature 1e308", CHAT, chat(temperature=1e308), 400, "INVALID_REQUEST", "temperature"),
    ("temperature -1", CHAT, chat(temperature=-1), 400, "INVALID_REQUEST", "temperature"),
    ("temperature text", CHAT, chat(temperature="NaN"), 400, "INVALID_REQUEST", "temperature"),
    ("top_p 1.01", CHAT, chat(top_p=1.01), 400, "INVALID_REQUEST", "top_p"),
    ("min_p list", CHAT, chat(min_p=[0]), 400, "INVALID_REQUEST", "min_p"),
    ("typical_p above one", CHAT, chat(typical_p=1.5), 400, "INVALID_REQUEST", "typical_p"),
    ("repetition_penalty 0", CHAT, chat(repetition_penalty=0), 400, "INVALID_REQUEST", "repetition_penalty"),
    ("frequency_penalty 3", CHAT, chat(frequency_penalty=3), 400, "INVALID_REQUEST", "frequency_penalty"),
    ("n 0", CHAT, chat(n=0), 400, "INVALID_REQUEST", "'n'"),
    ("n 10^6", CHAT, chat(n=10**6), 400, "INVALID_REQUEST", "'n'"),
    ("seed 2^64", CHAT, chat(seed=2**64), 400, "INVALID_REQUEST", "seed"),
    ("seed 0.5", CHAT, chat(seed=0.5), 400, "INVALID_REQUEST", "seed"),
    ("max_tokens 0", CHAT, chat(max_tokens=0), 400, "INVALID_REQUEST", "max_tokens"),
    ("max_tokens -1", CHAT, chat(max_tokens=-1), 400, "INVALID_REQUEST", "max_tokens"),
    ("max_tokens 2^63", CHAT, chat(max_tokens=2**63), 400, "INVALID_REQUEST", "max_tokens"),
    ("max_completion_tokens 0", CHAT, chat(max_completion_tokens=0), 400, "INVALID_REQUEST", "max_completion_tokens"),
    ("logprobs 10^9", CHAT, chat(logprobs=10**9), 400, "INVALID_REQUEST", "logprobs"),
    ("top_logprobs 21", CHAT, chat(logprobs=True, top_logprobs=21), 400, "INVALID_REQUEST", "top_logprobs"),
    ("top_logprobs alone", CHAT, chat(top_logprobs=2), 400, "INVALID_REQUEST", "top_logprobs"),
    ("logit_bias huge id", CHAT, chat(logit_bias={"999999999": 5}), 400, "INVALID_REQUEST", "999999999"),
    ("logit_bias -1", CHAT, chat(logit_bias={"-1": 1}), 400, "INVALID_REQUEST", "logit_bias"),
    ("logit_bias abc", CHAT, chat(logit_bias={"abc": 1}), 400, "INVALID_REQUEST", "logit_bias"),
    ("logit_bias value", CHAT, chat(logit_bias={"5": 1e30}), 400, "INVALID_REQUEST", "logit_bias"),
    ("stop empty", CHAT, chat(stop=""), 400, "INVALID_REQUEST", "stop"),
    ("stop with a number", CHAT, chat(stop=["a", 1]), 400, "INVALID_REQUEST", "stop[1]"),
    ("17 stops", CHAT, chat(stop=["x"] * 17), 400, "INVALID_REQUEST", "stop"),
    ("stream text", CHAT, chat(stream="yes"), 400, "INVALID_REQUEST", "stream"),
    ("stream error is no stream", CHAT, chat(stream=True, top_k=-1), 400, "INVALID_REQUEST", "top_k"),
    ("timeout 0", CHAT, chat(timeout_ms=0), 400, "INVALID_REQUEST", "timeout_ms"),
    # ---- what we do not have
    ("tools", CHAT, chat(tools=[{"type": "function", "function": {"name": "f"}}]), 400, "INVALID_MODEL", "tool calling"),
    ("tool_choice", CHAT, chat(tool_choice="required"), 400, "INVALID_MODEL", "tool calling"),
    ("format of another type", CHAT, chat(response_format={"type": "xml"}), 400, "INVALID_REQUEST", "json_schema"),
    ("json schema without a schema", CHAT, chat(response_format={"type": "json_schema", "json_schema": {}}), 400, "INVALID_REQUEST",
     "response_format.json_schema.schema"),
    ("keyword that is not enforced", CHAT, chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {
        "type": "object", "properties": {"a": {"not": {}}}}}}), 400, "UNSUPPORTED_FEATURE", "#/properties/a"),
    ("schema without end", CHAT, chat(response_format={"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}), 400,
     "INVALID_REQUEST", "begins with itself"),
    ("minItems of a billion", CHAT, chat(response_format={"type": "json_schema", "json_schema": {"schema": {
        "type": "array", "minItems": 10**9}}}), 400, "INVALID_REQUEST", "minItems"),
    ("grammar empty", CHAT, chat(grammar=""), 400, "INVALID_REQUEST", "grammar"),
    ("grammar without root", COMP, comp(grammar='x ::= "a"'), 400, "INVALID_REQUEST", "NoRootRule"),
    ("60000 parentheses", COMP, comp(grammar="root ::= " + "(" * 60000), 400, "INVALID_REQUEST", "nested"),
    ("regex with a reference", COMP, comp(regex="(a)\\1"), 400, "UNSUPPORTED_FEATURE", "back references"),
    ("regex and grammar", COMP, comp(regex="a", grammar='root ::= "a"'), 400, "INVALID_REQUEST", "only one"),
    ("grammar and ignore_eos", COMP, comp(regex="a", ignore_eos=True), 400, "INVALID_REQUEST", "ignore_eos"),
    ("audio out", CHAT, chat(modalities=["text", "audio"]), 400, "UNSUPPORTED_FEATURE", "modalities"),
    ("backend", CHAT, chat(backend="tpu"), 400, "INVALID_REQUEST", "backend"),
    # ---- completions
    ("no prompt", COMP, {"model": C}, 400, "INVALID_REQUEST", "prompt"),
    ("prompt empty", COMP, comp(prompt=""), 400, "INVALID_REQUEST", "prompt"),
    ("prompt empty list", COMP, comp(prompt=[]), 400, "INVALID_REQUEST", "prompt"),
    ("prompt mixed", COMP, comp(prompt=[1, "a"]), 400, "INVALID_REQUEST", "prompt[1]"),
    ("prompt id too large", COMP, comp(prompt=[10**9]), 400, "INVALID_REQUEST", "prompt[0]"),
    ("prompt id negative", COMP, comp(prompt=[-1]), 400, "INVALID_REQUEST", "prompt[0]"),
    ("129 prompts", COMP, comp(prompt=["a"] * 129), 400, "INVALID_REQUEST", "prompt"),
    ("logprobs 65", COMP, comp(logprobs=65), 400, "INVALID_REQUEST", "logprobs"),
    ("best_of", COMP, comp(best_of=3), 400, "UNSUPPORTED_FEATURE", "best_of"),
    ("suffix", COMP, comp(suffix="x"), 400, "UNSUPPORTED_FEATURE", "suffix"),
    # ---- embeddings (B23)
    ("no input", EMB, {"model": E}, 400, "INVALID_REQUEST", "input"),
    ("input empty", EMB, emb(input=""), 400, "INVALID_REQUEST", "input"),
    ("input empty list", EMB, emb(input=[]), 400, "INVALID_REQUEST", "input"),
    ("one input empty", EMB, emb(input=["a", ""]), 400, "INVALID_REQUEST", "input[1]"),
    ("one input null", EMB, emb(input=["a", None]), 400, "INVALID_REQUEST", "input[1]"),
    ("input id too large", EMB, emb(input=[10**9]), 400, "INVALID_REQUEST", "input[0]"),
    ("2049 inputs", EMB, emb(input=["a"] * 2049), 413, "CONTENT_TOO_LARGE", "2049"),
    ("dimensions 0", EMB, emb(dimensions=0), 400, "INVALID_REQUEST", "dimensions"),
    ("dimensions too many", EMB, emb(dimensions=60000), 400, "INVALID_REQUEST", "dimensions"),
    ("encoding", EMB, emb(encoding_format="int8"), 400, "INVALID_REQUEST", "encoding_format"),
    ("task_type", "/ai/v1/embed", emb(task_type="POETRY"), 400, "INVALID_REQUEST", "task_type"),
    ("task and input type", "/ai/v1/embed", emb(task_type="CLUSTERING", input_type="query"), 400, "INVALID_REQUEST", "contradicts"),
    ("identity", "/ai/v1/embed", emb(model_identity="0" * 64), 409, "MODEL_IDENTITY_MISMATCH", "identity"),
    ("input and input_tokens", "/ai/v1/embed", emb(input_tokens=[5]), 400, "INVALID_REQUEST", "exactly one"),
    # ---- the rest
    ("tokenize without text", "/ai/v1/tokenize", {"model": C}, 400, "INVALID_REQUEST", "text"),
    ("tokenize a number", "/ai/v1/tokenize", {"model": C, "text": 5}, 400, "INVALID_REQUEST", "text"),
    ("detokenize nothing", "/ai/v1/detokenize", {"model": C, "tokens": []}, 400, "INVALID_REQUEST", "tokens"),
    ("detokenize a huge id", "/ai/v1/detokenize", {"model": C, "tokens": [2**31]}, 400, "INVALID_REQUEST", "tokens[0]"),
    ("load unknown", "/ai/v1/models/load", {"model": "nope"}, 404, "MODEL_NOT_FOUND"),
    ("unload outside", "/ai/v1/models/unload", {"model": "../x"}, 404, "MODEL_NOT_FOUND"),
    ("echo without a model", "/ai/v1/echo", b"x", 400, "INVALID_REQUEST"),
    ("echo of nobody", "/ai/v1/echo?model=nope", b"x", 404, "MODEL_NOT_FOUND"),
    ("multipart", COMP, b"--x\r\n", 415, "UNSUPPORTED_MEDIA_TYPE", "multipart", {"Content-Type": "multipart/form-data; boundary=x"}),
    ("timeout header", COMP, comp(), 400, "INVALID_REQUEST", "X-Request-Timeout-Ms", {"X-Request-Timeout-Ms": "-5"}),
    ("timeout header text", COMP, comp(), 400, "INVALID_REQUEST", "X-Request-Timeout-Ms", {"X-Request-Timeout-Ms": "soon"}),
]


def code_of(path, body):
    """The code of an error answer; checks its shape on the way."""
    e = json.loads(body)
    if path.startswith("/v1/"):
        e = e["error"]
        check(set(e) >= {"message", "type", "param", "code", "retryable"}, f"OpenAI shape: {e}")
        return e["code"], e["message"]
    check(isinstance(e["error"], str) and isinstance(e["message"], str) and "retryable" in e, f"flat shape: {e}")
    return e["error"], e["message"]


def good(t):
    """Bytes that must not change: vectors, and the choices of a greedy answer."""
    v = t.post("/v1/embeddings", {"model": t.embed, "input": ["The same", "every time"], "encoding_format": "float"})
    g = t.post("/v1/completions", {"model": t.chat, "prompt": "The same", "max_tokens": 4, "seed": 1, "logprobs": 2})
    equal((v.status, g.status), (200, 200), f"good requests ({v.body[:200]!r}, {g.body[:200]!r})")
    begin = g.body.index(b'"choices"')
    return v.body, g.body[begin:g.body.index(b',"timings"')]


def pids(t):
    return sorted(t.server.workers()) + [t.server.proc.pid] if t.server else None


def fill(x, t):
    if isinstance(x, str):
        return x.replace(C, t.chat).replace(E, t.embed)
    if isinstance(x, dict):
        return {k: fill(v, t) for k, v in x.items()}
    if isinstance(x, list):
        return [fill(v, t) for v in x]
    return x


def one(t, row):
    name, path, body, status, code = row[:5]
    part = row[5] if len(row) > 5 else ""
    method, _, path = path.rpartition(" ")
    r = t.request(method or "POST", path, None if body is None else fill(body, t), headers=row[6] if len(row) > 6 else None)
    if r.status != status:
        raise Failed(f"{name}: status {r.status}, expected {status}: {r.body[:300]!r}")
    got, message = code_of(path, r.body)
    equal(got, code, f"{name}: code ({message})")
    check(part in message, f"{name}: message {message!r} says {part!r}")
    check(status < 500 or r.headers.get("x-should-retry") == "false", f"{name}: x-should-retry")


@case
def every_row_is_refused_and_costs_nothing():
    with inferd_api.target() as t:
        before, alive = good(t), pids(t)
        for row in ROWS:
            one(t, row)
            equal(t.get("/readyz", timeout=10).status, 200, f"{row[0]}: /readyz after it")
            equal(good(t), before, f"{row[0]}: the good requests after it")
            equal(pids(t), alive, f"{row[0]}: the processes after it")
        check(len(ROWS) >= 60, "a table of at least 60 rows")


@case
def outside_names_tell_nothing():
    """B7: the same answer whether the path outside exists or not."""
    with inferd_api.target() as t:
        def answer(name):
            r = t.post("/ai/v1/completions", {"model": name, "prompt": "a"})
            return r.status, r.body.replace(name.encode(), b"NAME")
        equal(answer("../../../../../../../etc/passwd"), answer("../../../../../../../etc/nopass"), "answers")


@case
def one_bad_item_leaves_its_neighbours():
    """B23: per_item answers the good ones as they are alone, and names the bad ones in place."""
    with inferd_api.target() as t:
        texts = [f"text number {i}" for i in range(32)]
        bad = {3: "", 11: 5, 20: None, 31: [10**9]}
        mixed = [bad.get(i, s) for i, s in enumerate(texts)]
        r = t.post("/ai/v1/embed", {"model": t.embed, "input": mixed, "error_policy": "per_item"}).json
        equal([d["index"] for d in r["data"]], [i for i in range(32) if i not in bad], "rows")
        equal(sorted(e["index"] for e in r["errors"]), sorted(bad), "errors")
        equal(r["summary"], {"total": 32, "succeeded": 28, "failed": 4}, "summary")
        for e in r["errors"]:
            equal((e["code"], e["status"], e["retryable"], e["stage"]), ("INVALID_REQUEST", 400, False, "parse"), "error")
        alone = t.post("/ai/v1/embed", {"model": t.embed, "input": texts[7]}).json["data"][0]["embedding"]
        check(next(d["embedding"] for d in r["data"] if d["index"] == 7) == alone, "a neighbour has the vector it has alone")
        f = t.post("/ai/v1/embed", {"model": t.embed, "input": mixed})
        equal((f.status, f.json["input_index"]), (400, 3), "fail_fast names the first")


@case
def too_long_is_refused_with_numbers_or_cut_with_a_flag():
    """B13: n_tokens and limit in the refusal; truncate answers and says so."""
    with inferd_api.target() as t:
        text = "word " * 20000
        r = t.post("/ai/v1/embed", {"model": t.embed, "input": text})
        check(r.status in (400, 413), f"status {r.status}")
        check(r.json["n_tokens"] > r.json["limit"] > 0, f"numbers: {r.json}")
        cut = t.post("/ai/v1/embed", {"model": t.embed, "input": ["short", text], "truncate": True}).json
        equal([d.get("truncated", False) for d in cut["data"]], [False, True], "flags")
        r = t.post("/ai/v1/completions", {"model": t.chat, "prompt": text, "max_tokens": 1})
        check(r.status in (400, 413), f"status {r.status}")
        check(r.json["n_tokens"] > r.json["limit"] > 0, f"numbers: {r.json}")


if __name__ == "__main__":
    main()
