"""Random walks under a grammar, judged by jsonschema and re; errors before anything runs; masks on logits."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import threading
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import tokenizers

from llm_inference.engine.types import Grammar
from llm_inference.errors import InvalidRequestError, UnsupportedModelError
from llm_inference.native.grammar import GrammarCompiler, GrammarLimits
from tests.native.grammar_cases import BAD, SCHEMAS

EOS = (2, 0)
WIDTH = 49152 + 9  # padded logits: the last ids stand for nothing


@pytest.fixture(scope="module")
def tokenizer_json(default_model_dir: Path) -> str:
    return (default_model_dir / "tokenizer.json").read_text()


@pytest.fixture(scope="module")
def tokenizer(tokenizer_json: str) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(tokenizer_json)


@pytest.fixture(scope="module")
def compiler(tokenizer_json: str) -> GrammarCompiler:
    return GrammarCompiler(tokenizer_json, WIDTH, EOS)


class Walker:
    """Chooses allowed tokens at random; after a while it prefers what closes strings, arrays and objects."""

    def __init__(self, compiler: GrammarCompiler, tokenizer: tokenizers.Tokenizer, seed: int) -> None:
        self.compiler = compiler
        self.tokenizer = tokenizer
        self.random = random.Random(seed)
        self.closers = [
            {tokenizer.token_to_id(text) for text in tier}
            for tier in (('"', '"}', '"]'), ("}", "]", "}}", "Z", "@", ",", "0", "1"))
        ]

    def walk(self, grammar: Grammar, max_tokens: int = 600, patience: int = 12) -> str:
        state = self.compiler.start(grammar)
        token_ids: list[int] = []
        while not state.is_finished:
            allowed = np.flatnonzero(state.mask())
            assert len(allowed), state.failure
            possible = set(allowed.tolist()) if len(allowed) < 1000 else {*allowed[:1000].tolist()}
            assert bool({*EOS} & possible) == state.can_stop
            assert len(token_ids) < max_tokens, self.tokenizer.decode(token_ids)[:400]
            token_id = int(self.random.choice(allowed))
            if len(token_ids) > patience:
                closing = next((sorted(tier & possible) for tier in self.closers if tier & possible), [token_id])
                token_id = EOS[0] if state.can_stop else self.random.choice(closing)
            state.accept(token_id)
            assert state.failure is None
            if token_id in EOS:
                break
            token_ids.append(token_id)
        assert state.can_stop
        return self.tokenizer.decode(token_ids, skip_special_tokens=False)


@pytest.mark.parametrize("name", SCHEMAS)
def test_walks_under_a_schema_give_valid_documents(
    name: str, compiler: GrammarCompiler, tokenizer: tokenizers.Tokenizer
) -> None:
    schema = SCHEMAS[name]
    grammar = Grammar("json_schema", json.dumps(schema))
    compiler.check(grammar)
    for seed in range(4):
        text = Walker(compiler, tokenizer, seed).walk(grammar)
        jsonschema.validate(json.loads(text), schema, cls=jsonschema.Draft202012Validator)


def test_json_object_is_always_an_object(compiler: GrammarCompiler, tokenizer: tokenizers.Tokenizer) -> None:
    for seed in range(6):
        text = Walker(compiler, tokenizer, seed).walk(Grammar("json_object", "{}"))
        assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    "pattern",
    ["[a-c]{2,5}", "(yes|no|maybe)", r"\d{3}-\d{4}", "^x+$", "é{1,3}", r"a.c", "(a|b)*c", "[^x]{4}", r"\w+@"],
)
def test_walks_under_a_regex_match_it_wholly(
    pattern: str, compiler: GrammarCompiler, tokenizer: tokenizers.Tokenizer
) -> None:
    grammar = Grammar("regex", pattern)
    compiler.check(grammar)
    for seed in range(4):
        text = Walker(compiler, tokenizer, seed).walk(grammar, patience=4)
        assert re.fullmatch(pattern, text), text


def test_every_choice_is_reachable_and_nothing_else(compiler: GrammarCompiler, tokenizer: tokenizers.Tokenizer) -> None:
    choices = ["a", "ab", "abc d", 'with "quotes"', "line\nbreak", "é🎉", "back\\slash", "/regex.*/"]
    grammar = Grammar("choice", json.dumps(choices))
    compiler.check(grammar)
    seen = {Walker(compiler, tokenizer, seed).walk(grammar) for seed in range(120)}
    assert seen == set(choices)


def test_a_lark_grammar_is_obeyed(compiler: GrammarCompiler, tokenizer: tokenizers.Tokenizer) -> None:
    grammar = Grammar("grammar", 'start: expr\nexpr: NUMBER | "(" expr OP expr ")"\nNUMBER: /[1-9]/\nOP: /[-+*]/\n')
    compiler.check(grammar)
    for seed in range(5):
        text = Walker(compiler, tokenizer, seed).walk(grammar, patience=0)
        assert re.fullmatch(r"[-+*()1-9]+", text)
        assert text.count("(") == text.count(")")
        compile(text, "<expression>", "eval")


def test_blanks_between_json_tokens_are_bounded(compiler: GrammarCompiler, tokenizer: tokenizers.Tokenizer) -> None:
    grammar = Grammar("json_object", "{}")

    def accepts(text: str) -> bool:
        state = compiler.start(grammar)
        for token_id in tokenizer.encode(text).ids:
            state.accept(token_id)
        return state.failure is None and state.can_stop

    assert accepts('{"a": [1, 2], "b":{"c":null}}')
    assert accepts('{\n    "a": 1\n}')
    assert not accepts('{\n\n\n"a": 1}')
    assert not accepts(' {"a": 1}')


@pytest.mark.parametrize("name", BAD)
def test_a_bad_grammar_is_refused_before_anything_runs(name: str, compiler: GrammarCompiler) -> None:
    kind, source, part = BAD[name]
    grammar = Grammar(kind, source)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError) as caught:
        compiler.check(grammar)
    assert caught.value.status == 400
    assert caught.value.param is not None
    assert caught.value.message.startswith(caught.value.param)
    assert part in caught.value.message
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 500
    with pytest.raises(InvalidRequestError) as caught:
        compiler.check(grammar, "tools")
    assert caught.value.param == "tools"


def test_a_refusal_leaves_running_choices_alone(compiler: GrammarCompiler, tokenizer: tokenizers.Tokenizer) -> None:
    state = compiler.start(Grammar("regex", "hello world"))
    before = state.mask()
    for kind, source, _ in BAD.values():
        with pytest.raises(InvalidRequestError):
            compiler.check(Grammar(kind, source))  # type: ignore[arg-type]
    assert (state.mask() == before).all()


def test_an_explosive_schema_is_refused_quickly(compiler: GrammarCompiler) -> None:
    parts = [
        {"anyOf": [{"type": "object", "properties": {f"{letter}{i}": {"type": "string"}}} for letter in "ab"]}
        for i in range(16)
    ]
    with pytest.raises(InvalidRequestError, match="too large"):
        compiler.check(Grammar("json_schema", json.dumps({"allOf": parts})))


def test_checking_needs_neither_torch_nor_the_vocabulary(default_model_dir: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from llm_inference.native.grammar import GrammarCompiler\n"
        "from llm_inference.engine.types import Grammar\n"
        "c = GrammarCompiler(pathlib.Path(sys.argv[1]).read_text(), 49152, (2,))\n"
        "rss = lambda: next(int(l.split()[1]) for l in open('/proc/self/status') if l.startswith('VmRSS'))\n"
        "before = rss()\n"
        "c.check(Grammar('json_object', '{}'))\n"
        "print(rss() - before, 'torch' in sys.modules, 'transformers' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(default_model_dir / "tokenizer.json")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    kib, *imported = done.stdout.split()
    assert imported == ["False", "False"]
    assert int(kib) < 20 * 1024


def test_eos_exactly_where_the_grammar_may_end(compiler: GrammarCompiler, tokenizer: tokenizers.Tokenizer) -> None:
    state = compiler.start(Grammar("regex", "ab?"))
    a, b = (tokenizer.token_to_id(letter) for letter in "ab")
    ab = tokenizer.token_to_id("ab")
    assert set(np.flatnonzero(state.mask())) == {a, ab}
    assert not state.can_stop
    state.accept(a)
    assert set(np.flatnonzero(state.mask())) == {b, *EOS}
    assert state.can_stop
    assert not state.is_finished
    other = state.fork()
    state.accept(b)
    assert state.is_finished
    assert set(np.flatnonzero(state.mask())) == set(EOS)
    other.accept(EOS[1])
    assert other.is_finished
    assert set(np.flatnonzero(other.mask())) == set(EOS)
    assert state.failure is None
    assert other.failure is None


def test_tokens_outside_the_models_ids_are_never_allowed(tokenizer_json: str) -> None:
    anything = Grammar("regex", "(?s:.*)")
    full = GrammarCompiler(tokenizer_json, 49152 + 70, EOS).start(anything)
    row = np.full(2000, -1, dtype=np.int32)
    full.fill_mask(row)
    allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
    assert allowed.max() < 49152
    assert len(allowed) > 48_000
    assert not set(range(1, 17)) & set(allowed.tolist()) - set(EOS)  # special tokens are no text
    cut = GrammarCompiler(tokenizer_json, 1000, EOS).start(anything)  # fewer rows than tokens
    assert cut.mask().shape == (1000,)
    wide = np.zeros(1537, dtype=np.int32)
    cut.fill_mask(wide)
    assert np.flatnonzero(np.unpackbits(wide.view(np.uint8), bitorder="little")).max() < 1000


def test_a_forbidden_token_ends_the_choice_not_the_process(compiler: GrammarCompiler) -> None:
    state = compiler.start(Grammar("regex", "[0-9]+"))
    state.accept(5000)
    assert state.failure is not None
    assert "5000" in state.failure
    state.accept(EOS[0])  # nothing more happens
    row = np.full(1537, -1, dtype=np.int32)
    state.fill_mask(row)
    assert not row.any()
    assert not state.is_finished


def test_choices_do_not_share_their_progress(compiler: GrammarCompiler, tokenizer: tokenizers.Tokenizer) -> None:
    grammar = Grammar("json_object", "{}")
    first, second = compiler.start(grammar), compiler.start(grammar)
    brace = tokenizer.token_to_id("{")
    before = second.mask()
    first.accept(brace)
    assert (second.mask() == before).all()
    assert not (first.mask() == before).all()
    twin = first.fork()
    twin.accept(tokenizer.token_to_id("}"))
    assert twin.is_finished
    assert not first.is_finished


def test_a_spent_shared_limit_is_renewed(tokenizer_json: str, tokenizer: tokenizers.Tokenizer) -> None:
    """Copies share the library's count of lexer states; without renewal all later requests would fail at once."""
    compiler = GrammarCompiler(tokenizer_json, WIDTH, EOS, GrammarLimits(max_lexer_states=2000))
    grammar = Grammar("regex", ".{0,5000}x.{0,5000}y")
    letters = [tokenizer.token_to_id(letter) for letter in "abcdefgh"]
    for seed in range(3):
        chooser = random.Random(seed)
        state = compiler.start(grammar)
        for _ in range(120):
            assert state.mask()[letters].all()
            state.accept(chooser.choice(letters))
        assert state.failure is None


