"""The three rulers: our model of a checkpoint beside transformers', the same greedy ids, the same states in every
layer, and the primitives it is made of on numbers worked out by hand.

A text is given to our model as a chat gives it: the prompt at once, then a token a step. Both ways are so compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from tinychat.catalog import ModelCard
from tinychat.engine import reference
from tinychat.engine.context import Context
from tinychat.engine.loading import Session, architecture
from tinychat.engine.opening import open_model
from tinychat.engine.reference import Measured
from tinychat.errors import UsageError
from tinychat.kernels import Kernels, plain
from tinychat.models import by_hand
from tinychat.models.base import Model
from tinychat.models.linear import abilities
from tinychat.models.policy import Policy
from tinychat.models.probe import Probe
from tinychat.models.rope import DynamicRope

RTOL: Final = 1e-4
ATOL: Final = 1e-5
"""In fp32 each number of a state may be off by RTOL of itself and ATOL of the largest of the state: states have numbers
beyond 20,000 beside small ones, and those round."""
LOOSER: Final = {"bf16": 0.1, "auto": 0.1, "int8": 0.1, "int4": 0.5}
"""In other dtypes a state as a whole may be off by this share of its length: they round, and the rounding grows from
layer to layer."""
TEXT: Final = (
    "A river begins where water finds a way down. Rain falls on the hills, sinks into moss and stone, and comes out "
    'again as a spring; a hundred springs make a brook. "How far is it to the sea?" asked the child. By the map it is '
    "1,233 kilometres: past 47 towns, under 112 bridges, through 3 lakes. Nobody has ever seen all of it at once, and "
    "yet every drop that leaves the hill arrives, in eleven days or so, where the gulls are.\n"
)


@dataclass(frozen=True, slots=True)
class State:
    """How far one of the model's states is from transformers'."""

    name: str
    largest: float
    """Of transformers' numbers, by magnitude."""
    error: float
    """|ours - theirs| / |theirs|, over all positions."""
    of_tolerance: float
    """The worst number's error as a share of what it may be off; above 1 the ruler fails."""


@dataclass(frozen=True, slots=True)
class Greedy:
    """Our best tokens beside transformers', each after the same ids."""

    ids: tuple[int, ...]
    same: int
    level: int
    """Others, but transformers' lead over ours is less than what logits may be off."""
    least_lead: float
    """The least by which transformers' best token leads its second, in logits: where it is tiny, sameness is luck."""

    @property
    def passed(self) -> bool:
        """Whether none is another."""
        return self.same + self.level == len(self.ids)


@dataclass(frozen=True, slots=True)
class Path:
    """One of the two forms of the primitives, held to all three rulers."""

    kernel: str
    states: tuple[State, ...]
    """Into each layer, out of the last, after the final norm, and the logits."""
    divergence: float
    """Mean KL(theirs || ours) of the distributions of the next token, nats."""
    greedy: Greedy
    by_hand: tuple[tuple[str, float], ...]
    """(example, error)."""

    @property
    def states_passed(self) -> bool:
        """Whether every state is within tolerance (NaN is not)."""
        return all(state.of_tolerance <= 1 for state in self.states)

    @property
    def by_hand_passed(self) -> bool:
        """Whether every example comes out."""
        return all(error <= by_hand.TOLERANCE for _, error in self.by_hand)

    @property
    def passed(self) -> bool:
        """Whether all three rulers hold."""
        return self.states_passed and self.greedy.passed and self.by_hand_passed


@dataclass(frozen=True, slots=True)
class Compared:
    """What `compare` found."""

    reference: str
    """What transformers' model was made of."""
    prompt_tokens: int
    paths: tuple[Path, ...]


