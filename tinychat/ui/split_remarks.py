"""What there is to say of a split beside its merges, in sentences: the same on the screen and on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tinychat.pictures import visible_bytes
from tinychat.protocol import Split

_FOUND: Final = {
    "control": "A control token, found before the text is cut.",
    "added": "An added token, found before the text is cut.",
}
_FALLBACKS: Final = {
    "byte": "Byte fallback: characters that are no token begin as the tokens of their bytes.",
    "unknown": "Characters that are no token become the one for unknown characters.",
}


def split_remarks(split: Split) -> Iterator[str]:
    """Yield a sentence for everything about `split` that isn't plain merging."""
    if found := _FOUND.get(split.kind):
        yield found
    if split.lost:
        yield f"No token stands for {visible_bytes(split.lost)}: the model doesn't see it."
    if split.kind == "merged":
        yield from (_FALLBACKS[each] for each in sorted({symbol.fallback for symbol in split.symbols} - {""}))
    if split.note:
        yield split.note
