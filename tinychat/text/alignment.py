"""Laying tokens onto the bytes of the text they were made from."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

Covered = tuple[int | None, int, int]
"""(place of the token, first byte, byte after the last); no token for bytes that none stands for."""


def align(
    tokens: Sequence[bytes], spans: Sequence[tuple[int, int]], text: str, lost: frozenset[int] = frozenset()
) -> list[Covered]:
    """Return which bytes of `text` each token covers; together the stretches are the whole text, in order.

    A byte-level token covers just its bytes. A token of a vocabulary that changes the text first (a space put before
    it, composed characters) covers what it was made from, and of several made from one character the first covers what
    the others don't: some cover nothing.

    Args:
        tokens: The bytes each token stands for.
        spans: The characters each token was made from, text[start:end]; starts never decrease, tokens may share some.
        text: Without lone surrogates.
        lost: The bytes that the vocabulary has no token for.
    """
    data = text.encode()
    exact = _exactly(tokens, data, lost)
    return _by_characters(tokens, spans, text, data) if exact is None else exact


def _exactly(tokens: Sequence[bytes], data: bytes, lost: frozenset[int]) -> list[Covered] | None:
    """Lay the tokens down one behind the other, with nothing but lost bytes between; None where they don't fit."""
    covered: list[Covered] = []
    at = 0
    for place, token in enumerate(tokens):
        start = at
        while not data.startswith(token, at) and at < len(data) and data[at] in lost:
            at += 1
        end = _end_of(token, data, at, lost)
        if end is None:
            return None
        if start < at:
            covered.append((None, start, at))
        covered.append((place, at, end))
        at = end
    if not lost.issuperset(data[at:]):
        return None
    if at < len(data):
        covered.append((None, at, len(data)))
    return covered


def _end_of(token: bytes, data: bytes, at: int, lost: frozenset[int]) -> int | None:
    """Return where a token ends that begins at `at`. Its bytes may have been merged over lost ones, which it covers."""
    if data.startswith(token, at):
        return at + len(token)
    for byte in token:
        while at < len(data) and data[at] != byte and data[at] in lost:
            at += 1
        if at == len(data) or data[at] != byte:
            return None
        at += 1
    return at


def _by_characters(tokens: Sequence[bytes], spans: Sequence[tuple[int, int]], text: str, data: bytes) -> list[Covered]:
    """Lay the tokens down where the characters stand that they were made from."""
    offsets = list(accumulate((len(character.encode()) for character in text), initial=0))
    covered: list[Covered] = []
    first, done = 0, 0
    while first < len(tokens):
        # Tokens that share characters are laid down together.
        start, end = spans[first]
        last = first + 1
        while last < len(tokens) and spans[last][0] < end:
            end = max(end, spans[last][1])
            last += 1
        if offsets[start] > done:
            covered.append((None, done, offsets[start]))
        start, done = max(done, offsets[start]), max(done, offsets[end])
        covered += [
            (None if place is None else first + place, start + low, start + high)
            for place, low, high in _lay_down(tokens[first:last], data[start:done])
        ]
        first = last
    if done < len(data):
        covered.append((None, done, len(data)))
    return covered


def _lay_down(tokens: Sequence[bytes], data: bytes) -> list[Covered]:
    """Lay tokens onto the bytes they were made from, from the last to the first.

    What lies between two tokens goes to a token that stands there and has not been found among the bytes, if there is
    one; else no token stands for it.
    """
    covered: list[Covered] = []  # backwards
    free = len(data)
    for place in range(len(tokens) - 1, -1, -1):
        found = data.rfind(tokens[place], 0, free) if tokens[place] else -1
        if found < 0:
            covered.append((place, free, free))
            continue
        end = found + len(tokens[place])
        _fill(covered, end, free)
        covered.append((place, found, end))
        free = found
    _fill(covered, 0, free)
    return covered[::-1]


def _fill(covered: list[Covered], start: int, end: int) -> None:
    if start == end:
        return
    if covered and covered[-1][1] == covered[-1][2]:
        covered[-1] = (covered[-1][0], start, end)
    else:
        covered.append((None, start, end))
