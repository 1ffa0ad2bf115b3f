"""Where in the tree of turns a recorded reply belongs: the commands tell of messages, not of turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinychat.chats import Tree, Turn
from tinychat.protocol import Generate, Message, TurnFinished
from tinychat.ui.conversation import Conversation


@dataclass(frozen=True, slots=True)
class Step:
    """What became of the conversation."""

    reply: Turn
    """The one that is being made now; the path leads to it."""
    system_changed: bool


def take_step(chat: Conversation, asked: Generate) -> Step:
    """Have the conversation do what was done then: ask, ask again, branch, or begin anew.

    Args:
        chat: No reply is being made.
        asked: The command that was sent then; the turn it branches off is the conversation's own.
    """
    system = next((message.text for message in asked.messages if message.role == "system"), "")
    changed = system != chat.tree.system and not chat.raw
    if changed:
        chat.tree.system = system
    old, at = asked.branch_of, len(asked.forced_ids) - 1
    if old is not None and old in chat.tree:
        if asked.begin is not None:
            return Step(chat.go_on(old), changed)
        if chat.can_branch(old) and 0 <= at <= len(chat.replies[old].tokens):
            return Step(chat.branch(old, at, asked.forced_ids[-1]), changed)
    said = [message for message in asked.messages if message.role != "system"]
    if chat.raw:
        return Step(_continue(chat, said[-1].text if said else ""), changed)
    before, question = (said[:-1], said[-1]) if said else ([], Message("user", ""))
    if (again := _newest(chat, said, following=True)) is not None:
        chat.tree.head = again
        return Step(_answered_again(chat, asked.begin), changed)
    if not _same(_told(chat.tree), before):
        end = _newest(chat, before, following=False)
        if end is None:
            _begin_anew(chat, before)
        else:
            chat.tree.head = end
    if asked.begin is None:
        return Step(chat.ask(question.text)[1], changed)
    chat.tree.ask(question.text)
    return Step(_answered_again(chat, asked.begin), changed)


def _answered_again(chat: Conversation, begin: Message | None) -> Turn:
    """Have the last question answered, by a reply that begins as was dictated then."""
    return chat.regenerate() if begin is None else chat.dictate(begin.text)


def _continue(chat: Conversation, text: str) -> Turn:
    """Go on with a text as it is: what stands in the transcript already, and what was added to it."""
    path = chat.tree.path()
    if path and path[-1].role == "assistant" and text == _joined(path[:-1]):
        return chat.regenerate()
    if not text.startswith(_joined(path)):
        chat.start_anew()
    return chat.ask(text.removeprefix(_joined(chat.tree.path())))[1]


def _joined(turns: Sequence[Turn]) -> str:
    return "".join(turn.text for turn in turns)


def _newest(chat: Conversation, said: Sequence[Message], *, following: bool) -> int | None:
    """Return the newest reply that follows these messages, or that is the last of them; None where there is none."""
    found = None
    for turn_id in chat.replies:
        if turn_id in chat.tree and _same(chat.tree.path(turn_id)[: -1 if following else None], said):
            found = turn_id
    return found


def _told(tree: Tree) -> tuple[Turn, ...]:
    """Return the turns on the screen that a question asked now would follow: those up to the last reply that said
    something."""
    path = tree.path()
    ends = [index for index, turn in enumerate(path, 1) if turn.role == "assistant" and turn.said]
    return path[: ends[-1] if ends else 0]


def _same(turns: Sequence[Turn], said: Sequence[Message]) -> bool:
    return [(t.role, t.text, t.ids) for t in turns] == [(m.role, m.text, m.ids) for m in said]


def _begin_anew(chat: Conversation, said: Sequence[Message]) -> None:
    """Begin a conversation in which this was said, before the recording or on a path that it doesn't tell of."""
    if len(chat.tree):
        chat.start_anew()
    for message in said:
        if message.role == "user":
            chat.tree.ask(message.text)
        elif chat.tree.head is not None and chat.tree[chat.tree.head].role == "user":
            reply = chat.tree.answer()
            finished = TurnFinished(
                reply.turn_id, "eos", message.ids, message.text, message.thinking, 0, 0, 0, 0.0, 0.0, 0.0, 0, ""
            )
            chat.tree.finish(finished, message.vocabulary)
