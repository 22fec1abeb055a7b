"""openai_python.py - the official OpenAI client for Python, unmodified, against inferd."""
import base64
import json
import os
import struct

import inferd_api
from inferd_test import GOLDEN, Skip, case, check, copy_model, equal, main, wait_for

try:
    import openai
except ImportError:
    openai = None

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is the capital of France?"}]


def client(t, prefix="/v1", **kw):
    if openai is None:
        raise Skip("the openai package is not installed (tests/run makes a venv with it)")
    return openai.OpenAI(base_url=t.base + prefix, api_key="any string", max_retries=0, **kw)


def f32(numbers):
    return struct.pack(f"<{len(numbers)}f", *numbers)


def raises(kind, fn, code, part):
    try:
        fn()
    except kind as e:
        equal(type(e).__name__, kind.__name__, "exception")
        check(part in str(e), f"the message shows {part!r}: {e}")
        equal(e.body["code"], code, "code")
        return e
    check(False, f"{kind.__name__} was not raised")


@case
def chat():
    with inferd_api.target() as t:
        t.need_chat()
        r = client(t).chat.completions.create(model=t.chat, messages=MESSAGES, max_tokens=8, seed=1)
        equal(r.object, "chat.completion", "object")
        check(r.id.startswith("chatcmpl-"), "id")
        equal(r.model, t.chat, "model")
        equal(len(r.choices), 1, "choices")
        equal(r.choices[0].message.role, "assistant", "role")
        check(isinstance(r.choices[0].message.content, str), "content is text")
        check(r.choices[0].finish_reason in ("stop", "length"), "finish_reason")
        equal(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens, "usage")
        check(0 < r.usage.completion_tokens <= 8, "max_tokens is kept")
        check(r.usage.prompt_tokens_details.cached_tokens >= 0, "cached tokens")


@case
def chat_stream_is_the_same_text():
    with inferd_api.target() as t:
        t.need_chat()
        c = client(t)
        whole = c.chat.completions.create(model=t.chat, messages=MESSAGES, max_tokens=12)
        parts, finish, usage, first = [], None, None, None
        for chunk in c.chat.completions.create(model=t.chat, messages=MESSAGES, max_tokens=12, stream=True,
                                               stream_options={"include_usage": True}):
            if not chunk.choices:
                usage = chunk.usage
                continue
            first = first or chunk
            parts.append(chunk.choices[0].delta.content or "")
            finish = chunk.choices[0].finish_reason or finish
        equal(first.choices[0].delta.role, "assistant", "the first chunk has the role")
        equal("".join(parts), whole.choices[0].message.content, "text")
        equal(finish, whole.choices[0].finish_reason, "finish_reason")
        equal(usage.completion_tokens, whole.usage.completion_tokens, "usage")


@case
def chat_choices_and_logprobs():
    with inferd_api.target() as t:
        t.need_chat()
        r = client(t).chat.completions.create(model=t.chat, messages=MESSAGES, max_tokens=4, n=2, logprobs=True,
                                              top_logprobs=3, temperature=0)
        equal([c.index for c in r.choices], [0, 1], "indexes")
        equal(r.choices[0].message.content, r.choices[1].message.content, "greedy choices are equal")
        for p in r.choices[0].logprobs.content:
            check(p.logprob <= 0 and len(p.top_logprobs) == 3, "log probabilities")
            check(bytes(p.bytes).decode("utf-8", "replace") == p.token, "bytes are the token's")
            check(abs(p.logprob - max(q.logprob for q in p.top_logprobs)) < 1e-6, "greedy takes the likeliest")


@case
def seed_repeats():
    with inferd_api.target() as t:
        c = client(t)

        def once(seed):
            return c.completions.create(model=t.chat, prompt="Once", max_tokens=12, temperature=1.5, seed=seed).choices[0].text
        equal(once(7), once(7), "the same seed")
        check(any(once(s) != once(7) for s in (8, 9, 10, -1)), "other seeds differ")


