"""One turn of the engine: from a conversation to the events of its reply."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from dataclasses import replace

import torch

from tinychat.engine.beginning import Beginning
from tinychat.engine.drafting import proposer
from tinychat.engine.explaining import inspect
from tinychat.engine.generation import Prefilled, Waiting, generate
from tinychat.engine.loading import Session
from tinychat.engine.looking import Views
from tinychat.engine.pace import Pacer
from tinychat.engine.prompt import RenderedPrompt, render, render_raw
from tinychat.engine.reply_text import ReplyText
from tinychat.engine.sampling import Choice
from tinychat.engine.speculation import Speculation
from tinychat.engine.timing import Timing
from tinychat.engine.trace import Trace
from tinychat.engine.views import ReplyWatch
from tinychat.errors import TinychatError
from tinychat.protocol import (
    MAX_SEED,
    Alternative,
    Event,
    FinishReason,
    Generate,
    Notice,
    Pace,
    Paused,
    PrefillProgress,
    PromptRendered,
    SamplerSettings,
    SamplerUsed,
    TokenEmitted,
    TurnFinished,
)


class Reply:
    """A reply being made: each `step` is one chunk of the prompt or one token, until `reason` is known."""

    def __init__(
        self,
        session: Session,
        command: Generate,
        views: Views | None = None,
        trace: Trace | None = None,
        kept_rows: int = 0,
    ) -> None:
        """Render the prompt.

        Args:
            session: The model, its caches and records.
            command: What is asked for.
            views: What somebody looks at; None: nothing.
            trace: Where each token is written to.
            kept_rows: How many rows of logits to keep for whoever compares them, the latest.

        Raises:
            TinychatError: The template refuses the conversation, or nothing is left to say it to.
        """
        self._session = session
        self._command = command
        self._timing = Timing()
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
        opens = self._prompt.opens_thinking
        begun = Beginning.of(command.begin, opened.tokenizer, opened.template, opens_thinking=opens)
        forced = begun.ids or command.forced_ids
        self._notices = (*self._prompt.notices, *begun.notices)
        known = session.records.shared(command.branch_of, self._prompt, forced)
        self._record = session.records.begin(command.turn_id, self._prompt)
        self._ends = frozenset() if command.limits.ignore_end else opened.end_ids
        self._pacer = Pacer(command.pace)
        views = views or Views()
        self._watch = ReplyWatch(command.turn_id, session.info.layers, views, self._pacer, self._piece, kept_rows)
        self._trace = trace
        self._steps: Generator[Prefilled | Choice | Waiting, SamplerSettings | None, None] = generate(
            session.context,
            self._prompt.ids,
            command.sampler,
            seed=self._seed,
            detail="basic" if trace is not None and command.detail == "none" else command.detail,
            forced=forced,
            known=known,
            speculation=self._speculation,
            watch=self._watch,
        )
        self._settings = command.sampler
        self._changed: SamplerSettings | None = None
        self._ahead: Waiting | None = None
        self._told = -1
        self._begun = False
        most = command.limits.max_tokens or session.info.max_tokens
        self._max_tokens = None if most is None else most + len(begun.ids)
        self._new_tokens = 0
        self._forced = 0
        self._reused = 0
        self.reason: FinishReason | None = None
        """Why the reply ended; None while it goes on."""

    @property
    def turn_id(self) -> int:
        """Of the turn it is."""
        return self._command.turn_id

    @property
    def reused(self) -> int:
        """Tokens of the prompt that the caches held already."""
        return self._reused

    @property
    def vocabulary(self) -> str:
        """Hash of the vocabulary that its ids belong to."""
        return self._session.info.vocabulary

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """What the model is fed before the reply."""
        return self._prompt.ids

    @property
    def tokens(self) -> int:
        """How many tokens there are so far, one that ends the reply counted too."""
        return self._new_tokens

    def token_id(self, index: int) -> int:
        """Return the id of one of them."""
        return self._record.tokens[index].token_id

    def row(self, index: int) -> torch.Tensor | None:
        """Return the logits, fp32 [V], that a token was chosen from, if they are still kept."""
        back = self._new_tokens - index
        return self._watch.rows[-back] if 0 < back <= len(self._watch.rows) else None

    def opening(self) -> list[Event]:
        """Return the events before the first step."""
        turn, prompt = self._command.turn_id, self._prompt
        notices = (Notice(text, turn) for text in self._notices)
        return [PromptRendered(turn, prompt.ids, prompt.spans), *notices, self._used(self._settings)]

    @property
    def settings(self) -> SamplerSettings:
        """What the next token will be chosen by."""
        return self._settings

    @property
    def ahead(self) -> Waiting | None:
        """The next token, where all is there to choose it and it waits."""
        return self._ahead

    @property
    def rest(self) -> float | None:
        """Seconds to wait before the next step; None: until another command."""
        return self._pacer.wait if self._ahead is not None else 0.0

    def use(self, settings: SamplerSettings) -> None:
        """Choose the next token, and those after it, by these settings."""
        self._settings = self._changed = settings

    def pace(self, pace: Pace) -> None:
        """Go on like this from the next token on."""
        self._pacer.set(pace)
        self._told = -1

    def stand_still(self) -> None:
        """Stop the reply's clock until its next step: meanwhile, another reply is made."""
        self._timing.rest()

    def step(self) -> list[Event]:
        """Compute one chunk of the prompt, or one token, unless it has to wait; return its events.

        Raises:
            TinychatError: The prompt doesn't fit, or the model's numbers are not finite.
        """
        changed = None
        told: list[Event] = []
        if self._begun:  # a generator takes nothing before its first step
            changed, self._changed = self._changed, None
            told = [] if changed is None else [self._used(changed)]
        return told + self._step(changed)

    def _step(self, changed: SamplerSettings | None) -> list[Event]:
        self._timing.go_on()
        self._ahead = None
        try:
            made = self._steps.send(changed)
        except StopIteration:
            self.reason = "context"
            return self._last_layers()
        self._begun = True
        match made:
            case Prefilled():
                self._reused = made.reused
                self._timing.prefilled()
                self._forced = made.total - len(self._prompt.ids)
                turn = self._command.turn_id
                told = [Notice(self._afresh(), turn)] if self._session.context.recomputed and made.done == 0 else []
                return [*told, PrefillProgress(turn, made.done, made.total, made.reused)]
            case Waiting():
                return self._wait(made)
            case Choice():
                self._watch.chosen()
                return self._told_of(made, self._take(made))

    def _wait(self, ahead: Waiting) -> list[Event]:
        self._ahead = ahead
        self._timing.rest()
        if not self._pacer.paused:
            return []
        told: list[Event] = [] if self._told == ahead.index else [Paused(self.turn_id, ahead.index)]
        self._told = ahead.index
        return [*told, *self._watch.tell(ahead.index, ahead.row), *self._layers(ahead.index)]

    def _told_of(self, choice: Choice, token: TokenEmitted) -> list[Event]:
        """Return a token, and what whoever looks on is told of it."""
        events: list[Event] = [token]
        forced = token.index < self._forced
        if self._trace is not None:
            problem = self._trace.write(token, choice.draw, () if forced else self._watch.layers(choice.row))
            events += [Notice(problem, self.turn_id)] if problem else []
        if not forced:
            events += self._watch.tell(token.index, choice.row)
            events += self._watch.profile(token.index, choice.row, token.seconds)
        return events if self.reason is None else [*events, *self._last_layers()]

    def _used(self, settings: SamplerSettings) -> SamplerUsed:
        """Tell that the next token will be drawn by these settings."""
        return SamplerUsed(self.turn_id, self._new_tokens, replace(settings, seed=self._seed))

    def _last_layers(self) -> list[Event]:
        return self._layers(self._new_tokens - 1) if self._new_tokens else []

    def _layers(self, index: int) -> list[Event]:
        """Run the model again for the layers of a token, if somebody waits for them."""
        if not self._watch.owes(index):
            return []
        self._watch.told = index
        return [inspect(self._session, self.turn_id, index)]

    def _piece(self, token_id: int) -> bytes:
        """Return the bytes of a token, none of one that ends the reply."""
        return b"" if token_id in self._ends else self._session.opened.tokenizer.bytes_of(token_id)

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
            prefill_seconds=self._timing.prefill,
            decode_seconds=self._timing.decode,
            first_token_seconds=self._timing.first_token,
            seed=self._seed,
            kernel=f"{kernel}+{speculation.proposer.NAME}" if speculation.drafted else kernel,
            drafted=speculation.drafted,
            accepted=speculation.accepted,
            forced=self._forced,
        )

    def _take(self, choice: Choice) -> TokenEmitted:
        """Count a token, and see whether it is the last one."""
        opened = self._session.opened
        token_id, index = choice.token_id, self._new_tokens
        seconds = self._timing.token(index, self._forced)
        if index >= self._forced:
            self._pacer.said(opened.tokenizer.bytes_of(token_id))
        self._new_tokens += 1
        self._session.records.add(self._record, choice)
        answer = thinking = ""
        if token_id in self._ends:
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
            accepted=choice.accepted and index >= self._forced,
            drafted=self._speculation.drafted,
            seconds=seconds,
            draw=choice.draw if index >= self._forced else None,
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
