"""The place of the views: one at a time, and the list of them above it."""

from __future__ import annotations

from typing import Final

from textual.app import ComposeResult
from textual.containers import Vertical

from tinychat.ui.glass import Glass
from tinychat.ui.views.attention import AttentionView
from tinychat.ui.views.bpe import BpeView
from tinychat.ui.views.cache import CacheView
from tinychat.ui.views.layers import LayersView
from tinychat.ui.views.lens import LensView
from tinychat.ui.views.prompt import PromptView
from tinychat.ui.views.tabs import ViewTabs
from tinychat.ui.views.time import TimeView
from tinychat.ui.views.tokens import TokensView
from tinychat.ui.views.view import View
from tinychat.ui.views.why import WhyView

_CLASSES: Final[tuple[type[View], ...]] = (
    TokensView,
    WhyView,
    LayersView,
    LensView,
    AttentionView,
    CacheView,
    PromptView,
    TimeView,
    BpeView,
)


class ViewPane(Vertical):
    """Holds all views and shows the open one."""

    def __init__(self, glass: Glass, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._glass = glass

    def compose(self) -> ComposeResult:
        """Lay out."""
        yield ViewTabs(self._glass)
        for view in _CLASSES:
            yield view(self._glass)

    @property
    def shown(self) -> View | None:
        """The open view."""
        return next((view for view in self.query(View) if self._glass.view == view.NAME), None)

    def show(self) -> None:
        """Show the view that is open by now."""
        for view in self.query(View):
            view.display = self._glass.view == view.NAME
        self.query_one(ViewTabs).update_lines()

    def update(self) -> None:
        """Draw what has changed."""
        if (view := self.shown) is not None:
            view.update_lines()
