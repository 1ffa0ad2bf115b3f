"""Options that several commands share, and how their values are read: out of range is a sentence that names the range.

Values are parsed here instead of by Typer, whose own sentences name neither, and whose strings refuse bytes that are no
UTF-8 (file names may have them).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from tinychat.errors import UsageError
from tinychat.protocol import MAX_SEED
from tinychat.ranges import SAMPLER_RANGES, Range

DTYPES: Final = ("auto", "fp32", "bf16", "int8", "int4")
HEADS: Final = ("auto", "bf16", "int8", "int4")
CACHE_DTYPES: Final = ("auto", "int8")
PREFILL_COPIES: Final = ("auto", "always", "never")


def plain(value: str) -> str:
    """Take a word as it is."""
    return value


def number(flag: str, limits: Range) -> Callable[[str], float]:
    """Return a parser for `flag`'s value that refuses what is no number, or none in `limits`."""

    def parse(value: str) -> float:
        try:
            read = int(value) if limits.integer else float(value)
            limits.check(flag, read)
        except OverflowError:
            raise UsageError(f"{flag} is a number of {len(value)} digits, but has to be {limits.describe()}.") from None
        except ValueError as error:
            raise UsageError(_sentence(flag, value, limits, error)) from None
        return read

    return parse


def _sentence(flag: str, value: str, limits: Range, error: ValueError) -> str:
    """Return what is wrong: the range's own sentence where `value` is a number at all."""
    try:
        float(value)
    except ValueError:
        kind = "a whole number" if limits.integer else "a number"
        return f"{flag} is {value!r}, but has to be {kind}, {limits.describe()}."
    if limits.integer and "has to be" not in str(error):
        return f"{flag} is {value}, but has to be a whole number, {limits.describe()}."
    return str(error)


def choice(flag: str, choices: tuple[str, ...]) -> Callable[[str], str]:
    """Return a parser for `flag`'s value that refuses everything but `choices`."""

    def parse(value: str) -> str:
        if value not in choices:
            raise UsageError(f"{flag} is {value!r}, but has to be one of {', '.join(choices)}.")
        return value

    return parse


def integer(flag: str, low: int, high: int) -> Callable[[str], float]:
    """Return a parser for a whole number of `low` to `high`."""
    return number(flag, Range(low, high, 1, integer=True))


def _sampler(*flags: str, name: str, help_: str) -> Any:
    limits = SAMPLER_RANGES[name]
    shown = limits.describe().replace(" to ", "..").replace("above ", ">").replace(" or more", "..")
    return typer.Option(*flags, parser=number(flags[0], limits), metavar=shown, help=help_)


Model = Annotated[
    str,
    typer.Argument(
        parser=plain,
        metavar="MODEL",
        help="An alias of `tinychat list`, a Hub id (org/name, org/name@revision, its web address), a folder, or a "
        ".gguf file.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype",
        parser=choice("--dtype", DTYPES),
        metavar="|".join(DTYPES),
        help="Form of the weights in memory; auto keeps what the file holds, int8 and int4 quantise it.",
    ),
]
Head = Annotated[
    str,
    typer.Option(
        "--head",
        parser=choice("--head", HEADS),
        metavar="|".join(HEADS),
        help="Form of the head; auto: by --dtype, quantised only where the file is.",
    ),
]
CacheDtype = Annotated[
    str,
    typer.Option(
        "--cache-dtype",
        parser=choice("--cache-dtype", CACHE_DTYPES),
        metavar="|".join(CACHE_DTYPES),
        help="Form of keys and values; auto: as the layers compute. int8 takes about half of bf16.",
    ),
]
PrefillCopy = Annotated[
    str,
    typer.Option(
        "--prefill-copy",
        parser=choice("--prefill-copy", PREFILL_COPIES),
        metavar="|".join(PREFILL_COPIES),
        help="Keep a bf16 copy of quantised weights for long prompts; auto: with AMX, in an eighth of free memory.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", parser=integer("--threads", 1, 1024), metavar="N", help="Threads; default: one a core."),
]

Temperature = Annotated[
    float | None, _sampler("--temperature", "-t", name="temperature", help_="0 is greedy: the best token, always.")
]
TopK = Annotated[int | None, _sampler("--top-k", "-k", name="top_k", help_="Keep the k best tokens; 0 is off.")]
TopP = Annotated[
    float | None,
    _sampler("--top-p", "-p", name="top_p", help_="Keep the best tokens until their probability sums to p; 1 is off."),
]
MinP = Annotated[
    float | None,
    _sampler("--min-p", name="min_p", help_="Drop tokens below this share of the best one's probability; 0 is off."),
]
RepetitionPenalty = Annotated[
    float | None,
    _sampler("--repetition-penalty", "-r", name="repetition_penalty", help_="Against tokens said before; 1 is off."),
]
FrequencyPenalty = Annotated[
    float | None,
    _sampler("--frequency-penalty", name="frequency_penalty", help_="Taken off a logit each time its token was said."),
]
PresencePenalty = Annotated[
    float | None,
    _sampler("--presence-penalty", name="presence_penalty", help_="Taken off a logit once its token was said."),
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed", parser=integer("--seed", 0, MAX_SEED), metavar="0..2^63-1", help="Draw the same numbers again."
    ),
]
Speculate = Annotated[
    int | None,
    _sampler(
        "--speculate",
        name="speculate",
        help_="Guess so many tokens ahead and check them at once: faster where a reply quotes; 0 is off.",
    ),
]
DRAFTED: Final = 4
"""Tokens that a draft model drafts where nobody says how many: each costs a pass of it."""
Draft = Annotated[
    str | None,
    typer.Option(
        "--draft", parser=plain, metavar="MODEL", help="A smaller model of the same vocabulary that guesses ahead."
    ),
]
VIEWS: Final = ("tokens", "why", "layers", "lens", "attention", "cache", "prompt", "time", "bpe")
"""The views of the screen, `tinychat.ui.glass.VIEWS`; naming them must not cost the import of a screen."""
View = Annotated[
    str | None,
    typer.Option(
        "--view", parser=choice("--view", VIEWS), metavar="|".join(VIEWS), help="Look inside from the beginning."
    ),
]
Theme = Annotated[str | None, typer.Option("--theme", parser=plain, metavar="NAME", help="Colours of the screen.")]
NoMouse = Annotated[bool, typer.Option("--no-mouse", help="Leave the mouse to the terminal.")]
