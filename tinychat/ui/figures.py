"""Numbers as a person reads them."""

from __future__ import annotations

from tinychat.protocol import QuantisationLoss


def count(number: int) -> str:
    """8192 -> "8,192"."""
    return f"{number:,}"


def tokens(number: int) -> str:
    """1 -> "1 token", 8192 -> "8,192 tokens"."""
    return f"{count(number)} token{'' if number == 1 else 's'}"


def words(number: int) -> str:
    """1 -> "1 word", 1200 -> "1,200 words"."""
    return f"{count(number)} word{'' if number == 1 else 's'}"


def parameters(number: int) -> str:
    """134515008 -> "135 M"."""
    return _scaled(number, 1000, ("", " K", " M", " B", " T"))


def memory(number: int) -> str:
    """Bytes in powers of 1000, as disks and package indexes count them: 98362432 -> "98 MB"."""
    return _scaled(number, 1000, (" B", " KB", " MB", " GB", " TB"))


def rate(tokens_per_second: float) -> str:
    """212.4 -> "212 tok/s", 8.31 -> "8.3 tok/s"."""
    return f"{tokens_per_second:.0f} tok/s" if tokens_per_second >= 20 else f"{tokens_per_second:.1f} tok/s"


def duration(seconds: float) -> str:
    """0.041 -> "41 ms", 1.234 -> "1.2 s", 90 -> "1 min 30 s"."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def milliseconds(seconds: float) -> str:
    """0.00471 -> "4.71 ms", 0.0312 -> "31.2 ms"."""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds * 1000:.0f} ms"


def chance(probability: float) -> str:
    """0.4213 -> "42.1 %", 0.00042 -> "0.042 %", 0 -> "0 %"."""
    if not probability:
        return "0 %"
    return f"{100 * probability:.3g} %" if probability >= 1e-6 else f"{100 * probability:.1e} %"


def loss(measured: QuantisationLoss | None) -> str:
    """What a form of the weights loses -> "KL 0.0008 nats, states off by 2.6 % at most (layer 12)"."""
    if measured is None:
        return "not measured (`tinychat bench --loss` does)"
    off = f"{100 * measured.worst_error:.2g} %"
    return f"KL {measured.divergence:.2g} nats, states off by {off} at most (layer {measured.worst_layer})"


def share(part: int, whole: int) -> str:
    """6 of 8192 -> "0.1 %", 900 of 1024 -> "88 %"; 0 only for nothing at all."""
    if not part or not whole:
        return "0 %"
    percent = 100 * part / whole
    if percent >= 10:
        return f"{percent:.0f} %"
    return f"{max(percent, 0.1):.1f} %"


def _scaled(number: int, base: int, units: tuple[str, ...]) -> str:
    value = float(number)
    unit = units[0]
    for unit in units:
        if round(value) < base or unit == units[-1]:
            break
        value /= base
    return f"{value:.1f}{unit}" if value < 9.95 and value != int(value) else f"{value:.0f}{unit}"
