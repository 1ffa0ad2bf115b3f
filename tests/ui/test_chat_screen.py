"""What a person does with the chat, key by key."""

from __future__ import annotations

import pytest
from screen_driver import Chat, OpenChat
from scripted_engine import INFO, ScriptedEngine, stats

from tinychat.protocol import (
    Cancel,
    DownloadProgress,
    Generate,
    LoadModel,
    ModelLoading,
    Notice,
    SamplerSettings,
    SetSampler,
    Tokenize,
)
from tinychat.ui.conversation import Phase
from tinychat.ui.widgets.turn_view import TurnView


def views(chat: Chat) -> list[TurnView]:
    return list(chat.screen.query(TurnView))


async def test_loading_begins_after_the_first_paint(open_chat: OpenChat) -> None:
    """Would catch: a blank terminal while torch is being imported."""

    class Watching(ScriptedEngine):
        painted = ""

        def send(self, command: object) -> None:
            if isinstance(command, LoadModel):
                Watching.painted = "\n".join(s.text for s in chat_app.screen._compositor.render_strips())
            super().send(command)  # type: ignore[arg-type]

    engine = Watching()
    async with open_chat(loaded=False, engine=engine) as chat:
        chat_app = chat.app
        await chat.sent(LoadModel)
        assert "smollm2" in Watching.painted
        assert "Enter send" in Watching.painted


async def test_a_question_is_answered(open_chat: OpenChat) -> None:
    """Would catch: anything on the way from Enter to the finished reply and its figures."""
    async with open_chat(size=(160, 48)) as chat:
        await chat.type("What is the capital of France?")
        await chat.press("enter")
        command = await chat.sent(Generate)
        assert [(m.role, m.text) for m in command.messages] == [("user", "What is the capital of France?")]
        assert chat.screen.editor.draft == ""
        chat.engine.say("The", " capital", " is **Par")
        await chat.shows("The capital is **Par▌")
        chat.engine.say("is**.")
        chat.engine.finish("The capital is **Paris**.")
        await chat.shows("The capital is Paris.")
        await chat.shows("4 tokens · 212 tok/s · first token 41 ms · prompt 350, 312 reused")
        await chat.shows("seed 77")
        await chat.shows("212 tok/s · first token 41 ms ─")
        await chat.shows("random (77)")


async def test_the_history_goes_along_with_its_ids(open_chat: OpenChat) -> None:
    """Would catch: a second question without the first, or a reply told as text alone."""
    async with open_chat(system="Be brief.") as chat:
        await chat.shows("Be brief.")
        await chat.ask("One?")
        await chat.answer("1, of course")
        await chat.ask("Two?")
        told = (await chat.sent(Generate, 2)).messages
        assert [m.text for m in told] == ["Be brief.", "One?", "1, of course", "Two?"]
        assert told[2].ids == (0, 1, 2)
        assert told[2].vocabulary == INFO.vocabulary


async def test_two_fast_enters_make_one_reply(open_chat: OpenChat) -> None:
    """Would catch: two generations interleaved."""
    async with open_chat() as chat:
        await chat.type("Hello")
        await chat.press("enter", "enter")
        await chat.sent(Generate)
        await chat.pilot.pause()
        assert len(chat.engine.sent(Generate)) == 1


async def test_enter_during_a_reply_queues_and_keeps_the_draft(open_chat: OpenChat) -> None:
    """Would catch: a draft lost, two replies at once, a queue nobody sees or can leave."""
    async with open_chat() as chat:
        await chat.ask("Hello")
        chat.engine.say("Hi")
        await chat.type("More")
        await chat.press("enter")
        await chat.shows("Your message is sent when this reply has ended")
        await chat.shows("your message waits")
        assert chat.screen.editor.draft == "More"
        assert len(chat.engine.sent(Generate)) == 1
        await chat.press("escape")
        await chat.hides("your message waits")
        assert not chat.engine.sent(Cancel), "Esc takes the message back first"
        await chat.press("enter")
        await chat.type("!")
        chat.engine.finish("Hi")
        assert (await chat.sent(Generate, 2)).messages[-1].text == "More!"
        assert chat.screen.editor.draft == ""


