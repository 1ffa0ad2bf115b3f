"""The state machine behind the screen: which commands go out, and what each event makes of the phase."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scripted_engine import INFO

from tinychat.catalog import HubSource, ModelCard
from tinychat.protocol import (
    Cancel,
    Command,
    EngineFailed,
    Generate,
    Limits,
    LoadModel,
    Message,
    ModelReady,
    PrefillProgress,
    PromptRendered,
    SamplerSettings,
    SamplerUsed,
    SetSampler,
    TurnFinished,
)
from tinychat.ui.bridge import TokenRun
from tinychat.ui.conversation import Conversation, Phase

Sent = list[Command]


def conversation(sent: Sent, ready: bool = True, **options: object) -> Conversation:
    chat = Conversation(sent.append, LoadModel(0, ModelCard("m", HubSource("a/b"))), **options)  # type: ignore[arg-type]
    chat.start_loading()
    if ready:
        chat.take(ModelReady(chat.load_id, INFO, SamplerSettings(temperature=0.2), ()))
    return chat


def finished(turn_id: int, text: str, reason: str = "eos") -> TurnFinished:
    ids = (1, 2) if text else ()
    return TurnFinished(turn_id, reason, ids, text, "", 9, 0, len(ids), 0.1, 0.1, 0.1, 5, "torch")  # type: ignore[arg-type]


def test_a_reply_from_question_to_end() -> None:
    """Would catch: a phase that sticks, and a reply whose ids don't come home."""
    sent: Sent = []
    chat = conversation(sent, system="Be brief.")
    assert chat.phase is Phase.READY
    _, reply = chat.ask("Hello?")
    assert chat.phase is Phase.PREFILL
    command = sent[-1]
    assert isinstance(command, Generate)
    assert command.messages == (Message("system", "Be brief."), Message("user", "Hello?"))
    assert command.sampler.temperature == 0.2
    chat.take(TokenRun(reply.turn_id, 2, "Hi.", ""))
    assert chat.phase is Phase.DECODE
    chat.take(finished(reply.turn_id, "Hi."))
    assert chat.phase is Phase.READY
    assert chat.live is None
    assert chat.tree[reply.turn_id].ids == (1, 2)
    assert chat.tree[reply.turn_id].vocabulary == INFO.vocabulary


def test_a_stop_is_over_only_when_the_engine_says_so() -> None:
    """Would catch: a second reply begun while the first is still being computed."""
    sent: Sent = []
    chat = conversation(sent)
    _, reply = chat.ask("Hello?")
    assert chat.stop()
    assert sent[-1] == Cancel(turn_id=reply.turn_id)
    assert chat.phase is Phase.STOPPING
    chat.take(TokenRun(reply.turn_id, 1, "H", ""))
    assert chat.phase is Phase.STOPPING
    chat.take(finished(reply.turn_id, "H", "cancelled"))
    assert chat.phase is Phase.READY
    assert not chat.stop()


def test_a_load_can_be_stopped_and_begun_again() -> None:
    """Would catch: an app without a model that can only be left, and the old load's events taken for the new one's."""
    sent: Sent = []
    chat = conversation(sent, ready=False)
    chat.stop()
    assert sent[-1] == Cancel(load_id=1)
    chat.take(EngineFailed("Stopped.", "", "", load_id=1, cancelled=True))
    assert chat.phase is Phase.NO_MODEL
    chat.start_loading()
    assert isinstance(sent[-1], LoadModel)
    assert sent[-1].load_id == 2
    chat.take(ModelReady(1, INFO, SamplerSettings(), ()))
    assert chat.phase is Phase.LOADING
    chat.take(ModelReady(2, INFO, SamplerSettings(), ()))
    assert chat.phase is Phase.READY


@pytest.mark.parametrize("engine_says_both", [True, False])
def test_an_error_keeps_what_was_said(engine_says_both: bool) -> None:
    """Would catch: the partial text lost, or the app stuck in "answering" for ever."""
    sent: Sent = []
    chat = conversation(sent)
    _, reply = chat.ask("Hello?")
    chat.take(TokenRun(reply.turn_id, 1, "He", "hm"))
    if engine_says_both:
        chat.take(replace(finished(reply.turn_id, "He"), reason="failed", thinking="hm"))
    chat.take(EngineFailed("Layer 7 is NaN.", "", "", turn_id=reply.turn_id))
    turn = chat.tree[reply.turn_id]
    assert (turn.text, turn.thinking, turn.reason) == ("He", "hm", "failed")
    assert chat.phase is Phase.READY


