"""What a form of the weights loses, for the commands that measure it: `bench --loss` and `compare`."""

from __future__ import annotations

from typing import Any

from tinychat.cli.console import Notices
from tinychat.cli.headless import Headless
from tinychat.protocol import ModelInfo, QuantisationLoss
from tinychat.ui import figures


def measure_loss(headless: Headless, notices: Notices) -> QuantisationLoss:
    """Measure the loaded model on the engine thread, and keep what was found."""
    from tinychat.engine.loss import measure
    from tinychat.engine.loss_store import remember

    lost: QuantisationLoss = headless.engine.call(measure)
    try:
        headless.engine.call(
            lambda session: remember(session.opened.checkpoint.weight_files, session.info.dtype_reason, lost)
        )
    except OSError as error:
        notices.line(f"note: What was measured can't be kept: {error}.")
    return lost


def in_words(lost: QuantisationLoss | None, info: ModelInfo) -> str:
    """Return it as people read it, and what it leaves out."""
    copy = "; its copy for long prompts is not measured" if lost is not None and info.copy_bytes else ""
    return figures.loss(lost) + copy


def as_keys(lost: QuantisationLoss) -> dict[str, Any]:
    """Return it as keys of a command's JSON."""
    return {"kl_nats": lost.divergence, "worst_error": lost.worst_error, "worst_layer": lost.worst_layer}
