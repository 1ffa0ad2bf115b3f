"""The keys of the glass box, bound by the chat screen.

Letters and signs act only where nobody is typing: those with a `True` while a reply is being made and the prompt has
not the focus, those of the views while a view has it.
"""

from __future__ import annotations

from typing import Final

from textual.binding import Binding

from tinychat.ui.glass import VIEWS

GLASS_KEYS: Final = [
    # First of all, since a text area has keys of its own for these, and so that what is typed after one finds its way.
    Binding("f6", "views", "views", tooltip="Look inside: go to the views, or back", id="glass.views", priority=True),
    Binding("f7", "pause", "pause", tooltip="Have the reply wait, or go on", id="glass.pause", priority=True),
    Binding("f8", "step('step')", "step", tooltip="Make one token, then wait", id="glass.step", priority=True),
    *(
        Binding(key, f"view('{name}')", name, show=False, tooltip=f"In the views: {name}", id=f"view.{name}")
        for name, key in VIEWS.items()
    ),
    Binding("ctrl+g", "tokens", "tokens", tooltip="Show the reply as tokens, or as text", id="glass.tokens"),
    Binding("space", "pause(True)", "pause", show=False, tooltip="The same, where nobody is typing"),
    Binding("full_stop", "step('step', True)", "step", show=False, tooltip="The same, where nobody is typing"),
    Binding("s", "step('sentence', True)", "sentence", show=False, tooltip="To the end of the sentence, then wait"),
    Binding("plus", "rate(1)", "faster", show=False, tooltip="Play more tokens a second"),
    Binding("minus", "rate(-1)", "slower", show=False, tooltip="Play fewer tokens a second"),
    Binding("alt+left", "version(-1)", "version before", show=False, tooltip="The version of the reply before this"),
    Binding("alt+right", "version(1)", "version after", show=False, tooltip="The version of the reply after this"),
]
