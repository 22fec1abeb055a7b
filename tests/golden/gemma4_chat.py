#!/usr/bin/env python3
"""Makes gemma4_chat/cases.json: conversations as Gemma 4's own chat template renders them.

    gemma4_chat.py TEMPLATE.jinja TOKENIZER.json OUT.json

TEMPLATE: the chat template of google/gemma-4-31B-it (mid 2026; llama.cpp ships a copy as
models/templates/google-gemma-4-31B-it.jinja). TOKENIZER: gemma4_text/tokenizer.json.
Needs jinja2 and tokenizers; renders as transformers does (trim_blocks, lstrip_blocks).
"""
import json
import sys

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

U, A, S, T = "user", "assistant", "system", "tool"


def m(role, content=None, **more):
    return {"role": role, "content": content, **more}


def call(name, args, id=None):
    c = {"type": "function", "function": {"name": name, "arguments": args}}
    return {"id": id, **c} if id else c


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a town.",
    "parameters": {"type": "object", "required": ["town"], "properties": {
        "town": {"type": "string", "description": "Name of the town"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "nullable": True},
        "Hours": {"type": "number", "description": "from now"}}}}}
NESTED = {"type": "function", "function": {
    "name": "book", "description": "Books a boat.",
    "parameters": {"type": "object", "properties": {
        "boat": {"type": "object", "description": "which", "required": ["name"], "properties": {
            "name": {"type": "string"}, "size": {"type": "object", "properties": {
                "width": {"type": "number"}, "height": {"type": "number"}}}}},
        "seats": {"type": "array", "items": {"type": "integer"}},
        "guests": {"type": "array", "description": "all of them", "items": {
            "type": "object", "required": ["name", "age"], "properties": {
                "name": {"type": "string"}, "age": {"type": "integer", "description": "years"}}}},
        "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b c"], "maxLength": 5}},
        "either": {"type": ["string", "integer"]},
        "any": {"type": "array", "items": {"type": ["string", "null"]}},
        "free": {"type": "object"},
        "description": {"type": "string"},
        "untyped": {"description": "no type"}}},
    "response": {"type": "object", "description": "a receipt"}}}
BARE = {"type": "function", "function": {"name": "now", "description": "Time of day."}}
EMPTY = {"type": "function", "function": {"name": "tide", "description": "Tide.",
                                          "parameters": {"type": "object", "properties": {}}}}

