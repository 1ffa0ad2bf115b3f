"""The keys that move the focus over a reply's tokens, wherever a reply is looked at."""

from __future__ import annotations

from typing import Final

from textual.binding import Binding

TOKEN_KEYS: Final = [
    Binding("left", "screen.focus_token(-1)", "token", tooltip="The token before", key_display="←→", id="token.before"),
    Binding("right", "screen.focus_token(1)", "next token", show=False, tooltip="The token after"),
    Binding("ctrl+left", "screen.focus_token(-10)", "ten back", show=False, tooltip="Ten tokens back"),
    Binding("ctrl+right", "screen.focus_token(10)", "ten on", show=False, tooltip="Ten tokens on"),
    Binding("home", "screen.focus_end(0)", "first token", show=False, tooltip="The first token of the reply"),
    Binding("end", "screen.focus_end(1)", "last token", show=False, tooltip="The last token, and follow it"),
]