def test_an_error_of_nobody_ends_what_runs() -> None:
    """Would catch: an engine that dies in a reply, and a screen that waits for it."""
    sent: Sent = []
    chat = conversation(sent)
    chat.ask("Hello?")
    chat.take(EngineFailed("The engine stopped.", "", ""))
    assert not chat.busy


def test_a_new_chat_stops_the_reply_and_hears_no_more_of_it() -> None:
    """Would catch: the old reply turning up in the new chat, or a crash on its late events."""
    sent: Sent = []
    chat = conversation(sent, system="S")
    _, reply = chat.ask("Hello?")
    chat.start_anew()
    assert sent[-1] == Cancel(turn_id=reply.turn_id)
    chat.take(TokenRun(reply.turn_id, 1, "H", ""))
    chat.take(finished(reply.turn_id, "H", "cancelled"))
    assert chat.phase is Phase.READY
    assert len(chat.tree) == 0
    assert chat.tree.system == "S"
    _, another = chat.ask("Anew")
    assert another.turn_id > reply.turn_id, "ids are never used twice"


def test_regenerating_asks_the_same_again() -> None:
    """Would catch: the old reply fed to the model that is to make the new one."""
    sent: Sent = []
    chat = conversation(sent)
    _, reply = chat.ask("Hello?")
    chat.take(finished(reply.turn_id, "Hi."))
    chat.regenerate()
    assert isinstance(sent[-1], Generate)
    assert sent[-1].messages == (Message("user", "Hello?"),)


def test_raw_text_goes_on_where_it_stopped() -> None:
    """Would catch: roles or a system prompt in what was asked to be continued as it is."""
    sent: Sent = []
    chat = conversation(sent, raw=True, system="ignored")
    _, reply = chat.ask("Once upon")
    assert isinstance(sent[-1], Generate)
    assert sent[-1].raw
    assert sent[-1].messages == (Message("user", "Once upon"),)
    chat.take(finished(reply.turn_id, " a time"))
    chat.ask(", there was")
    assert sent[-1].messages == (Message("user", "Once upon a time, there was"),)  # type: ignore[union-attr]


@pytest.mark.parametrize(("mine", "models", "sent_limit"), [(None, None, None), (None, 256, 256), (9, 256, 9)])
def test_a_models_limit_holds_where_the_person_set_none(mine: int | None, models: int | None, sent_limit: int) -> None:
    """Would catch: a base model that talks for ever, and a flag that is overruled."""
    sent: Sent = []
    chat = conversation(sent, ready=False, limits=Limits(max_tokens=mine, stop=("END",)))
    chat.take(ModelReady(chat.load_id, replace(INFO, max_tokens=models), SamplerSettings(), ()))
    chat.ask("Hello")
    assert isinstance(sent[-1], Generate)
    assert sent[-1].limits == Limits(sent_limit, ("END",))


def test_a_setting_holds_at_once_and_from_then_on() -> None:
    """Would catch: a slider that acts on the reply or on the next one, but not on both."""
    sent: Sent = []
    chat = conversation(sent)
    _, reply = chat.ask("Hello?")
    chat.set_sampler(SamplerSettings(temperature=1.5))
    assert sent[-1] == SetSampler(SamplerSettings(temperature=1.5))
    chat.take(finished(reply.turn_id, "Hi."))
    chat.ask("Again")
    assert sent[-1].sampler.temperature == 1.5  # type: ignore[union-attr]


def said(chat: Conversation, text: str, reason: str = "eos") -> int:
    """Ask and have it answered; return the reply."""
    _, reply = chat.ask("Hello?")
    chat.take(finished(reply.turn_id, text, reason))
    return reply.turn_id


