"""F1: the keys that apply, what has the focus, and what is known of the model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from rich.cells import set_cell_size
from textual.app import ComposeResult
from textual.binding import ActiveBinding, Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from tinychat.protocol import ModelInfo
from tinychat.ui import figures
from tinychat.ui.commands import key_name
from tinychat.ui.foreign_text import inert

_KEY_CELLS = 20
_WRAPPED: Final = re.compile(r"(?<!\n)\n(?![\n*])")
"""Where a paragraph's lines end in the code, which is not where they end on the screen."""


class HelpScreen(ModalScreen[None]):
    """Read off the bindings and widgets themselves, so that it can't fall behind them."""

    CSS_PATH = "help.tcss"

    BINDINGS = [
        Binding("escape,f1,q,enter", "dismiss(None)", "close", tooltip="Back to the chat", id="help.close"),
    ]

    def __init__(self, bindings: Iterable[ActiveBinding], topic: str, info: ModelInfo | None) -> None:
        """Prepare the page.

        Args:
            bindings: The keys that apply where help was asked for.
            topic: The help text of the widget in focus, Markdown in our own words; empty for none.
            info: The model, None while none is loaded.
        """
        super().__init__()
        self._active = list(bindings)
        self._topic = topic
        self._info = info

    def compose(self) -> ComposeResult:
        """Lay out."""
        with VerticalScroll() as page:
            page.border_title = "Help"
            page.border_subtitle = "Esc closes"
            if self._topic:
                yield Static(_prose(self._topic))
            for content in _key_tables(self._active):
                yield Static(content)
            if self._info is not None:
                yield Static(_model(self._info))

    def on_mount(self) -> None:
        """Let the arrow keys scroll."""
        self.query_one(VerticalScroll).focus()


def _key_tables(active: Sequence[ActiveBinding]) -> Iterable[Content]:
    """Return a table of keys for each part of the screen that has some."""
    for _, group in groupby(active, key=lambda each: type(each.node).__name__):
        rows: dict[str, tuple[list[str], str, bool]] = {}
        title = ""
        for each in group:
            binding = each.binding
            if each.tooltip and not binding.system:
                title = getattr(each.node, "BINDING_GROUP_TITLE", None) or ""
                keys, _, _ = rows.setdefault(binding.action, ([], each.tooltip, each.enabled))
                keys.append(key_name(binding.key))
        if rows:
            lines = [Content.styled(title, "bold $primary")] if title else []
            for keys, tooltip, enabled in rows.values():
                key = set_cell_size(", ".join(keys), _KEY_CELLS)
                style = "bold $foreground" if enabled else "$quiet"
                lines.append(Content.assemble((key, style), " ", (tooltip, "$foreground" if enabled else "$quiet")))
            yield Content("\n").join(lines)


def _prose(topic: str) -> Content:
    """Return a HELP text, each paragraph in one; of Markdown it uses only bold, code and lists, which read well as they
    stand."""
    return Content(_WRAPPED.sub(" ", topic.strip()).replace("**", "").replace("`", ""))


def _model(info: ModelInfo) -> Content:
    """Return what is known of the model, a line a fact."""
    count, memory = figures.count, figures.memory
    base = "base model: continues a transcript" if info.format == "base" else "chat model: has a chat template"
    facts = [
        ("model", f"{info.name} ({info.architecture}, {figures.parameters(info.parameters)} parameters)"),
        ("format", base + (", thinks before it answers" if info.thinking else "")),
        ("weights", f"{info.dtype_reason}; {memory(info.weights_bytes)} resident"),
        *((("copy", info.copy_reason),) if info.copy_reason else ()),
        ("loss", figures.loss(info.loss)),
        ("context", f"{count(info.context)} tokens of the model's {count(info.model_context)}"),
        ("cache", f"{memory(info.cache_bytes)} reserved, {info.layers} layers"),
        ("vocabulary", f"{count(info.vocabulary_size)} tokens"),
        ("computed by", f"{info.kernel}, {info.threads} threads"),
        ("loaded in", figures.duration(info.load_seconds)),
        *(("notice", notice) for notice in info.notices),
    ]
    lines = [Content.styled("The model", "bold $primary")]
    for label, fact in facts:
        lines.append(Content.assemble((set_cell_size(label, _KEY_CELLS), "$quiet"), " ", inert(fact)))
    return Content("\n").join(lines)
