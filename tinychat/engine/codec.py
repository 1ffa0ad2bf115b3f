"""The protocol's data as JSON and back, without loss: what a recording's lines are made of.

Nothing here knows a single command or event. Each dataclass is taken apart by the types of its fields, so one that is
added to the protocol tomorrow is written and read like all others.

Numbers, strings and lists are JSON's own; a dataclass is an object of its fields, those left out that have their
default value. Where several dataclasses may stand, the object names its own as `type`. Bytes are a string of one
character a byte (Latin-1); a float that JSON has no word for is `{"float": "inf"}`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

_MOST: Final = 2**63
"""No whole number of the protocol is as large; a program that draws longer ones chokes on them."""


def encode(kind: Any, value: Any) -> Any:
    """Return a value as what `json.dumps` takes.

    Args:
        kind: Its type, as in an annotation: a dataclass, a union of them, `tuple[int, ...]`.
        value: One of that type.
    """
    return _coder(kind).encode(value)


def decode(kind: Any, data: Any) -> Any:
    """Return the value of type `kind` that `encode` made `data` of.

    Raises:
        ValueError: It can't have; the sentence says what stands where.
    """
    return _coder(kind).decode(data)


class _Coder:
    """Encodes and decodes one type."""

    def __init__(self, encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> None:
        self.encode = encode
        self.decode = decode


@cache
def _coder(kind: Any) -> _Coder:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _union(arguments)
    if origin is Literal:
        return _Coder(_same, lambda data: data if data in arguments else _refuse(f"one of {arguments}", data))
    if origin is tuple:
        return _sequence(arguments)
    if origin is frozenset:
        inner = _coder(arguments[0])
        return _Coder(
            lambda value: sorted(map(inner.encode, value)),
            lambda data: frozenset(map(inner.decode, _of(list, "a list", data))),
        )
    if is_dataclass(kind):
        return _fields(kind)
    return _PLAIN[kind]


def _fields(kind: Any) -> _Coder:
    """Of a dataclass."""
    hints = get_type_hints(kind)

    @cache
    def coders() -> dict[str, _Coder]:
        """Look them up when one is met: types may hold themselves."""
        return {field.name: _coder(hints[field.name]) for field in fields(kind)}

    defaults = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(kind)
        if field.default is not MISSING or field.default_factory is not MISSING
    }

    def encode(value: Any) -> dict[str, Any]:
        made = {}
        for name, coder in coders().items():
            part, default = getattr(value, name), defaults.get(name, MISSING)
            # Not by `==` alone, which takes 1 for 1.0 and for True, and 0.0 for -0.0.
            if part is not default and (part != default or repr(part) != repr(default)):
                made[name] = coder.encode(part)
        return made

    def decode(data: Any) -> Any:
        given = _of(dict, f"a {kind.__name__}", data)
        parts = coders()
        if unknown := [name for name in given if name not in parts and name != "type"]:
            raise ValueError(f"{kind.__name__} has no {_short(unknown[0])}")
        if missing := [name for name in parts if name not in given and name not in defaults]:
            raise ValueError(f"{kind.__name__} lacks its {missing[0]}")
        return kind(**{name: coder.decode(given[name]) for name, coder in parts.items() if name in given})

    return _Coder(encode, decode)


def _union(kinds: tuple[Any, ...]) -> _Coder:
    """Of one of several types. JSON tells plain ones apart, `type` the dataclasses."""
    named: dict[str, Any] = {getattr(kind, "__name__", ""): kind for kind in kinds if is_dataclass(kind)}
    plain: list[Any] = [kind for kind in kinds if not is_dataclass(kind)]

    def encode(value: Any) -> Any:
        name = type(value).__name__
        if name in named:
            made = _coder(named[name]).encode(value)
            return {"type": name, **made} if len(named) > 1 else made
        return next(_coder(kind) for kind in plain if _holds(kind, value)).encode(value)

    def decode(data: Any) -> Any:
        if isinstance(data, dict) and named and "float" not in data:
            name = data.get("type") if len(named) > 1 else next(iter(named))
            if not isinstance(name, str) or name not in named:
                raise ValueError(f"nothing goes by the type {_short(name)}")
            return _coder(named[name]).decode(data)
        for kind in plain:
            if _holds(kind, data) or (kind is float and isinstance(data, int | dict)) or _listed(kind, data):
                return _coder(kind).decode(data)
        return _refuse("one of several types", data)

    return _Coder(encode, decode)


def _holds(kind: Any, value: Any) -> bool:
    """Whether a value is of a plain type."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is not None:
        return isinstance(value, get_origin(kind))
    return type(value) is kind or (kind is float and type(value) is int) or (kind is bytes and type(value) is str)


def _listed(kind: Any, data: Any) -> bool:
    """Whether data may be a list of a type."""
    return isinstance(data, list) and get_origin(kind) in (tuple, frozenset)


def _sequence(arguments: tuple[Any, ...]) -> _Coder:
    """Of `tuple[X, ...]`, or of a tuple whose members have each their own type."""
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        inner = _coder(arguments[0])
        return _Coder(
            lambda value: [inner.encode(part) for part in value],
            lambda data: tuple(inner.decode(part) for part in _of(list, "a list", data)),
        )
    members = [_coder(argument) for argument in arguments]

    def decode(data: Any) -> tuple[Any, ...]:
        parts = _of(list, "a list", data)
        if len(parts) != len(members):
            _refuse(f"a list of {len(members)}", data)
        return tuple(member.decode(part) for member, part in zip(members, parts, strict=True))

    return _Coder(lambda value: [m.encode(part) for m, part in zip(members, value, strict=True)], decode)


def _same(value: Any) -> Any:
    return value


def _float(value: float) -> Any:
    return value if math.isfinite(value) else {"float": repr(float(value))}


def _read_float(data: Any) -> Any:
    if isinstance(data, dict):
        name = data.get("float")
        return float(name) if name in ("inf", "-inf", "nan") else _refuse("a number", data)
    return data if type(data) is float and math.isfinite(data) else _whole(data)


def _whole(data: Any) -> int:
    if type(data) is not int or abs(data) >= _MOST:
        _refuse("a number below 2 to the 63rd", data)
    return int(data)


def _read_bytes(data: Any) -> bytes:
    try:
        return bytes(_of(str, "bytes as a string", data).encode("latin-1"))
    except UnicodeEncodeError:
        return bytes(_refuse("bytes as a string", data))


def _of(kind: type, name: str, data: Any) -> Any:
    """Return data that is of a type of JSON's."""
    return data if type(data) is kind else _refuse(name, data)


def _refuse(wanted: str, data: Any) -> Any:
    raise ValueError(f"{_short(data)} stands in place of {wanted}")


def _short(data: Any) -> str:
    """Return data as a sentence may quote it."""
    if isinstance(data, dict | list):
        return "an object" if isinstance(data, dict) else "a list"
    if isinstance(data, int) and abs(data) >= _MOST:
        return "a number of many digits"
    text = repr(data)
    return text if len(text) <= 40 else f"{text[:36]} ..."


_PLAIN: Final[dict[Any, _Coder]] = {
    str: _Coder(_same, lambda data: _of(str, "a text", data)),
    int: _Coder(_same, _whole),
    bool: _Coder(_same, lambda data: _of(bool, "true or false", data)),
    float: _Coder(_float, _read_float),
    bytes: _Coder(lambda value: value.decode("latin-1"), _read_bytes),
    NoneType: _Coder(_same, lambda data: _of(NoneType, "null", data)),
}
