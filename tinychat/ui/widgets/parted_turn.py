"""A turn of one of two conversations: where the two replies part, that is said across it."""

from __future__ import annotations

from tinychat.ui.widgets.section import Section
from tinychat.ui.widgets.turn_view import TurnView


class PartedTurn(TurnView):
    """What both say, a line that says how they part, and what only this one says."""

    _place: int | None = None
    _words = ""
    _at = 0
    """Index of the section that is the line."""

    def part(self, place: int | None, words: str) -> None:
        """Part the turn.

        Args:
            place: The character of the answer before which the line stands; None puts it above the answer.
            words: The line.
        """
        if (place, words) != (self._place, self._words):
            self._place, self._words = place, words
            self.rebuild()

    @property
    def parting_row(self) -> int | None:
        """The row of the block in which the line stands; None: it isn't there, or not drawn yet."""
        if not (self.drawn and self._words):
            return None
        return self.row_of(self._at, 0)

    def compose_sections(self, width: int) -> list[Section]:
        """Return the sections of the turn, the answer in two."""
        sections = super().compose_sections(width)
        if not self._words:
            return sections
        answer = len(sections) - len(self.remarks) - 1
        line = self.plain(self._words, width, "tone--warning")
        self._at = answer
        if self._place is None:
            return [*sections[:answer], line, *sections[answer:]]
        narrow = max(1, width - 1) if self.live else width
        text = self.text
        place = self._place
        if self._trim and text.startswith(" "):
            text, place = text[1:], max(0, place - 1)
        before, after = self.plain(text[:place], narrow), self.plain(text[place:], narrow)
        head = [before] if text[:place] else []
        self._at = answer + len(head)
        return [*sections[:answer], *head, line, after, *sections[answer + 1 :]]
