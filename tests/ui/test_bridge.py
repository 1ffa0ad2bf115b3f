"""The bridge joins what came within a tick and loses nothing of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine, stats

from tinychat.protocol import CacheStats, MemoryStats, Notice, PrefillProgress, TokenEmitted
from tinychat.ui.bridge import IDLE, SLOWEST, Bridge, TokenRun, tick
from tinychat.ui.speedometer import Speedometer


def token(turn: int, index: int, text: str, thinking: str = "") -> TokenEmitted:
    return TokenEmitted(turn, index, 7, b"", text, thinking)


def test_tokens_of_a_tick_are_one_update() -> None:
    """Would catch: a repaint a token, which halves the engine's speed."""
    engine = ScriptedEngine()
    engine.emit(*(token(3, i, t) for i, t in enumerate(["Par", "", "is", "."])))
    assert Bridge(engine).drain() == [TokenRun(3, 4, "Paris.", "")]


def test_only_the_latest_of_a_gauge_is_kept() -> None:
    """Would catch: gauges drawn for every token, and a gauge that cuts a run of tokens in two."""
    engine = ScriptedEngine()
    cache, memory = stats(used=1)
    newest, _ = stats(used=2)
    engine.emit(token(1, 0, "a"), cache, memory, token(1, 1, "b"), newest)
    updates = Bridge(engine).drain()
    assert [u for u in updates if isinstance(u, CacheStats)] == [newest]
    assert [u for u in updates if isinstance(u, MemoryStats)] == [memory]
    assert [u for u in updates if isinstance(u, TokenRun)] == [TokenRun(1, 2, "ab", "")]


def test_order_is_kept_between_tokens_and_what_is_said_of_them() -> None:
    """Would catch: a reply that ends before its last tokens."""
    engine = ScriptedEngine()
    engine.emit(PrefillProgress(1, 5, 10, 0), PrefillProgress(1, 10, 10, 0), token(1, 0, "a"), Notice("n", 1))
    engine.emit(token(1, 1, "b"))
    assert Bridge(engine).drain() == [
        PrefillProgress(1, 10, 10, 0), TokenRun(1, 1, "a", ""), Notice("n", 1), TokenRun(1, 1, "b", ""),
    ]  # fmt: skip


@given(texts=st.lists(st.tuples(st.integers(1, 2), st.text(max_size=3), st.text(max_size=3)), max_size=30))
def test_every_character_arrives(texts: list[tuple[int, str, str]]) -> None:
    """Would catch: text of one turn or of the thinking lost or mixed up while joining."""
    engine = ScriptedEngine()
    engine.emit(*(token(turn, i, text, thinking) for i, (turn, text, thinking) in enumerate(texts)))
    updates = Bridge(engine).drain()
    for turn in (1, 2):
        runs = [u for u in updates if isinstance(u, TokenRun) and u.turn_id == turn]
        assert "".join(run.text for run in runs) == "".join(t for n, t, _ in texts if n == turn)
        assert "".join(run.thinking for run in runs) == "".join(t for n, _, t in texts if n == turn)
        assert sum(run.count for run in runs) == sum(n == turn for n, _, _ in texts)


@pytest.mark.parametrize(("rate", "seconds"), [(0, IDLE), (20, IDLE), (80, IDLE), (200, 0.125), (5000, SLOWEST)])
def test_ticks_slow_down_when_tokens_are_fast(rate: float, seconds: float) -> None:
    """Would catch: a screen that takes more of the engine the faster it is."""
    assert tick(rate) == seconds


def test_the_speedometer_forgets_what_was_long_ago() -> None:
    """Would catch: a mean over the whole reply, which hides that it slows down."""
    now = 0.0
    speed = Speedometer(lambda: now)
    speed.start()
    now = 0.04
    speed.add(1)
    assert speed.first_token_seconds == pytest.approx(0.04)
    assert speed.rate == 0
    for _ in range(20):
        now += 0.1
        speed.add(20)
    assert speed.rate == pytest.approx(200)
    for _ in range(40):
        now += 0.1
        speed.add(5)
    assert speed.rate == pytest.approx(50, rel=0.05)
    assert speed.total == 1 + 400 + 200
    speed.start()
    assert speed.rate == 0
    assert speed.first_token_seconds is None


def test_the_speedometer_leaves_out_a_pause() -> None:
    """Would catch: a tenth of a token a second, where somebody took ten seconds to look at one."""
    now = 0.0
    speed = Speedometer(lambda: now)
    speed.start()
    for _ in range(10):
        now += 0.1
        speed.add(2)
    speed.rest()
    assert speed.rate == pytest.approx(20)
    now += 60
    for _ in range(3):
        speed.add(2)
        now += 0.1
    assert speed.rate == pytest.approx(20)