def compare(
    session: Session, card: ModelCard, *, dtype: str, head: str, tokens: int, new_tokens: int, kernels: str
) -> Compared:
    """Hold a loaded model to transformers'. Runs on the engine thread.

    Args:
        session: The model; its caches are cleared.
        card: What it was loaded by.
        dtype: What it was loaded as.
        head: And its head.
        tokens: Of `TEXT`, repeated, that are the prompt.
        new_tokens: Greedy ones after it.
        kernels: "all", or the one form of the primitives that is wanted, by its NAME.

    Raises:
        UsageError: The text doesn't fit into the context, or the kernels asked for aren't here.
        TinychatError: There is no reference to hold it to.
    """
    context = session.context
    if tokens + new_tokens > context.capacity:
        raise UsageError(
            f"{tokens} tokens and {new_tokens} new ones are more than the context of {session.info.name} holds, "
            f"{context.capacity:,}.",
            "Lower --tokens or --new-tokens.",
        )
    _check_turning(context.model, tokens, tokens + new_tokens)
    forms = {form.NAME: form for form in (context.model.kernels, plain)}
    if kernels not in ("all", *forms):
        raise UsageError(f"--kernels {kernels} asks for what isn't here; there is {', '.join(forms)}.")
    prompt = _prompt(session, tokens)
    opened = open_model(session.opened.checkpoint.path, card)
    with opened.checkpoint, torch.inference_mode():
        found = architecture(opened)
        context.clear()
        first, own = _follow(context, prompt, count=new_tokens)
        context.clear()
        ids = prompt + own
        built = reference.reference_of(opened, found, session.info.parameters)
        expected = _tail(reference.run(built.model, ids[:-1]), len(prompt))
        origin = built.origin
        del built  # its memory is what the next model is built in
        paths = []
        for name, form in forms.items():
            if kernels not in ("all", name):
                continue
            if form is context.model.kernels:
                actual = first
            else:
                policy = Policy(dtype, abilities(), head=head, copy=session.info.copy_bytes > 0)
                model, _ = found.walk(policy, form, lambda _: None)
                other = Context(model, len(ids), context.caches[0].dtype)
                actual, own = _follow(other, prompt, ids=ids[len(prompt) :])
            paths.append(_judge(form, actual, expected, own, dtype))
    return Compared(origin, len(prompt), tuple(paths))


def _check_turning(model: Model, prompt: int, total: int) -> None:
    """Refuse a text in the middle of which the rotation changes: computed at once or step by step, it isn't the same.

    Raises:
        UsageError: It does.
    """
    for rope in {id(spec.rope): spec.rope for spec in model.attention if spec.rope is not None}.values():
        dynamic = isinstance(rope, DynamicRope) and rope.regime(total)
        if dynamic or rope.regime(prompt) != rope.regime(total):
            raise UsageError(
                f"{model.FAMILY} turns longer sequences otherwise than shorter ones, and {prompt} to {total} tokens "
                "are on both sides: here a whole sequence is turned alike, in transformers each token by its own.",
                "Choose --tokens and --new-tokens on one side (of dynamic scaling, the trained length).",
            )


