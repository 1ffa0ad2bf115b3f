"""Questions to the engine: one at a time, ten a second, and the last one is always asked."""

from __future__ import annotations

from tinychat.protocol import Command, Inspect
from tinychat.ui.inquiry import Inquiry


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def setup() -> tuple[Inquiry, list[Command], Clock]:
    sent: list[Command] = []
    clock = Clock()
    return Inquiry(sent.append, clock), sent, clock


def about(index: int) -> tuple[int, object]:
    return index, lambda request: Inspect(request, 1, index)


def test_the_same_is_asked_once() -> None:
    """Would catch: an engine that answers the same question at every tick."""
    inquiry, sent, clock = setup()
    for _ in range(9):
        inquiry.want(*about(1))  # type: ignore[arg-type]
        clock.now += 0.2
        inquiry.answered(1)
    assert sent == [Inspect(1, 1, 1)]


def test_a_slider_that_is_dragged_asks_ten_times_a_second_and_ends_with_the_last_value() -> None:
    """Would catch: a question a pixel, and a table of the last value but one."""
    inquiry, sent, clock = setup()
    for step in range(100):
        inquiry.want(*about(step))  # type: ignore[arg-type]
        inquiry.answered(len(sent))
        clock.now += 0.01
    assert 8 <= len(sent) <= 11
    clock.now += 0.1
    inquiry.want(*about(99))  # type: ignore[arg-type]
    assert sent[-1] == Inspect(len(sent), 1, 99)


def test_it_waits_for_the_answer_but_not_for_ever() -> None:
    """Would catch: questions that pile up before a slow engine, and a view that is dead after an answer was lost."""
    inquiry, sent, clock = setup()
    inquiry.want(*about(1))  # type: ignore[arg-type]
    clock.now += 5
    inquiry.want(*about(2))  # type: ignore[arg-type]
    assert len(sent) == 1
    assert not inquiry.answered(9)
    assert inquiry.answered(1)
    assert not inquiry.answered(1)
    inquiry.want(*about(2))  # type: ignore[arg-type]
    assert len(sent) == 2
    clock.now += 60
    inquiry.want(*about(3))  # type: ignore[arg-type]
    assert len(sent) == 3


def test_what_is_forgotten_is_asked_anew() -> None:
    """Would catch: the answer of another model taken for this one's."""
    inquiry, sent, clock = setup()
    inquiry.want(*about(1))  # type: ignore[arg-type]
    inquiry.forget()
    assert not inquiry.answered(1)
    clock.now += 1
    inquiry.want(*about(1))  # type: ignore[arg-type]
    assert sent[-1] == Inspect(2, 1, 1)
