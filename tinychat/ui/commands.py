"""Keys and the command palette, both read off the bindings, so that no action is in one and missing in the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from textual.app import SystemCommand
from textual.binding import Binding
from textual.screen import Screen

from tinychat.ui.glass import VIEWS

_NAMES: Final = {
    "ctrl": "Ctrl", "shift": "Shift", "alt": "Alt", "escape": "Esc", "enter": "Enter", "up": "↑", "down": "↓",
    "left": "←", "right": "→", "pageup": "PgUp", "pagedown": "PgDn", "home": "Home", "end": "End", "tab": "Tab",
    "backspace": "Backspace", "delete": "Del", "space": "Space", "full_stop": ".", "plus": "+", "minus": "-",
    "question_mark": "?",
}  # fmt: skip


def key_name(key: str) -> str:
    """Return a key as keyboards have it: "ctrl+j" -> "Ctrl+J", "escape" -> "Esc"."""
    if len(key) == 1:
        return key
    return "+".join(_NAMES.get(part) or (part.upper() if len(part) <= 3 else part) for part in key.split("+"))


def view_commands(open_view: Callable[[str], None]) -> Iterable[SystemCommand]:
    """Return a command for every view of the glass box."""
    for name, key in VIEWS.items():
        title = f"View: {name} (F6, {key})"
        yield SystemCommand(title, f"Look inside: {name}", partial(open_view, name))


def palette_commands(screen: Screen[object]) -> Iterable[SystemCommand]:
    """Return a command for every binding of `screen` that is shown and applies now."""
    seen: set[str] = set()
    for binding in Binding.make_bindings(screen.BINDINGS):
        action = binding.action
        if not binding.show or action in seen or screen.check_action(action.partition("(")[0], ()) is not True:
            continue
        seen.add(action)
        title = f"{binding.description[:1].upper()}{binding.description[1:]} ({key_name(binding.key)})"
        yield SystemCommand(title, binding.tooltip, partial(screen.run_action, action))
