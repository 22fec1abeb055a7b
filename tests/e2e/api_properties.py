"""api_properties.py - requests made up from docs/openapi.yaml (PyPI: schemathesis) against a server with tiny models.

Whatever a client sends: no 500, no answer that the document does not describe, and the server lives. The model's name is put
right in most requests, else nearly all would end with 404. Everything is drawn from fixed seeds, so a failure comes again.
"""
import json
import os
import time

from inferd_test import ROOT, SLOW, TINY_BERT, TINY_GEMMA, Server, Skip, case, check, equal, main

try:
    import hypothesis
    import requests
    import schemathesis
    import yaml
    from schemathesis.checks import load_all_checks
except ImportError:
    schemathesis = None

SECONDS = 30  # of all operations together
ALLOWED_5XX = {503, 504, 507}  # busy, too late, can never fit: each with its code, see below
BATCH = 4  # requests between two looks at the clock
EMBEDDERS = ("embed", "rerank", "chunk", "decisions")


def document():
    if schemathesis is None:
        raise Skip("schemathesis is not installed (tests/run makes a venv with it)")
    load_all_checks()
    return schemathesis.openapi.from_path(os.path.join(ROOT, "docs", "openapi.yaml"))


def model_for(path):
    return TINY_BERT if any(w in path for w in EMBEDDERS) else TINY_GEMMA


def put_right(case_, n):
    """Three of four requests name a model that is there; answers are short."""
    body = case_.body
    if not isinstance(body, dict):
        return
    if n % 4 and "model" in body:
        body["model"] = model_for(case_.path)
    for key in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if isinstance(body.get(key), int) and not isinstance(body[key], bool) and body[key] > 8:
            body[key] = 8
    if isinstance(body.get("n"), int) and not isinstance(body["n"], bool):
        body["n"] = min(body["n"], 2)


class Tally:
    def __init__(self):
        self.by_status = {}
        self.n = 0
        self.failed = None


def wrong_stream(body):
    """What is wrong with the events of a stream, or None."""
    try:
        lines = body.decode("utf-8").splitlines()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: ") and line != "data: [DONE]"]
    except ValueError as e:
        return f"a stream whose data is no JSON: {e}"
    odd = [line for line in lines if line and not line.startswith(("data: ", "event: ", ":"))]
    if odd:
        return f"a stream with a line of no event: {odd[0][:200]}"
    if not events or any(not isinstance(e, dict) or not {"id", "type", "error", "stage"} & set(e) for e in events):
        return "a stream with an event that says neither what it belongs to nor what is wrong"
    return None


def wrong(made, r, checks):
    """What is wrong with an answer, or None."""
    if r.status_code >= 500 and r.status_code not in ALLOWED_5XX and not operation_may_fail(made, r):
        return "a server error"
    if any(v.startswith("text/event-stream") for v in r.headers.get("content-type", [])):
        # the document describes the data of an event; the check would hold the event itself against it
        checks = tuple(c for c in checks if c.__name__ != "response_schema_conformance")
        if why := wrong_stream(r.content):
            return why
    try:
        made.validate_response(r, checks=checks)
    except schemathesis.core.failures.FailureGroup as e:
        return "; ".join(str(x)[:700] for x in e.exceptions)
    return None


def probe(s, operation, budget_s, tally, seed, mode):
    """Requests of one operation for so long, a few at a time; raises with the first answer that is wrong."""
    checks = tuple(schemathesis.checks.CHECKS.get_one(n) for n in
                   ("status_code_conformance", "content_type_conformance", "response_schema_conformance"))
    end = time.monotonic() + budget_s
    session = requests.Session()
    url = f"http://127.0.0.1:{s.port}"
    strategy = operation.as_strategy(generation_mode=mode)

    def batch(seed):
        @hypothesis.seed(seed)
        @hypothesis.settings(max_examples=BATCH, deadline=None, database=None, phases=[hypothesis.Phase.generate],
                             suppress_health_check=list(hypothesis.HealthCheck))
        @hypothesis.given(made=strategy)
        def run(made):
            tally.n += 1
            put_right(made, tally.n)
            r = made.call(base_url=url, session=session, timeout=60)
            tally.by_status[r.status_code] = tally.by_status.get(r.status_code, 0) + 1
            why = wrong(made, r, checks)
            if why and not tally.failed:  # told behind the batch: hypothesis would try it again, to find it smaller
                tally.failed = (f"{made.method} {made.path} {r.status_code}: {why} -- body {str(made.body)[:500]} query {made.query!r} "
                                f"answer {r.content[:500]!r}")
        run()

    try:
        while time.monotonic() < end:
            batch(seed)
            seed += 1
            check(not tally.failed, tally.failed)
    except hypothesis.errors.Unsatisfiable:
        pass  # nothing of an operation without parameters can be wrong


