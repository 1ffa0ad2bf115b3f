"""What each layer did at a token, in a few numbers: collected at the taps of one pass."""

from __future__ import annotations

from functools import cache

import torch

from tinychat.engine.clocks import ATTENTION, MLP, ClockProbe
from tinychat.models.probe import Tapped
from tinychat.protocol import LayerStatistics, Spread

_TAPS = ("hook_resid_post", "hook_attn_out", "hook_mlp_out", "attn.hook_pattern")


@cache
def _places(layers: int) -> dict[str, tuple[str, int]]:
    """Return the taps that are looked at: name -> (tap, layer)."""
    return {f"blocks.{layer}.{tap}": (tap, layer) for layer in range(layers) for tap in _TAPS}


class LayerProbe(ClockProbe):
    """Keeps of each layer what `LayerStatistics` are made of, at the last positions of a pass."""

    def __init__(self, layers: int, rows: int) -> None:
        """Look at `rows` positions."""
        super().__init__(layers)
        self.rows = self._last = rows
        self._places = _places(layers)
        self._kept: dict[str, list[torch.Tensor]] = {tap: [torch.empty(0)] * layers for tap in _TAPS}

    def listens(self, name: str) -> bool:
        """See `ClockProbe`."""
        return name in self._places

    def look(self, name: str, tapped: Tapped) -> None:
        """Keep a copy, fp32: [rows, C], of a pattern the entropy, [rows, H]."""
        tap, layer = self._places[name]
        tensor = tapped if isinstance(tapped, torch.Tensor) else tapped()
        if tap == "attn.hook_pattern":
            self._kept[tap][layer] = torch.special.entr(tensor).sum(-1).T
        else:
            self._kept[tap][layer] = tensor[-self._last :].to(torch.float32, copy=True)

    def statistics(self, row: int) -> tuple[LayerStatistics, ...]:
        """Return the numbers of each layer at one of the rows."""
        residual, attn_out, mlp_out = (
            torch.stack([layer[row] for layer in self._kept[tap]]).double() for tap in _TAPS[:3]
        )
        norms: list[float] = residual.norm(dim=-1).tolist()
        rows = zip(norms, _spreads(attn_out), _spreads(mlp_out), self._kept[_TAPS[3]], self.seconds, strict=True)
        return tuple(
            LayerStatistics(
                norm, attention, mlp, tuple(entropy[row].tolist()), 1e3 * seconds[ATTENTION], 1e3 * seconds[MLP]
            )
            for norm, attention, mlp, entropy, seconds in rows
        )


def _spreads(numbers: torch.Tensor) -> list[Spread]:
    """Return the statistics of each row of [layers, C]."""
    columns = numbers.amin(-1), numbers.amax(-1), numbers.mean(-1), numbers.std(-1, correction=0)
    return [Spread(*row) for row in torch.stack(columns, dim=-1).tolist()]
