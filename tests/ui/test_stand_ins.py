"""Whatever is pasted comes back exactly, and nothing of it is drawn raw."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tinychat.ui.foreign_text import PICTURES
from tinychat.ui.stand_ins import FOLD_PICTURE, StandIns

ANY = st.text(alphabet=st.one_of(st.characters(), st.sampled_from("\x1b\x9b\r\x00\u202e\U00100000\U0010fffd\ud800ab")))


@given(texts=st.lists(ANY, max_size=6))
def test_text_comes_back_exactly(texts: list[str]) -> None:
    """Would catch: a private-use character of the person's taken for one of ours, and a control character dropped."""
    stand_ins = StandIns()
    encoded = [stand_ins.encode(text) for text in texts]
    for text, code in zip(texts, encoded, strict=True):
        assert stand_ins.decode(code) == text
        assert len(code) == len(text), "the cursor counts characters"
        drawn = stand_ins.drawn(code)
        assert len(drawn) == len(code)
        assert not any(ord(c) in PICTURES for c in drawn)


def test_a_fold_is_one_character_among_others() -> None:
    """Would catch: a folded paste that is sent as its picture."""
    stand_ins = StandIns()
    first, second = stand_ins.fold("one" * 1000), stand_ins.fold("one" * 1000)
    draft = f"a{first}b{second}"
    assert len(draft) == 4
    assert first != second
    assert stand_ins.decode(draft) == "a" + "one" * 1000 + "b" + "one" * 1000
    assert stand_ins.drawn(draft) == f"a{FOLD_PICTURE}b{FOLD_PICTURE}"
    assert stand_ins.folds(draft) == ["one" * 1000] * 2


def test_a_single_character_that_was_folded_is_not_a_control_character() -> None:
    """Would catch: the fold of an escape character reused for a typed one."""
    stand_ins = StandIns()
    fold = stand_ins.fold("\x1b")
    assert stand_ins.encode("\x1b") != fold
