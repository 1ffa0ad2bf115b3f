"""Turns and settings as JSON values and back, for the database and for files."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final, get_args

from tinychat.chats.turn import Ending, Turn
from tinychat.protocol import FinishReason, SamplerSettings

_ENDINGS: Final = (*get_args(FinishReason), "edited", "cut", None)
assert set(_ENDINGS) == {*get_args(FinishReason), *get_args(get_args(Ending)[-1]), None}

ID_RANGE: Final = range(2**32)


def settings_plain(settings: SamplerSettings) -> dict[str, Any]:
    """Return settings as a JSON object; JSON has no infinity, which bans a token, so amounts are strings."""
    return asdict(settings) | {"logit_bias": [[token_id, repr(amount)] for token_id, amount in settings.logit_bias]}


def settings_read(plain: Mapping[str, Any]) -> SamplerSettings:
    """Return the settings of a JSON object. What this version doesn't know is passed over.

    Raises:
        ValueError, TypeError: A value is none.
    """
    known = {name: plain[name] for name in SamplerSettings.__dataclass_fields__ if name in plain}
    bias = tuple((int(token_id), float(amount)) for token_id, amount in known.pop("logit_bias", ()))
    return SamplerSettings(**known, logit_bias=bias)


def turn_plain(turn: Turn) -> dict[str, Any]:
    """Return a turn as a JSON object."""
    settings = [[index, settings_plain(each)] for index, each in turn.settings]
    return {name: getattr(turn, name) for name in Turn.__dataclass_fields__} | {
        "ids": [*turn.ids],
        "settings": settings,
    }


def turn_read(plain: Mapping[str, Any]) -> Turn:
    """Return the turn of a JSON object. What this version doesn't know is passed over.

    Raises:
        ValueError, TypeError, KeyError: A value is missing or none.
    """
    known = {name: plain[name] for name in Turn.__dataclass_fields__ if name in plain}
    for name in ("text", "thinking", "vocabulary", "model", "weights"):
        if not isinstance(known.get(name, ""), str):
            raise TypeError(f"{name} is no text")
    if known["role"] not in ("user", "assistant") or known.get("reason") not in _ENDINGS:
        raise ValueError(f"there is no role {known['role']!r} that ends by {known.get('reason')!r}")
    ids = tuple(int(token_id) for token_id in known.pop("ids", ()))
    if any(token_id not in ID_RANGE for token_id in ids):
        raise ValueError("an id is out of its range")
    settings = tuple((int(index), settings_read(each)) for index, each in known.pop("settings", ()))
    return Turn(**known, ids=ids, settings=settings)


def packed(ids: tuple[int, ...]) -> bytes:
    """Return ids as 4 bytes each, little-endian."""
    return struct.pack(f"<{len(ids)}I", *ids)


def unpacked(data: bytes) -> tuple[int, ...]:
    """Return the ids of `packed`."""
    return struct.unpack(f"<{len(data) // 4}I", data)
