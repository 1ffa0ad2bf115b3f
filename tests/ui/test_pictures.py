"""The pictures in the README: made from the real model, and held to what the screen shows now.

`pytest tests/ui/test_pictures.py --update-pictures` draws them anew.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from nasty import NASTY
from screen_driver import Chat, OpenChat
from screen_picture import description, picture, rows

from tinychat.catalog import Catalog, FileSource
from tinychat.engine.thread import LocalEngine
from tinychat.pictures import visible_bytes
from tinychat.protocol import LoadModel
from tinychat.ui.app import ChatApp
from tinychat.ui.glass import VIEWS, Glass

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "docs" / "pictures"
LARGEST: Final = 60_000
"""Bytes of a picture."""
CHAT: Final = (120, 32)
VIEW: Final = (100, 40)
"""Columns and rows of the chat's picture and of a view's."""

QUESTION: Final = "What is the capital of Japan? And of Germany?"
REPLY: Final = "The capital of Japan is Tokyo, and the capital of Germany is Berlin."
"""Greedy. Each of its tokens is nearly twice as probable as the next best, so that another processor's rounding makes
no other reply of it; what could have been said instead may well come in another order there."""
DRAFT: Final = "And of unbelievable Atlantis?"

READY: Final[dict[str, Callable[[Glass], object]]] = {
    "tokens": lambda glass: glass.reply,
    "why": lambda glass: glass.explained and glass.explained.index == _at(glass),
    "layers": lambda glass: glass.reply and _at(glass) in glass.reply.probes,
    "lens": lambda glass: glass.lensed and glass.lensed.index == _at(glass),
    "attention": lambda glass: glass.heads.attended and glass.heads.attended.index == _at(glass),
    "cache": lambda glass: glass.mapped and glass.mapped.length,
    "prompt": lambda glass: glass.described,
    "time": lambda glass: glass.bandwidth and glass.reply and glass.reply.profiles,
    "bpe": lambda glass: glass.typed.explained and glass.typed.of_draft,
}
"""When a view has what it draws. A view needs a line here, and a sentence with its picture in the README."""
TOKEN: Final = 5
"""The one looked at, "Tokyo"; but "and" where there has to be a choice."""
TOKENS: Final = {"why": 7}
KEYS: Final = {
    "why": "f3 1 enter f2 f6",
    "layers": "down down down",
    "lens": "pagedown " * 6,
    "attention": "f",
    "prompt": "right",
    "bpe": "right right right down",
}
"""What is pressed in a view once it is ready."""
CHOICES: Final[dict[str, Callable[[Glass], Iterable[bytes]]]] = {
    "why": lambda glass: [each.piece for each in glass.explained.candidates] if glass.explained else [],
    "lens": lambda glass: [each.piece for layer in glass.lensed.layers for each in layer.best] if glass.lensed else [],
    "attention": lambda glass: [each.data for each in glass.described.pieces] if glass.described else [],
}
"""What the model could have said, as far as a view shows it: another processor may find another there."""
BY_MACHINE: Final = frozenset({"ms", "min", "KB", "MB", "GB", "float", "bfloat", "bf", "fp", "int"})
"""Units and types of numbers: the machine's, as the numbers are."""


