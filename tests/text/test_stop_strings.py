"""Stop strings: held back no longer than needed, cut exactly, nothing lost at the end."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinychat.text.stop_strings import StopStrings


def shown(stops: list[str], fragments: list[str]) -> tuple[list[str], bool]:
    """Return what each fragment shows, the flush last, and whether a stop was met."""
    watch = StopStrings(stops)
    pieces = []
    for fragment in fragments:
        piece, matched = watch.feed(fragment)
        pieces.append(piece)
        if matched:
            return pieces, True
    return [*pieces, watch.flush()], False


@pytest.mark.parametrize(
    ("stops", "fragments", "pieces", "matched"),
    [
        (["DEFGHIJ"], ["ABC", "DEF", "G", "HI", "J"], ["ABC", "", "", "", ""], True),
        (["\nUser:"], [" Paris.", "\n", "User", ":"], [" Paris.", "", "", ""], True),
        (["\nUser:"], [" Paris.", "\n", "Use", "ful"], [" Paris.", "", "", "\nUseful", ""], False),
        (["beta gamma"], ["alpha beta", " gam", "ma ray"], ["alpha ", "", ""], True),
        (["DE"], ["ABCDEF"], ["ABC"], True),
        (["please"], ["Type 'pleas'"], ["Type 'pleas'", ""], False),
        (["please"], ["Type pleas"], ["Type ", "pleas"], False),
        (["aab"], ["aa", "a", "b"], ["", "a", ""], True),
        (["abab!"], ["abab", "ab!"], ["", "ab"], True),
        (["xyz", "y"], ["wx", "yz"], ["w", "x"], True),
        (["bc", "abc"], ["a", "b", "c"], ["", "", ""], True),
        ([], ["any", "thing"], ["any", "thing", ""], False),
    ],
)
def test_what_is_shown(stops: list[str], fragments: list[str], pieces: list[str], matched: bool) -> None:
    """The beginning of a stop leaked, text held that can't become one, the tail lost (E1, E2)."""
    assert shown(stops, fragments) == (pieces, matched)


SMALL = st.text("ab", min_size=1, max_size=4)


@given(stops=st.lists(SMALL, max_size=3), fragments=st.lists(st.text("abc", max_size=4), max_size=8))
@settings(deadline=None, max_examples=500)
def test_any_fragments_show_the_same_text(stops: list[str], fragments: list[str]) -> None:
    """Whether a stop is found depends on how the text was cut into tokens; what is held could have been shown."""
    text = "".join(fragments)
    ends = [(end, end - len(stop)) for stop in stops for end in range(len(text) + 1) if text[:end].endswith(stop)]
    expected = text[: min(ends)[1]] if ends else text
    pieces, matched = shown(stops, fragments)
    assert ("".join(pieces), matched) == (expected, bool(ends))
    if matched:
        return
    for count in range(1, len(fragments) + 1):
        read, seen = "".join(fragments[:count]), "".join(pieces[:count])
        held = read[len(seen) :]
        longest = max(
            (n for n in range(len(read) + 1) if any(s.startswith(read[len(read) - n :]) for s in stops)), default=0
        )
        assert len(held) == longest
