"""Edits, continuations, undo and redo, forks and removals: nothing is lost, and every path is well formed."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tinychat.chats import Tree, Turn
from tinychat.protocol import FinishReason, SamplerSettings, TurnFinished


def finished(turn_id: int, text: str, reason: FinishReason = "eos") -> TurnFinished:
    ids = tuple(text.encode())
    return TurnFinished(turn_id, reason, ids, text, "", 10, 0, len(ids), 0.1, 0.2, 0.1, 42, "torch")


def exchange(tree: Tree, question: str, answer: str, reason: FinishReason = "eos") -> Turn:
    """A question and its answer; return the answer."""
    tree.ask(question)
    return tree.finish(finished(tree.answer().turn_id, answer, reason), "v", "model")


def said(tree: Tree) -> list[str]:
    return [turn.text for turn in tree.path()]


def test_an_edited_question_begins_a_version_of_the_exchange() -> None:
    """Would catch: what followed the old question lost, or out of reach because its reply has another parent."""
    tree = Tree()
    first = exchange(tree, "Hi", "Hello.")
    exchange(tree, "More", "Much more.")
    edited = tree.edit(first.parent or 0, "Good day")
    assert edited.origin == first.parent
    tree.finish(finished(tree.answer().turn_id, "Good day to you."), "v")
    assert said(tree) == ["Good day", "Good day to you."]
    assert [turn.text for turn in tree.versions(tree.head or 0)] == ["Hello.", "Good day to you."]
    tree.choose(first.turn_id)
    assert said(tree) == ["Hi", "Hello.", "More", "Much more."]


def test_a_reply_that_a_person_wrote_has_no_ids() -> None:
    """Would catch: the model told the old ids under the new text."""
    tree = Tree()
    old = exchange(tree, "Hi", "Hello.")
    new = tree.edit(old.turn_id, "Hullo.")
    assert (new.ids, new.vocabulary, new.reason, new.origin) == ((), "", "edited", old.turn_id)
    assert tree[old.turn_id].text == "Hello."
    tree.ask("And?")
    assert [m.text for m in tree.messages_for(tree.answer().turn_id)] == ["Hi", "Hullo.", "And?"]


def test_what_can_not_be_edited() -> None:
    """Would catch: an empty reply in the prompt, and two writers of one reply."""
    tree = Tree()
    reply = exchange(tree, "Hi", "Hello.")
    with pytest.raises(ValueError, match="has to say something"):
        tree.edit(reply.turn_id, "")
    live = tree.regenerate()
    with pytest.raises(ValueError, match="still being made"):
        tree.edit(live.turn_id, "x")


@pytest.mark.parametrize(
    ("reason", "unfinished"),
    [("eos", False), ("stop", False), ("length", True), ("cancelled", True), ("context", True), ("failed", True)],
)
def test_which_replies_can_be_gone_on_from(reason: FinishReason, unfinished: bool) -> None:
    """Would catch: a reply cut by Esc or by a limit that can't be continued."""
    tree = Tree()
    assert exchange(tree, "Count", "1, 2", reason).unfinished is unfinished
    assert tree.edit(tree.head or 0, "1, 2, 3").unfinished
    assert not tree.regenerate().unfinished, "one without a word is made again, not gone on from"


def test_undo_takes_a_question_back_with_its_reply() -> None:
    """Would catch: an undo that leaves a question without an answer on the screen, and a redo that loses one."""
    tree = Tree()
    assert not tree.undo()
    exchange(tree, "1?", "1.")
    exchange(tree, "2?", "2.")
    assert tree.undo()
    assert said(tree) == ["1?", "1."]
    assert tree.undo()
    assert said(tree) == []
    assert not tree.can_undo
    assert tree.redo()
    assert tree.redo()
    assert said(tree) == ["1?", "1.", "2?", "2."]
    assert not tree.redo()


def test_what_was_undone_stays_as_a_version() -> None:
    """Would catch: a text that is gone for good once something else was said in its place."""
    tree = Tree()
    exchange(tree, "1?", "1.")
    tree.undo()
    exchange(tree, "One?", "One.")
    assert not tree.can_redo
    assert [turn.text for turn in tree.versions(tree.head or 0)] == ["1.", "One."]


