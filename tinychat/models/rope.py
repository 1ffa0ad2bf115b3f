"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864): which angle a position adds to which pair.

Style "half": component i of the R components that turn goes together with component i + R/2, as in every Hugging Face
checkpoint; of a head of D the last D - R components stay. `Rope` is what a model asks for, one class for each way in
which angles depend on the length of the sequence; `Rotary` holds its tables of cosines and sines. What a checkpoint
says of its rotation is read in rope_settings.py.
"""

from __future__ import annotations

import math
from typing import Final

import torch

DYNAMIC_STEP: Final = 256
"""Tokens by which a sequence with dynamic scaling grows before its angles change."""


class Rope:
    """A rotation whose angles are the same at every length."""

    def __init__(self, inv_freq: torch.Tensor, factor: float = 1.0) -> None:
        """Take the angle a position adds, fp32 [R/2], and what cosines and sines are multiplied by."""
        self.inv_freq = inv_freq
        self.factor = factor

    def regime(self, total: int) -> int:
        """Return a number that differs between lengths of a sequence whose angles differ.

        Where it changes, keys in a cache have been turned by other angles, and the sequence is computed afresh.
        """
        del total
        return 0

    def angles(self, regime: int) -> torch.Tensor:
        """Return the angle a position adds in sequences of this regime, fp32 [R/2]."""
        del regime
        return self.inv_freq


class LongRope(Rope):
    """LongRoPE (Ding et al. 2024, arXiv:2402.13753): other angles past the length the model was first trained on."""

    def __init__(self, short: torch.Tensor, long: torch.Tensor, original: int, factor: float) -> None:
        """Take the angles of sequences of up to `original` tokens and of longer ones, fp32 [R/2] each."""
        super().__init__(short, factor)
        self.long = long
        self.original = original

    def regime(self, total: int) -> int:
        """Return 0, or 1 past the original length."""
        return int(total > self.original)

    def angles(self, regime: int) -> torch.Tensor:
        """Return the short angles, or the long ones in regime 1."""
        return self.long if regime else self.inv_freq


class DynamicRope(Rope):
    """Dynamic NTK scaling: past the trained length, the longer the sequence, the larger the base.

    Transformers takes another base for each token more, and turns the keys in its cache by as many different ones. Here
    the base is that of the length rounded up to a multiple of `DYNAMIC_STEP`, one for the whole sequence: equal at
    those multiples and within the trained length.
    """

    def __init__(self, size: int, theta: float, factor: float, trained: int) -> None:
        """Take R, the base, how far the context is stretched, and the length the model was trained on."""
        super().__init__(inverse_frequencies(size, theta))
        self.size = size
        self.theta = theta
        self.stretch = factor
        self.trained = trained

    def regime(self, total: int) -> int:
        """Return 0 within the trained length, else the length whose base serves."""
        return 0 if total <= self.trained else -(-total // DYNAMIC_STEP) * DYNAMIC_STEP

    def angles(self, regime: int) -> torch.Tensor:
        """Return the angles of sequences of `regime` tokens."""
        if not regime:
            return self.inv_freq
        growth = self.stretch * regime / self.trained - (self.stretch - 1)
        return inverse_frequencies(self.size, self.theta * growth ** (self.size / (self.size - 2)))


class Rotary:
    """Cosines and sines of every position that fits a cache."""

    def __init__(self, rope: Rope, positions: int, device: str = "cpu") -> None:
        """Compute the tables of short sequences."""
        self.rope = rope
        self._positions = torch.arange(positions, dtype=torch.float32)[:, None]
        self._device = device
        self.regime = rope.regime(1)
        self.tables = self._computed()

    def fit(self, total: int) -> None:
        """Turn to the angles of sequences of `total` tokens."""
        regime = self.rope.regime(total)
        if regime != self.regime:
            self.regime = regime
            self.tables = self._computed()

    def _computed(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines, fp32 [positions, R/2]."""
        angles = self._positions * self.rope.angles(self.regime).float()[None, :]
        return (angles.cos() * self.rope.factor).to(self._device), (angles.sin() * self.rope.factor).to(self._device)


def inverse_frequencies(size: int, theta: float) -> torch.Tensor:
    """Return theta^(-2i/size) for i in 0..size/2-1, fp32 [size/2]."""
    return 1.0 / (theta ** (torch.arange(0, size, 2, dtype=torch.int64).float() / size))


def llama3(inv_freq: torch.Tensor, *, factor: float, low: float, high: float, original: int) -> torch.Tensor:
    """Return the angles of Llama 3.1: long waves are slowed by `factor`, short ones kept, those between blended.

    Args:
        inv_freq: Plain angles, fp32 [R/2].
        factor: How far the context is stretched.
        low: Waves that fit less often than this into the original length are long (low_freq_factor).
        high: Those that fit more often are short (high_freq_factor).
        original: Length of the first training.
    """
    fits = original * inv_freq / (2 * math.pi)
    kept = ((fits - low) / (high - low)).clamp(0, 1)
    return inv_freq / factor * (1 - kept) + inv_freq * kept


def yarn(
    inv_freq: torch.Tensor,
    *,
    theta: float,
    factor: float,
    original: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> torch.Tensor:
    """Return the angles of YaRN (Peng et al. 2023, arXiv:2309.00071): slow pairs slowed by `factor`, fast ones kept.

    Args:
        inv_freq: Plain angles, fp32 [R/2].
        theta: Their base.
        factor: How far the context is stretched.
        original: Length of the first training.
        beta_fast: Pairs that turn at least this often within it are kept.
        beta_slow: Those that turn at most this often are slowed in full.
        truncate: Widen the ramp between the two to whole pairs.
    """
    size = 2 * len(inv_freq)
    first, last = (
        size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta)) for turns in (beta_fast, beta_slow)
    )
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    width = last - first or 0.001  # a ramp of no width is a step
    slowed = ((torch.arange(size // 2, dtype=torch.float32) - first) / width).clamp(0, 1)
    return inv_freq / factor * slowed + inv_freq * (1 - slowed)


def yarn_magnitude(factor: float, slope: float = 1.0) -> float:
    """Return what YaRN multiplies cosines and sines by; it sharpens attention over longer contexts."""
    return 1.0 if factor <= 1 else 0.1 * slope * math.log(factor) + 1.0


def longrope_magnitude(factor: float, original: int) -> float:
    """Return what LongRoPE multiplies cosines and sines by."""
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
