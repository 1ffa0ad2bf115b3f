"""`tinychat compare`: whether a model computes here what transformers computes, by three rulers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tinychat.cli import options
from tinychat.cli.console import Notices, Results
from tinychat.cli.files import card_of
from tinychat.cli.headless import Headless
from tinychat.cli.losses import as_keys, in_words, measure_loss
from tinychat.protocol import LoadModel, ModelInfo

if TYPE_CHECKING:
    from tinychat.engine.compare import Compared, Path

_LABEL: Final = 18
_COLUMN: Final = 26


def compare(
    model: options.Model,
    tokens: Annotated[
        int,
        typer.Option("--tokens", parser=options.integer("--tokens", 2, 2**20), metavar="N", help="Of the text."),
    ] = 64,
    new_tokens: Annotated[
        int,
        typer.Option(
            "--new-tokens", parser=options.integer("--new-tokens", 2, 2**20), metavar="N", help="Greedy ones after it."
        ),
    ] = 32,
    dtype: options.Dtype = "fp32",
    head: options.Head = "auto",
    prefill_copy: options.PrefillCopy = "auto",
    kernels: Annotated[
        str,
        typer.Option(
            "--kernels",
            parser=options.choice("--kernels", ("all", "torch", "numba")),
            metavar="all|torch|numba",
            help="Which form of the primitives.",
        ),
    ] = "all",
    threads: options.Threads = None,
    as_json: options.AsJson = False,
) -> None:
    """Hold a model to transformers: the same greedy ids, the same states in every layer, examples worked out by hand.

    The exit status is 1 where a ruler fails. In fp32 each number may be off by 1e-4 of itself and 1e-5 of the largest;
    other dtypes round, and have looser tolerances, which the output states; what their form of the weights loses is
    measured too, and kept for `show`. The text goes through a copy for prompts where there is one.
    """
    notices = Notices()
    card = card_of(model)
    with Headless() as headless:
        command = LoadModel(load_id=1, card=card, dtype=dtype, head=head, prefill_copy=prefill_copy, threads=threads)
        info = headless.load(command).info
        notices.status(f"{info.name}: running both models")
        from tinychat.engine.compare import ATOL, LOOSER, RTOL, compare, described

        compared: Compared = headless.engine.call(
            lambda session: compare(
                session, card, dtype=dtype, head=head, tokens=tokens, new_tokens=new_tokens, kernels=kernels
            )
        )
        lost = None
        if dtype != "fp32":
            notices.status(f"{info.name}: reading a text with the weights of the file in fp32, and with these")
            lost = measure_loss(headless, notices)
    notices.clear()
    passed = all(path.passed for path in compared.paths)
    tolerance = (
        f"each number within {RTOL:g} of itself + {ATOL:g} of the largest"
        if dtype == "fp32"
        else f"each state within {LOOSER[dtype]:.0%} of its length"
    )
    results = Results()
    if as_json:
        found: dict[str, Any] = {
            "model": info.name,
            "arch": info.architecture,
            "dtype": info.dtype,
            "head_dtype": info.head_dtype,
            "kernel": info.kernel,
            "reference": compared.reference,
            "tolerance": tolerance,
            "prompt_tokens": compared.prompt_tokens,
            "new_tokens": new_tokens,
            "passed": passed,
            "paths": described(compared),
        }
        results.json(found if lost is None else found | as_keys(lost))
    else:
        _print(results, info, compared, tolerance, new_tokens)
        if lost is not None:
            results.line(f"loss of this form: {in_words(lost, info)}")
    if not passed:
        raise typer.Exit(1)


def _print(results: Results, info: ModelInfo, compared: Compared, tolerance: str, new_tokens: int) -> None:
    paths = compared.paths
    for label, value in (
        ("model", f"{info.name} ({info.architecture}), {info.dtype_reason}"),
        *((("copy", info.copy_reason),) if info.copy_reason else ()),
        ("reference", compared.reference),
        ("text", f"{compared.prompt_tokens} tokens at once, then {new_tokens} greedy ones, one by one"),
        ("tolerance", tolerance),
    ):
        results.line(f"{label:<{_LABEL}}{value}")
    results.line()
    rows = [("state", "largest", [path.kernel for path in paths])]
    for number, state in enumerate(paths[0].states):
        shares = [_share(path.states[number].of_tolerance) for path in paths]
        rows.append((state.name, f"{state.largest:.3g}", shares))
    for label, largest, cells in rows:
        results.line(f"{label:<{_LABEL}}{largest:<10}" + "".join(f"{cell:<{_COLUMN}}" for cell in cells).rstrip())
    results.line()
    for label, cell in (("states", _states), ("greedy ids", _greedy), ("by hand", _by_hand)):
        results.line(f"{label:<{_LABEL + 10}}" + "".join(f"{cell(path):<{_COLUMN}}" for path in paths).rstrip())
    for path in paths:
        results.line(
            f"{path.kernel}: divergence of the next token {path.divergence:.1e} nats, least lead of a best token "
            f"{path.greedy.least_lead:.2g} logits"
        )


def _share(of_tolerance: float) -> str:
    """Return a share of the tolerance as people read it."""
    shown = "under 0.1 %" if of_tolerance < 0.001 else f"{100 * of_tolerance:.3g} % of tolerance"
    return shown if of_tolerance <= 1 else f"{shown} FAILS"


def _states(path: Path) -> str:
    failed = sum(not state.of_tolerance <= 1 for state in path.states)
    return f"{failed} of {len(path.states)} FAIL" if failed else f"all {len(path.states)} hold"


def _greedy(path: Path) -> str:
    greedy = path.greedy
    level = f", {greedy.level} level" if greedy.level else ""
    return f"{greedy.same} of {len(greedy.ids)} the same{level}{'' if greedy.passed else ' FAILS'}"


def _by_hand(path: Path) -> str:
    from tinychat.models.by_hand import TOLERANCE

    wrong = [name for name, error in path.by_hand if not error <= TOLERANCE]
    return f"FAILS: {', '.join(wrong)}" if wrong else f"all {len(path.by_hand)} hold"
