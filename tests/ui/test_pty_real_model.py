"""The chat with the real smollm2 in a pseudo-terminal: what the person of the first minute does, and the hasty one.

The engine computes for real here, on a machine that may be busy: what has to come is waited for, long if need be, and
what must not take long is given several times what it takes on a quiet machine.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nasty import NASTY, OBEYED
from terminal import COPY, DOWN, ENTER, ESCAPE, F1, F3, F4, F6, HOME, REGENERATE, SAVE, Terminal, pasted

pytestmark = [pytest.mark.pty, pytest.mark.model]

LONG = "\n".join(f"Line {n} tells of a fox that went to town number {n}." for n in range(350))
"""Some 6,800 tokens: seconds of prefill."""
QUICKLY = 3.0
"""Seconds to be gone in; under one on a quiet machine."""
Open = Callable[..., Terminal]


@pytest.fixture
def opened(smollm2_path: Path, tmp_path: Path) -> Iterator[Open]:
    """Open the chat with smollm2, greedy unless told otherwise, and wait until it can be talked to."""
    terminals: list[Terminal] = []

    def start(
        *words: str, model: Path = smollm2_path, columns: int = 80, rows: int = 24, ready: bool = True
    ) -> Terminal:
        command = [sys.executable, "-m", "tinychat", "run", str(model), "-t", "0", *words]
        terminal = Terminal(command, columns, rows, XDG_STATE_HOME=str(tmp_path), XDG_DATA_HOME=str(tmp_path))
        terminals.append(terminal)
        terminal.until("Enter send" if rows > 15 else ">")
        if ready:
            terminal.until("Context 8,192")
        return terminal

    yield start
    for terminal in terminals:
        terminal.close()


def reply(terminal: Terminal) -> str:
    """Copy the last reply and return it."""
    before = len(terminal.copied)
    terminal.send(COPY)
    terminal.until(lambda: len(terminal.copied) > before)
    return terminal.copied[-1]


def test_a_question_is_answered_and_two_fast_enters_ask_once(opened: Open) -> None:
    """Would catch: anything between a key and a real reply; two replies to one question; a draft lost."""
    terminal = opened("--max-tokens", "200")
    terminal.send("What is the capital of France?" + ENTER + ENTER)
    terminal.until("Paris")
    terminal.until("seed")
    assert terminal.text.count("you  ") == 1
    assert "first token" in terminal.text.splitlines()[0]
    assert "tok/s" in terminal.text.splitlines()[0]
    terminal.send("Write a long story about a fox." + ENTER)
    terminal.until("answering")
    terminal.send("And then?" + ENTER)
    terminal.until("Your message is sent when")
    assert " > And then?" in terminal.text
    terminal.until("200 tokens ·")
    terminal.until(lambda: " > And then?" not in terminal.text)
    terminal.until("answering")
    assert terminal.leave()[0] == 0
    assert terminal.restored


def test_a_slider_moved_in_mid_reply_changes_that_reply(opened: Open) -> None:
    """Would catch: a slider that only moves on the screen, or that waits for the next reply."""
    terminal = opened("--max-tokens", "400")
    terminal.send("Write a long story about a fox." + ENTER)
    terminal.until("Stopped at the limit")
    unmoved = reply(terminal)
    terminal.send(REGENERATE)
    terminal.until("answering")
    terminal.send(F3)
    terminal.until("› temperature")
    assert "greedy" in terminal.text
    terminal.send("5" + ENTER)
    terminal.until("5.00")
    assert "answering" in terminal.text, "the reply is still being made"
    terminal.send(ESCAPE)  # stops it
    terminal.until(lambda: "answering" not in terminal.text and "stopping" not in terminal.text)
    terminal.send(ESCAPE)  # back to the prompt
    moved = reply(terminal)
    assert moved[:3] == unmoved[:3], "what was said before stays"
    assert not unmoved.startswith(moved), "and what came after is another text"
    assert terminal.leave()[0] == 0


def test_escape_stops_prefill_and_decode_and_keeps_the_text(opened: Open) -> None:
    """Would catch: a stop that waits for the whole prompt or reply, text lost, a chat that can't go on."""
    terminal = opened()
    terminal.send(pasted(LONG) + ENTER)
    terminal.until(lambda: re.search(r"prefill .* of 6,\d\d\d tokens", terminal.text))
    terminal.send(ESCAPE)
    terminal.until("Nothing was said, so the model will not be told")
    assert "Stopped by you." in terminal.text
    terminal.send("Write a long story about a fox." + ENTER)
    terminal.until("answering")
    terminal.send(ESCAPE)
    terminal.until(lambda: terminal.text.count("Stopped by you.") and "tokens ·" in terminal.text)
    said = reply(terminal)
    assert said
    assert said[:20] in terminal.text
    terminal.send("What is the capital of France?" + ENTER)
    terminal.until("reused")
    assert terminal.leave()[0] == 0


