"""Progress on stderr: a bar that is taken away, or a few lines where lines stay."""

from __future__ import annotations

import pytest

from tinychat.cli import progress
from tinychat.cli.console import Notices
from tinychat.cli.progress import Progress


class Recorded(Notices):
    """Remembers instead of writing."""

    def __init__(self, rewrites: bool) -> None:
        self.rewrites = rewrites
        self.said: list[str] = []

    def line(self, text: str) -> None:
        self.said.append(f"{text}\n")

    def status(self, text: str) -> None:
        self.said.append(text)

    def clear(self) -> None:
        self.said.append("")


def test_a_bar_where_lines_can_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch: a bar that is too long, divides by an unknown total, or stays on the screen."""
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    notices = Recorded(rewrites=True)
    with Progress(notices, "gpt2") as shown:
        shown.bytes("config.json", 0, 0)
        shown.bytes("model.safetensors", 250_000_000, 500_000_000)
        shown.bytes("model.safetensors", 510_000_000, 500_000_000)
        shown.stage("reading weights", 0.25)
    assert notices.said == [
        "gpt2 [------------------------] downloading 0 B",
        "gpt2 [############------------] downloading 250 MB of 500 MB",
        "gpt2 [########################] downloading 510 MB of 500 MB",
        "gpt2 [######------------------] reading weights",
        "",
    ]


def test_what_is_quick_shows_nothing() -> None:
    """Would catch: a flash of progress before every reply of a model that is loaded in a moment."""
    notices = Recorded(rewrites=True)
    with Progress(notices, "gpt2") as shown:
        shown.stage("reading weights", 0.25)
    assert notices.said == [""]


def test_few_lines_where_lines_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch: thousands of lines of progress in a log, or none at all for minutes."""
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    notices = Recorded(rewrites=False)
    with Progress(notices, "gpt2") as shown:
        for done in range(100):
            now += 0.25
            shown.bytes("model.safetensors", done * 1_000_000, 100_000_000)
    assert [line for line in notices.said if line] == [
        "downloading gpt2: 0 B of 100 MB\n",
        "downloading gpt2: 40 MB of 100 MB\n",
        "downloading gpt2: 80 MB of 100 MB\n",
    ]
