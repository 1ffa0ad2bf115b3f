"""A recorded reply, made again: the same prompt, the same seed, each setting from the token on that it held from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from tinychat.engine.explaining import explain
from tinychat.engine.loading import Session
from tinychat.engine.recorded import Entry
from tinychat.engine.reply import Reply
from tinychat.protocol import (
    Candidate,
    Explain,
    Generate,
    Pace,
    PromptRendered,
    SamplerUsed,
    TokenEmitted,
    TurnFinished,
)


@dataclass(slots=True)
class RecordedReply:
    """All that is known of a reply."""

    asked: Generate
    prompt: tuple[int, ...] = ()
    used: list[SamplerUsed] = field(default_factory=list)
    tokens: list[TokenEmitted] = field(default_factory=list)
    finished: TurnFinished | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a reply that is made again is another one."""

    where: str
    """ "token 17 of 80", "the prompt"."""
    what: str
    """The two, and how near it was, as a sentence."""


def replies(entries: tuple[Entry, ...]) -> list[RecordedReply]:
    """Return the replies of a recording, in order."""
    found: dict[int, RecordedReply] = {}
    for entry in entries:
        match entry.said:
            case Generate() as asked:
                found[asked.turn_id] = RecordedReply(asked)
            case PromptRendered() as prompt if prompt.turn_id in found:
                found[prompt.turn_id].prompt = prompt.ids
            case SamplerUsed() as used if used.turn_id in found:
                found[used.turn_id].used.append(used)
            case TokenEmitted() as token if token.turn_id in found:
                found[token.turn_id].tokens.append(token)
            case TurnFinished() as finished if finished.turn_id in found:
                found[finished.turn_id].finished = finished
    return list(found.values())


def rerun(session: Session, recorded: RecordedReply) -> Difference | None:
    """Make a reply again; return the first place where it differs, None where it doesn't.

    It has to run on the engine's thread.

    Raises:
        TinychatError: The template refuses the conversation, or it doesn't fit.
    """
    asked, then = recorded.asked, recorded.tokens
    if not then:
        return None
    begun = sum(token.draw is None for token in then) if asked.begin is not None else 0
    reply = Reply(
        session,
        replace(
            asked,
            sampler=recorded.used[0].sampler if recorded.used else asked.sampler,
            limits=replace(asked.limits, max_tokens=max(1, len(then) - begun)),
            detail="basic",
            pace=Pace(),
        ),
    )
    opening = next(event for event in reply.opening() if isinstance(event, PromptRendered))
    if recorded.prompt and opening.ids != recorded.prompt:
        return _prompts(recorded.prompt, opening.ids)
    # Where several hold from the same token on, the last does.
    changes = {used.index: used.sampler for used in recorded.used[1:]}
    now: list[TokenEmitted] = []
    while reply.reason is None and len(now) < len(then):
        if len(now) in changes:
            reply.use(changes.pop(len(now)))
        for event in reply.step():
            if isinstance(event, TokenEmitted):
                now.append(event)
                if difference := _tokens(session, then[len(now) - 1], event, len(then)):
                    reply.finish("cancelled")
                    return difference
    finished = reply.finish(reply.reason or "cancelled")
    if len(now) < len(then):
        return Difference(f"token {len(now) + 1} of {len(then)}", f"Now the reply ends before it: {finished.reason}.")
    ends = recorded.finished
    if ends is not None and ends.reason not in ("cancelled", "failed") and ends.ids != finished.ids:
        return Difference("the end", "All tokens are the same, but not what is kept of them.")
    return None


def _prompts(then: tuple[int, ...], now: tuple[int, ...]) -> Difference:
    at = next((i for i, (a, b) in enumerate(zip(then, now, strict=False)) if a != b), min(len(then), len(now)))
    ids = [str(each[at]) if at < len(each) else "none" for each in (then, now)]
    return Difference("the prompt", f"Of {len(then):,} ids, the first other one is at {at:,}: {ids[0]}, now {ids[1]}.")


def _tokens(session: Session, then: TokenEmitted, now: TokenEmitted, count: int) -> Difference | None:
    """Compare two tokens, and the draws that decided."""
    where = f"token {now.index + 1:,} of {count:,}"
    if then.token_id == now.token_id:
        if then.draw is None or now.draw is None or then.draw == now.draw:
            return None
        return Difference(where, f"The same token, by another draw: {then.draw:.9f} then, {now.draw:.9f} now.")
    table = explain(session, Explain(0, now.turn_id, now.index))
    found = {candidate.token_id: candidate for candidate in table.candidates}
    return Difference(
        where,
        f"Then it was {_named(then)}, now it is {_named(now)}. "
        f"{_chances(then, found.get(then.token_id), found.get(now.token_id))} "
        f"{_margin(found.get(then.token_id), found.get(now.token_id), table.draw)}",
    )


def _named(token: TokenEmitted) -> str:
    return f"{token.piece.decode('utf-8', 'replace')!r} ({token.token_id})"


def _chances(then: TokenEmitted, old: Candidate | None, new: Candidate | None) -> str:
    """Tell the model's own probabilities: of the old token then and now, of the new one now."""
    parts = []
    if then.logprob is not None:
        parts.append(f"the old token {_probability(math.exp(then.logprob))} then")
    parts.append(f"{_probability(old.probabilities[0]) if old else 'too little to be listed'} now")
    if new is not None:
        parts.append(f"the new one {_probability(new.probabilities[0])}")
    return f"The model gives {', '.join(parts)}."


def _probability(p: float) -> str:
    return f"{100 * p:.4g} %"


def _margin(old: Candidate | None, new: Candidate | None, draw: float | None) -> str:
    """Tell how near the old token was to being chosen."""
    if draw is None:
        if old is None or new is None:
            return "The choice is greedy."
        return f"The choice is greedy; the logits are {abs(new.logit - old.logit):.3g} apart."
    if old is None or old.interval is None:
        why = f" ({old.removed_by} removed it)" if old is not None and old.removed_by else ""
        return f"The draw is {draw:.6f}; no draw chooses the old one{why}."
    low, high = old.interval
    return f"The draw is {draw:.6f}; the old one is chosen from {low:.6f} to {high:.6f}."
