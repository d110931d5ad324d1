"""The Jinja2 environment that chat templates run in: what they may call, and how much time and text they may use.

A chat template is code that came with a model. Jinja2's immutable sandbox keeps it from touching anything; this
module keeps it from eating the machine. The environment rewrites a template when it is compiled: every loop body and
macro first asks the render's `Budget`, and so does every call, filter, output and string operation. That works in
any thread, without timers or signals. Time is CPU time of the rendering thread, so a busy machine refuses nobody.

Not stopped is work hidden inside one single step of Python itself that no size gives away (comparing two
exponentially nested lists, say): such a template comes only from whoever chose the model.

What a template sees besides is what transformers offers: `raise_exception`, `strftime_now`, a plain `tojson`,
`{% generation %}`, `break` and `continue`. Knows nothing of messages or tokenizers.
"""

from __future__ import annotations

import functools
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

#: No number given to a sizing operation (a width, an indent, a repetition), no exponent may be larger.
MAX_NUMBER = 1_000_000
_SIZING = frozenset(
    {"center", "ljust", "rjust", "zfill", "expandtabs", "indent", "wordwrap", "slice", "batch", "tojson", "truncate"}
)
#: A format that writes a width of seven digits, and one that takes a width from its arguments.
_WIDE_FORMAT = re.compile(r"\d{7,}")
_WIDTH_FROM_ARGUMENT = re.compile(r"%[^a-zA-Z%]*\*|\{[^{}]*:[^{}]*\{")


class TemplateLimitError(Exception):
    """The template used more time or made more text than it may."""


class Budget:
    """What one render may still use. `max_chars`: of output, and of any one string or list on the way."""

    __slots__ = ("_chars", "_deadline", "_max_chars", "_max_cpu_s")

    def __init__(self, max_cpu_s: float, max_chars: int) -> None:
        self._max_cpu_s = max_cpu_s
        self._max_chars = max_chars
        self._deadline = time.thread_time() + max_cpu_s
        self._chars = 0

    def spend(self, chars: int) -> None:
        """Count `chars` of output. Raises `TemplateLimitError` when time or text is used up."""
        self._chars += chars
        if self._chars > self._max_chars:
            raise TemplateLimitError(f"it wrote more than {self._max_chars} characters")
        if time.thread_time() > self._deadline:
            raise TemplateLimitError(f"it ran for more than {self._max_cpu_s:g} s")

    def check_size(self, size: int) -> None:
        self.spend(0)
        if size > self._max_chars:
            raise TemplateLimitError(f"it built a value of more than {self._max_chars} characters")


