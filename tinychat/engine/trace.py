"""What happened at each token, as a file: a JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tinychat.errors import TinychatError
from tinychat.protocol import LayerStatistics, TokenEmitted


class Trace:
    """A file that replies are written to, token by token."""

    def __init__(self, path: Path) -> None:
        """Begin an empty file.

        Raises:
            TinychatError: It can't be written.
        """
        self._path = path
        try:
            self._file = path.open("w", encoding="utf-8", buffering=1)
        except OSError as error:
            raise TinychatError(self._sentence(error), "Choose another file for --trace.") from None
        self._ended = False

    def write(self, token: TokenEmitted, draw: float, layers: Sequence[LayerStatistics]) -> str:
        """Write a token; return what went wrong, as a sentence: after that, nothing more is written.

        Args:
            token: What was told of it.
            draw: The random number that decided.
            layers: What they did; none, where the token was dictated.
        """
        if self._ended:
            return ""
        line: dict[str, Any] = {
            "turn": token.turn_id,
            "index": token.index,
            "id": token.token_id,
            **piece_of(token.piece),
            "logprob": token.logprob,
            "rank": token.rank,
            "entropy": token.entropy,
            "draw": draw,
            "seconds": token.seconds,
            "layers": [asdict(layer) for layer in layers],
        }
        try:
            self._file.write(json.dumps(line) + "\n")
        except OSError as error:
            self._ended = True
            return f"{self._sentence(error)} The trace ends there."
        return ""

    def close(self) -> None:
        """Write what is left."""
        try:
            self._file.close()
        except OSError:
            self._ended = True  # it was told of when the line was written

    def _sentence(self, error: OSError) -> str:
        return f"{self._path} can't be written: {error.strerror or error}."


def piece_of(data: bytes) -> dict[str, str]:
    """Return a token's bytes as text; where they are no UTF-8, with U+FFFD, and all of them in hexadecimal besides."""
    try:
        return {"piece": data.decode()}
    except UnicodeDecodeError:
        return {"piece": data.decode(errors="replace"), "hex": data.hex()}