async def test_a_hint_makes_room_for_what_begins(open_chat: OpenChat) -> None:
    """Would catch: the progress of a prefill hidden behind a sentence about what was done before."""
    async with open_chat(size=(80, 24)) as chat:
        await chat.ask("Hello")
        await chat.answer("Hi")
        await chat.press("ctrl+o")
        await chat.shows("Copied 2 characters")
        await chat.press("ctrl+r")
        await chat.shows("─ prefill ─")


@pytest.mark.parametrize("text", ["", "   "])
async def test_an_empty_message_is_nothing(open_chat: OpenChat, text: str) -> None:
    """Would catch: an empty turn."""
    async with open_chat() as chat:
        await chat.type(text)
        await chat.press("enter")
        await chat.pilot.pause()
        assert not chat.engine.sent(Generate)
        assert not views(chat)


async def test_escape_stops_prefill_and_decode(open_chat: OpenChat) -> None:
    """Would catch: a stop that hides the text while the engine goes on, and text lost at a stop."""
    async with open_chat() as chat:
        await chat.ask("Hello")
        chat.engine.prefill(512, 900, reused=280)
        await chat.shows("512 of 900 tokens, 280 reused")
        await chat.press("escape")
        await chat.shows("stopping")
        assert (await chat.sent(Cancel)).turn_id == chat.engine.turn_id
        chat.engine.finish("", "cancelled", new_tokens=0)
        await chat.shows("Nothing was said, so the model will not be told")

        await chat.ask("Again")
        assert [m.text for m in (await chat.sent(Generate, 2)).messages] == ["Again"]
        chat.engine.say("One", ", two")
        await chat.shows("One, two▌")
        await chat.press("escape")
        await chat.sent(Cancel, 2)
        chat.engine.finish("One, two", "cancelled")
        await chat.shows("Stopped by you.")
        await chat.shows("One, two")
        await chat.ask("Go on")
        assert [m.text for m in (await chat.sent(Generate, 3)).messages] == ["Again", "One, two", "Go on"]


async def test_ctrl_c_stops_then_clears_then_tells_the_way_out(open_chat: OpenChat) -> None:
    """Would catch: Ctrl+C that ends the session."""
    async with open_chat() as chat:
        await chat.ask("Hello")
        await chat.type("draft")
        await chat.press("ctrl+c")
        await chat.sent(Cancel)
        assert chat.screen.editor.draft == "draft"
        chat.engine.finish("", "cancelled", new_tokens=0)
        await chat.until(lambda: not chat.screen.chat.busy)
        await chat.press("ctrl+c")
        await chat.until(lambda: chat.screen.editor.draft == "")
        await chat.press("ctrl+z")
        await chat.until(lambda: chat.screen.editor.draft == "draft")
        await chat.press("ctrl+c", "ctrl+c")
        await chat.shows("Ctrl+Q quits.")
        assert chat.app.is_running


async def test_what_is_sent_while_loading_waits(open_chat: OpenChat) -> None:
    """Would catch: a message lost or refused silently before the model is ready."""
    async with open_chat(loaded=False) as chat:
        await chat.sent(LoadModel)
        chat.engine.emit(DownloadProgress(1, "model.gguf", 31_200_000, 98_362_432))
        await chat.shows("downloading model.gguf")
        await chat.shows("31 MB of 98 MB")
        await chat.type("Hello")
        await chat.press("enter")
        await chat.shows("Your message is sent when the model is ready")
        chat.engine.emit(ModelLoading(1, "reading weights", 0.5))
        await chat.shows("reading weights")
        assert chat.screen.editor.draft == "Hello"
        await chat.load()
        assert (await chat.sent(Generate)).messages[-1].text == "Hello"
        assert chat.screen.editor.draft == ""