def test_what_was_removed_comes_back_by_undo() -> None:
    """Would catch: a removal without a way back, and one that leaves its versions on the screen."""
    tree = Tree()
    first = exchange(tree, "Hi", "Hello.")
    second = tree.finish(finished(tree.regenerate().turn_id, "Good day."), "v")
    exchange(tree, "More", "Much.")
    tree.remove(second.turn_id)
    assert said(tree) == ["Hi", "Hello."], "the version that is left takes its place"
    assert tree.versions(first.turn_id) == (tree[first.turn_id],)
    with pytest.raises(KeyError):
        tree.choose(second.turn_id)
    tree.remove(first.turn_id)
    assert said(tree) == ["Hi"]
    assert tree.answer().parent == first.parent, "the question can be answered anew"
    tree.undo()
    tree.undo()
    tree.undo()
    assert said(tree) == ["Hi", "Good day.", "More", "Much."]


def test_a_fork_shares_the_path_and_nothing_else() -> None:
    """Would catch: a fork that changes the conversation it came from, or ids that two conversations mean different
    turns by."""
    tree = Tree("System")
    first = exchange(tree, "1?", "1.")
    exchange(tree, "2?", "2.")
    fork = tree.fork(first.turn_id)
    assert (said(fork), fork.system, fork.can_undo) == (["1?", "1."], "System", False)
    assert fork[first.turn_id] == tree[first.turn_id]
    other = exchange(fork, "Two?", "Two.")
    assert other.turn_id not in tree
    assert said(tree) == ["1?", "1.", "2?", "2."]


def test_settings_are_noted_as_they_changed() -> None:
    """Would catch: a reply of which nobody can tell by which settings its end was drawn."""
    tree = Tree()
    tree.ask("Hi")
    reply = tree.answer()
    cold, hot = SamplerSettings(temperature=0.0), SamplerSettings(temperature=2.0)
    for index, each in ((0, cold), (0, cold), (3, hot), (3, cold), (5, hot)):
        tree.drawn_by(reply.turn_id, index, each)
    assert tree[reply.turn_id].settings == ((0, cold), (5, hot)), "a slider moved and moved back changes nothing"


def test_a_reply_that_was_being_made_is_cut_when_it_is_read_back() -> None:
    """Would catch: a reply after a crash that waits for ever for its end."""
    tree = Tree()
    exchange(tree, "1?", "1.")
    tree.ask("2?")
    live = tree.answer()
    tree._put(live.turn_id, text="half of")
    again = Tree.restored(tree.state(), count(100))
    assert [turn.turn_id for turn in again] == [100, 101, 102, 103]
    assert again[again.head or 0].reason == "cut"
    assert again[again.head or 0].unfinished


