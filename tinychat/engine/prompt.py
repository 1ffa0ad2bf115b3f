"""From a conversation to the ids the model is fed, without losing the ids that replies were made of.

1. The template is rendered with the real contents: that text is the truth.
2. The contents are found in it; the rest is template.
3. The text is cut at control tokens that the template put there, and only at these; each stretch between is encoded
   whole, as plain text. So a person's text can't become a control token, and isn't encoded apart from its neighbours,
   which would change its ids.
4. Where a reply stands, the ids it was made of are put in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinychat.engine.marking import Located
from tinychat.engine.prompt_ids import TEMPLATE, PromptIds
from tinychat.engine.splices import splices_of
from tinychat.engine.turns import Content, turns_of
from tinychat.engine.writing import Written, counted, write
from tinychat.errors import TinychatError
from tinychat.protocol import Message, Span
from tinychat.text.chat_template import ChatTemplate
from tinychat.text.tokenizer import Tokenizer, well_formed


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """What the model is fed."""

    ids: tuple[int, ...]
    spans: tuple[Span, ...]
    """Where the ids come from: the spans follow each other and cover all ids. A token that reaches from the template
    into a content counts to the content; the template has no role."""
    text: str
    """What the template made of the conversation."""
    notices: tuple[str, ...]
    """What the person has to be told."""
    opens_thinking: bool
    """Whether the prompt ends inside the thinking of the reply to come."""


def render(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    *,
    think: bool | None = None,
    add_generation_prompt: bool = True,
) -> RenderedPrompt:
    """Render and encode a conversation.

    Args:
        tokenizer: Of the model.
        template: Of the model, or the transcript.
        messages: The conversation.
        think: Whether the model shall think; None leaves it to the template.
        add_generation_prompt: Whether the reply's beginning is written, too.

    Raises:
        TemplateError: The template refuses the conversation or fails.
    """
    contents, turns = turns_of(messages)
    written = write(tokenizer, template, contents, turns, think, add_generation_prompt)
    splices, notices = splices_of(tokenizer, contents, written)
    prompt = PromptIds(tokenizer, contents, written.contents.located)
    prompt.take(written.text, written.control_tokens, splices)
    opens_thinking = add_generation_prompt and _opens_thinking(template, written)
    return _finished(tokenizer, prompt, written.text, (*written.notices, *notices), opens_thinking)


def render_raw(tokenizer: Tokenizer, text: str) -> RenderedPrompt:
    """Encode a text that is to be continued as it is, without a template. Control tokens in it are plain text.

    Raises:
        TinychatError: There is no text, and the model has no token to begin one with.
    """
    text = well_formed(text)
    prompt = PromptIds(tokenizer, [Content(Message("user", text), 0)], [Located(0, len(text), 0)])
    prompt.take(text, [], [])
    if not prompt.ids:
        # A model has to be fed something; texts it was trained on came after one of these.
        beginnings = [i for i in (tokenizer.bos_id, *sorted(tokenizer.end_ids)) if i is not None]
        if not beginnings:
            raise TinychatError("There is no text to continue.", "Write how it shall begin.")
        prompt.add(beginnings[0], TEMPLATE)
    return _finished(tokenizer, prompt, text, (), opens_thinking=False)


def _finished(
    tokenizer: Tokenizer, prompt: PromptIds, text: str, notices: tuple[str, ...], opens_thinking: bool
) -> RenderedPrompt:
    if tokenizer.adds_bos and tokenizer.bos_id is not None:
        prompt.begin_with(tokenizer.bos_id)
    if prompt.bytes_without_token:
        lost = counted(prompt.bytes_without_token, "byte")
        notices = (
            *notices,
            f"The model's vocabulary has no token for {lost} of the conversation; it doesn't see them.",
        )
    return RenderedPrompt(tuple(prompt.ids), tuple(prompt.spans()), text, notices, opens_thinking)


def _opens_thinking(template: ChatTemplate, written: Written) -> bool:
    if template.thinking is None:
        return False
    located = written.contents.located
    tail = written.text[located[-1].end :] if located else written.text
    markers = template.thinking.markers
    return tail.rfind(markers.open) > tail.rfind(markers.close)