async def test_a_waiting_message_can_be_taken_back(open_chat: OpenChat) -> None:
    """Would catch: an Esc that stops the load when it was the message that was to stop."""
    async with open_chat(loaded=False) as chat:
        await chat.sent(LoadModel)
        await chat.type("Hello")
        await chat.press("enter")
        await chat.shows("Your message is sent when the model is ready")
        await chat.press("escape")
        await chat.load()
        await chat.pilot.pause()
        assert not chat.engine.sent(Generate)
        assert not chat.engine.sent(Cancel)
        assert chat.screen.editor.draft == "Hello"


async def test_the_first_prompt_is_said_when_the_model_is_ready(open_chat: OpenChat) -> None:
    """Would catch: `tinychat run MODEL PROMPT` with a terminal that forgets the prompt."""
    async with open_chat(first_prompt="Hello") as chat:
        assert (await chat.sent(Generate)).messages[-1].text == "Hello"


async def test_a_failed_load_leaves_a_usable_app(open_chat: OpenChat) -> None:
    """Would catch: no remedy on the screen, a draft lost, no way to try again."""
    async with open_chat(loaded=False) as chat:
        await chat.sent(LoadModel)
        await chat.type("Hello")
        await chat.press("enter")
        chat.engine.fail("No network.", "Run tinychat run smollm2.", load_id=chat.engine.load_id)
        await chat.shows("No network.")
        await chat.shows("Run tinychat run smollm2.")
        assert chat.screen.editor.draft == "Hello"
        await chat.press("enter")
        await chat.shows("No model is loaded")
        await chat.press("ctrl+l")
        await chat.sent(LoadModel, 2)
        await chat.load()
        await chat.press("enter")
        await chat.sent(Generate)


async def test_escape_stops_a_load(open_chat: OpenChat) -> None:
    """Would catch: a download that can only be stopped by leaving."""
    async with open_chat(loaded=False) as chat:
        await chat.sent(LoadModel)
        await chat.press("escape")
        assert (await chat.sent(Cancel)).load_id == chat.engine.load_id
        chat.engine.fail("Stopped.", "", load_id=chat.engine.load_id, cancelled=True)
        await chat.shows("Loading was stopped. Ctrl+L loads the model again.")


async def test_an_error_in_a_reply_is_a_sentence_below_it(open_chat: OpenChat) -> None:
    """Would catch: an exception of the engine's thread that disappears, and the partial text with it."""
    async with open_chat() as chat:
        await chat.ask("Hello")
        chat.engine.say("The cap")
        await chat.shows("The cap▌")
        chat.engine.finish("The capit", "failed")
        chat.engine.fail("Layer 7 is not finite.", "Use --dtype fp32.", turn_id=chat.engine.turn_id)
        await chat.shows("Layer 7 is not finite.")
        await chat.shows("Use --dtype fp32.")
        assert "The capit" in chat.text, "what was held back is there too"
        assert "Traceback" not in chat.text
        await chat.ask("And now?")


async def test_an_error_without_a_finish_ends_the_reply_too(open_chat: OpenChat) -> None:
    """Would catch: a cursor that stays in a reply nobody is making any more."""
    async with open_chat() as chat:
        await chat.ask("Hello")
        chat.engine.fail("The prompt has 9,000 tokens, the context 8,192.", "Shorten it.", turn_id=chat.engine.turn_id)
        await chat.shows("The prompt has 9,000 tokens, the context 8,192.")
        await chat.hides("▌")
        assert chat.screen.chat.phase is Phase.READY


async def test_a_refused_question_is_back_in_the_prompt(open_chat: OpenChat) -> None:
    """Would catch: a long message that has to be typed again to be shortened, and a new draft overwritten by it."""
    async with open_chat() as chat:
        for draft, left in (("", "Hello"), ("More", "More")):
            await chat.ask("Hello")
            await chat.type(draft)
            chat.engine.finish("", "failed", new_tokens=0, first_token_seconds=0.0)
            chat.engine.fail("It does not fit.", "Shorten it.", turn_id=chat.engine.turn_id)
            await chat.until(lambda: not chat.screen.chat.busy)
            await chat.shows("is back in the prompt" if not draft else "Ctrl+R asks again.")
            assert chat.screen.editor.draft == left
            assert "first token" not in chat.text
            chat.screen.editor.clear_draft()
        await chat.ask("Something else")
        assert [m.text for m in (await chat.sent(Generate, 3)).messages] == ["Something else"]


