"""Telling thinking from answer, however the reply is cut into tokens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinychat.text.thinking import MARKERS, ThinkingSplitter


def split(fragments: list[str], inside: bool = False) -> tuple[str, str]:
    splitter = ThinkingSplitter(MARKERS[0], inside)
    parts = [splitter.feed(fragment) for fragment in fragments] + [splitter.flush()]
    return "".join(thinking for thinking, _ in parts), "".join(answer for _, answer in parts)


@pytest.mark.parametrize(
    ("reply", "inside", "thinking", "answer"),
    [
        ("<think>\nWell,\nok.\n</think>\n\nYes.\n", False, "Well,\nok.", "Yes.\n"),
        ("Well.\n</think>\n\nYes.", True, "Well.", "Yes."),
        ("\n\n<think>a</think>b", False, "a", "b"),
        ("Yes.", False, "", "Yes."),
        (" Yes.", False, "", " Yes."),
        ("Use <think> and </think> so.", False, "", "Use <think> and </think> so."),
        ("<think>a</think>b</think>c<think>d", False, "a", "b</think>c<think>d"),
        ("<think>\n\n</think>\n\nYes.", False, "", "Yes."),
        ("<think>cut off", False, "cut off", ""),
        ("<think>cut off\n</thi", False, "cut off\n</thi", ""),
        ("<thi", False, "", "<thi"),
        ("<thing>", False, "", "<thing>"),
        ("a < b </think>c", True, "a < b ", "c"),
        ("", True, "", ""),
        ("", False, "", ""),
    ],
)
def test_replies(reply: str, inside: bool, thinking: str, answer: str) -> None:
    """A marker shown, an answer taken for thinking, the tail of a reply that was cut off lost."""
    assert split([reply], inside) == (thinking, answer)
    assert split(list(reply), inside) == (thinking, answer)


PARTS = ["<think>", "</think>", "<", "think", ">", "</", "\n", " ", "a", "thi"]


@given(parts=st.lists(st.sampled_from(PARTS), max_size=10), inside=st.booleans(), data=st.data())
@settings(deadline=None, max_examples=500)
def test_any_fragments_give_the_same_split(parts: list[str], inside: bool, data: st.DataObject) -> None:
    """A marker that is split over two tokens is missed."""
    reply = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(reply)), max_size=5)))
    fragments = [reply[start:end] for start, end in zip([0, *cuts], [*cuts, len(reply)], strict=True)]
    assert split(fragments, inside) == split([reply], inside)


def test_nothing_is_held_longer_than_needed() -> None:
    """Thinking that appears only when it is over."""
    splitter = ThinkingSplitter(MARKERS[0])
    assert splitter.feed("<think>Let me") == ("Let me", "")
    assert splitter.inside
    assert splitter.feed(" see\n") == (" see", "")
    assert splitter.feed("\nnow</") == ("\n\nnow", "")
    assert splitter.feed("b></think>Yes") == ("</b>", "Yes")
    assert not splitter.inside
    assert splitter.feed(".") == ("", ".")
