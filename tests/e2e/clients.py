"""clients.py - further clients of the OpenAI API, unmodified: LangChain's classes and the command line program `llm`."""
import os
import subprocess
import sys
import tempfile

import inferd_api
from inferd_test import Skip, case, check, equal, main

try:
    import langchain_openai
except ImportError:
    langchain_openai = None


def need_langchain():
    if langchain_openai is None:
        raise Skip("langchain-openai is not installed (tests/run makes a venv with it)")


@case
def langchain_chats():
    need_langchain()
    with inferd_api.target() as t:
        t.need_chat()
        chat = langchain_openai.ChatOpenAI(base_url=t.base + "/v1", api_key="any", model=t.chat, max_tokens=8, temperature=0,
                                           max_retries=0)
        r = chat.invoke([("system", "Be brief."), ("human", "Hello")])
        check(r.content and isinstance(r.content, str), f"content: {r.content!r}")
        equal(r.response_metadata["model_name"], t.chat, "model")
        check(r.usage_metadata["input_tokens"] > 0 and 0 < r.usage_metadata["output_tokens"] <= 8, f"usage: {r.usage_metadata}")
        equal("".join(c.content for c in chat.stream([("system", "Be brief."), ("human", "Hello")])), r.content, "streamed, the same")
        batch = chat.batch(["a", "b", "a"])
        equal(batch[0].content, batch[2].content, "a batch answers in order")


@case
def langchain_is_held_to_a_schema():
    need_langchain()
    with inferd_api.target() as t:
        t.need_chat()
        chat = langchain_openai.ChatOpenAI(base_url=t.base + "/v1", api_key="any", model=t.chat, max_tokens=64, temperature=0,
                                           max_retries=0)
        schema = {"title": "answer", "type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
                  "additionalProperties": False}
        r = chat.with_structured_output(schema, method="json_schema", strict=True).invoke("Is water wet?")
        check(isinstance(r["ok"], bool), f"answer: {r}")


@case
def langchain_embeds():
    need_langchain()
    with inferd_api.target() as t:
        # it counts tokens with a tokenizer of its own unless told not to, and would send ids of that one
        e = langchain_openai.OpenAIEmbeddings(base_url=t.base + "/v1", api_key="any", model=t.embed, max_retries=0,
                                              check_embedding_ctx_length=False)
        docs = e.embed_documents(["a b", "c"])
        equal(len(docs), 2, "vectors")
        one = e.embed_query("a b")
        check(len(one) == len(docs[0]) > 1, "dimensions")
        check(max(abs(x - y) for x, y in zip(one, docs[0])) < 1e-5, "a text has one vector, alone or beside others")


@case
def langchain_hears_of_errors():
    need_langchain()
    import openai
    with inferd_api.target() as t:
        chat = langchain_openai.ChatOpenAI(base_url=t.base + "/v1", api_key="any", model="no-such-model", max_retries=0)
        try:
            chat.invoke("a")
        except openai.NotFoundError as e:
            check("no-such-model" in str(e), f"message: {e}")
            return
        check(False, "a model that is not there was no error")


def llm(t, user, *argv, text=None):
    program = os.path.join(os.path.dirname(sys.executable), "llm")
    if not os.path.exists(program):
        raise Skip("llm is not installed (tests/run makes a venv with it)")
    with open(os.path.join(user, "extra-openai-models.yaml"), "w", encoding="utf-8") as f:
        f.write(f"- model_id: here\n  model_name: {t.chat}\n  api_base: {t.base}/v1\n  api_key_name: none\n")
    with open(os.path.join(user, "keys.json"), "w", encoding="utf-8") as f:
        f.write('{"none": "any"}')
    return subprocess.run([program, *argv], input=text or "", capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "LLM_USER_PATH": user})


@case
def llm_prompts_and_goes_on():
    with inferd_api.target() as t, tempfile.TemporaryDirectory(prefix="inferd-test-") as user:
        t.need_chat()
        r = llm(t, user, "-m", "here", "-o", "max_tokens", "8", "-o", "temperature", "0", "-s", "Be brief.", "Hello")
        equal(r.returncode, 0, f"llm: {r.stderr}")
        check(r.stdout.strip(), "it streams an answer")
        r = llm(t, user, "-c", "And then?", "-o", "max_tokens", "8")
        equal(r.returncode, 0, f"llm -c: {r.stderr}")
        r = llm(t, user, "-m", "here", "-o", "temperature", "9", "Hello")
        check(r.returncode != 0 and "temperature" in r.stderr, f"a wrong value is told: {r.stderr}")


if __name__ == "__main__":
    main()
