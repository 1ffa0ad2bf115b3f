"""How the typed text becomes tokens, asked for as it changes: what the view of BPE draws."""

from __future__ import annotations

from collections.abc import Callable

from tinychat.protocol import Command, ExplainText, TextExplained, TokenizerReady
from tinychat.ui.conversation import Conversation
from tinychat.ui.inquiry import Inquiry


class TypedWalk:
    """The draft, or where that is empty what was said last, and the engine's account of it. Belongs to the UI thread.

    Needs a vocabulary and no weights.
    """

    def __init__(self, send: Callable[[Command], None], chat: Conversation) -> None:
        self._chat = chat
        self._inquiry = Inquiry(send)
        self.text = ""
        """What is looked at."""
        self.of_draft = False
        """Whether that is the draft; else it is the last message."""
        self.explained: TextExplained | None = None
        """The latest answer there is; while another is on its way, of the text before."""

    @property
    def readable(self) -> bool:
        """Whether there is a vocabulary to ask."""
        return self._chat.has_tokenizer

    def follow(self, draft: str) -> bool:
        """Look at what is in the prompt now; return whether that is something else than before."""
        before = (self.text, self.of_draft)
        said = (turn.text for turn in reversed(self._chat.tree.path()) if turn.role == "user")
        self.text, self.of_draft = draft or next(said, ""), bool(draft)
        return before != (self.text, self.of_draft)

    def ask(self) -> None:
        """Ask about the text, if that wasn't asked last; called again and again."""
        text = self.text
        if text and self.readable:
            self._inquiry.want(text, lambda request_id: ExplainText(request_id, text))

    def take(self, update: TextExplained | TokenizerReady) -> None:
        """Take an answer, or another vocabulary, which makes another answer."""
        if isinstance(update, TokenizerReady):
            self._inquiry.forget()
            self.explained = None
        elif self._inquiry.answered(update.request_id):
            self.explained = update