@case
def completions():
    with inferd_api.target() as t:
        c = client(t)
        r = c.completions.create(model=t.chat, prompt=["Hello", "The sky"], max_tokens=4, echo=True, logprobs=2)
        equal(r.object, "text_completion", "object")
        equal(len(r.choices), 2, "one choice per prompt")
        check(r.choices[0].text.startswith("Hello") and r.choices[1].text.startswith("The sky"), "echo")
        lp = r.choices[0].logprobs
        equal(len(lp.tokens), len(lp.token_logprobs), "parallel lists")
        equal(len(lp.tokens), len(lp.text_offset), "parallel lists")
        equal(lp.token_logprobs[0], None, "the first token of a prompt has no probability")
        text = "".join(ch.choices[0].text for ch in
                       c.completions.create(model=t.chat, prompt="Hello", max_tokens=4, stream=True))
        equal("Hello" + text, r.choices[0].text, "stream")


WEATHER = {"type": "object", "required": ["city", "unit"], "additionalProperties": False,
           "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["c", "f"]},
                          "days": {"type": "array", "items": {"type": "integer"}, "maxItems": 3}}}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": WEATHER}},
         {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]


def tool_model(t):
    """The tiny Gemma 4: it calls tools where it must, since its weights are random."""
    if t.server is None:
        raise Skip("the server given may have no model that calls tools")
    name = "gemma4_text"
    if not os.path.exists(os.path.join(t.server.models, name)):
        copy_model(name, t.server.models)
    def load():
        return t.post("/ai/v1/models/load", {"model": name}, timeout=120).status

    wait_for(lambda: load() != 404, f"{name} to be found in the models' folder: what was seen half copied is looked at again")
    equal(load(), 200, f"load of {name}")
    return name


def weather_of(text):
    a = json.loads(text)
    check(set(a) <= set(WEATHER["properties"]) and a["unit"] in ("c", "f") and len(a["city"]) <= 12,
          f"the arguments obey the schema: {a}")
    return a


@case
def chat_tools_round_trip():
    with inferd_api.target() as t:
        c, model = client(t), tool_model(t)
        named = {"type": "function", "function": {"name": "get_weather"}}
        asked = {"model": model, "messages": MESSAGES, "tools": TOOLS, "max_tokens": 400, "temperature": 1, "seed": 3}
        r = c.chat.completions.create(tool_choice=named, parallel_tool_calls=False, **asked)
        m = r.choices[0].message
        equal(r.choices[0].finish_reason, "tool_calls", "finish_reason")
        equal((m.content, len(m.tool_calls), m.tool_calls[0].function.name), (None, 1, "get_weather"), "one call, no text")
        check(m.tool_calls[0].id.startswith("call_"), "id")
        weather_of(m.tool_calls[0].function.arguments)
        many = c.chat.completions.create(tool_choice="required", **asked).choices[0].message.tool_calls
        equal(len({x.id for x in many}), len(many), "ids differ")
        for x in many:
            check(x.function.name == "now" and json.loads(x.function.arguments) == {} or weather_of(x.function.arguments), "a call")
        # back with what the tool said, as the client's own object
        told = MESSAGES + [m, {"role": "tool", "tool_call_id": m.tool_calls[0].id, "content": "21 degrees"}]
        r = c.chat.completions.create(model=model, messages=told, tools=TOOLS, max_tokens=4)
        check(r.usage.prompt_tokens > 20, "the call and its answer are in the prompt")
        none = c.chat.completions.create(model=model, messages=MESSAGES, tools=TOOLS, tool_choice="none", max_tokens=8)
        bare = c.chat.completions.create(model=model, messages=MESSAGES, max_tokens=8)
        equal(none.choices[0].message, bare.choices[0].message, "none is as if there were no tools")


