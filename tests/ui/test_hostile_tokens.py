"""Every view there is, fed with tokens that no screen expects."""

from __future__ import annotations

import unicodedata

import pytest
from hostile import PIECES, TEXTS, HostileEngine
from screen_driver import Chat, OpenChat, no_control_characters
from textual.strip import Strip

from tinychat.ui.glass import VIEWS
from tinychat.ui.views.view import View
from tinychat.ui.widgets.line_widget import cells

SIZES = [(80, 24), (160, 48)]
ODD_SIZES = [(60, 16), (40, 12), (20, 5), (12, 3), (110, 30)]
ELSEWHERE = {"question_mark", "enter"}
"""Keys of a view that leave it, or make another reply."""


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", VIEWS)
async def test_hostile_tokens(open_chat: OpenChat, name: str, size: tuple[int, int]) -> None:
    """Would catch: a token that a terminal obeys, that is parsed as markup, has no ink, breaks a line in two, pushes
    what stands beside it out of view, or ends the program; a view added without a thought of these."""
    engine = HostileEngine()
    async with open_chat(size=size, engine=engine) as chat:
        await chat.ask(" ".join(TEXTS))
        engine.prefill(350, 350, 312)
        engine.say(*TEXTS)
        engine.finish("".join(TEXTS), new_tokens=len(TEXTS))
        await chat.until(lambda: not chat.screen.chat.busy)
        chat.screen.open_view(name)
        view = chat.screen.pane.shown
        assert view is not None
        before = len(engine.commands)
        for _ in TEXTS:
            await chat.press("left")
            _checked(chat, view)
        for key in sorted(set(view._bindings.key_to_bindings) - ELSEWHERE):
            for _ in range(3):
                await chat.press(key)
                _checked(chat, view)
        for _ in PIECES:
            view.action_move(1)
            _checked(chat, view)
        for odd in (*ODD_SIZES, size):
            await chat.pilot.resize_terminal(*odd)
            await chat.pilot.pause()
            _checked(chat, view, whole=odd == size)
        assert name in ("tokens", "time", "bpe") or len(engine.commands) > before, "there was nothing to see"
        assert chat.app.is_running


def _checked(chat: Chat, view: View, *, whole: bool = True) -> None:
    """Look at every cell: what is drawn may be nothing but ink; if `whole`, nothing of a line is cropped."""
    no_control_characters(chat)
    for strip in chat.app.screen._compositor.render_strips():
        assert strip.cell_length == chat.app.size.width
    width, height = view.size
    for y in range(height):
        strip: Strip = view.render_line(y)
        assert strip.cell_length == width
        assert not [c for c in strip.text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")], strip.text
    if whole:
        too_long = [line for line in view.compose_lines(width) if cells(line) > width]
        assert not too_long, (width, too_long)
