"""The ids that a reply begins with when a person dictates its start, or has it go on from where it was cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from tinychat.protocol import Message
from tinychat.text.chat_template import ChatTemplate
from tinychat.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Beginning:
    """What is given of a reply before its first draw."""

    ids: tuple[int, ...] = ()
    notices: tuple[str, ...] = ()
    """What the person has to be told."""

    @classmethod
    def of(cls, said: Message | None, tokenizer: Tokenizer, template: ChatTemplate, *, opens_thinking: bool) -> Self:
        """Return the beginning that reads as `said` does.

        Its own ids where they are of this vocabulary; they hold its thinking, too. Else its text is encoded as plain
        text, with its thinking between the markers that the model knows. A model that doesn't think is given the answer
        alone.

        Args:
            said: Text, thinking and ids; None: nothing is given.
            tokenizer: Of the model.
            template: Knows the markers.
            opens_thinking: Whether the prompt has opened the thinking already.
        """
        if said is None:
            return cls()
        if said.ids and said.vocabulary == tokenizer.vocabulary:
            return cls(said.ids)
        notices = ("What another model said was encoded anew from the text, to go on from there.",) if said.ids else ()
        ids: list[int] = []
        if template.thinking is not None and (said.thinking or opens_thinking):
            markers = template.thinking.markers
            # The markers are the template's and act; what stands between them is anybody's and doesn't.
            ids += [] if opens_thinking else tokenizer.encode_with_control(f"{markers.open}\n")
            ids += tokenizer.encode(said.thinking, first=False)
            ids += tokenizer.encode_with_control(f"\n{markers.close}\n\n") if said.text else []
        return cls((*ids, *tokenizer.encode(said.text, first=False)), notices)
