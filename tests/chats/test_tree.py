"""The tree of turns keeps every version and only ever gives the engine a well-formed path."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinychat.chats import Tree
from tinychat.protocol import FinishReason, TurnFinished


def finished(turn_id: int, text: str, reason: FinishReason = "eos", ids: tuple[int, ...] = (7, 8)) -> TurnFinished:
    return TurnFinished(turn_id, reason, ids, text, "", 10, 0, len(ids), 0.1, 0.2, 0.1, 42, "torch")


def test_a_conversation_becomes_messages_with_the_ids_of_its_replies() -> None:
    """Would catch: replies handed back as text alone, so that they are tokenised anew."""
    tree = Tree("Be brief.")
    tree.ask("Hello?")
    reply = tree.answer()
    tree.finish(finished(reply.turn_id, "Hi."), "vocab")
    tree.ask("And now?")
    second = tree.answer()

    told = tree.messages_for(second.turn_id)
    assert [(m.role, m.text) for m in told] == [
        ("system", "Be brief."), ("user", "Hello?"), ("assistant", "Hi."), ("user", "And now?"),
    ]  # fmt: skip
    assert told[2].ids == (7, 8)
    assert told[2].vocabulary == "vocab"
    assert told[1].ids == ()


def test_no_system_prompt_is_no_message() -> None:
    """Would catch: an empty system message, which many templates render."""
    tree = Tree()
    tree.ask("Hello?")
    assert [m.role for m in tree.messages_for(tree.answer().turn_id)] == ["user"]


def test_regenerating_keeps_the_old_version() -> None:
    """Would catch: the old reply overwritten, or fed to the model that is to make the new one."""
    tree = Tree()
    tree.ask("Hello?")
    first = tree.answer()
    tree.finish(finished(first.turn_id, "Hi."), "v")
    second = tree.regenerate()
    assert [m.role for m in tree.messages_for(second.turn_id)] == ["user"]
    tree.finish(finished(second.turn_id, "Good day."), "v")

    assert [t.text for t in tree.versions(second.turn_id)] == ["Hi.", "Good day."]
    assert [t.text for t in tree.path()] == ["Hello?", "Good day."]
    assert tree[first.turn_id].text == "Hi."


def test_a_cancelled_reply_with_text_stays_in_the_history() -> None:
    """Would catch: what was said before Esc lost for the model."""
    tree = Tree()
    tree.ask("Count.")
    reply = tree.answer()
    tree.finish(finished(reply.turn_id, "One, two", "cancelled"), "v")
    tree.ask("Go on.")
    assert [m.text for m in tree.messages_for(tree.answer().turn_id)] == ["Count.", "One, two", "Go on."]


@pytest.mark.parametrize("reason", ["cancelled", "failed", "context", "eos"])
def test_a_question_without_a_reply_is_not_continued(reason: FinishReason) -> None:
    """Would catch: two questions in a row (templates refuse them) and empty replies in the prompt."""
    tree = Tree()
    tree.ask("Hello?")
    tree.finish(finished(tree.answer().turn_id, "Hi."), "v")
    tree.ask("A prompt far too long")
    tree.finish(finished(tree.answer().turn_id, "", reason, ()), "v")
    tree.ask("A short one")
    assert [m.text for m in tree.messages_for(tree.answer().turn_id)] == ["Hello?", "Hi.", "A short one"]
    assert len(tree) == 6, "nothing is deleted"


def test_a_failed_reply_can_be_made_again() -> None:
    """Would catch: a failure that leaves the conversation without a way on."""
    tree = Tree()
    tree.ask("Hello?")
    reply = tree.answer()
    tree.fail(reply.turn_id, text="He")
    assert tree[reply.turn_id].reason == "failed"
    again = tree.regenerate()
    assert [m.text for m in tree.messages_for(again.turn_id)] == ["Hello?"]


def test_a_failed_reply_has_no_ids_of_a_vocabulary() -> None:
    """Would catch: half a reply's text glued to ids that don't decode to it."""
    tree = Tree()
    tree.ask("Hello?")
    reply = tree.answer()
    tree.finish(finished(reply.turn_id, "", "cancelled", ()), "v")
    assert tree[reply.turn_id].vocabulary == ""


def test_answers_need_a_question() -> None:
    """Would catch: a reply to nothing, and a reply to a reply."""
    tree = Tree()
    with pytest.raises(ValueError, match="no question"):
        tree.answer()
    with pytest.raises(ValueError, match="no reply"):
        tree.regenerate()
    tree.ask("Hello?")
    with pytest.raises(ValueError, match="no reply"):
        tree.regenerate()
    tree.answer()
    with pytest.raises(ValueError, match="no question"):
        tree.answer()


STEPS = st.lists(
    st.sampled_from(["ask and answer", "ask and stop", "ask and fail", "regenerate", "regenerate and stop"]),
    max_size=12,
)


@given(steps=STEPS)
def test_every_path_alternates_and_every_text_stays_reachable(steps: list[str]) -> None:
    """Would catch: any order of asking, stopping, failing and regenerating that breaks the history."""
    tree = Tree("System")
    said: list[str] = []
    for number, step in enumerate(steps):
        if step.startswith("ask"):
            tree.ask(f"question {number}")
            said.append(f"question {number}")
            reply = tree.answer()
        elif tree.head is None:
            continue
        else:
            reply = tree.regenerate()
        roles = [m.role for m in tree.messages_for(reply.turn_id)]
        assert roles == ["system"] + ["user", "assistant"] * ((len(roles) - 2) // 2) + ["user"]
        if "stop" in step:
            tree.finish(finished(reply.turn_id, "", "cancelled", ()), "v")
        elif "fail" in step:
            tree.fail(reply.turn_id)
        else:
            tree.finish(finished(reply.turn_id, f"answer {number}"), "v")
            said.append(f"answer {number}")
        assert all(m.text for m in tree.messages_for(reply.turn_id)), "no empty message is ever told"
    assert sorted(said) == sorted(tree[i].text for i in range(1, len(tree) + 1) if tree[i].said)
