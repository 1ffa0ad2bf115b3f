"""The codec of recordings: every dataclass of the protocol, taken from the protocol itself."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinychat.engine.codec import decode, encode
from tinychat.protocol import (
    Command,
    Event,
    Generate,
    MemoryStats,
    Message,
    SamplerSettings,
    SetSampler,
    TokenEmitted,
    Tokenize,
)

_INTS = st.integers(-(2**63) + 1, 2**63 - 1)
_OWN_RULES = {
    SamplerSettings: st.builds(
        SamplerSettings,
        temperature=st.floats(0, 5) | st.just(0),
        seed=st.none() | st.integers(0, 2**63 - 1),
        logit_bias=st.lists(st.tuples(st.integers(0, 9), st.floats(max_value=9, allow_nan=False)), max_size=2).map(
            tuple
        ),
        order=st.sampled_from(["transformers", "llama.cpp"]),
    ),
}


def values(kind: Any, name: str = "", depth: int = 0) -> st.SearchStrategy[Any]:
    """Return a strategy for all values of an annotation: what a dataclass checks of itself is kept."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in _OWN_RULES:
        return _OWN_RULES[kind]
    if origin in (Union, UnionType):
        return st.one_of([values(argument, name, depth + 1) for argument in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values(arguments[0], name, depth + 1), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*(values(argument, name, depth + 1) for argument in arguments))
    if origin is frozenset:
        return st.frozensets(values(arguments[0], name, depth + 1))
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return st.builds(kind, **{f.name: st.deferred(lambda f=f: values(hints[f.name], f.name)) for f in fields(kind)})
    if name == "rate":
        return st.floats(0.1, 100) | st.integers(1, 9)
    if name == "max_tokens":
        return st.integers(1, 2**31)
    if name == "stop":
        return st.text(min_size=1)
    plain = {str: st.text(st.characters()), bytes: st.binary(), bool: st.booleans(), NoneType: st.none()}
    return (plain | {int: _INTS, float: st.floats()})[kind]


def _all(kind: Any) -> list[Any]:
    return list(get_args(kind))


def told(value: Any) -> Any:
    """Return a value by what `repr` tells of its parts: that -0.0 isn't 0.0 nor 1 True, that NaN is NaN; a set has no
    order."""
    if is_dataclass(value):
        return type(value), [told(getattr(value, f.name)) for f in fields(value)]
    if isinstance(value, tuple):
        return [told(part) for part in value]
    return sorted(value) if isinstance(value, frozenset) else repr(value)


@pytest.mark.parametrize("kind", [*_all(Command), *_all(Event)], ids=lambda kind: kind.__name__)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_every_command_and_event_comes_back_as_it_was(kind: Any, data: st.DataObject) -> None:
    """Would catch: a field of a type that nobody thought of (a new event), a byte or a NaN changed on the way, a
    default that is taken for what it only equals (-0.0, 1.0, True).
    """
    whole = Command if kind in _all(Command) else Event
    value = data.draw(values(kind))
    line = json.dumps(encode(whole, value), allow_nan=False)
    assert line.isascii()
    back = decode(whole, json.loads(line))
    assert type(back) is kind
    assert told(back) == told(value)


def test_what_stands_for_its_default_is_left_out() -> None:
    """Would catch: a recording ten times as large as what happened."""
    assert encode(Command, SetSampler(SamplerSettings(top_k=3))) == {"type": "SetSampler", "sampler": {"top_k": 3}}


def test_bytes_and_numbers_that_json_lacks() -> None:
    """Would catch: UTF-8 assumed of a token's bytes, `Infinity` in a file that claims to be JSON."""
    token = encode(Event, TokenEmitted(1, 0, 7, b"\xff\x00a", "", logprob=-math.inf))
    assert token["piece"] == "\xff\x00a"
    assert token["logprob"] == {"float": "-inf"}


@pytest.mark.parametrize(
    ("kind", "data", "names"),
    [
        (Command, {"type": "Explode"}, "Explode"),
        (Command, {"type": ["Generate"]}, "list"),
        (Command, {}, "None"),
        (Command, [], "list"),
        (Command, 3, "3"),
        (Command, {"type": "Tokenize", "request_id": 1}, "text"),
        (Command, {"type": "Tokenize", "request_id": 1.5, "text": ""}, "1.5"),
        (Command, {"type": "Tokenize", "request_id": True, "text": ""}, "True"),
        (Command, {"type": "Tokenize", "request_id": 10**400, "text": ""}, "digits"),
        (Command, {"type": "Tokenize", "request_id": 1, "text": "", "more": 1}, "more"),
        (Command, {"type": "Pace", "mode": "[bold]run\x1b["}, "\\x1b"),
        (Command, {"type": "Pace", "rate": -1}, "-1"),
        (Command, {"type": "Pace", "rate": {"float": "1e9"}}, "number"),
        (Command, {"type": "SetSampler", "sampler": {"temperature": 99}}, "99"),
        (Command, {"type": "SetSampler", "sampler": {"logit_bias": [[1, 2, 3]]}}, "list of 2"),
        (Event, {"type": "TokenEmitted", "turn_id": 1, "index": 0, "token_id": 1, "piece": "€", "text": ""}, "bytes"),
        (Event, {"type": "MemoryStats", "weights": "x" * 10_000}, "lacks"),
    ],
)  # fmt: skip
def test_what_is_none_of_it_is_refused_with_a_sentence(kind: Any, data: Any, names: str) -> None:
    """Would catch: a hostile file that raises a KeyError, a RecursionError, or builds something else."""
    with pytest.raises(ValueError) as refused:
        decode(kind, data)
    assert names in str(refused.value)
    assert len(str(refused.value)) < 300


def test_a_file_of_an_older_tinychat_is_read() -> None:
    """Would catch: a field that was added with a default, and has made every older recording worthless."""
    read = decode(Command, {"type": "Generate", "turn_id": 1, "messages": [{"role": "user", "text": "Hi"}]})
    assert read == Generate(1, (Message("user", "Hi"),))
    assert decode(Command, encode(Command, Tokenize(1, "\ud800"))) == Tokenize(1, "\ud800")
    assert isinstance(decode(Event, encode(Event, MemoryStats(1, 2, 3, 4, 5))), MemoryStats)
