"""A stretch of a text block."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.segment import Segment

from tinychat.ui.wrapping import WrappedText


@dataclass(slots=True)
class Section:
    """A stretch of a block in one style, or of lines that bring their own."""

    style: str = ""
    """Component class."""
    wrapped: WrappedText | None = None
    rendered: list[list[Segment]] = field(default_factory=list)

    def __len__(self) -> int:
        """The number of lines."""
        return len(self.rendered) if self.wrapped is None else len(self.wrapped.lines)

    def line(self, number: int) -> list[Segment]:
        """Return a line; one of wrapped text has no style yet."""
        if self.wrapped is None:
            return self.rendered[number]
        return [Segment(self.wrapped.lines[number].rstrip(" "))]
