"""What a model's form in memory loses against the numbers of its file: measured on a fixed text.

Both models read the same 256 tokens, the loaded one eight at a time, as decoding and checking guesses use it, the
other in one pass, in fp32, every weight read from the file as it is needed. Caches are fp32 in both, so that what is
measured is the weights' form alone (and bf16 activations where that form has them). So few tokens never go through a
bf16 copy for long prompts: the figure is that of the blocks, whether there is a copy or not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import torch

from tinychat.engine.divergence import divergences
from tinychat.engine.loading import Session, architecture
from tinychat.kernels import plain
from tinychat.models.cache import slabs
from tinychat.models.probe import Probe
from tinychat.models.streamed import Streaming
from tinychat.protocol import QuantisationLoss
from tinychat.weights import open_checkpoint

TOKENS: Final = 256
"""Read of the text, or as many as the model has positions for."""
_STEP: Final = 8
TEXT: Final = """\
The harbour master kept two clocks on her desk. One showed the time in the town, the other the time of the next high
water, and she trusted only the second. "Ships don't leave at nine," she used to say, "they leave when they float."

On the morning of 14 March 2019 the grain ship Aurelia lay at pier 3 with 4,200 tonnes of wheat on board and a draught
of 7.35 metres. The channel was dredged to 6.8 metres; at high water it would hold 8.1. That left 75 centimetres under
her keel for about forty minutes, and the pilot was late. He came running along the quay at last, his coat open, a
sandwich in one hand and a rolled chart in the other.

Why does the tide come later every day? Because the moon moves on: while the earth turns once, the moon covers about
13 degrees of its own path, and the earth needs some fifty minutes more to catch up. Whoever knows today's high water
can therefore guess tomorrow's. A short program does the sum:

    def next_high_water(minutes: int) -> int:
        # Twelve hours and twenty-five minutes later, as minutes after midnight.
        return (minutes + 745) % (24 * 60)

- Check the draught, fore and aft.
- Ask the dredger "Möwe" to keep clear of the channel.
- Call the lock at kilometre 12: it opens only for ships that have said they are coming.

"Cast off!" called the captain. The ropes fell into the water one after the other, the engine began to hum, and slowly,
so slowly that the gulls on the bollards did not even look up, the Aurelia moved away from the pier. The harbour master
looked at her second clock, wrote one line into the book, and put the kettle on. Nobody spoke of it again until autumn,
when the same ship came back with a new name and a hold full of oranges, lemons and three stowaway cats.
"""
"""Prose, figures, a list, a line of code and a foreign letter or two; ours."""


@torch.inference_mode()
def measure(session: Session) -> QuantisationLoss:
    """Measure on the engine thread; the session's caches are not touched.

    Raises:
        TinychatError: The file is gone or damaged, or the model can't be read in fp32.
    """
    opened, model = session.opened, session.context.model
    ids = opened.tokenizer.encode(TEXT)
    if opened.tokenizer.adds_bos and opened.tokenizer.bos_id is not None:
        ids = [opened.tokenizer.bos_id, *ids]
    ids = ids[: min(TOKENS, model.config.positions)]
    layers = model.config.layers
    with open_checkpoint(opened.checkpoint.path) as checkpoint:
        exact, _ = architecture(replace(opened, checkpoint=checkpoint)).walk(Streaming(), plain, lambda _: None)
        [(states, logits)] = _passes(exact, ids, len(ids), layers)
    errors, divergence, start = torch.zeros(layers, dtype=torch.float64), 0.0, 0
    for ours, guesses in _passes(model, ids, _STEP, layers):
        part = slice(start, start + len(guesses))
        away = (ours - states[:, part]).norm(dim=-1) / states[:, part].norm(dim=-1).clamp(min=1e-30)
        errors += away.sum(dim=1)
        divergence += float(divergences(logits[part], guesses).sum())
        start = part.stop
    errors /= len(ids)
    worst = int(errors.argmax())
    return QuantisationLoss(max(divergence / len(ids), 0.0), float(errors[worst]), worst, len(ids))


def _passes(model: Any, ids: list[int], step: int, layers: int) -> Any:
    """Run a model over `ids`; yield, `step` tokens at a time, the states [layers, T, C] after each layer and logits."""
    caches = slabs(model.attention, len(ids), torch.float32, model.device, plain)
    names = [f"blocks.{layer}.hook_resid_post" for layer in range(layers)]
    for start in range(0, len(ids), step):
        probe = Probe(names)
        part = torch.tensor(ids[start : start + step], device=model.device)
        logits = model.forward(part, caches, probe, every_position=True)
        yield torch.stack([probe.seen[name].double() for name in names]), logits