@pytest.mark.model
async def test_the_pictures_are_what_the_screen_shows(
    smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Would catch: a title, a column, a legend or a layout that has changed under a README that shows the old one."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    update = request.config.getoption("--update-pictures")
    engine = LocalEngine()
    card = replace(Catalog.load().resolve("smollm2"), source=FileSource(str(smollm2_path)))
    sampler = (("temperature", 0.0), ("seed", 21))
    app = ChatApp(engine, LoadModel(1, card, prefill_copy="never", context=2048, sampler=sampler))
    app.animation_level = "none"
    problems: list[str] = []
    try:
        async with app.run_test(size=CHAT) as pilot:
            chat = Chat(app, engine, pilot)
            await _answered(chat)
            chat.screen.editor.put(DRAFT)
            await chat.shows("▐?▌")
            problems += _compared(chat, "chat", update)
            await pilot.resize_terminal(*VIEW)
            for view in VIEWS:
                await _opened(chat, view)
                problems += _compared(chat, view, update)
    finally:
        engine.close()
    assert not problems, "\n".join([*problems, "--update-pictures draws them anew; look at them before you commit."])


def test_the_readme_shows_every_view() -> None:
    """Would catch: a view nobody hears of, a picture that is too large, or one that sends readers to other servers."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(READY) == set(VIEWS)
    for name in ("chat", *VIEWS):
        path = FOLDER / f"{name}.svg"
        assert f"](docs/pictures/{name}.svg)" in readme
        assert path.stat().st_size < LARGEST
        text = path.read_text(encoding="utf-8").replace('"http://www.w3.org/2000/svg"', "")
        assert not re.search(r"https?:|@font-face|@import|url\(|href|<script", text)


async def test_a_picture_has_each_word_in_its_place(open_chat: OpenChat) -> None:
    """Would catch: words lost between bars, moved behind wide characters, or read by a renderer as something else."""
    async with open_chat() as chat:
        await chat.ask("a<b> & ]]> " + " ".join(NASTY).replace("\n", " "))
        chat.engine.say("日本", "語 █▁ ▌", " fine ", "e\u0301", "  two  gaps ─── ", "🦙", "</text>")
        await chat.press("ctrl+g", "f6", "t")
        await chat.shows("7 of 7")
        svg = picture(chat.app, "[/] <title>", "& <desc>")
        assert description(svg) == "& <desc>"
        strips = chat.app.screen._compositor.render_strips()
        drawn = rows(svg)
        assert sum(map(len, drawn.values())) > 50
        for y, strip in enumerate(strips):
            text = strip.text.replace("\xa0", " ")
            for x, word in drawn.get(y, []):
                at = len(strip.crop(0, x).text)
                assert text[at : at + len(word)] == word
            written = "".join(word for _, word in drawn.get(y, []))
            assert re.sub(r"[\s▁-▏─━│║]", "", text) == re.sub(r"\s", "", written)


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        ("layer norm 35.26 in 3 ms", "layer norm 7 in 12.5 s", True),
        ("● Tokyo Osaka", "● Tokyo Kyoto Ky…", True),
        ("most probable, in %", "best tokens, in %", False),
        ("as it was", "as was it", False),
        ("one two", "one", False),
    ],
)
def test_only_what_is_measured_or_likely_may_differ(before: str, now: str, same: bool) -> None:
    """Would catch: a comparison that passes whatever is drawn, or that holds one machine to another's numbers."""
    likely = _words("Tokyo Osaka Kyoto")
    assert (_ours(before, likely) == _ours(now, likely)) is same


async def _answered(chat: Chat) -> None:
    """Have the question answered, its time measured meanwhile."""
    await chat.until(lambda: chat.screen.chat.info, 120)
    chat.screen.open_view("time", enter=False)
    chat.screen.editor.put(QUESTION)
    await chat.press("enter")
    await chat.until(lambda: chat.screen.glass.reply and chat.screen.glass.reply.finished, 120)
    await chat.until(lambda: chat.screen.glass.bandwidth, 60)
    await chat.press("escape")
    assert chat.screen.chat.tree.path()[-1].text == REPLY


async def _opened(chat: Chat, view: str) -> None:
    """Open a view at its token and wait until it has drawn that."""
    chat.screen.open_view(view)
    chat.screen.glass.focus(TOKENS.get(view, TOKEN))
    chat.screen.action_focus_token(0)
    await chat.until(lambda: READY[view](chat.screen.glass), 60)
    await chat.press(*KEYS.get(view, "").split())
    await chat.pilot.pause(0.5)


def _at(glass: Glass) -> int:
    return glass.reply.at if glass.reply is not None else -1


def _compared(chat: Chat, name: str, update: bool) -> list[str]:
    """Return how the picture of that name differs from the screen; or make it."""
    path = FOLDER / f"{name}.svg"
    choices = CHOICES[name](chat.screen.glass) if name in CHOICES else []
    likely = " ".join(sorted(_words(" ".join(map(visible_bytes, choices)))))
    now = picture(chat.app, f"tinychat: {name}", likely)
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(now, encoding="utf-8")
        return []
    if not path.exists():
        return [f"{path} is missing."]
    before = path.read_text(encoding="utf-8")
    either = _words(f"{likely} {description(before)}")
    column = chat.screen.transcript.region.right
    texts = [_ours(_text(svg, column), either) for svg in (before, now)]
    differences = difflib.unified_diff(*texts, "the picture", "the screen", n=2, lineterm="")
    return [f"{name}.svg: {' '.join(differences)}"] if texts[0] != texts[1] else []


def _text(svg: str, column: int) -> str:
    """Return what is written in a picture, that left of a column first: beside it, lines break where they like."""
    texts = [each for row in rows(svg).values() for each in row]
    return " ".join(text for _, text in sorted(texts, key=lambda each: each[0] >= column))


def _ours(text: str, likely: set[str]) -> list[str]:
    """Return the words of a text that are the same on every machine, in order."""
    words = re.findall(r"[^\W\d_]{2,}…?", text)
    return [word for word in words if word not in likely | BY_MACHINE and not word.endswith("…")]


def _words(text: str) -> set[str]:
    return set(re.findall(r"[^\W\d_]{2,}", text))
