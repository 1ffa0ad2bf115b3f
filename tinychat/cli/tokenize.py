"""`tinychat tokenize`: what a text falls into, byte for byte, and back."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tinychat.cli import options
from tinychat.cli.console import Notices, Results
from tinychat.cli.files import card_of
from tinychat.cli.piped import decoded, piped_bytes
from tinychat.cli.vocabulary import vocabulary_of
from tinychat.errors import UsageError
from tinychat.pictures import visible_bytes
from tinychat.protocol import Piece

if TYPE_CHECKING:
    from tinychat.text.tokenizer import Tokenizer

_CHIPS = ("\x1b[30;46m", "\x1b[30;43m")
"""Black on cyan and black on yellow, in turn: two of the sixteen colours every terminal has."""
_PLAIN = "\x1b[0m"


def tokenize(
    model: options.Model,
    text: Annotated[
        str | None, typer.Argument(parser=options.plain, metavar="TEXT", help="Else what is piped in.")
    ] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Print the ids alone, as a JSON list.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print id, piece, bytes, start, end and special of each token.")
    ] = False,
    decode: Annotated[bool, typer.Option("--decode", help="TEXT is a JSON list of ids: print their bytes.")] = False,
    batch: Annotated[
        bool, typer.Option("--batch", help="stdin is a JSON list of strings: print a JSON list of id lists.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print each merge that the tokens come from; with --json as an object.")
    ] = False,
    special: Annotated[
        bool, typer.Option("--special", help="Let control tokens in the text act; else they are plain text.")
    ] = False,
    bos: Annotated[bool, typer.Option("--bos", help="Begin with the token that the model is fed first.")] = False,
) -> None:
    """Split a text into the model's tokens.

    Needs no weights: a folder with tokenizer.json alone, or a GGUF file without tensors, will do.
    """
    asked = [flag for flag, on in (("--ids", ids), ("--json", as_json), ("--decode", decode), ("--batch", batch)) if on]
    if len(asked) > 1:
        raise UsageError(f"{' and '.join(asked)} can't go together.")
    if explain and (ids or decode or batch or bos):
        raise UsageError("--explain tells how one text becomes tokens; only --json and --special go with it.")
    if decode and (special or bos):
        raise UsageError("--special and --bos change what a text becomes; --decode goes the other way.")
    if batch and text is not None:
        raise UsageError("--batch reads its texts from stdin and takes no TEXT.")
    if text is None and sys.stdin.isatty():
        raise UsageError("There is no text.", "Give one after MODEL, or pipe one in.")
    card = card_of(model)
    data = piped_bytes() if text is None else os.fsencode(text)
    tokenizer = vocabulary_of(card).tokenizer
    results = Results()
    if decode:
        _print_bytes(results, _decoded(tokenizer, _ids(data, tokenizer.size)))
        return
    if explain:
        from tinychat.cli.merges import described_walk, print_walk
        from tinychat.text import bpe_walk

        walk = bpe_walk.explain(tokenizer, _text(data, "--explain"), special)
        if as_json:
            results.json(described_walk(walk))
        else:
            print_walk(results, walk)
        return
    first = _first(tokenizer, card.name) if bos else ()
    if batch:
        encode = tokenizer.encode_with_control if special else tokenizer.encode
        results.json([[*(piece.token_id for piece in first), *encode(each)] for each in _strings(data)])
        return
    pieces = (*first, *_pieces(tokenizer, data, special=special))
    if ids:
        results.json([piece.token_id for piece in pieces if piece.token_id is not None])
    elif as_json:
        results.json([_described(piece) for piece in pieces])
    else:
        _print_table(results, pieces)


def _first(tokenizer: Tokenizer, name: str) -> tuple[Piece, ...]:
    """Return what the model is fed before a text: a token that covers none of its bytes."""
    if tokenizer.adds_bos and tokenizer.bos_id is not None:
        return (Piece(tokenizer.bos_id, b"", 0, special=True),)
    Notices().line(f"note: {name} is fed no token before a text, so --bos adds none.")
    return ()


def _pieces(tokenizer: Tokenizer, data: bytes, *, special: bool) -> tuple[Piece, ...]:
    if not special:
        return tokenizer.pieces_of_bytes(data)
    return tokenizer.pieces(_text(data, "--special"), control=True)


def _text(data: bytes, flag: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{flag} needs UTF-8, but byte {error.start:,} is 0x{data[error.start]:02X}.") from None


def _described(piece: Piece) -> dict[str, Any]:
    return {
        "id": piece.token_id,
        "piece": piece.data.decode("utf-8", "replace"),
        "bytes": piece.data.hex(),
        "start": piece.start,
        "end": piece.start + len(piece.data),
        "special": piece.special,
    }


def _print_table(results: Results, pieces: tuple[Piece, ...]) -> None:
    """Print the pieces side by side, then one a line; bytes without a token are marked by a dash for an id."""
    labels = [visible_bytes(piece.data) for piece in pieces]
    if results.styled:
        results.own("".join(f"{_CHIPS[at % 2]}{label}" for at, label in enumerate(labels)) + f"{_PLAIN}\n\n")
    else:
        results.line("|".join(labels) + "\n")
    rows = [
        (
            str(piece.start),
            "-" if piece.token_id is None else str(piece.token_id),
            piece.data.hex(" "),
            label + "  (control token)" * piece.special + "  (no token)" * (piece.token_id is None),
        )
        for piece, label in zip(pieces, labels, strict=True)
    ]
    head = ("byte", "id", "bytes", "piece")
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(3)]
    for byte, token_id, data, label in [head, *rows]:
        results.line(f"{byte:>{widths[0]}}  {token_id:>{widths[1]}}  {data:<{widths[2]}}  {label}")
    count = sum(piece.token_id is not None for piece in pieces)
    size = sum(len(piece.data) for piece in pieces)
    results.line(f"\n{count:,} token{'s' * (count != 1)}, {size:,} byte{'s' * (size != 1)}")


def _print_bytes(results: Results, data: bytes) -> None:
    results.data(data + b"\n" if results.terminal else data)


def _decoded(tokenizer: Tokenizer, ids: list[int]) -> bytes:
    """Return the bytes of a whole text, without the space that the vocabulary itself puts before its first word."""
    data = tokenizer.decode_bytes(ids)
    return data.removeprefix(b" ") if tokenizer.adds_space else data


def _ids(data: bytes, size: int) -> list[int]:
    """Return a JSON list of ids.

    Raises:
        UsageError: It is none, or an id is out of range.
    """
    ids = _json(data, "a list of ids")
    if not isinstance(ids, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise UsageError("--decode wants a JSON list of ids, as --ids prints it.")
    for token_id in ids:
        if not 0 <= token_id < size:
            raise UsageError(f"The id {token_id} is out of range: this vocabulary has 0 to {size - 1}.")
    return ids


def _strings(data: bytes) -> list[str]:
    """Return a JSON list of strings.

    Raises:
        UsageError: It is none.
    """
    texts = _json(data, "a list of strings")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UsageError("--batch wants a JSON list of strings.")
    return texts


def _json(data: bytes, what: str) -> object:
    try:
        return json.loads(decoded(data, "stdin"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"This is not JSON, which has to be {what}: {error}.") from None
