"""What stands below a reply shown as tokens: the scale with its numbers, and the figures of the reply."""

from __future__ import annotations

from tinychat.ui import figures
from tinychat.ui.measures import Measure
from tinychat.ui.reply_tokens import ReplyTokens


def scale(measure: Measure) -> str:
    """Return "surprise (c):  ▁ < 0.5  ▂ < 1  ▃ < 3  ▅ < 6  ▇ ≥ 6 bits", each level in one piece."""
    steps = (f"{measure.glyph(level)} {label}".replace(" ", "\xa0") for level, label in enumerate(measure.labels))
    return "  ".join([f"{measure.name}\xa0(c):", *steps])


def summary(reply: ReplyTokens) -> str:
    """Return "mean surprise 1.2 bits, perplexity 2.3 over 40 tokens, end token included"."""
    mean, perplexity = reply.mean_surprise, reply.perplexity
    tokens = figures.tokens(len(reply.tokens))
    if mean is None or perplexity is None:
        return f"{tokens}; the engine told no probabilities of them"
    included = ", end token included" if reply.ended else ""
    dictated = f", {reply.forced} not drawn" if reply.forced else ""
    return f"mean surprise {mean:.2f} bits, perplexity {perplexity:.3g} over {tokens}{included}{dictated}"
