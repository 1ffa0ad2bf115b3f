"""What is kept of tokens: how much, for how long, and what branches share."""

from __future__ import annotations

import torch

from tinychat.engine.prompt import RenderedPrompt
from tinychat.engine.records import Records
from tinychat.engine.sampling import Choice

PROMPT = RenderedPrompt((), (), "", (), opens_thinking=False)


def token(token_id: int, rows: int = 1) -> Choice:
    """A token whose states take 40 bytes a row."""
    return Choice(token_id, states=torch.zeros(rows, 10))


def test_bytes_are_those_of_the_states():
    """Each once: rows that were computed together, and those that a branch shares, are one tensor."""
    records = Records()
    turn = records.begin(1, PROMPT)
    together = torch.zeros(3, 10)
    for row in range(3):
        records.add(turn, Choice(row, states=together, row=row))
    records.add(turn, token(3))
    records.add(turn, Choice(4))
    assert records.nbytes == 160
    branch = records.begin(2, PROMPT)
    for shared in turn.tokens[:2]:
        records.add(branch, shared)
    assert records.nbytes == 160
    records.begin(1, PROMPT)
    assert records.nbytes == 120
    records.begin(2, PROMPT)
    assert records.nbytes == 0


def test_oldest_turns_go_first():
    """Whole, when there is more than there is room for; what a newer turn shares with them stays."""
    records = Records(most_bytes=200)
    first = records.begin(1, PROMPT)
    for n in range(3):
        records.add(first, token(n))
    second = records.begin(2, PROMPT)
    records.add(second, first.tokens[0])
    records.add(second, token(8))
    third = records.begin(3, PROMPT)
    records.add(third, token(9))
    assert records.nbytes == 200
    records.add(third, token(10))
    assert records.nbytes == 160
    assert records.get(1) is None
    assert all(kept.states is not None for kept in second.tokens)


def test_a_turn_longer_than_all_there_is_room_for():
    """Its beginning goes, token after token; ids and draws stay."""
    records = Records(most_bytes=100)
    turn = records.begin(1, PROMPT)
    for n in range(6):
        records.add(turn, token(n))
    assert [kept.states is not None for kept in turn.tokens] == [False] * 4 + [True] * 2
    assert turn.ids == list(range(6))
    assert records.nbytes == 80


def test_what_a_branch_shares():
    """The tokens it repeats, and the one it parts from: that was decided by the same numbers."""
    records = Records()
    turn = records.begin(1, PROMPT)
    for n in (5, 6, 7, 8):
        records.add(turn, token(n))
    assert records.shared(1, PROMPT, (5, 6, 9)) == turn.tokens[:3]
    assert records.shared(1, PROMPT, (5, 6, 7, 8, 9)) == turn.tokens
    assert records.shared(1, PROMPT, (9,)) == turn.tokens[:1]
    assert records.shared(1, PROMPT, ()) == []
    assert records.shared(2, PROMPT, (5,)) == []
    assert records.shared(None, PROMPT, (5,)) == []
    other = RenderedPrompt((1,), (), "", (), opens_thinking=False)
    assert records.shared(1, other, (5,)) == [], "other prompts, other numbers"
    turn.tokens[1] = Choice(6)
    assert records.shared(1, PROMPT, (5, 6, 9)) == turn.tokens[:1]


def test_prompts_are_counted():
    """A long conversation is kept with each of its turns: catches a bound that only states are held to."""
    records = Records(most_bytes=1000)
    for turn_id in range(5):
        turn = records.begin(turn_id, RenderedPrompt(tuple(range(10)), (), "text", (), opens_thinking=False))
        records.add(turn, token(turn_id))
        assert records.nbytes == min(turn_id + 1, 2) * 444
    assert [turn_id for turn_id in range(5) if records.get(turn_id)] == [3, 4]
