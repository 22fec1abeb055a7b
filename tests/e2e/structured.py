"""structured.py - answers that obey a schema, a grammar or an expression, on the tiny golden model (or INFERD_BASE_URL).

Random weights are enough: what the grammar forbids is never written, whatever the model would like to say.
"""
import concurrent.futures
import importlib.util
import json
import os
import re
import threading

import inferd_api
from inferd_test import TINY_GEMMA, Server, Skip, case, check, equal, main, wait_for

try:
    import jsonschema
except ImportError:
    jsonschema = None

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3},
        "born": {"type": "string", "format": "date"},
        "mail": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^[a-z]{1,8}@[a-z]{1,8}\\.org$"}]},
    },
    "required": ["name", "age", "tags", "born", "mail"],
    "additionalProperties": False,
}


def schema_of(s):
    return {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": s}}


def chat(t, **kw):
    r = t.post("/v1/chat/completions", {"model": t.chat, "messages": [{"role": "user", "content": "Hi"}],
                                        "max_tokens": 200, "temperature": 1, **kw})
    equal(r.status, 200, f"status of {kw}: {r.body[:400]!r}")
    return r.json["choices"][0]


def validate(text, schema):
    v = json.loads(text)
    if jsonschema:
        jsonschema.validate(v, schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    return v


@case
def a_schema_is_obeyed():
    with inferd_api.target() as t:
        for seed in range(8):
            c = chat(t, response_format=schema_of(PERSON), seed=seed)
            equal(c["finish_reason"], "stop", "how it ended")
            v = validate(c["message"]["content"], PERSON)
            equal(list(v), list(PERSON["properties"]), "properties in their order")
            check(0 <= v["age"] <= 130 and 1 <= len(v["name"]) <= 12 and set(v["tags"]) <= set("abc"), f"bounds: {v}")


@case
def any_object_and_a_cut():
    with inferd_api.target() as t:
        whole = 0
        for seed in range(6):
            c = chat(t, response_format={"type": "json_object"}, seed=seed, max_tokens=60)
            check(c["message"]["content"].startswith("{"), "an object")
            if c["finish_reason"] == "stop":
                whole += 1
                check(isinstance(json.loads(c["message"]["content"]), dict), "an object")
            else:
                equal(c["finish_reason"], "length", "how it ended")
        c = chat(t, response_format=schema_of(PERSON), max_tokens=3)
        equal(c["finish_reason"], "length", "cut")
        check('{"name":"'.startswith(re.sub(r"\s", "", c["message"]["content"])[:9]), "the beginning of one")


@case
def grammars_and_expressions():
    with inferd_api.target() as t:
        for seed in range(4):
            c = chat(t, regex="(yes|no), [0-9]{3}", seed=seed)
            check(re.fullmatch("(yes|no), [0-9]{3}", c["message"]["content"]), c["message"]["content"])
            equal(c["finish_reason"], "stop", "how it ended")
            c = chat(t, grammar='root ::= item ("," item){2}\nitem ::= [a-z]{2} | "(" item ")"', seed=seed)
            check(re.fullmatch(r"[a-z(),]+", c["message"]["content"]), c["message"]["content"])
        r = t.post("/v1/completions", {"model": t.chat, "prompt": "x", "regex": "\u65e5{2}", "max_tokens": 20, "logprobs": 2})
        equal(r.json["choices"][0]["text"], "\u65e5\u65e5", "characters of several tokens")
        check(all(p <= 0 for p in r.json["choices"][0]["logprobs"]["token_logprobs"]), "log probabilities of the raw row")


@case
def a_stream_and_its_whole():
    with inferd_api.target() as t:
        body = {"model": t.chat, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 200, "temperature": 1,
                "seed": 5, "response_format": schema_of(PERSON)}
        whole = t.post("/v1/chat/completions", body).json["choices"][0]["message"]["content"]
        r = t.post("/v1/chat/completions", {**body, "stream": True})
        parts = [json.loads(x[6:]) for x in r.body.decode().split("\n") if x.startswith("data: {")]
        equal("".join(p["choices"][0]["delta"].get("content", "") for p in parts), whole, "the same bytes")
        equal(parts[-1]["choices"][0]["finish_reason"], "stop", "the end")


@case
def neighbours_change_nothing():
    """Eight answers at once - schemas, expressions and free text - are what each is alone."""
    with inferd_api.target() as t:
        asks = [{"response_format": schema_of(PERSON), "seed": i} if i % 3 == 0 else
                {"regex": "[a-f]{5,30}", "seed": i} if i % 3 == 1 else {"seed": i} for i in range(8)]
        alone = [chat(t, **a, max_tokens=64)["message"]["content"] for a in asks]
        together = [None] * len(asks)

        def one(i):
            together[i] = chat(t, **asks[i], max_tokens=64)["message"]["content"]

        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(asks))]
        [x.start() for x in threads]
        [x.join() for x in threads]
        equal(together, alone, "bytes")


@case
def what_a_validator_says():
    """One answer for each of 60 schemas of the benchmark, a few at once."""
    if jsonschema is None:
        raise Skip("python's jsonschema is not here (tests/run installs it)")
    spec = importlib.util.spec_from_file_location(
        "bench_structured", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench", "structured.py"))
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    s = bench.schemas(60)
    with inferd_api.target() as t:
        tally = bench.Tally()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda i: bench.one(t, t.chat, i, s[i], 120, tally), range(len(s))))
        equal((tally.n["invalid"], tally.n["failed"]), (0, 0), "invalid and failed answers")
        equal(tally.n["valid"] + tally.n["length"], 60, "answers")
        check(tally.n["valid"] >= 30, f"most of them whole: {tally.n}")


@case
def counted_and_refused():
    with Server() as s:
        body = {"model": TINY_GEMMA, "prompt": "x", "regex": "[0-9]{4}", "max_tokens": 8}
        for _ in range(2):
            equal(s.post("/v1/completions", body).status, 200, "an answer")
        r = s.post("/v1/completions", {**body, "regex": "(?=x)"})
        equal(r.status, 400, "refused")
        check(b"lookaround" in r.body, r.body)
        for result in ("compiled", "cached", "refused"):
            wait_for(lambda: s.metric("inferd_grammars_total", model=TINY_GEMMA, result=result) == 1, result)
        check(s.metric("inferd_grammar_bytes", model=TINY_GEMMA) > 0, "memory is told")


if __name__ == "__main__":
    main()