def test_nasty_strings_stay_pictures(opened: Open, smollm2_path: Path, tmp_path: Path) -> None:
    """Would catch: a file name, a message, a system prompt or a token chip that the terminal obeys."""
    model = tmp_path / "[@click=app.quit]x \x1b]52;c;aGk=\x07 \x9b31m \u202e [INST].gguf"
    model.symlink_to(smollm2_path)
    terminal = opened("--system", "[bold]S[/bold] \x1b]0;title\x07", "-n", "20", model=model, columns=160, rows=48)
    for text in NASTY:
        terminal.send(pasted(text + " "))
        terminal.until(lambda: re.search(r"tokens [1-9]", terminal.text))
    terminal.until("▐")
    terminal.send(ENTER)
    terminal.until("seed")
    terminal.send(F4)
    terminal.until("Ctrl+S saves")
    terminal.send(pasted(" ".join(NASTY)) + SAVE)
    terminal.until("holds from the next message on")
    terminal.send(F1)
    terminal.until("Esc closes")
    assert terminal.leave()[0] == 0
    for payload in OBEYED:
        assert payload not in terminal.written, payload
    assert "[@click=app.quit]x ␛]52;c;aGk=".encode() in terminal.written


def test_any_size_in_mid_reply(opened: Open) -> None:
    """Would catch: a reply lost or a crash on a terminal made tiny while text streams."""
    terminal = opened("--max-tokens", "300", columns=160, rows=48)
    terminal.send("Write a long story about a fox." + ENTER)
    terminal.until("answering")
    for columns, rows in ((20, 5), (12, 3), (40, 12), (80, 24), (160, 48)):
        terminal.resize(columns, rows)
        terminal.until(lambda: terminal.text.splitlines()[-1 if rows < 16 else -2].startswith(" > Say"))  # noqa: B023
    for part in ("Sampler", "KV cache", "Memory", "─ tokens 0", "Enter send", "Stopped at the limit of 300 tokens."):
        terminal.until(part)
    assert terminal.text.startswith("─ SmolLM2")
    assert terminal.leave()[0] == 0


@pytest.mark.parametrize("moment", ["load", "prefill", "decode"])
def test_leaving_at_any_moment(opened: Open, moment: str) -> None:
    """Would catch: a quit that waits for torch, an abort (134) by its thread, a terminal left in disorder."""
    terminal = opened(ready=moment != "load")
    if moment == "prefill":
        terminal.send(pasted(LONG) + ENTER)
        terminal.until(lambda: re.search(r"prefill .* of 6,\d\d\d tokens", terminal.text))
    elif moment == "decode":
        terminal.send("Write a long story about a fox." + ENTER)
        terminal.until("answering")
    status, seconds = terminal.leave()
    assert status == 0
    assert terminal.restored
    assert seconds < QUICKLY


def test_looking_inside(opened: Open) -> None:
    """Would catch: a question of a view that the real engine doesn't answer, or whose answer isn't drawn."""
    terminal = opened("--max-tokens", "30", columns=160, rows=48)
    terminal.send("What is the capital of France?" + ENTER)
    terminal.until("prompt 37")
    said = reply(terminal)
    terminal.send(F6 + "w")
    terminal.until("Greedy: the most probable token is said")
    terminal.until("· 1 token could be drawn")
    terminal.send(HOME)
    terminal.until("token 1 of ")
    terminal.until("●The")
    terminal.send(DOWN + ENTER)
    terminal.until("version 2 of 2, from token 1 of version 1 on")
    terminal.until("1 not")
    terminal.until("reused")
    assert reply(terminal) != said
    terminal.send("l")
    terminal.until("heads: █")
    terminal.until("layer 0, residual norm")
    terminal.send("p")
    terminal.until("One BOS, at the beginning.")
    terminal.until("▏What ▏␣is")
    terminal.send("m")
    terminal.until("of weights and")
    terminal.send(ESCAPE)
    terminal.until(lambda: "p prompt" not in terminal.text)
    assert terminal.leave()[0] == 0