@case
def chat_tools_stream():
    with inferd_api.target() as t:
        c, model = client(t), tool_model(t)
        asked = {"model": model, "messages": MESSAGES, "tools": TOOLS, "tool_choice": "required", "max_tokens": 400,
                 "temperature": 1, "seed": 5}
        whole = c.chat.completions.create(**asked).choices[0]
        calls, finish, pieces = {}, None, 0
        for chunk in c.chat.completions.create(stream=True, **asked):
            finish = chunk.choices[0].finish_reason or finish
            for d in chunk.choices[0].delta.tool_calls or []:
                if d.id:
                    check(d.index not in calls and d.type == "function" and d.function.arguments == "",
                          "id, type and name come once, first, with empty arguments")
                    calls[d.index] = [d.function.name, ""]
                    continue
                calls[d.index][1] += d.function.arguments
                pieces += 1
        equal(finish, whole.finish_reason, "finish_reason")
        equal([tuple(calls[i]) for i in sorted(calls)],
              [(x.function.name, x.function.arguments) for x in whole.message.tool_calls], "the same calls")
        check(pieces > 2 * len(calls), f"arguments come while they are written: {pieces} pieces of {len(calls)} calls")
        with c.chat.completions.stream(**asked) as helped:  # the client's own way to put pieces together
            seen = [e.arguments for e in helped if e.type == "tool_calls.function.arguments.delta"]
            last = helped.get_final_completion().choices[0].message
        check(len(seen) > 2 * len(calls) and not seen[0].endswith("}"), "it sees them grow")
        equal([x.function.arguments for x in last.tool_calls], [x.function.arguments for x in whole.message.tool_calls], "and whole")


@case
def chat_tools_cut_off():
    """The limit in the middle of a call: what the stream has of it never parses, and its text is content."""
    with inferd_api.target() as t:
        c, model = client(t), tool_model(t)
        asked = {"model": model, "messages": MESSAGES, "tools": TOOLS, "temperature": 1, "seed": 3, "max_tokens": 27,
                 "tool_choice": {"type": "function", "function": {"name": "get_weather"}}}
        whole = c.chat.completions.create(**asked).choices[0]
        equal((whole.finish_reason, whole.message.tool_calls), ("length", None), "told whole it is text")
        content, arguments, names, finish = "", "", [], None
        for chunk in c.chat.completions.create(stream=True, **asked):
            d = chunk.choices[0].delta
            content += d.content or ""
            finish = chunk.choices[0].finish_reason or finish
            for x in d.tool_calls or []:
                names += [x.function.name] if x.id else []
                arguments += x.function.arguments
        equal((content, finish), (whole.message.content, "length"), "the stream has the same text")
        equal(names, ["get_weather"], "and had begun the call")
        try:
            json.loads(arguments)
            check(False, f"the arguments of a call cut off parse: {arguments}")
        except json.JSONDecodeError:
            pass


@case
def thinking_is_apart():
    with inferd_api.target() as t:
        c, model = client(t), tool_model(t)
        call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
        told = MESSAGES + [{"role": "assistant", "content": None, "tool_calls": [call]},
                           {"role": "tool", "tool_call_id": "c1", "content": "noon"}]
        # behind a tool's answer the model's format begins with a thought
        r = c.chat.completions.create(model=model, messages=told, tools=TOOLS, max_tokens=12, reasoning_effort="high",
                                      extra_body={"ignore_eos": True})
        m = r.choices[0].message
        check(len(m.reasoning_content) > 0, "a thought")
        parts = [ch.choices[0].delta for ch in
                 c.chat.completions.create(model=model, messages=told, tools=TOOLS, max_tokens=12, stream=True,
                                           reasoning_effort="high", extra_body={"ignore_eos": True})]
        equal("".join(getattr(d, "reasoning_content", None) or "" for d in parts), m.reasoning_content, "streamed thought")
        equal("".join(d.content or "" for d in parts), m.content or "", "streamed text")
        raises(openai.BadRequestError,
               lambda: c.chat.completions.create(model=t.chat, messages=MESSAGES, reasoning_effort="high"),
               "INVALID_MODEL", f"model '{t.chat}' does not think")
        raises(openai.BadRequestError, lambda: c.chat.completions.create(model=t.chat, messages=MESSAGES, tools=TOOLS),
               "INVALID_MODEL", f"model '{t.chat}' does not support tool calling")


def marks():
    """Ids of the tiny Gemma 4's marks: a bias makes its random weights end what they think."""
    with open(os.path.join(GOLDEN, "gemma4_text", "tokenizer.json"), encoding="utf-8") as f:
        return {a["content"]: str(a["id"]) for a in json.load(f)["added_tokens"]}


