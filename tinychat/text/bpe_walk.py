"""How a text becomes tokens, told step by step: cut, then merged piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tinychat.protocol import BpeWalk, Split, Symbol
from tinychat.text.pipelines import Start
from tinychat.text.pre_tokens import PreToken
from tinychat.text.tokenizer import Tokenizer, well_formed

WALKED_SYMBOLS: Final = 512
"""The longest piece that is walked begins with so many symbols: the walk takes quadratic time."""
EXPLAINED_SYMBOLS: Final = 2_048
"""Of a long text, pieces are explained until they have begun with so many symbols together."""

_WHOLE: Final = "The whole piece is in the vocabulary, which this model looks at before it merges."
_REFUSED: Final = (
    "Merging leads to a control token, which text must never become; its characters are encoded one by one."
)
_OTHER: Final = (
    "The library, which the model is fed from, comes to other tokens: this vocabulary isn't what BPE learns, and the "
    "walk doesn't explain them."
)


def explain(tokenizer: Tokenizer, text: str, control: bool = False) -> BpeWalk:
    """Return how `text` becomes the tokens that `Tokenizer.encode` gives.

    Args:
        tokenizer: Any that tinychat reads: all of them are BPE.
        text: Any string.
        control: Whether control tokens in it act.
    """
    text = well_formed(text)
    splits: list[Split] = []
    room, left_out = EXPLAINED_SYMBOLS, 0
    cut: list[bytes] = []
    for piece, special in _pieces(tokenizer, text, control):
        data = piece.spelled.encode() if piece.found else b"".join(map(tokenizer.bpe.bytes_of, piece.spelled))
        cut.append(data)
        if room > 0:
            splits.append(_found(piece, data, special) if piece.found else _split(tokenizer, piece, data))
            room -= max(1, len(splits[-1].symbols))
        else:
            left_out += 1
    normalized = b"".join(cut)
    return BpeWalk(
        tuple(splits), left_out, None if normalized == text.encode() else normalized, tokenizer.bpe.scores is not None
    )


def _pieces(tokenizer: Tokenizer, text: str, control: bool) -> Iterator[tuple[PreToken, bool]]:
    """Yield what the text is cut into, control tokens marked."""
    start: Start = "text"
    done = 0
    for match in [*(tokenizer.control_tokens(text) if control else ()), None]:
        plain = text[done : match.start if match else len(text)]
        yield from ((piece, False) for piece in tokenizer.pre_tokens.of(plain, start))
        if match:
            yield PreToken(text[match.start : match.end], (match.token_id,), found=True), True
            done, start = match.end, "control"


def _found(piece: PreToken, data: bytes, special: bool) -> Split:
    """Return a token that was found before the text was cut."""
    return Split("control" if special else "added", data, tokens=(Symbol(data, piece.ids[0]),))


def _split(tokenizer: Tokenizer, piece: PreToken, data: bytes) -> Split:
    """Return how a piece is merged."""
    bpe = tokenizer.bpe
    if (whole := bpe.whole(piece.spelled)) is not None:
        return _ending(tokenizer, piece, Split("whole", data, (Symbol(data, whole),), note=_WHOLE))
    symbols, lost = bpe.symbols(piece.spelled)
    if len(symbols) > WALKED_SYMBOLS:
        note = f"It begins with {len(symbols):,} symbols, and walks end at {WALKED_SYMBOLS}: here are just its tokens."
        given = tuple(Symbol(tokenizer.bytes_of(token_id), token_id) for token_id in piece.ids)
        return _ending(tokenizer, piece, Split("long", data, given, lost=lost, note=note))
    merges = tuple(bpe.merge([symbol.token_id for symbol in symbols]))
    return _ending(tokenizer, piece, Split("merged", data, tuple(symbols), merges, lost))


def _ending(tokenizer: Tokenizer, piece: PreToken, split: Split) -> Split:
    """Return `split` with the tokens that the model is fed, and a note where those aren't what the walk ends with."""
    last = split.after(len(split.merges))
    if tuple(symbol.token_id for symbol in last) != piece.ids:
        given = tuple(Symbol(tokenizer.bytes_of(token_id), token_id) for token_id in piece.ids)
        return replace(split, tokens=given, note=_OTHER)
    allowed = tuple(each for symbol in last for each in _without_control(tokenizer, symbol))
    return replace(split, tokens=allowed, note=split.note if allowed == last else f"{split.note} {_REFUSED}".strip())


def _without_control(tokenizer: Tokenizer, symbol: Symbol) -> tuple[Symbol, ...]:
    """Return a token; in place of a control token, which text never becomes, those of its characters one by one."""
    if symbol.token_id not in tokenizer.special or symbol.token_id == tokenizer.bpe.unknown:
        return (symbol,)
    characters = symbol.data.decode("utf-8", "replace")
    if len(characters) == 1:
        return ()
    ids = [token_id for character in characters for token_id in tokenizer.encode(character, first=False)]
    return tuple(Symbol(tokenizer.bytes_of(token_id), token_id) for token_id in ids)
