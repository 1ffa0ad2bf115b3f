"""What the program itself says in the transcript: the model's card, notices, errors."""

from __future__ import annotations

from tinychat.ui.remarks import Remark
from tinychat.ui.widgets.section import Section
from tinychat.ui.widgets.text_block import TextBlock


class Note(TextBlock):
    """Some sentences that nobody said, and that the model is not told."""

    def __init__(self, label: str, remarks: list[Remark]) -> None:
        super().__init__(label, "label--note")
        self._remarks = remarks

    def compose_sections(self, width: int) -> list[Section]:
        """Return a section a sentence."""
        return [self.plain(remark.text, width, f"tone--{remark.tone}") for remark in self._remarks]
