"""Telling a thinking model's thinking from its answer, as the text streams in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Markers:
    """The texts that thinking stands between."""

    open: str
    close: str


MARKERS: Final = (
    Markers("<think>", "</think>"),
    Markers("[THINK]", "[/THINK]"),
    Markers("<seed:think>", "</seed:think>"),
    Markers("<|START_THINKING|>", "<|END_THINKING|>"),
)
"""Those of the models there are."""


class ThinkingSplitter:
    """Splits one streamed reply.

    Thinking opens a reply or there is none: a marker that comes later is part of the answer. Markers, the white space
    before an opening one and the line breaks just inside and behind the markers belong to neither side.
    """

    def __init__(self, markers: Markers, inside: bool = False) -> None:
        """Start a reply.

        Args:
            markers: What the thinking stands between.
            inside: Whether the prompt has opened the thinking already.
        """
        self._markers = markers
        self._state: Literal["start", "thinking", "answer"] = "thinking" if inside else "start"
        self._held = ""
        self._skip_breaks = inside

    @property
    def inside(self) -> bool:
        """Whether the thinking has begun and not yet ended."""
        return self._state == "thinking"

    def feed(self, text: str) -> tuple[str, str]:
        """Take more text; return what of it is certain to be thinking, and what is certain to be answer."""
        self._held += text
        if self._state == "start":
            self._start()
        thinking = self._take_thinking() if self._state == "thinking" else ""
        return thinking, self._take_answer() if self._state == "answer" else ""

    def flush(self) -> tuple[str, str]:
        """Return what was held back at the end of the reply, as `feed` does."""
        held, self._held = self._held, ""
        return (held.rstrip("\n"), "") if self._state == "thinking" else ("", held)

    def _start(self) -> None:
        begun = self._held.lstrip()
        if begun.startswith(self._markers.open):
            self._state, self._skip_breaks = "thinking", True
            self._held = begun[len(self._markers.open) :]
        elif not self._markers.open.startswith(begun):
            self._state = "answer"

    def _take_thinking(self) -> str:
        self._skip()
        thinking, marker, rest = self._held.partition(self._markers.close)
        if marker:
            self._state, self._held, self._skip_breaks = "answer", rest, True
            return thinking.rstrip("\n")
        # Held back: what may be the closing marker, with the line breaks before it.
        certain = thinking
        for length in range(min(len(self._markers.close) - 1, len(thinking)), 0, -1):
            if self._markers.close.startswith(thinking[-length:]):
                certain = thinking[:-length]
                break
        certain = certain.rstrip("\n")
        self._held = thinking[len(certain) :]
        return certain

    def _take_answer(self) -> str:
        self._skip()
        answer, self._held = self._held, ""
        return answer

    def _skip(self) -> None:
        if self._skip_breaks:
            self._held = self._held.lstrip("\n")
            self._skip_breaks = not self._held