def operation_may_fail(made, r):
    """A 501 names what this build does not do; a readiness probe is 503."""
    return r.status_code == 501 and b"error" in r.content


def empty_keys(x, path):
    for k, v in x.items() if isinstance(x, dict) else enumerate(x) if isinstance(x, list) else ():
        if v is None and isinstance(x, dict):
            yield f"{path}/{k}"
        yield from empty_keys(v, f"{path}/{k}")


@case
def the_document_names_nothing_twice():
    """Of two equal keys YAML keeps the last: a schema that others mean would silently be another one."""
    if schemathesis is None:
        raise Skip("schemathesis is not installed (tests/run makes a venv with it)")
    twice = []

    class Loader(yaml.SafeLoader):
        pass

    def mapping(loader, node):
        keys = [loader.construct_object(k) for k, _ in node.value]
        twice.extend(f"{k} (line {node.start_mark.line + 1})" for k in set(keys) if keys.count(k) > 1)
        return yaml.SafeLoader.construct_mapping(loader, node, deep=True)

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    with open(os.path.join(ROOT, "docs", "openapi.yaml"), encoding="utf-8") as f:
        doc = yaml.load(f, Loader)
    check(len(doc["paths"]) > 30, "paths")
    equal(twice, [], "keys that stand twice")
    equal(list(empty_keys(doc, "")), [], "keys without a value: a comma in a text that is not quoted")


@case
def no_request_breaks_the_server():
    doc = document()
    operations = [r.ok() for r in doc.get_all_operations()]
    check(len(operations) >= 30, f"{len(operations)} operations")
    tally = Tally()
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    with Server(preload=[TINY_GEMMA, TINY_BERT], request_timeout_ms=20000, max_tokens_default=8) as s:
        front = s.proc.pid
        budget = SECONDS / len(operations) / len(modes)
        end = time.monotonic() + SECONDS + 10  # drawing takes long on a busy machine: what is left then waits for another day
        reached, bodies = 0, set()
        for i, operation in enumerate(operations):
            body = str(operation.definition.raw.get("requestBody"))  # the routes below /ai/v1 that are another's once more
            once = operation.method == "post" and body not in bodies
            bodies.add(body)
            if time.monotonic() > end:
                break
            reached += 1
            for k, mode in enumerate(modes if once else modes[:1]):
                probe(s, operation, budget, tally, 100000 * k + 1000 * i, mode)
        equal(s.proc.poll(), None, f"the server {front} lives")
        deaths = [e for e in s.log() if e.get("event") == "worker_exited" and e.get("cause") not in ("asked", "idle", "evicted")
                  and not e.get("probe")]
        equal(deaths, [], "no worker died")
        equal(s.post("/v1/completions", {"model": TINY_GEMMA, "prompt": "a", "max_tokens": 2}).status, 200, "and answers")
    print(f"  {tally.n} requests to {reached} of {len(operations)} operations: {dict(sorted(tally.by_status.items()))}", flush=True)
    check(reached >= len(operations) // 2 and tally.n >= 100, f"only {tally.n} requests were made")
    check(tally.by_status.get(200, 0) >= 20 and tally.by_status.get(400, 0) >= 20, f"both kinds of answers: {tally.by_status}")


if __name__ == "__main__":
    main()