CASES = [
    ("one", [m(U, "Hello")], {}),
    ("trimmed", [m(U, "  \n Hello there \t\n")], {}),
    ("system", [m(S, " Be short. "), m(U, "Hello")], {}),
    ("developer", [m("developer", "Be short."), m(U, "Hello")], {}),
    ("only_system", [m(S, "Be short.")], {}),
    ("thinking", [m(U, "Hello")], {"thinking": True}),
    ("thinking_system", [m(S, "Be short."), m(U, "Hello")], {"thinking": True}),
    ("turns", [m(U, "Hello"), m(A, "The boats left."), m(U, "And then?")], {}),
    ("no_prompt", [m(U, "Hello"), m(A, " The boats left. ")], {"prompt": False}),
    ("old_thought", [m(U, "Hello"), m(A, "<|channel>thought\nHm.\n<channel|> The boats left."), m(U, "Why?")], {}),
    ("two_thoughts", [m(U, "Hi"), m(A, "a<|channel>b<channel|>c<|channel>d<channel|> e "), m(U, "Why?")], {}),
    ("open_thought", [m(U, "Hi"), m(A, "The tide <|channel>thought\nnever ends"), m(U, "Why?")], {}),
    ("two_users", [m(U, "Hello"), m(U, "again")], {}),
    ("empty_user", [m(U, "")], {}),
    ("numbers_text", [m(U, "3.14 1000\n\n\n- a\n- b\n")], {}),
    ("tool_declared", [m(U, "Weather?")], {"tools": [WEATHER]}),
    ("tools_declared", [m(S, "Be short."), m(U, "Weather?")], {"tools": [WEATHER, BARE, EMPTY, NESTED]}),
    ("tools_thinking", [m(S, "Be short."), m(U, "Weather?")], {"tools": [BARE], "thinking": True}),
    ("called", [m(U, "Weather?"), m(A, None, tool_calls=[call("get_weather", {"town": "the harbour", "days": 3})])],
     {"tools": [WEATHER]}),
    ("answered", [m(U, "Weather?"),
                  m(A, None, tool_calls=[call("get_weather", {"town": "the harbour"}, "c1")]),
                  m(T, "calm, 12 degrees", tool_call_id="c1")], {"tools": [WEATHER]}),
    ("answered_by_name", [m(U, "Weather?"), m(A, None, tool_calls=[call("now", {})]),
                          m(T, "noon", name="now")], {"tools": [BARE]}),
    ("parallel", [m(U, "Weather?"),
                  m(A, None, tool_calls=[call("get_weather", {"town": "a"}, "c1"), call("now", {}, "c2")]),
                  m(T, "calm", tool_call_id="c1"), m(T, "{\"hour\": 12}", tool_call_id="c2")],
     {"tools": [WEATHER, BARE]}),
    ("answer_then_text", [m(U, "Weather?"),
                          m(A, None, tool_calls=[call("get_weather", {"town": "a"}, "c1")]),
                          m(T, "calm", tool_call_id="c1"), m(A, "It is calm."), m(U, "Thanks")],
     {"tools": [WEATHER]}),
    ("second_call", [m(U, "Weather?"),
                     m(A, None, tool_calls=[call("get_weather", {"town": "a"}, "c1")]),
                     m(T, "calm", tool_call_id="c1"),
                     m(A, None, tool_calls=[call("now", {}, "c2")]), m(T, "noon", tool_call_id="c2")],
     {"tools": [WEATHER, BARE]}),
    ("reasoned_call", [m(U, "Weather?"),
                       m(A, None, reasoning="I need the town.",
                         tool_calls=[call("get_weather", {"town": "a"}, "c1")]),
                       m(T, "calm", tool_call_id="c1")], {"tools": [WEATHER]}),
    ("old_reasoning", [m(U, "Weather?"),
                       m(A, None, reasoning="I need the town.",
                         tool_calls=[call("get_weather", {"town": "a"}, "c1")]),
                       m(T, "calm", tool_call_id="c1"), m(A, "It is calm."), m(U, "Thanks")],
     {"tools": [WEATHER]}),
    ("values", [m(U, "x"), m(A, None, tool_calls=[call("f", {
        "s": "a \"quoted\" {word}", "t": True, "f": False, "i": -17, "big": 9007199254740993,
        "r": 1.0, "r2": 0.1, "r3": -2.5e-7, "r4": 1e22, "r5": 123456.789, "r6": 1e15, "r7": 0.0001,
        "l": [1, "two", [3.5, False], {}], "m": {"b": 1, "A": {"c": []}, "a b": "x"}, "Z": "", "a": []})])], {}),
    ("foreign", [m(U, "\u6d77\u306f\u9759\u304b \U0001F308 \u043c\u043e\u0440\u0435"),
                 m(A, None, tool_calls=[call("f", {"\u00e9tat": "\u6d77"})])], {}),
]


def render(template, messages, o):
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=["jinja2.ext.loopcontrols"])
    return env.from_string(template).render(
        messages=messages, tools=o.get("tools"), bos_token="<bos>", enable_thinking=o.get("thinking", False),
        add_generation_prompt=o.get("prompt", True))


def main():
    template = open(sys.argv[1], encoding="utf-8").read()
    tok = Tokenizer.from_file(sys.argv[2])
    out = []
    for name, messages, o in CASES:
        text = render(template, messages, o)
        out.append({"name": name, "messages": messages, "options": o, "text": text,
                    "ids": tok.encode(text, add_special_tokens=False).ids})
    with open(sys.argv[3], "w", encoding="utf-8") as f:
        json.dump({"cases": out}, f, ensure_ascii=True, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
