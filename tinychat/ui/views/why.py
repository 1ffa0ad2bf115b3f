"""The view that says why a token was said: the candidates, the sampler's chain, and the draw."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.binding import Binding
from textual.message import Message

from tinychat.pictures import visible_bytes
from tinychat.protocol import Candidate, Explained, SamplerSettings
from tinychat.ui import figures
from tinychat.ui.glass import Glass
from tinychat.ui.views import candidate_table
from tinychat.ui.views.draw_ruler import drawable, pointer, ruler
from tinychat.ui.views.view import NOTHING, View, sentence
from tinychat.ui.widgets.line_widget import Line, cells, cut, spread

_ROOMY = 14
"""Lines from which on the settings and the ruler have a place."""


class WhyView(View):
    """A row a candidate. Enter on one has the reply go on from there as a new version."""

    NAME = "why"

    HELP = """
**Why this token.** The candidates with the model's own probability, and what each stage of the sampler's chain made of
it: the softmax over the tokens that are left after that stage, `✗` where a token fell. Repetition penalty: Keskar et
al. 2019, arXiv:1909.05858. Top-k: Fan et al. 2018, arXiv:1805.04833. Top-p, the nucleus: Holtzman et al. 2019,
arXiv:1904.09751. Min-p: Nguyen et al. 2024, arXiv:2407.01082. Then one number from 0 to 1 is drawn, and the interval
that it falls into decides. `●` is the token that was said.