async def test_notices_and_reasons_are_shown(open_chat: OpenChat) -> None:
    """Would catch: silence about a fallback, a limit, a full context."""
    async with open_chat(info={"notices": ("This CPU has no bf16: slower.",)}) as chat:
        await chat.shows("This CPU has no bf16: slower.")
        chat.engine.emit(Notice("No template: transcript used."))
        await chat.shows("No template: transcript used.")
        await chat.ask("a")
        chat.engine.emit(Notice("A reply was encoded anew.", chat.engine.turn_id))
        await chat.answer("b", reason="length", new_tokens=256)
        await chat.shows("A reply was encoded anew.")
        await chat.shows("Stopped at the limit of 256 tokens.")
        await chat.ask("c")
        await chat.answer("d", reason="context")
        await chat.shows("The context of 8,192 tokens is full. Ctrl+N")


async def test_a_notice_that_holds_for_every_turn_is_said_once(open_chat: OpenChat) -> None:
    """Would catch: the same sentence below each reply, or one that is nowhere because its reply was made anew."""
    async with open_chat() as chat:
        for question in ("a", "b"):
            await chat.ask(question)
            chat.engine.emit(Notice("A reply was encoded anew.", chat.engine.turn_id))
            chat.engine.emit(Notice(f"Only of {question}.", chat.engine.turn_id))
            await chat.answer("done")
            await chat.shows(f"Only of {question}.")
        assert chat.text.count("A reply was encoded anew.") == 1
        await chat.press("ctrl+n")
        await chat.ask("c")
        chat.engine.emit(Notice("A reply was encoded anew.", chat.engine.turn_id))
        await chat.shows("A reply was encoded anew.")
        await chat.answer("done")
        await chat.press("ctrl+r")
        await chat.hides("A reply was encoded anew.")
        await chat.sent(Generate, 4)
        chat.engine.emit(Notice("A reply was encoded anew.", chat.engine.turn_id))
        await chat.shows("A reply was encoded anew.")


async def test_a_slider_moved_in_mid_reply_is_sent_at_once(open_chat: OpenChat) -> None:
    """Would catch: a slider that waits for the next reply."""
    async with open_chat() as chat:
        await chat.ask("Hello")
        chat.engine.say("Hi")
        await chat.press("f3")
        await chat.until(lambda: chat.app.focused is not None and chat.app.focused.id == "temperature")
        await chat.press("right")
        assert (await chat.sent(SetSampler)).sampler == SamplerSettings(temperature=0.25, top_p=0.9)
        chat.engine.say(" there")
        await chat.shows("Hi there▌")
        await chat.press("home")
        await chat.shows("greedy")
        await chat.sent(SetSampler, 2)
        await chat.press("escape")
        await chat.sent(Cancel)
        chat.engine.finish("Hi there", "cancelled")
        await chat.press("escape")
        await chat.until(lambda: chat.app.focused is chat.screen.editor)
        await chat.ask("Again")
        assert (await chat.sent(Generate, 2)).sampler.temperature == 0


async def test_a_new_chat_is_empty_and_keeps_the_system_prompt(open_chat: OpenChat) -> None:
    """Would catch: GPT-2 full at 1,024 tokens with no way on."""
    async with open_chat(system="Be brief.") as chat:
        await chat.ask("Hello")
        chat.engine.say("Hi")
        await chat.shows("Hi▌")
        await chat.press("ctrl+n")
        await chat.sent(Cancel)
        await chat.hides("Hello")
        await chat.shows("Be brief.")
        chat.engine.say(" late")
        chat.engine.finish("Hi late", "cancelled")
        await chat.until(lambda: not chat.screen.chat.busy)
        assert not views(chat)
        await chat.ask("Anew")
        assert [m.text for m in (await chat.sent(Generate, 2)).messages] == ["Be brief.", "Anew"]


