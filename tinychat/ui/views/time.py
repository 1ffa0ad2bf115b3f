"""The view of time: what prompt and reply took, against what this machine's memory allows, and where it went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from textual.binding import Binding

from tinychat.protocol import Profiled
from tinychat.ui import figures, heat
from tinychat.ui.reply_tokens import ReplyTokens
from tinychat.ui.views.view import NOTHING, View, sentence
from tinychat.ui.widgets.gauge import share_bar
from tinychat.ui.widgets.line_widget import Line
from tinychat.ui.wrapping import WrappedText

_LABEL: Final = 13
_PARTS: Final = (
    ("attention", "attention"), ("MLP", "mlp"), ("head", "head"), ("sampling", "sampling"), ("Python", "rest"),
)  # fmt: skip
"""(name, field) of where a token's time goes."""


class TimeView(View):
    """Prefill and decode apart, a sparkline of the reply, and the profile of a token."""

    NAME = "time"

    HELP = """
**Time.** Prefill reads the prompt, many tokens in one pass, and is bound by arithmetic; decode makes a token a pass and
is bound by memory: every weight, and the cache of all tokens before, has to be read once for each (Pope et al. 2022,
arXiv:2211.05102). The limit is bytes this machine reads a second over bytes a token needs. Speculation gets past it by
checking several tokens in one pass (Leviathan et al. 2023, arXiv:2211.17192). The line shows milliseconds a token over
the reply, `▲` the token in focus. The bars are means of profiled tokens, which take longer than others; they are made
only while this view is open.
"""

    BINDINGS = [
        Binding("up", "move(-1)", "scroll", tooltip="Scroll up", key_display="↑↓", id="time.scroll"),
        Binding("down", "move(1)", "scroll down", show=False, tooltip="Scroll down"),
    ]

    def head(self, width: int) -> Sequence[Line]:
        """Return nothing: everything scrolls."""
        return ()

    def action_move(self, rows: int) -> None:
        """Scroll: no row is in focus here."""
        self.scroll_rows(rows)

    def body(self, width: int) -> Sequence[Line]:
        """Return everything."""
        reply = self.reply
        if reply is None or (reply.prefill is None and not reply.tokens):
            return sentence(NOTHING, width)
        lines = [*_fact("prefill", _prefill(reply), width), *_fact("decode", self._decode(reply), width)]
        if reply.finished is not None and reply.finished.new_tokens:
            lines += _fact("first token", figures.duration(reply.finished.first_token_seconds), width)
        lines += [*self._limit(reply, width), (), *_line_of(reply, width), ()]
        return [*lines, *_profile(list(reply.profiles), width)]

    def _rate(self, reply: ReplyTokens) -> float:
        return reply.finished.decode_rate if reply.finished is not None else self.glass.chat.speed.rate

    def _decode(self, reply: ReplyTokens) -> str:
        count = figures.tokens(len(reply.tokens))
        seconds = reply.finished.decode_seconds if reply.finished is not None else sum(t.seconds for t in reply.tokens)
        rate = self._rate(reply)
        each = f" · {figures.rate(rate)} · {figures.milliseconds(1 / rate)} a token" if rate else ""
        return f"{count} in {figures.duration(seconds)}{each}"

    def _limit(self, reply: ReplyTokens, width: int) -> list[Line]:
        bandwidth = self.glass.bandwidth
        if bandwidth is None:
            when = "once the reply has ended" if self.glass.chat.busy else "while this view is open"
            return _fact("limit", f"not measured yet; it is {when}", width)
        needed = bandwidth.bytes_per_token + self.glass.cache_bytes
        limit = bandwidth.bytes_per_second / max(1, needed)
        rate = self._rate(reply)
        share = rate / limit if limit else 0.0
        weights, cache = figures.memory(bandwidth.bytes_per_token), figures.memory(self.glass.cache_bytes)
        speed = figures.memory(round(bandwidth.bytes_per_second))
        return [
            *_fact("limit", f"{figures.rate(limit)}: {speed}/s over {weights} of weights and {cache} of cache", width),
            (
                ("of the limit".ljust(_LABEL), "view--quiet"),
                (share_bar(share, max(1, min(30, width - _LABEL - 8))), "view--bar"),
                (f" {100 * share:.0f} %", "view--text"),
            ),
        ]


def _fact(label: str, fact: str, width: int) -> list[Line]:
    """Return a fact beside its label, in as many lines as it takes."""
    lines = WrappedText(max(12, width - _LABEL), fact).lines
    return [
        (((label if not number else "").ljust(_LABEL), "view--quiet"), (line.rstrip(), "view--text"))
        for number, line in enumerate(lines)
    ]


def _prefill(reply: ReplyTokens) -> str:
    finished, progress = reply.finished, reply.prefill
    if finished is not None:
        reused = finished.reused_tokens
        computed = finished.prompt_tokens + finished.forced - reused
        took = f" in {figures.duration(finished.prefill_seconds)} · {figures.rate(finished.prefill_rate)}"
    elif progress is not None:
        computed, reused, took = progress.done - progress.reused, progress.reused, ""
    else:
        return "not told"
    return f"{figures.tokens(computed)}{took if computed else ''}; {figures.count(reused)} reused"


def _line_of(reply: ReplyTokens, width: int) -> list[Line]:
    """Return the sparkline, its scale, and the token in focus."""
    seconds = [token.seconds for token in reply.tokens]
    if not any(seconds):
        return [(("The engine told no times of these tokens.", "view--quiet"),)]
    values, size = heat.spark(seconds, width)
    most = max(values)
    bars = "".join(heat.height(value, most) for value in values)
    each = f"a cell is the mean of {size} tokens" if size > 1 else "a cell a token"
    at = min(reply.at // size, width - 1)
    return [
        ((f"milliseconds a token: {each}, █ is {figures.milliseconds(most)}", "view--quiet"),),
        ((bars, "view--bar"),),
        ((" " * at, ""), ("▲", "view--mark")),
        ((f"token {reply.at + 1}: {figures.milliseconds(seconds[reply.at])}", "view--text"),),
    ]


def _profile(profiles: list[Profiled], width: int) -> list[Line]:
    """Return where the time of a token goes, as bars with numbers."""
    if not profiles:
        return sentence("Where a token's time goes is sampled while a reply is made and this view is open.", width)
    means = [(name, sum(getattr(each, field) for each in profiles) / len(profiles)) for name, field in _PARTS]
    whole = sum(mean for _, mean in means)
    bar = max(1, min(40, width - _LABEL - 18))
    told = f"where a token's time goes: {whole:.2f} ms, the mean of {figures.tokens(len(profiles))}"
    lines: list[Line] = [((told, "view--quiet"),)]
    for name, mean in means:
        share = mean / whole if whole else 0.0
        lines.append(
            (
                (name.ljust(_LABEL), "view--text"),
                (share_bar(share, bar), "view--bar"),
                (f"{mean:8.2f} ms {100 * share:3.0f} %", "view--text"),
            )
        )
    return lines