class Person(RuleBasedStateMachine):
    """Does anything to a conversation, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = Tree("System", count(1))
        self.number = 0
        self.texts: set[str] = set()
        self.stack: list[tuple[object, ...]] = []
        self.ahead: list[tuple[object, ...]] = []
        self.left: list[tuple[Tree, list[Turn]]] = []

    def stands(self) -> tuple[object, ...]:
        return self.tree.head, frozenset(turn.turn_id for turn in self.tree._present())

    def present(self) -> set[int]:
        return {turn.turn_id for turn in self.tree._present()}

    def text(self) -> str:
        self.number += 1
        self.texts.add(f"text {self.number}")
        return f"text {self.number}"

    def pick(self, data: st.DataObject, role: str = "") -> Turn:
        return data.draw(st.sampled_from([t for t in self.tree._present() if role in ("", t.role)]))

    def end(self, reply: Turn, how: str) -> None:
        """The engine ends a reply, one way or another."""
        roles = [m.role for m in self.tree.messages_for(reply.turn_id)]
        assert roles == ["system"] + ["user", "assistant"] * ((len(roles) - 2) // 2) + ["user"]
        assert all(m.text for m in self.tree.messages_for(reply.turn_id)), "no empty message is ever told"
        if how == "empty":
            self.tree.finish(finished(reply.turn_id, "", "cancelled"), "v")
        elif how == "failed":
            self.tree.fail(reply.turn_id, self.text())
        else:
            self.tree.finish(finished(reply.turn_id, self.text(), "eos" if how == "done" else "cancelled"), "v")

    ENDS = st.sampled_from(["done", "done", "esc", "empty", "failed"])

    @rule(how=ENDS)
    def ask(self, how: str) -> None:
        before = self.stands()
        self.tree.ask(self.text())
        self.end(self.tree.answer(), how)
        self.stack.append(before)
        self.ahead.clear()

    @precondition(lambda self: any(t.role == "assistant" for t in self.tree._present()))
    @rule(data=st.data(), how=ENDS, goes_on=st.booleans())
    def another_reply(self, data: st.DataObject, how: str, goes_on: bool) -> None:
        old, before = self.pick(data, "assistant"), self.stands()
        self.end(self.tree.regenerate(old.turn_id, origin=old.turn_id if goes_on else None), how)
        self.stack.append(before)
        self.ahead.clear()

    @precondition(lambda self: self.present())
    @rule(data=st.data(), how=ENDS)
    def edit(self, data: st.DataObject, how: str) -> None:
        old, before = self.pick(data), self.stands()
        self.tree.edit(old.turn_id, self.text())
        if old.role == "user":
            self.end(self.tree.answer(), how)
        self.stack.append(before)
        self.ahead.clear()

    @precondition(lambda self: self.present())
    @rule(data=st.data())
    def choose(self, data: st.DataObject) -> None:
        before = self.stands()
        chosen = self.pick(data)
        self.tree.choose(chosen.turn_id)
        assert chosen in self.tree.path(), "every text can be brought back to the screen"
        if before != self.stands():
            self.stack.append(before)
            self.ahead.clear()

    @precondition(lambda self: self.present())
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        before = self.stands()
        gone = self.pick(data)
        self.tree.remove(gone.turn_id)
        assert gone not in self.tree.path()
        self.stack.append(before)
        self.ahead.clear()

    @rule()
    def undo(self) -> None:
        now = self.stands()
        assert self.tree.undo() is bool(self.stack)
        if self.stack:
            self.ahead.append(now)
            self.same(self.stack.pop())

    @rule()
    def redo(self) -> None:
        now = self.stands()
        assert self.tree.redo() is bool(self.ahead)
        if self.ahead:
            self.stack.append(now)
            self.same(self.ahead.pop())

    def same(self, before: tuple[object, ...]) -> None:
        """The conversation stands where it stood; turns that were added since are still there."""
        head, present = before
        assert self.tree.head == head
        assert present <= self.present()  # type: ignore[operator]

    @precondition(lambda self: self.tree.head is not None)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        self.left.append((self.tree, list(self.tree)))
        turn = self.pick(data)
        path = self.tree.path(turn.turn_id)
        self.tree = self.tree.fork(turn.turn_id)
        assert self.tree.path() == tuple(replace(turn, origin=None) for turn in path)
        self.stack, self.ahead = [], []

    @rule()
    def leave_and_come_back(self) -> None:
        """The state that is written to disk gives the same tree."""
        state = self.tree.state()
        again = Tree.restored(state, count(1000))
        assert again.state().renumbered(count(1)) == state.renumbered(count(1))
        assert [t.text for t in again.path()] == [t.text for t in self.tree.path()]
        assert (again.can_undo, again.can_redo) == (self.tree.can_undo, self.tree.can_redo)

    @invariant()
    def nothing_is_lost(self) -> None:
        kept = {turn.text for tree in (self.tree, *(tree for tree, _ in self.left)) for turn in tree}
        assert self.texts <= kept
        assert all(list(tree) == turns for tree, turns in self.left), "what was forked from stays as it was"
        for turn in self.tree._present():
            assert turn in self.tree.siblings(turn.turn_id)
            assert turn in self.tree.versions(turn.turn_id)

    @invariant()
    def the_path_is_well_formed(self) -> None:
        path = self.tree.path()
        assert [turn.role for turn in path] == (["user", "assistant"] * len(path))[: len(path)]
        assert all(turn.said for turn in path[:-1])
        assert {turn.turn_id for turn in path} <= self.present()


TestPerson = Person.TestCase
TestPerson.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