async def test_regenerating_shows_the_new_version_and_keeps_the_old(open_chat: OpenChat) -> None:
    """Would catch: two replies to one question on the screen, or the old one gone from the tree."""
    async with open_chat() as chat:
        await chat.ask("Hello")
        await chat.answer("First")
        await chat.press("ctrl+r")
        await chat.sent(Generate, 2)
        await chat.hides("First")
        await chat.answer("Second")
        await chat.shows("version 2")
        assert [t.text for t in chat.screen.chat.tree.versions(chat.engine.turn_id)] == ["First", "Second"]


async def test_copying_takes_the_raw_reply_without_its_thinking(open_chat: OpenChat) -> None:
    """Would catch: pictures, markup or thoughts in what is pasted elsewhere."""
    async with open_chat(info={"thinking": True}) as chat:
        await chat.ask("Hello")
        chat.engine.say("hm", thinking=True)
        await chat.answer("**Hi** \x1b[31m", thinking="hm")
        await chat.press("ctrl+o")
        await chat.shows("Copied 12 characters to the terminal's clipboard")
        assert chat.app.clipboard == "**Hi** \x1b[31m"


async def test_the_system_prompt_can_be_shown_and_changed(open_chat: OpenChat) -> None:
    """Would catch: a system prompt that can only be set by flag."""
    async with open_chat(system="Be brief.") as chat:
        await chat.press("f4")
        await chat.shows("System prompt")
        await chat.type(" Rhyme.")
        await chat.press("ctrl+s")
        await chat.shows("holds from the next message on")
        await chat.ask("Hello")
        assert (await chat.sent(Generate)).messages[0].text == "Be brief. Rhyme."
        await chat.press("f4")
        await chat.shows("Ctrl+S saves")
        await chat.type("x")
        await chat.press("escape")
        await chat.hides("Ctrl+S saves")
        assert chat.screen.chat.tree.system == "Be brief. Rhyme."


async def test_raw_is_one_key_away_for_every_reply(open_chat: OpenChat) -> None:
    """Would catch: a reply whose exact text can't be seen."""
    async with open_chat() as chat:
        for word in ("one", "two"):
            await chat.ask(word)
            await chat.answer(f"**{word}**")
        assert "**" not in chat.text
        await chat.press("f5")
        await chat.shows("**two**")
        assert "**one**" not in chat.text
        await chat.press("ctrl+up", "f5")
        await chat.shows("**one**")
        await chat.press("f5")
        await chat.hides("**one**")


async def test_a_base_model_says_so_and_is_shown_raw(open_chat: OpenChat) -> None:
    """Would catch: a base model that pretends to be a chat model, and Markdown in its text."""
    async with open_chat(info={"format": "base", "name": "gpt2", "context": 1024}) as chat:
        await chat.shows("base model: continues a transcript")
        await chat.shows("This is a base model")
        await chat.ask("Hello")
        await chat.answer(" It was **late**.")
        await chat.shows("gpt2       It was **late**.")
        assert views(chat)[-1].text == " It was **late**.", "the leading space is part of the reply"


async def test_a_copy_for_prompts_is_said_and_shown(open_chat: OpenChat) -> None:
    """Would catch: memory taken twice without a word, and a reason that only a command tells."""
    copy = {"copy_bytes": 212_000_000, "weights_bytes": 339_400_000, "copy_reason": "Long prompts go the short way."}
    async with open_chat(size=(160, 60), info=copy) as chat:
        await chat.shows("Long prompts go the short way.")
        await chat.shows("█ weights")
        for row in ("█ weights", "▚ copy"):
            (line,) = [line for line in chat.text.splitlines() if row in line]
            assert line.rstrip().endswith("127 MB" if "weights" in row else "212 MB")
    async with open_chat(size=(160, 60), info={"copy_reason": "Long prompts go the long way."}) as chat:
        await chat.shows("█ weights")
        assert "▚" not in chat.text
        assert "the long way" not in chat.text, "it is what most processors do"
        await chat.press("f1")
        await chat.shows("Help")
        seen = ""
        for _ in range(12):
            await chat.press("pagedown")
            seen += chat.text
        assert "copy" in seen
        assert "Long prompts go the long way." in seen