def streamed(chunks):
    """(thought, text, calls, finish_reason) of a stream."""
    thought, text, calls, finish = "", "", {}, None
    for ch in chunks:
        d = ch.choices[0].delta
        finish = ch.choices[0].finish_reason or finish
        thought += getattr(d, "reasoning_content", None) or ""
        text += d.content or ""
        for x in d.tool_calls or []:
            calls.setdefault(x.index, [x.function.name, ""])[1] += x.function.arguments
    return thought, text, [tuple(calls[i]) for i in sorted(calls)], finish


def said(choice):
    m = choice.message
    return (getattr(m, "reasoning_content", None) or "", m.content or "",
            [(x.function.name, x.function.arguments) for x in m.tool_calls or []], choice.finish_reason)


@case
def a_thought_before_what_is_enforced():
    """A call that must be made, a schema, a schema or calls: each behind a thought, and streamed alike."""
    with inferd_api.target() as t:
        c, model, mark = client(t), tool_model(t), marks()
        schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": WEATHER}}
        asked = {"model": model, "messages": MESSAGES, "max_tokens": 300, "temperature": 1, "seed": 3,
                 "reasoning_effort": "high", "logit_bias": {mark["<|channel>"]: 100, mark["<channel|>"]: 5}}
        call = {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "get_weather"}}}
        to_call, to_say = {mark["<|tool_call>"]: 100}, {mark["<|tool_call>"]: -100}
        for name, more, bias in (("call", call, {}), ("schema", {"response_format": schema}, {}),
                                 ("either: call", {"tools": TOOLS, "response_format": schema}, to_call),
                                 ("either: schema", {"tools": TOOLS, "response_format": schema}, to_say)):
            ask = {**asked, **more, "logit_bias": {**asked["logit_bias"], **bias}, "parallel_tool_calls": False}
            if "tools" not in more:
                del ask["parallel_tool_calls"]
            got = said(c.chat.completions.create(**ask).choices[0])
            check(len(got[0]) > 0, f"{name}: a thought first: {got}")
            if "call" in name:
                equal((got[1], len(got[2]), got[3]), ("", 1, "tool_calls"), name)
                check(got[2][0][0] == "now" and json.loads(got[2][0][1]) == {} or weather_of(got[2][0][1]), name)
            else:
                equal((got[2], got[3]), ([], "stop"), name)
                weather_of(got[1])
            equal(streamed(c.chat.completions.create(stream=True, **ask)), got, f"{name}: streamed")
        raises(openai.BadRequestError, lambda: c.chat.completions.create(**{**asked, **call, "response_format": schema}),
               "UNSUPPORTED_FEATURE", "field 'response_format': not supported beside a 'tool_choice'")


@case
def responses():
    with inferd_api.target() as t:
        t.need_chat()
        c = client(t)
        r = c.responses.create(model=t.chat, instructions="Be brief.", input="What is the capital of France?",
                               max_output_tokens=8)
        chat = c.chat.completions.create(model=t.chat, messages=MESSAGES, max_tokens=8)
        equal(r.output_text, chat.choices[0].message.content, "the text chat gives")
        equal(r.status, "incomplete" if chat.choices[0].finish_reason == "length" else "completed", "status")
        equal((r.usage.input_tokens, r.usage.output_tokens), (chat.usage.prompt_tokens, chat.usage.completion_tokens), "usage")
        with c.responses.stream(model=t.chat, instructions="Be brief.", input="What is the capital of France?",
                                max_output_tokens=8) as s:
            deltas = [e.delta for e in s if e.type == "response.output_text.delta"]
        equal("".join(deltas), r.output_text, "stream")
        shaped = c.responses.create(model=t.chat, input="hi", max_output_tokens=60, text={"format": {
            "type": "json_schema", "name": "x", "schema": {"enum": ["yes", "no"]}}})
        check(json.loads(shaped.output_text) in ("yes", "no"), "text.format")
        raises(openai.BadRequestError, lambda: c.responses.create(model=t.chat, input="hi", previous_response_id="resp_1"),
               "UNSUPPORTED_FEATURE", "previous_response_id")


