"""The keys that change what was said, and those to the chats that were kept; bound by the chat screen."""

from __future__ import annotations

from typing import Final

from textual.binding import Binding

# First of all, so that no letter of theirs is typed into the prompt.
REVISION_KEYS: Final = [
    Binding("alt+e", "edit('question')", "edit question", tooltip="Ask the chosen reply's question in other words",
            id="turn.edit_question", priority=True),
    Binding("alt+a", "edit('reply')", "edit reply", tooltip="Put other words into the model's mouth",
            id="turn.edit_reply", priority=True),
    Binding("alt+c", "go_on", "continue", tooltip="Have the model go on from the end of a reply", id="turn.continue",
            priority=True),
    Binding("alt+d", "dictate", "dictate", tooltip="Have the last reply made again, beginning with the draft",
            id="turn.dictate", priority=True),
    Binding("alt+u", "undo", "undo", tooltip="Take the last thing back: a question, an edit, a version, a deletion",
            id="chat.undo", priority=True),
    Binding("alt+y", "redo", "redo", tooltip="Do again what was taken back", id="chat.redo", priority=True),
    Binding("alt+x", "remove", "delete reply", tooltip="Delete a reply and what follows it; Alt+U brings it back",
            id="turn.delete", priority=True),
    Binding("alt+f", "fork", "fork", tooltip="Go on from a reply in a chat of its own", id="chat.fork", priority=True),
    Binding("alt+s", "sessions", "chats", tooltip="Find, resume, rename and delete chats", id="chat.sessions",
            priority=True),
]  # fmt: skip
