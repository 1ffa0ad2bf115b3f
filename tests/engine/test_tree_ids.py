"""The tree of turns and the prompt together: whatever a person did, the engine is told ids it has seen before."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path

import families
import pytest
from driven import Driven, driven
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import Tiny

from tinychat.chats import Tree
from tinychat.engine.beginning import Beginning
from tinychat.engine.prompt import render
from tinychat.protocol import Limits, Message, Notice, SamplerSettings, TokenEmitted, TurnFinished
from tinychat.text.chat_template import ChatTemplate
from tinychat.text.tokenizer import Tokenizer

HOT = SamplerSettings(temperature=1.0, top_k=0, top_p=1.0, seed=5)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "again", "edit", "undo", "redo", "choose", "remove", "fork", "reopen"]),
        st.integers(0, 99),
        st.lists(st.sampled_from(["hello", " there", "\n", "é", "日本", "12", "'s", "<|im_end|>", " a"]), min_size=1),
    ),
    max_size=12,
)


@pytest.fixture(scope="module")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> families.Family:
    return families.load("chatml", tmp_path_factory.mktemp("chatml"))


@given(steps=STEPS)
@settings(deadline=None, max_examples=60)
def test_the_ids_of_a_path_are_those_the_model_has_read_and_said(chatml: families.Family, steps) -> None:
    """Would catch: a reply that is encoded anew after an edit, an undo or a return, so that the caches are of no use;
    and a prompt that depends on how a person came to where they are."""
    tokenizer, template = chatml.tokenizer, chatml.template
    tree = Tree("Be brief.")
    fed: dict[int, tuple[int, ...]] = {}

    def reply(turn_id: int, parts: list[str]) -> None:
        """The engine says something, in ids that its encoding would not have chosen."""
        messages = tree.messages_for(turn_id)
        fed[turn_id] = prompt = render(tokenizer, template, messages).ids
        bare = [Message(m.role, m.text, m.ids, m.vocabulary) for m in messages]
        assert render(tokenizer, template, bare).ids == prompt, "a cold render gives the same"
        for before in tree.path(turn_id)[:-1]:
            if before.role == "assistant" and before.ids:
                seen = (*fed[before.turn_id], *before.ids)
                assert prompt[: len(seen)] == seen
        ids = [token_id for part in parts for letter in part for token_id in tokenizer.encode(letter, first=False)]
        text = "".join(parts)
        ended = TurnFinished(turn_id, "cancelled", tuple(ids), text, "", 1, 0, len(ids), 0.1, 0.1, 0.1, 1, "torch")
        tree.finish(ended, tokenizer.vocabulary)

    for what, number, parts in steps:
        turns = list(tree._present())
        turn = turns[number % len(turns)] if turns else None
        if what == "ask":
            tree.ask("".join(parts))
            reply(tree.answer().turn_id, parts)
        elif what == "undo":
            tree.undo()
        elif what == "redo":
            tree.redo()
        elif what == "reopen":
            old = [each.turn_id for each in tree]
            tree = Tree.restored(tree.state(), count(max(old, default=0) + 1))
            fed |= {new.turn_id: fed[was] for was, new in zip(old, tree, strict=True) if was in fed}
        elif turn is None:
            continue
        elif what == "again" and turn.role == "assistant":
            reply(tree.regenerate(turn.turn_id).turn_id, parts)
        elif what == "edit":
            tree.edit(turn.turn_id, "".join(parts))
            if turn.role == "user":
                reply(tree.answer().turn_id, parts)
        elif what == "choose":
            tree.choose(turn.turn_id)
        elif what == "remove":
            tree.remove(turn.turn_id)
        elif what == "fork":
            tree = tree.fork(turn.turn_id)


# ---------------------------------------------------------------------------------------------------------------------
# Going on, and dictating


@pytest.fixture
def engine():
    with driven() as made:
        yield made


@pytest.mark.parametrize("variant", ["llama", "gpt2"])
def test_going_on_says_what_would_have_been_said(tiny: Tiny, engine: Driven, variant: str) -> None:
    """Would catch: a continuation that draws other numbers, computes the reply again, or loses the tokens it had."""
    engine.load(tiny.safetensors(variant).path)
    vocabulary = engine.engine.call(lambda session: session.opened.tokenizer.vocabulary)
    whole = engine.reply(sampler=HOT, count=20)
    cut = engine.reply(turn_id=2, sampler=HOT, count=8)
    said = Message("assistant", cut.text, cut.ids, vocabulary)
    rest = engine.reply(turn_id=3, sampler=HOT, count=12, begin=said, branch_of=2)
    assert rest.ids == whole.ids, "the limit counts what is new"
    assert rest.text == whole.text
    assert rest.forced == 8
    assert not engine.of(Notice, turn_id=3)
    assert rest.reused_tokens >= rest.prompt_tokens + 7, "nothing is computed that the caches hold"


def test_a_dictated_start_is_the_beginning_of_the_reply(tiny: Tiny, engine: Driven) -> None:
    """Would catch: a dictated text that is left out of the reply, or told as drawn."""
    engine.load(tiny.safetensors("llama").path)
    ids = engine.engine.call(lambda session: tuple(session.opened.tokenizer.encode("Paris is", first=False)))
    reply = engine.reply(count=4, begin=Message("assistant", "Paris is"))
    assert reply.ids[: len(ids)] == ids
    assert reply.text.startswith("Paris is")
    assert (reply.forced, reply.new_tokens) == (len(ids), len(ids) + 4)
    assert "".join(event.text for event in engine.of(TokenEmitted)).startswith("Paris is")


def test_going_on_from_another_models_reply_says_so(tiny: Tiny, engine: Driven) -> None:
    """Would catch: ids of another vocabulary fed to this one, where they mean something else."""
    engine.load(tiny.safetensors("llama").path)
    said = Message("assistant", "Paris", (1, 2, 3), "another vocabulary")
    reply = engine.reply(count=2, limits=Limits(max_tokens=2), begin=said)
    assert reply.text.startswith("Paris")
    assert "another model" in engine.of(Notice, turn_id=1)[0].text


@pytest.mark.parametrize(
    ("message", "opened", "reads"),
    [
        (Message("assistant", "Yes", thinking="hm"), False, "<think>\nhm\n</think>\n\nYes"),
        (Message("assistant", "Yes", thinking="hm"), True, "hm\n</think>\n\nYes"),
        (Message("assistant", "Yes"), True, "\n</think>\n\nYes"),
        (Message("assistant", "Yes"), False, "Yes"),
        (Message("assistant", "", thinking="hm"), False, "<think>\nhm"),
        (Message("assistant", "<|im_end|>"), False, "<|im_end|>"),
        (None, False, ""),
    ],
)
def test_thinking_stands_between_its_markers(tmp_path: Path, message: Message | None, opened: bool, reads: str) -> None:
    """Would catch: an answer that is taken for thinking, and typed control tokens that act."""
    made = families.load("qwen3", tmp_path)
    begun = Beginning.of(message, made.tokenizer, made.template, opens_thinking=opened)
    assert made.tokenizer.decode(begun.ids, skip_special=False) == reads
    im_end = made.tokenizer.encode_with_control("<|im_end|>")
    assert im_end[0] not in begun.ids


def test_a_model_that_does_not_think_is_given_the_answer(gpt2_folder: Path) -> None:
    """Would catch: another model's thinking, read out as if it were the answer."""
    tokenizer, template = Tokenizer.from_folder(gpt2_folder), ChatTemplate.transcript()
    said = Message("assistant", " Yes", thinking="hm")
    begun = Beginning.of(said, tokenizer, template, opens_thinking=False)
    assert tokenizer.decode(begun.ids) == " Yes"
    assert Beginning.of(replace(said, text=""), tokenizer, template, opens_thinking=False).ids == ()