class SandboxedTemplates(ImmutableSandboxedEnvironment):
    """Compile with `from_string`, render with `render`. Thread-safe: a budget belongs to its thread."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, max_cpu_s: float, max_chars: int) -> None:
        self._limits = (max_cpu_s, max_chars)
        self._local = threading.local()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, loopcontrols],
            finalize=self._output,
            cache_size=0,
        )
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["namespace"] = _PublicNamespace
        self.filters["tojson"] = _tojson
        self.filters = {name: self._guard_filter(name, function) for name, function in self.filters.items()}
        self.filters["_spend"] = self._spend_filter
        self.filters["_concat"] = self._concat_filter

    def render(self, template: jinja2.Template, variables: Mapping[str, Any]) -> str:
        """Raises whatever the template raises, and `TemplateLimitError`."""
        self._local.budget = Budget(*self._limits)
        try:
            return template.render(variables)
        finally:
            del self._local.budget

    # What the compiled template calls. Outside of a render (constant folding) there is no budget and no folding.

    @property
    def _budget(self) -> Budget:
        budget: Budget | None = getattr(self._local, "budget", None)
        if budget is None:
            raise nodes.Impossible
        return budget

    def _output(self, value: Any) -> Any:
        self._budget.spend(_weight(value, self._budget))
        return value

    @jinja2.pass_context
    def _spend_filter(self, context: Any, chars: int) -> str:
        self._budget.spend(max(0, chars))  # templates can reach this filter: it never gives anything back
        return ""

    @jinja2.pass_context
    def _concat_filter(self, context: Any, items: list[Any]) -> str:
        budget = self._budget
        budget.check_size(sum(_weight(item, budget) for item in items))
        return "".join(map(str, items))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        budget = self._budget
        if operator == "**":
            _check_numbers((right,))
            if isinstance(left, int) and isinstance(right, int):
                budget.check_size(left.bit_length() * max(right, 0))
        elif operator == "*":
            if isinstance(left, int) and isinstance(right, int):
                budget.check_size(left.bit_length() + right.bit_length())
            else:
                budget.check_size(_size(left) * _factor(right))
                budget.check_size(_size(right) * _factor(left))
        elif operator == "%" and isinstance(left, str):
            _check_growth(budget, "format", left, right if isinstance(right, tuple) else (right,))
        else:
            budget.check_size(_size(left) + _size(right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = __self._budget
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            _check_growth(budget, method.__name__, owner, (*args, *kwargs.values()))
        budget.spend(0)
        result = super().call(__context, __obj, *args, **kwargs)
        budget.check_size(_size(result))
        return result

    def _guard_filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        # The marks by which jinja2 passes context or environment first are attributes: `wraps` copies them.
        skipped = 1 if hasattr(function, "jinja_pass_arg") else 0

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            budget = self._budget
            budget.spend(0)
            if len(args) > skipped:
                _check_growth(budget, name, args[skipped], (*args[skipped + 1 :], *kwargs.values()))
            result = function(*args, **kwargs)
            budget.check_size(_size(result))
            return result

        return guarded

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        bodies = [block.body for block in tree.find_all(nodes.For)]
        bodies += [block.body for block in tree.find_all(nodes.Macro)]
        bodies += [block.body for block in tree.find_all(nodes.CallBlock)]
        for body in bodies:
            text = sum(_literal_chars(part) for part in body)
            body.insert(0, nodes.ExprStmt(_filter("_spend", nodes.Const(text))).set_lineno(1))
        _ConcatGuard().visit(tree)
        tree.set_environment(self)
        return tree


class _ConcatGuard(NodeTransformer):
    """`a ~ b` becomes a filter that looks at the sizes first."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        guard = _filter("_concat", nodes.List(node.nodes, lineno=node.lineno))
        return guard.set_lineno(node.lineno)


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text for training; here it is just its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own declaration)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _PublicNamespace(Namespace):
    """`namespace(...)` without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _check_public(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_public(name)
        super().__setitem__(name, value)


def _check_public(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace holds no names that begin with '_', such as {name!r}")


def _raise_exception(message: Any = "") -> None:
    raise jinja2.TemplateError(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Plain JSON: jinja2's own filter escapes for HTML, which a model should not see."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _filter(name: str, node: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno or 1)


def _literal_chars(node: nodes.Node) -> int:
    return sum(len(data.data) for data in node.find_all(nodes.TemplateData))


def _check_growth(budget: Budget, name: str, value: Any, args: tuple[Any, ...]) -> None:
    """Refuse, before it happens, a text operation whose result would be too large. `name`: a filter or str method."""
    if name in _SIZING:
        _check_numbers(args)
    if name in ("format", "format_map") and isinstance(value, str):
        if _WIDE_FORMAT.search(value):
            raise TemplateLimitError(f"it formats to a width of more than {MAX_NUMBER}")
        if _WIDTH_FROM_ARGUMENT.search(value):
            _check_numbers(args)
    if name == "replace" and isinstance(value, str) and len(args) > 1 and isinstance(args[0], str):
        budget.check_size(len(value) + value.count(args[0]) * _size(args[1]))
    elif name == "indent" and isinstance(value, str):
        width = next((arg if isinstance(arg, int) else _size(arg) for arg in args), 4)
        budget.check_size(len(value) + (value.count("\n") + 1) * width)
    elif name == "join":
        # As a filter the value is the sequence, as a method it is the separator.
        items, separator = (value, args[:1]) if not isinstance(value, str) else (args[0] if args else (), (value,))
        if isinstance(items, (list, tuple)):
            budget.check_size(_weight(items, budget) + sum(map(_size, separator)) * len(items))
    elif name in ("string", "tojson", "format", "urlencode", "pprint"):
        budget.check_size(_weight(value, budget) + sum(_weight(arg, budget) for arg in args))


def _check_numbers(values: tuple[Any, ...]) -> None:
    for value in values:
        if isinstance(value, (int, float)) and abs(value) > MAX_NUMBER:
            raise TemplateLimitError(f"it asks for a size of {value:g}; {MAX_NUMBER} is the most")


def _factor(value: Any) -> int:
    return max(value, 0) if isinstance(value, int) else 1


def _size(value: Any) -> int:
    """Characters of a string, items of a list; nothing else takes room."""
    return len(value) if isinstance(value, (str, bytes, list, tuple, dict)) else 0


def _weight(value: Any, budget: Budget) -> int:
    """About the characters that `value` is when written out; looks into lists and dicts while the budget allows."""
    if isinstance(value, str):
        return len(value)
    if not isinstance(value, (list, tuple, dict)):
        return 8
    total = 0
    pending: list[Any] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending.extend(item.keys())
            pending.extend(item.values())
        elif isinstance(item, (list, tuple)):
            pending.extend(item)
        total += (len(item) if isinstance(item, str) else 2) + 2
        budget.check_size(total)
    return total
