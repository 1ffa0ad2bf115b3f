"""Where the characters of a text begin, as a person counts them: an emoji family, a flag, a letter with its accent."""

from __future__ import annotations

from rich.cells import split_graphemes


def character_starts(text: str) -> list[int]:
    """Return the index at which each character begins. Drawn in the same cells as Rich measures, flags joined."""
    starts: list[int] = []
    half_a_flag = False
    for start, _, _ in split_graphemes(text)[0]:
        letter_of_flag = "\U0001f1e6" <= text[start] <= "\U0001f1ff"
        if not (letter_of_flag and half_a_flag):
            starts.append(start)
        half_a_flag = letter_of_flag and not half_a_flag
    return starts
