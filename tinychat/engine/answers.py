"""Commands that are answered at once: between two tokens of a reply, while it is paused, between turns, during a load.

Nothing here imports torch before a model is loaded: a typed text is cut into pieces long before that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tinychat.engine.opening import Opened
from tinychat.protocol import (
    Attend,
    Attended,
    CacheMapped,
    Cancel,
    DescribePrompt,
    Event,
    Explain,
    Explained,
    ExplainText,
    Inspect,
    Lens,
    Lensed,
    MapCache,
    Pace,
    Probed,
    PromptDescribed,
    SetSampler,
    SetViews,
    Shutdown,
    TextExplained,
    Tokenize,
    Tokenized,
)
from tinychat.text.bpe_walk import explain as explain_text

if TYPE_CHECKING:
    from tinychat.engine.loading import Session
    from tinychat.engine.reply import Reply

AT_ONCE: Final = (
    Attend,
    Cancel,
    DescribePrompt,
    Explain,
    ExplainText,
    Inspect,
    Lens,
    MapCache,
    Pace,
    SetSampler,
    SetViews,
    Shutdown,
    Tokenize,
)
"""Commands that don't wait for the end of a reply or a load."""
Question = Tokenize | ExplainText | Explain | Inspect | Lens | Attend | DescribePrompt | MapCache
"""Those that only ask."""
_NO_VOCABULARY: Final = "No vocabulary has been read yet, so there is nothing to tell of a text."
_NO_MODEL: Final = "No model is loaded, so there is nothing to tell of a turn."


def answer(question: Question, opened: Opened | None, session: Session | None, reply: Reply | None) -> Event:
    """Return what there is to say.

    Args:
        question: The command.
        opened: The tokenizer, once it is there.
        session: The model, once it is loaded.
        reply: The one that is being made.
    """
    if isinstance(question, Tokenize):
        pieces = opened.tokenizer.pieces(question.text) if opened is not None else ()
        return Tokenized(question.request_id, pieces, opened is not None)
    if isinstance(question, ExplainText):
        if opened is None:
            return TextExplained(question.request_id, problem=_NO_VOCABULARY)
        return TextExplained(question.request_id, explain_text(opened.tokenizer, question.text))
    if session is None:
        if isinstance(question, Explain):
            return Explained(question.request_id, question.turn_id, question.index, problem=_NO_MODEL)
        if isinstance(question, Inspect):
            return Probed(question.turn_id, question.index, request_id=question.request_id, problem=_NO_MODEL)
        if isinstance(question, Lens):
            return Lensed(question.request_id, question.turn_id, question.index, problem=_NO_MODEL)
        if isinstance(question, Attend):
            return Attended(question.request_id, question.turn_id, question.index, problem=_NO_MODEL)
        if isinstance(question, MapCache):
            return CacheMapped(question.request_id, problem="No model is loaded, so there are no caches.")
        return PromptDescribed(question.request_id, question.turn_id, problem=_NO_MODEL)
    from tinychat.engine import attention_patterns, cache_map, explaining, lens

    if isinstance(question, MapCache):
        return cache_map.map_cache(session, question)
    if isinstance(question, DescribePrompt):
        return explaining.describe_prompt(session, question)
    if isinstance(question, Inspect):
        return explaining.inspect(session, question.turn_id, question.index, question.request_id)
    if isinstance(question, Lens):
        return lens.lens(session, question)
    if isinstance(question, Attend):
        return attention_patterns.attend(session, question)
    if reply is not None and reply.turn_id == question.turn_id:
        return explaining.explain(session, question, reply.settings, reply.ahead)
    return explaining.explain(session, question)