def test_an_edited_question_is_asked_and_an_edited_reply_is_not() -> None:
    """Would catch: an edit that changes the screen and not what the model is told."""
    sent: Sent = []
    chat = conversation(sent)
    first = said(chat, "Hi.")
    question, reply = chat.edit(chat.tree[first].parent or 0, "Good day?")
    assert reply is not None
    assert isinstance(sent[-1], Generate)
    assert sent[-1].messages == (Message("user", "Good day?"),)
    chat.take(finished(reply.turn_id, "Good day."))
    commands = len(sent)
    turn, nothing = chat.edit(reply.turn_id, "And to you.")
    assert (turn.text, nothing, len(sent)) == ("And to you.", None, commands)
    chat.ask("More?")
    assert sent[-1].messages[1] == Message("assistant", "And to you.")  # type: ignore[union-attr]
    assert question.turn_id in chat.tree


def test_going_on_begins_with_the_reply_and_its_seed() -> None:
    """Would catch: a continuation that is told as a new question, or that draws from the beginning again."""
    sent: Sent = []
    chat = conversation(sent)
    old = said(chat, "One, two", "cancelled")
    new = chat.go_on(old)
    command = sent[-1]
    assert isinstance(command, Generate)
    assert command.messages == (Message("user", "Hello?"),)
    assert command.begin == Message("assistant", "One, two", (1, 2), INFO.vocabulary)
    assert (command.branch_of, command.sampler.seed) == (old, 5)
    assert (new.origin, chat.replies[new.turn_id].repeated) == (old, 2)
    chat.take(finished(new.turn_id, "One, two, three"))
    edited, _ = chat.edit(new.turn_id, "One")
    chat.go_on(edited.turn_id)
    assert sent[-1].begin == Message("assistant", "One")  # type: ignore[union-attr]
    assert sent[-1].sampler.seed is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("form", "raw", "begins"), [("base", False, " Sure"), ("chat", False, "Sure"), ("base", True, "Sure")]
)
def test_a_dictated_start_is_written_as_the_model_writes(form: str, raw: bool, begins: str) -> None:
    """Would catch: "Assistant:Sure" in the transcript of a base model, which reads nothing like what it learned."""
    sent: Sent = []
    chat = conversation(sent, ready=False, raw=raw)
    chat.take(ModelReady(chat.load_id, replace(INFO, format=form), SamplerSettings(), ()))  # type: ignore[arg-type]
    old = said(chat, "No.")
    chat.dictate("Sure")
    assert sent[-1].begin == Message("assistant", begins)  # type: ignore[union-attr]
    assert chat.tree.versions(old)[0].turn_id == old


def test_what_was_given_is_counted_by_the_prompt() -> None:
    """Would catch: dictated tokens shown as drawn while the reply is being made."""
    sent: Sent = []
    chat = conversation(sent)
    said(chat, "No.")
    reply = chat.dictate("Sure, it is")
    chat.take(PromptRendered(reply.turn_id, (1, 2, 3), ()))
    chat.take(PrefillProgress(reply.turn_id, 7, 7, 0))
    tokens = chat.replies[reply.turn_id]
    assert (tokens.forced, tokens.repeated) == (4, 0)


def test_undo_redo_and_an_unanswered_question() -> None:
    """Would catch: a question that lost its reply and can't be answered any more."""
    sent: Sent = []
    chat = conversation(sent)
    reply = said(chat, "Hi.")
    assert chat.undo()
    assert chat.tree.head is None
    assert chat.redo()
    chat.tree.remove(reply)
    assert chat.regenerate().parent == chat.tree[reply].parent


def test_a_slider_moved_in_mid_reply_is_noted_with_its_token() -> None:
    """Would catch: a session that can't tell by which settings a token was drawn."""
    sent: Sent = []
    chat = conversation(sent)
    _, reply = chat.ask("Hello?")
    cold, hot = SamplerSettings(temperature=0.2, seed=5), SamplerSettings(temperature=1.5, seed=5)
    chat.take(SamplerUsed(reply.turn_id, 0, cold))
    chat.take(SamplerUsed(reply.turn_id, 1, hot))
    assert chat.tree[reply.turn_id].settings == ((0, cold), (1, hot))


def test_a_reply_left_for_a_new_chat_keeps_what_was_said() -> None:
    """Would catch: the words of a reply that was being made when a person began another chat, lost for its session."""
    sent: Sent = []
    chat = conversation(sent)
    _, reply = chat.ask("Hello?")
    chat.take(TokenRun(reply.turn_id, 1, "Hel", ""))
    tree = chat.tree
    chat.start_anew()
    assert (tree[reply.turn_id].text, tree[reply.turn_id].reason) == ("Hel", "cancelled")