While the reply waits or has ended, move a slider and see the table as it would be; `a` goes between that and how it
was. `Enter` on a candidate lets the reply go on with it, as a new version.
"""

    BINDINGS = [
        Binding(
            "enter",
            "branch",
            "go on with this",
            tooltip="Have the reply go on with it, as a new version",
            id="why.branch",
        ),
        Binding(
            "a",
            "screen.by_sliders",
            "as it was/by sliders",
            tooltip="The chain as it was, or by the sliders",
            id="why.sliders",
        ),
        Binding("x", "columns", "more columns", show=False, tooltip="Show other stages, where not all have room"),
    ]

    class Chosen(Message):
        """A person wants the reply to go on with a candidate."""

        def __init__(self, turn_id: int, index: int, token_id: int) -> None:
            super().__init__()
            self.turn_id = turn_id
            self.index = index
            self.token_id = token_id

    def __init__(self, glass: Glass) -> None:
        super().__init__(glass)
        self._page = 0
        self._seen: tuple[int, int] | None = None
        """(turn, token) that the rows were last of."""

    def head(self, width: int) -> Sequence[Line]:
        """Return title, settings, ruler, and the names of the columns."""
        explained = self._explained
        if explained is None:
            asked = self.reply is not None and self.reply.tokens
            return sentence("Asking the engine ..." if asked else NOTHING, width)
        if (explained.turn_id, explained.index) != self._seen:
            self._seen = (explained.turn_id, explained.index)
            said = [each.token_id == explained.chosen for each in explained.candidates]
            self.row = said.index(True) if True in said else 0
        lines = [self._title(explained, width)]
        if explained.problem:
            return [*lines, *sentence(explained.problem, width, "view--warning")]
        if self._roomy:
            lines += sentence(_settings(explained.sampler), width)
            if drawable(explained):
                lines.append(ruler(explained, width))
                if explained.draw is not None:
                    lines.append(pointer(explained.draw, width))
        lines.append(((cut(_verdict(explained), width), "view--text"),))
        if self._roomy:
            lines.append(_rest(explained, width))
            if candidate_table.pages(explained.stages, width) > 1:
                lines.append((("x: other stages of the chain", "view--quiet"),))
        return [*lines, candidate_table.heading(explained, width, self._page)]

    def body(self, width: int) -> Sequence[Line]:
        """Return the candidates, and where there is no room for it above, what lies beyond them."""
        explained = self._explained
        if explained is None or explained.problem:
            return ()
        rows = [
            candidate_table.row(explained, candidate, width, self._page, here=at == self.row and self.has_focus)
            for at, candidate in enumerate(explained.candidates)
        ]
        return rows if self._roomy else [*rows, _rest(explained, width)]

    def action_branch(self) -> None:
        """Have the reply go on with the candidate in focus."""
        explained = self._explained
        if explained is not None and self.row < len(explained.candidates):
            token_id = explained.candidates[self.row].token_id
            self.post_message(self.Chosen(explained.turn_id, explained.index, token_id))

    def action_columns(self) -> None:
        """Show other stages."""
        if self._explained is not None:
            self._page = (self._page + 1) % candidate_table.pages(self._explained.stages, self.size.width)
            self.update_lines()

    def watch_has_focus(self, has_focus: bool) -> None:
        super().watch_has_focus(has_focus)
        self.update_lines()

    def on_click(self, event: events.Click) -> None:
        """Go to the row that was clicked; a second click goes on with it."""
        if (row := self.row_at(event.y)) is not None:
            self.row = row
            self.update_lines()
            if event.chain == 2:
                self.action_branch()

    @property
    def _explained(self) -> Explained | None:
        """The answer to draw: of this reply, the latest there is."""
        explained = self.glass.explained
        return explained if explained is not None and explained.turn_id == self.glass.turn_id else None

    @property
    def _roomy(self) -> bool:
        """Whether there is room above the table."""
        return self.size.height >= _ROOMY

    def _title(self, explained: Explained, width: int) -> Line:
        reply = self.reply
        count = len(reply.tokens) if reply else 0
        said = _candidate(explained, explained.chosen)
        what = f": {visible_bytes(said.piece)}" if said is not None else ""
        nth = explained.index + 1
        name = f"token {nth} of {count}{what}" if nth <= count else f"token {nth}, the next: not drawn yet"
        notes = ["by the sliders now" if self.glass.by_sliders else "as it was"]
        if explained.recomputed:
            notes.append("recomputed")
        if explained.forced:
            notes.append("dictated")
        right: Line = ((" · ".join(notes), "view--warning" if self.glass.by_sliders else "view--quiet"),)
        return spread(((cut(name, max(8, width - cells(right) - 1)), "view--title"),), right, width, (" ", ""))


def _candidate(explained: Explained, token_id: int | None) -> Candidate | None:
    return next((each for each in explained.candidates if each.token_id == token_id), None)


def _rest(explained: Explained, width: int) -> Line:
    """Say what is not in the table, and how many tokens could be drawn."""
    able = figures.tokens(explained.survivors)
    rest = f"  rest of the vocabulary {figures.chance(explained.rest)} · {able} could be drawn"
    return ((cut(rest, width), "view--quiet"),)


def _settings(sampler: SamplerSettings) -> str:
    """Return the settings that do something, in the order of the panel."""
    parts = [f"temperature {sampler.temperature:g}" if sampler.temperature else "greedy"]
    on = (
        ("top-k", sampler.top_k, 0), ("top-p", sampler.top_p, 1), ("min-p", sampler.min_p, 0),
        ("repetition", sampler.repetition_penalty, 1), ("frequency", sampler.frequency_penalty, 0),
        ("presence", sampler.presence_penalty, 0),
    )  # fmt: skip
    parts += [f"{name} {value:g}" for name, value, off in on if value != off]
    if sampler.logit_bias:
        parts.append(f"bias on {figures.tokens(len(sampler.logit_bias))}")
    return " · ".join(parts)


def _verdict(explained: Explained) -> str:
    """Say what decided."""
    said = _candidate(explained, explained.chosen)
    if explained.forced:
        return "This token was dictated, not drawn."
    if explained.draw is None:
        greedy = "greedy" in explained.stages
        if explained.chosen is None:
            return "Greedy: the first of the table will be said." if greedy else "No number has been drawn for it yet."
        return "Greedy: the most probable token is said, nothing is drawn." if greedy else "Nothing was drawn for it."
    winner = next((each for each in drawable(explained) if _falls(explained.draw, each)), None)
    if winner is None or winner.interval is None:
        return f"draw {explained.draw:.4f}"
    low, high = winner.interval
    piece = visible_bytes(winner.piece)
    verdict = f"draw {explained.draw:.4f} falls in {low:.4f}-{high:.4f}: {piece}"
    if said is not None and winner.token_id != said.token_id:
        verdict += f", where {visible_bytes(said.piece)} was said"
    return verdict


def _falls(draw: float, candidate: Candidate) -> bool:
    low, high = candidate.interval or (0.0, 0.0)
    return low <= draw < high
