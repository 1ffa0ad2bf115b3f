"""The transcript follows the end, lets a person go, and takes them along again."""

from __future__ import annotations

from screen_driver import Chat, OpenChat

from tinychat.ui.widgets.turn_view import TurnView

LINE = "a line of the reply\n"


async def streaming(chat: Chat, lines: int = 80) -> None:
    """Begin a reply that is longer than the screen."""
    await chat.ask("Go")
    chat.engine.say(*[f"{n} {LINE}" for n in range(lines)])
    await chat.shows(f"{lines - 1} {LINE.strip()}")


async def test_a_short_conversation_stands_at_the_top(open_chat: OpenChat) -> None:
    """Would catch: text glued to the bottom, that jumps to the top at the first touch of the wheel."""
    async with open_chat() as chat:
        await chat.ask("Go")
        await chat.answer("Done")
        assert "A small model" in chat.text.splitlines()[2]
        assert chat.screen.transcript.scroll_y == 0
        assert not chat.screen.new_text.display


async def test_it_follows_while_nobody_scrolls(open_chat: OpenChat) -> None:
    """Would catch: new text that appears out of view."""
    async with open_chat() as chat:
        await streaming(chat)
        for n in range(80, 100):
            chat.engine.say(f"{n} {LINE}")
            await chat.shows(f"{n} {LINE.strip()}")
        assert not chat.screen.new_text.display


async def test_a_person_who_scrolled_up_is_left_alone_and_told(open_chat: OpenChat) -> None:
    """Would catch: a reader torn away from what they read, or who doesn't learn that more has come."""
    async with open_chat() as chat:
        await streaming(chat)
        await chat.press("pageup")
        await chat.hides(f"79 {LINE.strip()}")
        before = chat.screen.transcript.scroll_y
        assert not chat.screen.new_text.display, "nothing new yet"
        chat.engine.say(*[f"more {LINE}"] * 30)
        await chat.shows("↓ new text below · Ctrl+End")
        assert chat.screen.transcript.scroll_y == before
        await chat.press("ctrl+end")
        await chat.shows(f"more {LINE.strip()}")
        await chat.hides("new text below")
        chat.engine.say("the very last")
        await chat.shows("the very last")


async def test_scrolling_down_to_the_end_of_a_growing_text_follows_again(open_chat: OpenChat) -> None:
    """Would catch: Textual's anchor, which is not taken up again while text keeps coming."""
    async with open_chat() as chat:
        await streaming(chat)
        await chat.press("pageup", "pageup")
        for n in range(12):
            chat.engine.say(f"growing {n} {LINE}")
            await chat.press("pagedown")
        await chat.until(lambda: chat.screen.transcript.is_vertical_scroll_end)
        for n in range(30):
            chat.engine.say(f"later {n} {LINE}")
        await chat.shows(f"later 29 {LINE.strip()}")


async def test_a_click_on_the_sign_goes_to_the_end(open_chat: OpenChat) -> None:
    """Would catch: a sign that only names a key."""
    async with open_chat() as chat:
        await streaming(chat)
        await chat.press("pageup")
        chat.engine.say(f"more {LINE}" * 9)
        await chat.shows("new text below")
        await chat.pilot.click("#new-text")
        await chat.hides("new text below")
        await chat.shows(f"more {LINE.strip()}")


async def test_sending_goes_to_the_end(open_chat: OpenChat) -> None:
    """Would catch: a question asked out of view."""
    async with open_chat() as chat:
        await streaming(chat)
        chat.engine.finish("".join(f"{n} {LINE}" for n in range(80)))
        await chat.until(lambda: not chat.screen.chat.busy)
        await chat.press("pageup", "pageup")
        await chat.ask("Another question")
        await chat.shows("Another question")


async def test_a_reply_that_ends_leaves_no_gap(open_chat: OpenChat) -> None:
    """Would catch: the room a live reply is given in advance staying empty when it has ended."""
    async with open_chat() as chat:
        await chat.ask("Go")
        chat.engine.say("one line")
        await chat.shows("one line▌")
        view = chat.screen.query(TurnView).last()
        await chat.until(lambda: view.size.height > 1)
        chat.engine.finish("one line")
        await chat.shows("2 tokens")
        await chat.until(lambda: view.size.height == 3)


async def test_the_whole_of_a_reply_streamed_in_pieces_is_drawn(open_chat: OpenChat) -> None:
    """Would catch: lines lost or doubled where the drawing only adds what is new."""
    async with open_chat(size=(100, 60)) as chat:
        await chat.ask("Go")
        text = "".join(f"word{n} " + ("\n" if n % 13 == 0 else "") for n in range(200))
        for start in range(0, len(text), 7):
            chat.engine.say(text[start : start + 7])
            await chat.pilot.pause(0)
        await chat.shows("word199")
        shown = chat.text
        assert all(shown.count(f"word{n} ") == 1 for n in range(199))


async def test_text_can_be_selected_with_the_mouse_and_copied(open_chat: OpenChat) -> None:
    """Would catch: a transcript that nothing can be copied out of, or labels in what is copied."""
    async with open_chat() as chat:
        await chat.ask("Go")
        await chat.answer("first line\nsecond line")
        lines = chat.text.splitlines()
        first = next(y for y, line in enumerate(lines) if "first line" in line)
        x = lines[first].index("first line")
        await chat.pilot.mouse_down(offset=(x + 6, first))
        await chat.pilot.hover(offset=(x + 6, first + 1))
        await chat.pilot.mouse_up(offset=(x + 6, first + 1))
        await chat.press("ctrl+c")
        await chat.until(lambda: chat.app.clipboard)
        assert chat.app.clipboard.startswith("line\nsecond")


async def test_replies_can_be_chosen(open_chat: OpenChat) -> None:
    """Would catch: copy that always takes the last reply, whatever was chosen, and a choice that can't be undone."""
    async with open_chat() as chat:
        for word in ("one", "two", "three"):
            await chat.ask(word)
            await chat.answer(f"{word} answer")
        await chat.press("ctrl+up", "ctrl+o")
        assert chat.app.clipboard == "two answer"
        reversed_text = [
            segment.text
            for strip in chat.app.screen._compositor.render_strips()
            for segment in strip
            # Not the cursor's cell, nor the side panel's scroll bar.
            if segment.style and segment.style.reverse and segment.text != "S" and segment.text.strip(" ▁▂▃▄▅▆▇")
        ]
        assert reversed_text == ["smollm2"], "the name alone is marked, not the column it stands in"
        await chat.press("ctrl+up", "ctrl+up", "ctrl+up", "ctrl+o")
        assert chat.app.clipboard == "one answer"
        await chat.press("ctrl+down", "ctrl+o")
        assert chat.app.clipboard == "two answer"
        await chat.ask("four")
        await chat.answer("four answer")
        await chat.press("ctrl+o")
        assert chat.app.clipboard == "four answer"
