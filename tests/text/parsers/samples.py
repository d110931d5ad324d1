"""Outputs of models in every format, whole and broken, with what a client must get."""

from __future__ import annotations

import json
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sample:
    """`calls` are name and arguments as JSON text, exactly. `broken`: the last call's arguments are cut short."""

    parser: str
    output: str
    text: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    broken: bool = False


WEATHER = '{"city": "Paris", "days": 3}'
NASTY = (
    r'{"a": {"b": [1, {"c": {}}], "d": "}] \"quoted\" \\ </tool_call> ;"}, '
    r'"e": "\u00e9\ud83d\ude00 é🎉", "n": -1.5e+10}'
)

SAMPLES: dict[str, Sample] = {
    # hermes
    "hermes, one": Sample(
        "hermes", f'<tool_call>\n{{"name": "f", "arguments": {WEATHER}}}\n</tool_call>', "", [("f", WEATHER)]
    ),
    "hermes, two with text around": Sample(
        "hermes",
        f'Let me see.\n<tool_call>\n{{"name": "f", "arguments": {WEATHER}}}\n</tool_call>\n'
        f'<tool_call>{{"name": "g", "arguments": {NASTY}}}</tool_call>\n\nDone.\n',
        "Let me see.\n\n\nDone.\n",
        [("f", WEATHER), ("g", NASTY)],
    ),
    "hermes, only calls": Sample(
        "hermes",
        '\n\n<tool_call>{"name": "f", "arguments": {}}</tool_call>\n<tool_call>{"name": "g"}</tool_call>\n',
        "",
        [("f", "{}"), ("g", "{}")],
    ),
    "hermes, arguments first": Sample(
        "hermes",
        f'<tool_call>{{"id": [1, "x"], "arguments": {WEATHER}, "name": "f", "type": "function"}}</tool_call>',
        "",
        [("f", WEATHER)],
    ),
    "hermes, arguments as a string": Sample(
        "hermes",
        f'<tool_call>{{"name": "f", "arguments": {json.dumps(NASTY)}}}</tool_call>',
        "",
        [("f", NASTY)],
    ),
    "hermes, null arguments": Sample(
        "hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]
    ),
    "hermes, no end marker": Sample(
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": 1}}\n<tool_call>{"name": "g", "arguments": {"b": 2}}',
        "",
        [("f", '{"a": 1}'), ("g", '{"b": 2}')],
    ),
    "hermes, raw line breaks in a string": Sample(
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"code": "a\n\tb\x01"}}</tool_call>',
        "",
        [("f", '{"code": "a\\n\\tb\\u0001"}')],
    ),
    "hermes, text only": Sample("hermes", " <tool text, a < b, <tool_calls", " <tool text, a < b, <tool_calls"),
    "hermes, a beginning that is none": Sample("hermes", "x <tool_<tool_call", "x <tool_<tool_call"),
    "hermes, malformed": Sample(
        "hermes", "a <tool_call>{name: f}</tool_call> b", "a <tool_call>{name: f}</tool_call> b"
    ),
    "hermes, no JSON at all": Sample(
        "hermes", " <tool_call>get the weather</tool_call>", " <tool_call>get the weather</tool_call>"
    ),
    "hermes, malformed, then well": Sample(
        "hermes",
        '<tool_call>{"name": 5}</tool_call><tool_call>{"name": "f", "arguments": {}}</tool_call>',
        '<tool_call>{"name": 5}</tool_call>',
        [("f", "{}")],
    ),
    "hermes, marker twice": Sample(
        "hermes", '<tool_call><tool_call>{"name": "f"}</tool_call>', "<tool_call>", [("f", "{}")]
    ),
    "hermes, breaks inside the arguments": Sample(
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": 1, b: 2}}</tool_call> rest',
        "b: 2}}</tool_call> rest",
        [("f", '{"a": 1, ')],
        broken=True,
    ),
    "hermes, bad literal": Sample(
        "hermes", '<tool_call>{"name": "f", "arguments": {"a": None}} x', "None}} x", [("f", '{"a": ')], True
    ),
    "hermes, bad escape": Sample(
        "hermes", r'<tool_call>{"name": "f", "arguments": {"a": "\d"}}', r'\d"}}', [("f", '{"a": "')], True
    ),
    "hermes, an unknown function": Sample(
        "hermes", '<tool_call>{"name": "other", "arguments": {}}</tool_call>', "", [("other", "{}")]
    ),
    "hermes, arguments twice": Sample(
        "hermes",
        '<tool_call>{"name": "f", "arguments": {}, "parameters": {"a": 1}}</tool_call>',
        ', "parameters": {"a": 1}}</tool_call>',
        [("f", "{}")],
    ),
    "hermes, a list as arguments": Sample(
        "hermes",
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
    ),
    "hermes, half a surrogate pair as a name": Sample(
        "hermes", r'<tool_call>{"name": "\ud83d"}</tool_call>', r'<tool_call>{"name": "\ud83d"}</tool_call>'
    ),
    # llama3_json
    "llama, one": Sample("llama3_json", f'{{"name": "f", "parameters": {WEATHER}}}', "", [("f", WEATHER)]),
    "llama, tag and two": Sample(
        "llama3_json",
        f'<|python_tag|>{{"name": "f", "parameters": {WEATHER}}}; {{"name": "g", "arguments": {NASTY}}}',
        "",
        [("f", WEATHER), ("g", NASTY)],
    ),
    "llama, type first": Sample(
        "llama3_json", '\n{"type": "function", "name": "f", "parameters": {"a": "b"}}', "", [("f", '{"a": "b"}')]
    ),
    "llama, text and tag": Sample(
        "llama3_json", 'Well: <|python_tag|> {"name": "f"}', "Well: ", [("f", "{}")]
    ),
    "llama, separators at the end": Sample("llama3_json", '{"name": "f"}\n; ;\n', "", [("f", "{}")]),
    "llama, text after": Sample("llama3_json", '{"name": "f"} ; and text', " ; and text", [("f", "{}")]),
    "llama, a JSON answer": Sample("llama3_json", '{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}'),
    "llama, another JSON answer": Sample("llama3_json", ' {"answer": [1, 2]} ', ' {"answer": [1, 2]} '),
    "llama, JSON inside text": Sample("llama3_json", 'So {"name": "f"} it is', 'So {"name": "f"} it is'),
    "llama, code behind the tag": Sample("llama3_json", "<|python_tag|> print(1)", "<|python_tag|> print(1)"),
    # mistral
    "mistral, array": Sample(
        "mistral",
        f'[TOOL_CALLS] [{{"name": "f", "arguments": {WEATHER}}}, {{"name": "g", "arguments": {NASTY}}}]',
        "",
        [("f", WEATHER), ("g", NASTY)],
    ),
    "mistral, array with ids and text": Sample(
        "mistral",
        'Hm.[TOOL_CALLS][{"name": "f", "arguments": {"a": [1]}, "id": "abcdefghi"}]\nso',
        "Hm.\nso",
        [("f", '{"a": [1]}')],
    ),
    "mistral, one object": Sample("mistral", '[TOOL_CALLS] {"name": "f", "arguments": {}}', "", [("f", "{}")]),
    "mistral, new": Sample(
        "mistral",
        f"[TOOL_CALLS]f[ARGS]{WEATHER}[TOOL_CALLS]g[CALL_ID]ab12[ARGS]{NASTY}",
        "",
        [("f", WEATHER), ("g", NASTY)],
    ),
    "mistral, new without args marker": Sample("mistral", "[TOOL_CALLS]get_time {}", "", [("get_time", "{}")]),
    "mistral, text": Sample("mistral", "The [TOOL_CALLS] token [TOOL_", "The [TOOL_CALLS] token [TOOL_"),
    "mistral, malformed array": Sample("mistral", "[TOOL_CALLS] [1, 2]", "[TOOL_CALLS] [1, 2]"),
    "mistral, second call malformed": Sample(
        "mistral", '[TOOL_CALLS] [{"name": "f"}, {"nome": "g"}]', ', {"nome": "g"}]', [("f", "{}")]
    ),
    "mistral, breaks after a call": Sample(
        "mistral", '[TOOL_CALLS] [{"name": "f"}; {"name": "g"}]', '; {"name": "g"}]', [("f", "{}")]
    ),
    "mistral, breaks inside the arguments": Sample(
        "mistral", '[TOOL_CALLS]f[ARGS]{"a": 01}', "01}", [("f", '{"a": ')], True
    ),
    # pythonic
    "pythonic, two": Sample(
        "pythonic",
        "[get_weather(city=\"Paris\", days=3), get_time(zone='UTC')]",
        "",
        [("get_weather", WEATHER), ("get_time", '{"zone": "UTC"}')],
    ),
    "pythonic, every literal": Sample(
        "pythonic",
        r"""[f(a=[1, -2.5, .5, 1e3, (), (1,), (2)], b={'k': None, "l": [True, false]}, """
        r"""c='it\'s \x41\u00e9\n, ) ]', d="", e='')]""",
        "",
        [
            (
                "f",
                '{"a": [1, -2.5, 0.5, 1000.0, [], [1], 2], "b": {"k": null, "l": [true, false]}, '
                '"c": "it\'s Aé\\n, ) ]", "d": "", "e": ""}',
            )
        ],
    ),
    "pythonic, triple quotes": Sample(
        "pythonic", '[f(code="""a "b"\nc""", x=1,)]', "", [("f", '{"code": "a \\"b\\"\\nc", "x": 1}')]
    ),
    "pythonic, markers": Sample(
        "pythonic",
        "Hm. <|python_start|>[ f ( ) , g( a = 1 ) ]<|python_end|> ok",
        "Hm.  ok",
        [("f", "{}"), ("g", '{"a": 1}')],
    ),
    "pythonic, a list": Sample("pythonic", "[1, 2, 3]", "[1, 2, 3]"),
    "pythonic, a link": Sample("pythonic", "[see](f(a=1))", "[see](f(a=1))"),
    "pythonic, unknown function": Sample("pythonic", "[os.system(cmd='x')]", "[os.system(cmd='x')]"),
    "pythonic, positional": Sample("pythonic", "[f('Paris')]", "[f('Paris')]"),
    "pythonic, an expression": Sample("pythonic", "[f(a=__import__('os'))]", "[f(a=__import__('os'))]"),
    "pythonic, an expression later": Sample("pythonic", "[f(a=1, b=2+2)]", ", b=2+2)]", [("f", '{"a": 1')], True),
    "pythonic, brackets that do not match": Sample("pythonic", "[f(a=[1))]", "[f(a=[1))]"),
    "pythonic, keyword twice": Sample("pythonic", "[f(a=1, a=2)]", ", a=2)]", [("f", '{"a": 1')], True),
    "pythonic, text between calls": Sample("pythonic", "[f() and g()]", " and g()]", [("f", "{}")]),
    "pythonic, text": Sample("pythonic", "hello [f(a=1)]", "hello [f(a=1)]"),
    # json
    "json, array": Sample(
        "json",
        f'[{{"name": "f", "arguments": {WEATHER}}}, {{"name": "g", "parameters": {NASTY}}}]',
        "",
        [("f", WEATHER), ("g", NASTY)],
    ),
    "json, object": Sample("json", ' {"name": "f", "arguments": {"a": 1}}\n', "", [("f", '{"a": 1}')]),
    "json, no call": Sample("json", '[{"name": "Bob"}]', '[{"name": "Bob"}]'),
    "json, prose": Sample("json", 'I say [{"name": "f"}]', 'I say [{"name": "f"}]'),
    "json, empty array": Sample("json", "[]", "[]"),
}  # fmt: skip
