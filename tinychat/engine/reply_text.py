"""The text of one reply, as its ids come: bytes to characters, stop strings, thinking and answer."""

from __future__ import annotations

from collections.abc import Sequence

from tinychat.text.chat_template import ChatTemplate
from tinychat.text.detokenizer import Detokenizer
from tinychat.text.stop_strings import StopStrings
from tinychat.text.thinking import ThinkingSplitter
from tinychat.text.tokenizer import Tokenizer


class ReplyText:
    """Follows a reply, and knows in the end which ids it is made of."""

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate, stops: Sequence[str], *, opens_thinking: bool
    ) -> None:
        """Start a reply.

        Args:
            tokenizer: Of the model.
            template: Knows whether the model thinks, and between which markers.
            stops: Strings that end the reply.
            opens_thinking: Whether the prompt has opened the thinking already.
        """
        markers = template.thinking.markers if template.thinking else None
        # Some vocabularies have the markers as control tokens, which a decode leaves out.
        both = markers.open + markers.close if markers else ""
        shown = [match.token_id for match in tokenizer.control_tokens(both)]
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, shown=shown)
        self._stops = StopStrings(stops)
        self._splitter = ThinkingSplitter(markers, inside=opens_thinking) if markers else None
        self.ids: list[int] = []
        self.text = ""
        """The answer so far."""
        self.thinking = ""
        """The thinking so far."""
        self.stopped = False
        """Whether a stop string was met."""
        self._decoded = ""
        self._passed = 0
        self._whole: list[tuple[int, bool]] = []
        """After each id: characters decoded, and whether they end with a whole one."""

    def push(self, token_id: int) -> tuple[str, str]:
        """Take the next id; return what may be shown now of the answer, and of the thinking."""
        self.ids.append(token_id)
        text = self._detokenizer.step(token_id)
        self._decoded += text
        self._whole.append((len(self._decoded), not self._detokenizer.pending))
        passed, self.stopped = self._stops.feed(text)
        return self._show(passed)

    def finish(self) -> None:
        """End the reply: what was held back is said.

        Where a stop string was met, `ids` become those wholly before it and the encoding of what is left of the token
        it began in, so that their decode is the text.
        """
        if not self.stopped:
            rest = self._detokenizer.flush()
            self._decoded += rest
            passed, self.stopped = self._stops.feed(rest)
            self._show(passed if self.stopped else passed + self._stops.flush())
        if self.stopped:
            self._cut()
        if self._splitter is not None:
            thinking, answer = self._splitter.flush()
            self.thinking += thinking
            self.text += answer

    def _show(self, passed: str) -> tuple[str, str]:
        self._passed += len(passed)
        thinking, answer = self._splitter.feed(passed) if self._splitter is not None else ("", passed)
        self.text += answer
        self.thinking += thinking
        return answer, thinking

    def _cut(self) -> None:
        """Cut `ids` where the shown text ends."""
        kept, reached = 0, 0
        for count, (characters, whole) in enumerate(self._whole, start=1):
            if characters > self._passed or (kept and reached == self._passed):
                break
            if whole:
                kept, reached = count, characters
        fragment = self._decoded[reached : self._passed]
        self.ids[kept:] = self._tokenizer.encode(fragment, first=False) if fragment else []