@case
def responses_tools():
    with inferd_api.target() as t:
        c, model = client(t), tool_model(t)
        tools = [{"type": "function", "name": "get_weather", "parameters": WEATHER, "strict": True}]
        asked = {"model": model, "input": "hi", "tools": tools, "tool_choice": {"type": "function", "name": "get_weather"},
                 "parallel_tool_calls": False, "max_output_tokens": 400, "temperature": 1, "extra_body": {"seed": 3}}
        r = c.responses.create(**asked)
        equal([x.type for x in r.output], ["function_call"], "output")
        weather_of(r.output[0].arguments)
        pieces, told, done = [], None, None
        for e in c.responses.create(stream=True, **asked):
            pieces += [e.delta] if e.type == "response.function_call_arguments.delta" else []
            told = e.arguments if e.type == "response.function_call_arguments.done" else told
            done = e.response if e.type == "response.completed" else done
        equal(("".join(pieces), told, done.output[0].arguments), (r.output[0].arguments,) * 3, "streamed arguments")
        check(len(pieces) > 2, f"arguments come while they are written: {pieces}")
        with c.responses.stream(**asked) as helped:
            grown = [e.snapshot for e in helped if e.type == "response.function_call_arguments.delta"]
            equal(helped.get_final_response().output[0].arguments, r.output[0].arguments, "the client's own way to put them together")
        equal(grown[-1], r.output[0].arguments, "and to watch them grow")
        back = [{"role": "user", "content": "hi"}, *r.output,
                {"type": "function_call_output", "call_id": r.output[0].call_id, "output": "21 degrees"}]
        again = c.responses.create(model=model, input=back, tools=tools, max_output_tokens=4)
        check(again.usage.input_tokens > r.usage.input_tokens, "the call and its output are in the prompt")


@case
def embeddings():
    with inferd_api.target() as t:
        c = client(t)
        texts = ["a cat", "a kitten", "tax law"]
        coded = c.embeddings.create(model=t.embed, input=texts)  # the client asks for base64 by itself
        plain = c.embeddings.create(model=t.embed, input=texts, encoding_format="float")
        equal([d.index for d in coded.data], [0, 1, 2], "indexes")
        for a, b in zip(coded.data, plain.data):
            equal(f32(a.embedding), f32(b.embedding), "base64 and float are the same numbers")
            check(abs(sum(x * x for x in b.embedding) - 1) < 1e-3, "unit length")
        check(plain.usage.prompt_tokens > 0, "usage")
        raw = c.embeddings.with_raw_response.create(model=t.embed, input="a cat", encoding_format="base64").http_response.json()
        data = base64.b64decode(raw["data"][0]["embedding"])
        equal(data, f32(plain.data[0].embedding), "little-endian f32")


@case
def models():
    with inferd_api.target() as t:
        c = client(t)
        ids = [m.id for m in c.models.list()]
        check(t.chat in ids and t.embed in ids, f"both models are listed: {ids}")
        m = c.models.retrieve(t.embed)
        equal((m.id, m.object), (t.embed, "model"), "retrieve")


@case
def errors_have_the_right_class():
    with inferd_api.target() as t:
        if openai is None:
            raise Skip("the openai package is not installed")
        c = client(t)
        raises(openai.NotFoundError, lambda: c.models.retrieve("no/such"), "MODEL_NOT_FOUND", "'no/such' not found")
        raises(openai.NotFoundError, lambda: c.chat.completions.create(model="none", messages=MESSAGES),
               "MODEL_NOT_FOUND", "'none' not found")
        e = raises(openai.BadRequestError,
                   lambda: c.completions.create(model=t.chat, prompt="a", temperature=9), "INVALID_REQUEST",
                   "field 'temperature': got 9")
        equal(e.param, "temperature", "param")
        raises(openai.BadRequestError, lambda: c.completions.create(model=t.embed, prompt="a"), "INVALID_MODEL",
               "does not generate text")
        raises(openai.BadRequestError, lambda: c.embeddings.create(model=t.chat, input="a"), "INVALID_MODEL",
               "does not make embeddings")


@case
def below_ai_v1_too():
    with inferd_api.target() as t:
        c = client(t, "/ai/v1")
        check(c.completions.create(model=t.chat, prompt="Hello", max_tokens=3).usage.completion_tokens > 0, "completions")
        equal(len(c.embeddings.create(model=t.embed, input="a").data), 1, "embeddings")
        check(any(m.id == t.chat for m in c.models.list()), "models")


if __name__ == "__main__":
    main()