def _prompt(session: Session, tokens: int) -> list[int]:
    """Return the BOS that the model begins with and the text's ids, repeated up to `tokens` in all."""
    tokenizer = session.opened.tokenizer
    bos = [tokenizer.bos_id] if tokenizer.adds_bos and tokenizer.bos_id is not None else []
    once = tokenizer.encode(TEXT)
    return (bos + once * (tokens // max(len(once), 1) + 1))[:tokens]


def _follow(
    context: Context, prompt: Sequence[int], *, count: int = 0, ids: Sequence[int] = ()
) -> tuple[Measured, list[int]]:
    """Give a model the prompt at once and then the ids one by one: its own best ones, `count` of them, or `ids`.

    Returns:
        The states at every position but the last id's; the final norm and the logits after the prompt and after each
        id but the last; and its best ids.
    """
    layers = context.model.config.layers
    names = [*(f"blocks.{n}.hook_resid_pre" for n in range(layers)), f"blocks.{layers - 1}.hook_resid_post"]
    names.append("ln_final.hook_normalized")
    seen: list[dict[str, torch.Tensor]] = []
    logits: list[torch.Tensor] = []
    best: list[int] = []
    context.reuse(prompt)  # as a reply begins; the caches are empty
    for step in range(len(ids) or count):
        probe = Probe(names)
        part = prompt if step == 0 else [ids[step - 1] if ids else best[-1]]
        logits.append(context.forward(part, probe).clone())
        best.append(int(logits[-1].argmax()))
        seen.append(probe.seen)
    hidden = tuple(torch.cat([taps[name] for taps in seen]).float() for name in names)
    return Measured(hidden, torch.stack(logits)), best


def _tail(measured: Measured, prompt: int) -> Measured:
    """Keep of the final norm and the logits what comes from the prompt's last position on: ours computes no more."""
    *hidden, normed = measured.hidden
    return Measured((*hidden, normed[prompt - 1 :]), measured.logits[prompt - 1 :].clone())


def _judge(form: Kernels, actual: Measured, expected: Measured, best: Sequence[int], dtype: str) -> Path:
    last = len(expected.hidden) - 2
    names = [*(f"into layer {n}" for n in range(last)), f"out of layer {last - 1}", "final norm", "logits"]
    pairs = zip(names, (*actual.hidden, actual.logits), (*expected.hidden, expected.logits), strict=True)
    return Path(
        kernel=form.NAME,
        states=tuple(_state(name, ours, theirs, dtype) for name, ours, theirs in pairs),
        divergence=_divergence(actual.logits, expected.logits),
        greedy=_greedy(best, expected.logits, dtype),
        by_hand=tuple((example.name, example.error(form)) for example in by_hand.examples()),
    )


def _state(name: str, ours: torch.Tensor, theirs: torch.Tensor, dtype: str) -> State:
    largest = float(theirs.abs().max())
    error = float((ours - theirs).norm() / theirs.norm())
    if dtype == "fp32":
        share = float(((ours - theirs).abs() / (RTOL * theirs.abs() + ATOL * largest)).max())
    else:
        share = error / LOOSER[dtype]
    return State(name, largest, error, share)


def _greedy(best: Sequence[int], logits: torch.Tensor, dtype: str) -> Greedy:
    """Hold our best ids to the logits [N, V] that transformers has after the same ids."""
    top = logits.topk(2).values
    ours = logits.gather(1, torch.tensor(best)[:, None])[:, 0]
    if dtype == "fp32":
        margin = 2 * (RTOL * top[:, 0].abs() + ATOL * logits.abs().amax(1))
    else:
        margin = 2 * LOOSER[dtype] * logits.std(1)
    same = torch.tensor(best) == logits.argmax(1)
    level = ~same & (top[:, 0] - ours <= margin)
    return Greedy(tuple(best), int(same.sum()), int(level.sum()), float((top[:, 0] - top[:, 1]).min()))


def _divergence(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    log_ours, log_theirs = ours.double().log_softmax(-1), theirs.double().log_softmax(-1)
    return float((log_theirs.exp() * (log_theirs - log_ours)).sum(-1).mean())


def described(compared: Compared) -> list[dict[str, Any]]:
    """Return the paths as plain values, for JSON; what is no number (NaN) is None."""
    return [
        {
            "kernel": path.kernel,
            "passed": path.passed,
            "states": [
                {
                    "name": state.name,
                    "largest": _number(state.largest),
                    "error": _number(state.error),
                    "of_tolerance": _number(state.of_tolerance),
                    "passed": state.of_tolerance <= 1,
                }
                for state in path.states
            ],
            "divergence": _number(path.divergence),
            "greedy": {
                "ids": list(path.greedy.ids),
                "same": path.greedy.same,
                "level": path.greedy.level,
                "least_lead": _number(path.greedy.least_lead),
                "passed": path.greedy.passed,
            },
            "by_hand": [
                {"name": name, "error": _number(error), "passed": error <= by_hand.TOLERANCE}
                for name, error in path.by_hand
            ],
        }
        for path in compared.paths
    ]


def _number(value: float) -> float | None:
    return value if abs(value) != float("inf") and value == value else None
