"""One of two conversations side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from textual.app import ComposeResult
from textual.containers import Vertical

from tinychat.chats import Turn
from tinychat.ui import figures
from tinychat.ui.activity import Progress, activity
from tinychat.ui.conversation import Phase
from tinychat.ui.pair import NAMES, Pair
from tinychat.ui.pair_words import details, parting, parting_place
from tinychat.ui.remarks import Remark
from tinychat.ui.widgets.note import Note
from tinychat.ui.widgets.pane_title import PaneTitle
from tinychat.ui.widgets.parted_turn import PartedTurn
from tinychat.ui.widgets.transcript import Transcript

_RECENT: Final = 32
"""Tokens that the speed is the mean of while a reply is being made."""


class Pane(Vertical):
    """A title, and the transcript of one side."""

    DEFAULT_CSS = """
    Pane {
        width: 1fr;
        & Transcript { height: 1fr; padding: 0 0 0 1; }
    }
    """

    def __init__(self, pair: Pair, side: int) -> None:
        super().__init__()
        self._pair = pair
        self._side = side
        self.chat = pair.sides[side]
        self.views: dict[int, PartedTurn] = {}
        """The turns on the screen, by their ids."""

    def compose(self) -> ComposeResult:
        """Lay out."""
        yield PaneTitle(NAMES[self._side], self._short)
        yield Transcript()

    @property
    def transcript(self) -> Transcript:
        """What was said."""
        return self.query_one(Transcript)

    @property
    def _short(self) -> str:
        return self.chat.name.rpartition("/")[2]

    def add_turn(self, turn: Turn) -> None:
        """Put a turn at the end of the transcript."""
        reply = turn.role == "assistant"
        base = self.chat.info is not None and self.chat.info.format == "base"
        view = PartedTurn(
            turn,
            self._short if reply else "you",
            trim=reply and base and not self.chat.raw,
            live=reply and turn.reason is None,
            reply=self.chat.replies.get(turn.turn_id),
        )
        self.views[turn.turn_id] = view
        self.transcript.add(view)

    def remove_turn(self, turn_id: int | None) -> None:
        """Take a turn off the transcript."""
        if turn_id is not None and (view := self.views.pop(turn_id, None)):
            view.remove()

    def note(self, label: str, told: Sequence[Remark]) -> None:
        """Say something that nobody said."""
        self.transcript.add(Note(label, list(told)))

    async def clear(self) -> None:
        """Empty the transcript."""
        self.views.clear()
        await self.transcript.clear()

    def show_parting(self) -> None:
        """Say where the last replies part."""
        if self._pair.alignment is None:
            return
        if view := self.views.get(self._pair.alignment.replies[self._side].turn_id):
            view.part(parting_place(self._pair, self._side), parting(self._pair, self._side))

    def go_to_parting(self) -> None:
        """Scroll to where the last replies part."""
        if self._pair.alignment is None:
            return
        view = self.views.get(self._pair.alignment.replies[self._side].turn_id)
        if view is not None and (row := view.parting_row) is not None:
            above = self.transcript.size.height // 3
            self.transcript.scroll_to(y=view.virtual_region.y + row - above, animate=False)

    def show_title(self, progress: Progress) -> None:
        """Show model, speed and what tells it from the other."""
        told, fraction = details(self._pair, self._side), None
        if self.chat.phase is Phase.PREFILL:
            fraction = activity(self.chat, progress, queued=False).fraction
        elif self.chat.phase is Phase.LOADING:
            doing = activity(self.chat, progress, queued=False)
            waits = self._side and not self.chat.load_id
            told, fraction = [f"waits for {NAMES[0]}" if waits else doing.label], doing.fraction
        elif self.chat.phase is Phase.NO_MODEL:
            told = ["no model"]
        self.query_one(PaneTitle).show(self._short, told, self._rate(), fraction)

    def _rate(self) -> float:
        """Tokens a second of this side's own steps: while the other one computes, its clock stands still."""
        if not self.chat.replies:
            return 0.0
        reply = next(reversed(self.chat.replies.values()))
        if reply.finished is not None:
            return reply.finished.decode_rate
        recent = reply.tokens[1:][-_RECENT:]
        seconds = sum(token.seconds for token in recent)
        return len(recent) / seconds if seconds > 0 else 0.0


def loaded(pane: Pane) -> list[Remark]:
    """Return what there is to say about the model of a side."""
    info = pane.chat.info
    if info is None:
        return []
    context = f"context {figures.tokens(info.context)}"
    told = [Remark(f"{info.dtype_reason}; {context}.")]
    if info.format == "base":
        told.append(Remark("A base model: it continues a transcript." if not pane.chat.raw else "A base model."))
    return [*told, *(Remark(notice, "warning") for notice in info.notices)]
