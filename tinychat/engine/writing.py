"""What a chat template makes of a conversation, in the nearest way that it accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from tinychat.engine.contents import Contents, inside_typed_control_tokens, locate, search
from tinychat.engine.marking import Render
from tinychat.engine.turns import Content, Turn, as_dictionaries, with_neighbours_joined, with_system_folded
from tinychat.errors import TemplateError
from tinychat.text.chat_template import ChatTemplate
from tinychat.text.control_tokens import ControlMatch
from tinychat.text.tokenizer import Tokenizer, well_formed

_FOLDED = "The model's template has no place for a system prompt; it was put before the first message."
_JOINED = "The model's template wants the sides to take turns; messages that follow each other were joined."
_UNSURE = (
    "The conversation holds texts of control tokens, and the model's template looks into them, so that they can't be "
    "told from its own"
)


@dataclass(frozen=True, slots=True)
class Written:
    """A rendered conversation, its contents and its control tokens."""

    text: str
    contents: Contents
    control_tokens: tuple[ControlMatch, ...]
    """Those that the template put there, in order."""
    notices: tuple[str, ...]


def write(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    contents: Sequence[Content],
    turns: Sequence[Turn],
    think: bool | None,
    add_generation_prompt: bool,
) -> Written:
    """Render a conversation and find its contents.

    Where the template refuses it, or leaves a message of the person out, the system prompt is put before what the user
    says first, or messages of one side that follow each other are joined, and a notice says so.

    Raises:
        TemplateError: The template refuses the conversation all the same, or fails.
    """
    texts = [well_formed(content.text) for content in contents]
    variables = {} if think is None else {"enable_thinking": think}
    now = datetime.now()  # one time for all renderings, so that a clock in the template doesn't tell them apart

    def render(turns: Sequence[Turn], texts: Sequence[str]) -> str:
        return template.render(as_dictionaries(turns, texts), add_generation_prompt, now=now, **variables)

    refusal: TemplateError | None = None
    kept: Written | None = None
    for way, notices in _ways(turns):
        try:
            written = _written(tokenizer, partial(render, way), texts, notices)
        except TemplateError as error:
            refusal = refusal or error
            continue
        left_out = sum(contents[number].message.role != "assistant" for number in written.contents.left_out)
        if not left_out:
            kept = written
            break
        said = f"The model's template leaves out {counted(left_out, 'message')}."
        kept = kept or replace(written, notices=(*written.notices, said))
    if kept is None:
        assert refusal is not None
        raise refusal
    if think is not None and not (template.thinking and template.thinking.switch):
        said = "The model's template can't turn thinking on or off, so --think and --no-think do nothing."
        kept = replace(kept, notices=(*kept.notices, said))
    return kept


def _written(tokenizer: Tokenizer, render: Render, texts: Sequence[str], notices: tuple[str, ...]) -> Written:
    text = render(texts)
    contents = locate(render, texts, text)
    edges = [0, *(edge for span in contents.located for edge in (span.start, span.end)), len(text)]
    matches = tokenizer.control_tokens(text, zip(edges[::2], edges[1::2], strict=True))
    typed = inside_typed_control_tokens(render, texts, text, tokenizer.control_tokens)
    if typed is not None:
        acting = [match for match in matches if typed.isdisjoint(range(match.start + 1, match.end))]
    else:
        said = {match.token_id for content in texts for match in tokenizer.control_tokens(content)}
        acting = [match for match in matches if match.token_id not in said]
        if len(acting) < len(matches):
            lost = counted(len(matches) - len(acting), "control token")
            notices = (*notices, f"{_UNSURE}: {lost} became plain text.")
    search(contents, texts, text, acting)
    return Written(text, contents, tuple(acting), notices)


def counted(number: int, noun: str) -> str:
    """Return "1 reply", "2 replies"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun[:-1]}ies" if noun.endswith("y") else f"{number:,} {noun}s"


def _ways(turns: Sequence[Turn]) -> list[tuple[Sequence[Turn], tuple[str, ...]]]:
    """Return the conversation as it is and in the other ways that a template may accept, with what is to be said."""
    ways: list[tuple[Sequence[Turn], tuple[str, ...]]] = [(list(turns), ())]
    folded = with_system_folded(turns)
    for way, notices in (
        (folded, (_FOLDED,)),
        (with_neighbours_joined(turns), (_JOINED,)),
        (with_neighbours_joined(folded), (_FOLDED, _JOINED)),
    ):
        if all(way != other for other, _ in ways):
            ways.append((way, notices))
    return ways