async def test_raw_mode_shows_and_sends_the_text_as_it_is(open_chat: OpenChat) -> None:
    """Would catch: a leading space trimmed or a template applied where the text is to go on as it is."""
    async with open_chat(raw=True, info={"format": "base"}) as chat:
        await chat.ask("Once")
        assert (await chat.sent(Generate)).raw
        await chat.answer(" upon")
        await chat.shows("smollm2     upon")
        await chat.press("f4")
        await chat.pilot.pause()
        assert len(chat.app.screen_stack) == 1, "a system prompt has no place in raw text"


async def test_thinking_is_folded_until_asked_for(open_chat: OpenChat) -> None:
    """Would catch: thoughts that drown the answer, or that can't be read."""
    async with open_chat(info={"thinking": True}) as chat:
        await chat.ask("Hello")
        chat.engine.say("so", " many", " thoughts", thinking=True)
        await chat.shows("▸ thinking, 3 words")
        assert "many thoughts" not in chat.text
        await chat.press("ctrl+t")
        await chat.shows("so many thoughts▌")
        chat.engine.say(" more", thinking=True)
        await chat.shows("so many thoughts more▌")
        chat.engine.say("Answer")
        await chat.shows("Answer▌")
        chat.engine.finish("Answer", thinking="so many thoughts more")
        await chat.shows("▾ thought, 4 words")
        await chat.press("ctrl+t")
        await chat.hides("many thoughts")
        await chat.shows("▸ thought, 4 words")


async def test_keys_that_do_not_apply_do_nothing(open_chat: OpenChat) -> None:
    """Would catch: a crash on regenerate, copy or raw in an empty chat."""
    async with open_chat() as chat:
        await chat.press("ctrl+r", "ctrl+o", "f5", "ctrl+t", "ctrl+l", "ctrl+up", "ctrl+down", "escape", "pageup")
        await chat.pilot.pause()
        assert not chat.engine.sent(Generate)
        assert len(chat.engine.sent(LoadModel)) == 1


async def test_letters_go_to_the_prompt_wherever_the_focus_is(open_chat: OpenChat) -> None:
    """Would catch: typing into nothing after a click on the transcript."""
    async with open_chat() as chat:
        chat.screen.transcript.focus()
        await chat.type("Hi")
        await chat.until(lambda: chat.screen.editor.draft == "Hi")


async def test_the_gauges_are_true_to_the_engine(open_chat: OpenChat) -> None:
    """Would catch: figures computed on the screen instead of taken from the tensors."""
    async with open_chat(size=(160, 48)) as chat:
        chat.engine.emit(*stats(used=3312, reused=1280))
        await chat.shows("3,312 of 8,192 tokens")
        await chat.shows("█ 1,280 reused  ▓ 2,032 new")
        await chat.shows("76 MB of 189 MB in 30 layers, bf16")
        await chat.shows("process 480 MB")


async def test_the_draft_is_shown_in_pieces(open_chat: OpenChat) -> None:
    """Would catch: an inspector that lags behind the draft or keeps the old pieces."""
    async with open_chat() as chat:
        await chat.type("What about 🦙?")
        await chat.shows("▐What▌▐␣about▌▐␣▌▐🦙²▌▐?▌")
        await chat.shows("tokens 6 · 0.1 % of 8,192")
        await chat.press("left", "left")
        await chat.shows("F0 9F A6 99 · 🦙")
        assert chat.engine.sent(Tokenize)[-1].text == "What about 🦙?"
        await chat.press("ctrl+c")
        await chat.shows("tokens 0")
        assert "▐What▌" not in chat.text
