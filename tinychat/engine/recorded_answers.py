"""What was asked while a chat was recorded, and the answers: a view that was looked at can be looked at again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Final

from tinychat.engine.recorded import Entry
from tinychat.protocol import (
    Attend,
    Attended,
    CacheMapped,
    DescribePrompt,
    Event,
    Explain,
    Explained,
    ExplainText,
    Generate,
    Inspect,
    Lens,
    Lensed,
    MapCache,
    Probed,
    PromptDescribed,
    TextExplained,
    TokenEmitted,
    Tokenize,
    Tokenized,
)

ANSWERS: Final[dict[type, type]] = {
    Tokenize: Tokenized,
    ExplainText: TextExplained,
    Explain: Explained,
    Inspect: Probed,
    Lens: Lensed,
    Attend: Attended,
    DescribePrompt: PromptDescribed,
    MapCache: CacheMapped,
}
"""Each command that asks, and the event that answers it."""
_STALE: Final = 1.0
"""Seconds for which a map of the cache is that of the tokens that come."""


class RecordedAnswers:
    """Finds the answer that a question got."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        """Go through a recording."""
        self._entries = entries
        self._found: dict[Any, list[tuple[int, Any]]] = {}
        """What was asked, and the answers, each with its place."""
        asked: dict[tuple[type, int], Any] = {}
        for place, entry in enumerate(entries):
            said: Any = entry.said
            if type(said) in ANSWERS:
                asked[ANSWERS[type(said)], said.request_id] = said
            elif type(said) in ANSWERS.values() and not getattr(said, "problem", ""):
                question = asked.pop((type(said), said.request_id), None)
                if isinstance(said, Probed) and said.request_id is None:
                    question = Inspect(0, said.turn_id, said.index)
                if question is not None:
                    self._found.setdefault(_subject(question), []).append((place, said))

    def find(self, question: Any, place: int) -> Event | None:
        """Return what was answered to a question, at best what there was to say at a place of the recording."""
        found = self._found.get(_subject(question), [])
        if isinstance(question, MapCache):
            # Caches change: only a map of about now will do.
            found = [each for each in found if each[0] <= place][-1:]
            found = [] if found and self._stale(found[0][0], place) else found
        if not found:
            return None
        past = [answer for at, answer in found if at <= place]
        answer = past[-1] if past else found[-1][1]
        return _answered(answer, question)

    def _stale(self, since: int, place: int) -> bool:
        """Whether tokens came after what was told at `since`."""
        told = self._entries[since].at
        return any(
            isinstance(entry.said, Generate) or (isinstance(entry.said, TokenEmitted) and entry.at > told + _STALE)
            for entry in self._entries[since:place]
        )


def unanswered(question: Any, problem: str) -> Event:
    """Return the answer that says why there is none."""
    if isinstance(question, Tokenize):
        return Tokenized(question.request_id, ())
    kind: Any = ANSWERS[type(question)]
    both = {field.name for field in fields(kind)} & {field.name for field in fields(question)} - {"sampler"}
    known = {name: getattr(question, name) for name in both}
    return kind(**known, problem=problem)  # type: ignore[no-any-return]


def _answered(answer: Any, question: Any) -> Event:
    """Return an answer as one to another question."""
    return replace(answer, request_id=question.request_id)  # type: ignore[no-any-return]


def _subject(question: Any) -> Any:
    """Return what is asked about, whoever asks."""
    return MapCache(0) if isinstance(question, MapCache) else replace(question, request_id=0)
