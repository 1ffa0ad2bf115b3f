"""Which tokens of a reply had been drafted, as far as the screen shows it."""

from __future__ import annotations

from collections import deque

from tinychat.ui import figures
from tinychat.ui.bridge import TokenRun

_RECENT = 64
"""Tokens that are kept to be drawn: more than a gauge has cells for."""


class Acceptance:
    """Counts one reply's drafted tokens and keeps the latest tokens with their marks."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A reply was asked for."""
        self.drafted = 0
        self.accepted = 0
        self.recent: deque[tuple[bytes, bool]] = deque(maxlen=_RECENT)
        """(bytes of a token, whether it had been drafted), the latest last."""

    def add(self, run: TokenRun) -> None:
        """These tokens came."""
        self.drafted = max(self.drafted, run.drafted)
        if self.drafted:
            self.accepted += sum(token.accepted for token in run.tokens)
            self.recent.extend((token.piece, token.accepted) for token in run.tokens)

    def describe(self) -> str:
        """Return the acceptance rate in words, "" where nothing was drafted."""
        return acceptance(self.accepted, self.drafted)


def acceptance(accepted: int, drafted: int) -> str:
    """45 of 58 -> "78 % of 58 drafted tokens accepted"; "" where nothing was drafted."""
    if not drafted:
        return ""
    return f"{figures.share(accepted, drafted)} of {figures.count(drafted)} drafted tokens accepted"