def test_compiled_grammars_are_cached_within_bounds(tokenizer_json: str) -> None:
    limits = GrammarLimits(cache_entries=3, cache_bytes=100)
    compiler = GrammarCompiler(tokenizer_json, WIDTH, EOS, limits)
    grammars = [Grammar("regex", letter * 20) for letter in "abcdefgh"]
    for grammar in grammars:
        compiler.check(grammar)
        compiler.start(grammar)
    assert list(compiler._compiled) == grammars[-3:]
    assert list(compiler._checked) == grammars[-3:]
    compiler.start(grammars[-3])
    compiler.start(Grammar("regex", "z" * 70))  # 20 + 70 bytes
    assert list(compiler._compiled) == [grammars[-3], Grammar("regex", "z" * 70)]
    compiler.start(Grammar("regex", "z" * 500))  # one alone may be larger
    assert list(compiler._compiled) == [Grammar("regex", "z" * 500)]


def test_costly_grammars_are_not_kept_in_numbers(tokenizer_json: str) -> None:
    """Seconds of compiling stand for megabytes."""
    compiler = GrammarCompiler(tokenizer_json, WIDTH, EOS, GrammarLimits(cache_cpu_s=4.0))
    first, second, third, last = (Grammar("regex", letter) for letter in "abcd")
    for grammar in (first, second, third):
        compiler.start(grammar)
    compiler._cost_s = dict.fromkeys((first, second, third), 3.0)
    compiler.start(last)
    assert list(compiler._compiled) == [third, last]
    compiler._cost_s[last] = 100.0
    compiler.start(first)
    assert list(compiler._compiled) == [first], "the newest stays, whatever it cost"


