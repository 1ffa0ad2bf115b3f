"""One turn of the engine: from a conversation to the events of its reply."""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator

from tinychat.engine.drafting import proposer
from tinychat.engine.generation import Prefilled, generate
from tinychat.engine.loading import Session
from tinychat.engine.prompt import RenderedPrompt, render, render_raw
from tinychat.engine.reply_text import ReplyText
from tinychat.engine.sampling import Choice
from tinychat.engine.speculation import Speculation
from tinychat.errors import TinychatError
from tinychat.protocol import (
    MAX_SEED,
    Alternative,
    Event,
    FinishReason,
    Generate,
    Notice,
    PrefillProgress,
    PromptRendered,
    SamplerSettings,
    TokenEmitted,
    TurnFinished,
)


class Reply:
    """A reply being made: each `step` is one chunk of the prompt or one token, until `reason` is known."""

    def __init__(self, session: Session, command: Generate) -> None:
        """Render the prompt.

        Raises:
            TinychatError: The template refuses the conversation, or nothing is left to say it to.
        """
        self._session = session
        self._command = command
        self._started = time.perf_counter()
        opened = session.opened
        self._prompt = _render(session, command)
        raw_stops = () if command.raw else opened.template.stops
        self._text = ReplyText(
            opened.tokenizer,
            opened.template,
            (*command.limits.stop, *raw_stops),
            opens_thinking=self._prompt.opens_thinking,
        )
        self._seed = command.sampler.seed if command.sampler.seed is not None else secrets.randbelow(MAX_SEED + 1)
        self._speculation = Speculation(proposer(session))
        self._steps: Generator[Prefilled | Choice, SamplerSettings | None, None] = generate(
            session.context,
            self._prompt.ids,
            command.sampler,
            seed=self._seed,
            detail=command.detail,
            forced=command.forced_ids,
            speculation=self._speculation,
        )
        self._changed: SamplerSettings | None = None
        self._begun = False
        self._max_tokens = command.limits.max_tokens or session.info.max_tokens
        self._new_tokens = 0
        self._reused = 0
        self._prefilled_at = self._first_at = self._last_at = self._started
        self.reason: FinishReason | None = None
        """Why the reply ended; None while it goes on."""

    @property
    def reused(self) -> int:
        """Tokens of the prompt that the caches held already."""
        return self._reused

    def opening(self) -> list[Event]:
        """Return the events before the first step."""
        turn, prompt = self._command.turn_id, self._prompt
        return [PromptRendered(turn, prompt.ids, prompt.spans), *(Notice(text, turn) for text in prompt.notices)]

    def use(self, settings: SamplerSettings) -> None:
        """Choose the next token, and those after it, by these settings."""
        self._changed = settings

    def step(self) -> list[Event]:
        """Compute one chunk of the prompt, or one token; return its events.

        Raises:
            TinychatError: The prompt doesn't fit, or the model's numbers are not finite.
        """
        changed = None
        if self._begun:  # a generator takes nothing before its first step
            changed, self._changed = self._changed, None
        try:
            made = self._steps.send(changed)
        except StopIteration:
            self.reason = "context"
            return []
        self._begun = True
        if isinstance(made, Prefilled):
            self._reused = made.reused
            self._prefilled_at = time.perf_counter()
            turn = self._command.turn_id
            told = [Notice(self._afresh(), turn)] if self._session.context.recomputed and made.done == 0 else []
            return [*told, PrefillProgress(turn, made.done, made.total, made.reused)]
        return [self._take(made)]

    def _afresh(self) -> str:
        return f"The conversation is computed from its beginning: {self._session.context.recomputed}."

    def finish(self, reason: FinishReason) -> TurnFinished:
        """End the reply. Text that was still held back comes with it."""
        self._steps.close()
        self._text.finish()
        speculation, kernel = self._speculation, self._session.info.kernel
        return TurnFinished(
            turn_id=self._command.turn_id,
            reason=reason,
            ids=tuple(self._text.ids),
            text=self._text.text,
            thinking=self._text.thinking,
            prompt_tokens=len(self._prompt.ids),
            reused_tokens=self._reused,
            new_tokens=self._new_tokens,
            prefill_seconds=self._prefilled_at - self._started,
            decode_seconds=self._last_at - self._first_at,
            first_token_seconds=self._first_at - self._started,
            seed=self._seed,
            kernel=f"{kernel}+{speculation.proposer.NAME}" if speculation.drafted else kernel,
            drafted=speculation.drafted,
            accepted=speculation.accepted,
        )

    def _take(self, choice: Choice) -> TokenEmitted:
        """Count a token, and see whether it is the last one."""
        opened = self._session.opened
        token_id, index = choice.token_id, self._new_tokens
        self._last_at = time.perf_counter()
        if index == 0:
            self._first_at = self._last_at
        self._new_tokens += 1
        answer = thinking = ""
        if token_id in opened.end_ids and not self._command.limits.ignore_end:
            self.reason = "eos"
        else:
            answer, thinking = self._text.push(token_id)
            if self._text.stopped:
                self.reason = "stop"
            elif self._new_tokens == self._max_tokens:
                self.reason = "length"
        return TokenEmitted(
            turn_id=self._command.turn_id,
            index=index,
            token_id=token_id,
            piece=opened.tokenizer.bytes_of(token_id),
            text=answer,
            thinking=thinking,
            logprob=choice.logprob,
            rank=choice.rank,
            entropy=choice.entropy,
            alternatives=tuple(
                Alternative(other, opened.tokenizer.bytes_of(other), p) for other, p in choice.alternatives
            ),
            accepted=choice.accepted,
            drafted=self._speculation.drafted,
        )


def _render(session: Session, command: Generate) -> RenderedPrompt:
    opened = session.opened
    if command.raw:
        prompt = render_raw(opened.tokenizer, "".join(message.text for message in command.messages))
    else:
        prompt = render(opened.tokenizer, opened.template, command.messages, think=command.think)
    if not prompt.ids:
        raise TinychatError("There is no token to begin with.", "Give the model at least one word to continue.")
    return prompt
