"""The view of the exact prompt: text and ids as they went into the model, and where each came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from textual.binding import Binding

from tinychat.pictures import visible_bytes
from tinychat.protocol import PromptDescribed
from tinychat.ui import figures
from tinychat.ui.glass import Glass
from tinychat.ui.prompt_layout import PromptLayout, PromptLine, source_of
from tinychat.ui.views.view import NOTHING, View, sentence
from tinychat.ui.widgets import line_widget
from tinychat.ui.widgets.line_widget import Line, cut

_GUTTER: Final = 10
_BOS: Final = "◀ BOS"


class PromptView(View):
    """Chips in paragraphs, the source of each beside it; a piece of its own in focus."""

    NAME = "prompt"

    HELP = """
**The exact prompt.** What went into the model for this turn, token by token: `template` is what the chat template
added, `you` and `system` what was typed, `reply` what the model said before, with the ids it was said in. Control
tokens, which no typed text can become, stand in brackets. `◀ BOS` is the beginning-of-sequence token: a model that has
one was trained with exactly one, and a second one makes it worse. `i` shows ids in place of text. Outside the chat,
`tinychat prompt` prints the same.
"""

    BINDINGS = [
        Binding("left", "piece(-1)", "piece", tooltip="The piece before", key_display="←→", id="prompt.piece"),
        Binding("right", "piece(1)", "next piece", show=False, tooltip="The piece after"),
        Binding("ctrl+left", "piece(-10)", "ten back", show=False, tooltip="Ten pieces back"),
        Binding("ctrl+right", "piece(10)", "ten on", show=False, tooltip="Ten pieces on"),
        Binding("home", "piece(-1000000)", "first piece", show=False, tooltip="The first piece"),
        Binding("end", "piece(1000000)", "last piece", show=False, tooltip="The last piece"),
        Binding("i", "ids", "ids/text", tooltip="Show ids in place of text", id="prompt.ids"),
    ]

    COMPONENT_CLASSES = {"prompt--template", "prompt--control", "prompt--person", "prompt--model", "prompt--bos"}

    DEFAULT_CSS = """
    PromptView {
        & .prompt--template { color: $quiet; background: $panel; }
        & .prompt--control { color: $foreground; background: $panel; text-style: bold; }
        & .prompt--person { color: $chip-text; background: $chip-odd; }
        & .prompt--model { color: $chip-text; background: $chip-even; }
        & .prompt--bos { color: $warning; text-style: bold; }
    }
    """

    def __init__(self, glass: Glass) -> None:
        super().__init__(glass)
        self._ids = False
        self._piece = 0
        """Index of the piece in focus."""
        self._layout_of: PromptLayout | None = None

    def head(self, width: int) -> Sequence[Line]:
        """Return the counts, what is wrong with BOS, and the piece in focus."""
        described = self._described
        if self.glass.turn_id is None:
            return sentence(NOTHING, width)
        if described is None:
            return sentence("Asking the engine ...", width)
        if described.problem:
            return sentence(described.problem, width, "view--warning")
        counts = Counter(source_of(span) for span in described.spans for _ in range(span.start, span.end))
        parts = ", ".join(f"{source} {figures.count(number)}" for source, number in counts.items())
        lines: list[Line] = [((cut(f"{figures.tokens(len(described.pieces))}: {parts}", width), "view--title"),)]
        told, style = _bos(described)
        lines += sentence(told, width, style)
        if self._piece < len(described.pieces):
            piece = described.pieces[self._piece]
            data = piece.data[:12].hex(" ").upper() + (" …" if len(piece.data) > 12 else "")
            kind = " · control token" if piece.special else ""
            text = f"piece {self._piece + 1} · id {piece.token_id} · {visible_bytes(piece.data)}{kind} · {data}"
            lines.append(((cut(text, width), "view--quiet"),))
        return lines

    def body(self, width: int) -> Sequence[Line]:
        """Return the paragraphs."""
        described = self._described
        if described is None or described.problem:
            return ()
        layout = self._layout_of
        if layout is None or (layout.described, layout.width, layout.ids) != (described, width - _GUTTER, self._ids):
            layout = self._layout_of = PromptLayout(described, width - _GUTTER, ids=self._ids)
            self.row = layout.line_of(self._piece)
        # What is out of view is not drawn, only counted: a prompt may be thousands of lines.
        first, last = self.row - self.size.height, self.row + self.size.height
        return [
            self._line(described, line) if first <= number <= last else () for number, line in enumerate(layout.lines)
        ]

    def action_piece(self, steps: int) -> None:
        """Look at another piece."""
        described, layout = self._described, self._layout_of
        if described is not None and layout is not None and described.pieces:
            self._piece = min(max(self._piece + steps, 0), len(described.pieces) - 1)
            self.row = layout.line_of(self._piece)
            self.update_lines()

    def action_move(self, rows: int) -> None:
        """Look at the first piece of another line."""
        if (layout := self._layout_of) is not None and layout.lines:
            self.row = min(max(self.row + rows, 0), len(layout.lines) - 1)
            self._piece = layout.lines[self.row].first
            self.update_lines()

    def action_ids(self) -> None:
        """Go between text and ids."""
        self._ids = not self._ids
        self.update_lines()

    @property
    def _described(self) -> PromptDescribed | None:
        described = self.glass.described
        return described if described is not None and described.turn_id == self.glass.turn_id else None

    def _line(self, described: PromptDescribed, line: PromptLine) -> Line:
        spans: list[line_widget.Span] = [
            ((source_of(line.span) if line.begins else "").ljust(_GUTTER)[:_GUTTER], "view--quiet")
        ]
        for index, label in enumerate(line.labels, line.first):
            special = described.pieces[index].special
            style = "prompt--control" if special else f"prompt--{line.span.origin}"
            before, after = ("[", "]") if special else ("▏", " ")
            spans.append((f"{before}{label}{after}", "view--row" if index == self._piece else style))
            if index in described.bos:
                spans.append((f"{_BOS} ", "prompt--bos"))
        return tuple(spans)


def _bos(described: PromptDescribed) -> tuple[str, str]:
    """Say how it stands with the beginning-of-sequence token, and in which style."""
    bos = described.bos
    if not bos:
        return "No BOS: right for a model that was trained without one.", "view--warning"
    if len(bos) > 1:
        return f"{len(bos)} BOS at the beginning, where a model was trained with one.", "view--warning"
    return "One BOS, at the beginning.", "view--quiet"
