"""openai_python.py - the official OpenAI client for Python, unmodified, against inferd."""
import base64
import struct

import inferd_api
from inferd_test import Skip, case, check, equal, main

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
    try:
        main()
    finally:
        inferd_api.end()