def test_threads_may_check_and_start_at_once(tokenizer_json: str) -> None:
    compiler = GrammarCompiler(tokenizer_json, WIDTH, EOS)
    finished: list[bool] = []

    def work(number: int) -> None:
        grammar = Grammar("regex", f"a{{{number % 3 + 1}}}")
        compiler.check(grammar)
        finished.append(compiler.start(grammar).mask().any())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert finished == [True] * 12


def test_a_tokenizer_that_cannot_be_constrained_is_named() -> None:
    with pytest.raises(UnsupportedModelError, match="end-of-sequence"):
        GrammarCompiler("{}", 100, ())
    with pytest.raises(UnsupportedModelError, match="end-of-sequence"):
        GrammarCompiler("{}", 100, (100,))
    with pytest.raises(UnsupportedModelError, match="tokenizer"):
        GrammarCompiler("{}", 100, (1,)).warm_up()
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.json"):
        GrammarCompiler("[", 100, (1,)).check(Grammar("json_object", "{}"))


def test_a_lark_grammar_may_name_special_tokens(compiler: GrammarCompiler) -> None:
    grammar = Grammar("grammar", 'start: <|im_start|> "a"')
    compiler.check(grammar)
    assert set(np.flatnonzero(compiler.start(grammar).mask())) == {1}


def test_warm_up_reads_the_vocabulary_once(tokenizer_json: str) -> None:
    compiler = GrammarCompiler(tokenizer_json, WIDTH, EOS)
    compiler.warm_up()
    first = compiler._tokenizer
    compiler.warm_up()
    assert compiler._tokenizer is first
    assert compiler.eos_token_ids == EOS
    assert compiler.vocab_size == WIDTH
