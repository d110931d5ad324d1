from __future__ import annotations

import threading
import time
import tracemalloc
from typing import Any

import jinja2
import pytest

from llm_inference.text.sandbox import SandboxedTemplates, TemplateLimitError

GROW = "{% set ns = namespace(s='xxxxxxxxxx', l=[1]) %}{% for i in range(60) %}"


def render(source: str, *, max_cpu_s: float = 0.2, max_chars: int = 1_000_000, **variables: Any) -> str:
    environment = SandboxedTemplates(max_cpu_s, max_chars)
    return environment.render(environment.from_string(source), variables)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f(n) %}{% if n %}{% set a = f(n-1) ~ f(n-1) %}{% endif %}{% endmacro %}{% if f(60) %}{% endif %}",
        GROW + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l | tojson }}",
        GROW + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
        GROW + "{% set ns.l = {'a': ns.l, 'b': ns.l} %}{% endfor %}{{ 'a' ~ ns.l }}",
    ],
)
def test_time_is_limited_also_where_nothing_is_written_in_any_thread(source: str) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            render(source)
        except TemplateLimitError as error:
            errors.append(error)

    started = time.monotonic()
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [type(error) for error in errors] == [TemplateLimitError] * 2
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 10**9 }}",
        "{{ [1] * 10**9 }}",
        "{{ 10**9 * 'x' }}",
        "{{ 'x' | center(10**9) }}",
        "{{ 'x' | indent(10**9, true) }}",
        "{{ ('x\n' * 400000) | indent(1000) }}",
        "{{ 'x'.ljust(10**9) }}",
        "{{ 'x'.zfill(10**9) }}",
        "{{ '%0999999999d' % 1 }}",
        "{{ '%*d' % (10**9, 1) }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ '{:>{}}'.format(1, 10**9) }}",
        "{{ '%0999999999d' | format(1) }}",
        "{{ ('x' * 100000) | replace('x', 'y' * 100000) }}",
        "{{ ('x' * 100000).replace('x', 'y' * 100000) }}",
        "{{ ('x' * 10000).join(['a'] * 100000) }}",
        "{{ (['a'] * 100000) | join('x' * 10000) }}",
        "{{ 'a' | slice(10**9) | list }}",
        "{{ 'a' | batch(10**9, 'x') | list }}",
        "{{ [1] | tojson(indent=10**9) }}",
        "{{ 2 ** 10000000 }}",
        "{% set x = 2 ** 500000 %}{% set x = x * x * x * x %}",
        GROW + "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        GROW + "{% set ns.s = ns.s + ns.s %}{% endfor %}",
        GROW + "{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}{% endfor %}",
        GROW + "{% set ns.l = ns.l + ns.l %}{% endfor %}",
        "{% for i in range(100000) %}" + "x" * 1000 + "{% endfor %}",
        "{% macro f(s, n) %}{{ f(s ~ s, n - 1) if n else s }}{% endmacro %}{{ f('xxxx', 50) }}",
        "{{ 'x' * 600000 }}{{ 'x' * 600000 }}",
    ],
)
def test_text_is_limited_before_it_takes_memory(source: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TemplateLimitError):
            render(source, max_cpu_s=10)
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.x }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ namespace(_x=1) }}",
        "{{ (messages | attr('__class__')).x }}",
    ],
)
def test_nothing_is_reached_through_the_sandbox(source: str) -> None:
    with pytest.raises(jinja2.TemplateError):
        render(source, messages=[])


def test_no_other_templates_and_no_filler() -> None:
    with pytest.raises(TypeError):
        render("{% include 'x' %}")
    with pytest.raises(jinja2.UndefinedError):
        render("{{ lipsum() }}")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'a' ~ 1 ~ none ~ [1] }}", "a1None[1]"),
        ("{{ 5000000 }} {{ '%d' % 5000000 }} {{ '{:,}'.format(5000000) }}", "5000000 5000000 5,000,000"),
        ("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{{ loop.length }}{% endfor %}", "091929"),
        ("{% for i in [1, 2] %}{{ loop.last }}{% else %}none{% endfor %}", "FalseTrue"),
        ("{% for i in [] %}x{% else %}none{% endfor %}", "none"),
        ("{% for i in [1, [2, [3]]] recursive %}{{ loop(i) if i is iterable else i }}{% endfor %}", "123"),
        ("{% macro f(a, b=2) %}{{ a }}{{ b }}{{ caller() }}{% endmacro %}{% call f(1) %}!{% endcall %}", "12!"),
        ("{% set x %}a{{ 1 + 1 }}{% endset %}{{ x | upper }}", "A2"),
        ("{{ undefined_thing }}|{{ none }}", "|None"),
        ("{{ '<b>' | tojson }}{{ 'é' | tojson }}", '"<b>""é"'),
        ("{{ [3, 1] | sort | join(',') }}{{ {'a': 1}.items() | list }}{{ dict(a=1).get('b', 2) }}", "1,3[('a', 1)]2"),
        (
            "{{ 'a-b'.split('-')[-1] }}{{ ' x '.strip() }}{{ 'ab'.replace('a', 'c') }}{{ ' '.join(['a', 'b']) }}",
            "bxcba b",
        ),
        ("{% filter upper %}a{% endfilter %}{{ 3 | _spend }}{{ -3 | _spend }}", "A"),
    ],
)
def test_guarded_template_means_the_same(source: str, text: str) -> None:
    assert render(source) == text


def test_strftime_now() -> None:
    assert render("{{ strftime_now('%Y') }}") == time.strftime("%Y")


def test_threads_do_not_share_a_budget() -> None:
    environment = SandboxedTemplates(5, 2000)  # enough for one render, not for two
    template = environment.from_string("{% for i in range(90) %}{{ n }}234567890{% endfor %}")
    results: dict[int, str] = {}

    def work(n: int) -> None:
        for _ in range(20):
            results[n] = environment.render(template, {"n": n})

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == {n: f"{n}234567890" * 90 for n in range(4)}
