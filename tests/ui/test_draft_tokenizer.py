"""The inspector never asks faster than the engine answers, and always ends with the newest draft."""

from __future__ import annotations

from tinychat.protocol import Command, Piece, Tokenize, Tokenized
from tinychat.ui.draft_tokenizer import DraftTokenizer

PIECES = (Piece(1, b"a", 0),)


def test_only_the_newest_draft_is_asked_for_next() -> None:
    """Would catch: a request a key, piling up while the engine is busy with a reply."""
    sent: list[Command] = []
    drafts = DraftTokenizer(sent.append)
    drafts.begin()
    for draft in ("H", "He", "Hel"):
        drafts.ask(draft)
    assert sent == [Tokenize(1, "H")]
    assert drafts.answer(Tokenized(1, PIECES)) == PIECES
    assert sent == [Tokenize(1, "H"), Tokenize(2, "Hel")]
    assert drafts.answer(Tokenized(2, PIECES)) == PIECES
    assert len(sent) == 2


def test_what_was_typed_while_loading_is_asked_for_once_there_is_a_tokenizer() -> None:
    """Would catch: an empty inspector beside a draft until the next key."""
    sent: list[Command] = []
    drafts = DraftTokenizer(sent.append)
    drafts.ask("Hello")
    assert sent == []
    drafts.begin()
    assert sent == [Tokenize(1, "Hello")]


def test_other_answers_are_not_taken() -> None:
    """Would catch: the pieces of an older draft shown under the newest."""
    sent: list[Command] = []
    drafts = DraftTokenizer(sent.append)
    drafts.begin()
    drafts.ask("a")
    assert drafts.answer(Tokenized(99, PIECES)) is None
    assert drafts.answer(Tokenized(1, (), ready=False)) is None
    drafts.ask("b")
    assert len(sent) == 1, "not before there is a tokenizer again"
