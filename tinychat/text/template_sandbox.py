"""A sandbox for chat templates: programs that came with a model file, and that nobody has vouched for.

Jinja's own sandbox keeps a template from the interpreter's insides. This one also keeps it from taking forever and from
filling the memory: each round of a loop and each call looks at the clock, and what is built is measured.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

SECONDS: Final = 5.0
"""What one rendering may take; a long conversation takes a few thousandths."""
MAX_LENGTH: Final = 10_000_000
"""Characters or elements of anything a template builds, and the largest number it may call something with."""
MAX_BUILT: Final = 20 * MAX_LENGTH
"""Characters and elements a template may build in all."""

_LARGE_WIDTH: Final = re.compile(r"\d{8}")


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox, with a limit on time and size."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self, **options: Any) -> None:
        """Take Jinja's own options."""
        super().__init__(**options)
        del self.globals["lipsum"]
        for name in ("center", "indent"):
            self.filters[name] = _with_small_numbers(self.filters[name])
        self.filters |= {"_counted": self._counted, "_measured": self._measured}
        self.start()

    def start(self) -> None:
        """Begin a rendering: time and size count from here."""
        self._deadline = time.monotonic() + SECONDS
        self._built = 0

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call something from a template. The odd names are Jinja's: no keyword of a template is spelled like them."""
        __self._look_at_the_clock()
        _refuse_large(*args, *kwargs.values())
        return __self._measured(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Do `left operator right`, where the result is of a decent size."""
        if operator == "%" and isinstance(left, str):
            _refuse_wide(left)
        elif operator == "*":
            _refuse_large(_length(left) * _length(right))
        elif operator == "**":
            _refuse_large(_length(left) ** min(_length(right), 64))
        return self._measured(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return a safe `str.format`, where `value` is one."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _refuse_wide(value.__self__)
        return wrapped

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Watched().visit(super()._parse(source, name, filename))
        return tree

    def _look_at_the_clock(self) -> None:
        if time.monotonic() > self._deadline:
            raise SecurityError(f"it takes longer than {SECONDS:g} seconds")

    def _counted(self, values: Iterable[Any]) -> Iterator[Any]:
        """Watch a loop."""
        for value in values:
            self._look_at_the_clock()
            yield value

    def _measured(self, value: Any) -> Any:
        """Watch what is built."""
        if isinstance(value, str | list | tuple):
            self._built += len(value)
            if len(value) > MAX_LENGTH or self._built > MAX_BUILT:
                raise SecurityError(f"it builds texts or lists of more than {MAX_LENGTH:,} elements")
        return value


class _Watched(NodeTransformer):
    """Has a template's loops counted, and what its filters and its `~` return measured."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        assert isinstance(node.iter, nodes.Expr)
        node.iter = _filtered(node.iter, "_counted")
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, "_measured")

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, "_measured")


def _filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _with_small_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*args: Any, **kwargs: Any) -> Any:
        _refuse_large(*args, *kwargs.values())
        return function(*args, **kwargs)

    return checked


def _length(value: object) -> int:
    """Return what multiplying by `value` multiplies a size by."""
    if isinstance(value, str | list | tuple):
        return len(value)
    return abs(value) if isinstance(value, int) else 1


def _refuse_large(*values: object) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_LENGTH:
            raise SecurityError(f"it works with a number above {MAX_LENGTH:,}")


def _refuse_wide(text: str) -> None:
    if _LARGE_WIDTH.search(text):
        raise SecurityError("it formats a text to an enormous width")
