"""What speculation gains: a text of 200 words said again with one name changed, with guesses and without, in turn.

    python tests/benchmarks/speculation_speed.py [MODEL] [--dtype bf16] [--reach 8] [--rounds 3] [--tokens 280]

Both are greedy from the same caches. Prints tokens a second as medians, the median of each round's ratio, the share of
guesses that were accepted, whether the tokens are the same, and where not, how close the two best logits lay there. A
second task with nothing to quote shows what guessing in vain costs; it is measured with guesses that are always wrong.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import torch

from tinychat.catalog import Catalog
from tinychat.cli.headless import Headless
from tinychat.engine.generation import generate
from tinychat.engine.loading import Session
from tinychat.engine.prompt import render
from tinychat.engine.sampling import Choice
from tinychat.engine.speculation import PromptLookup, Proposer, Speculation
from tinychat.protocol import LoadModel, Message, SamplerSettings

TEXT = """\
Margaret had kept the lighthouse for thirty years, and in all that time she had never once let the lamp go out. Every \
evening, a little before sunset, she climbed the hundred and twelve steps with a can of oil in one hand and a cloth in \
the other. First she wiped the salt from the tall windows, then she filled the lamp, trimmed the wick and waited for \
the dark. The fishermen in the village below set their clocks by her. When the first beam crossed the harbour, mothers \
called their children in, and the baker put his bread into the oven. One winter a storm came from the north and broke \
two of the windows. The wind blew out the flame again and again, and the snow lay deep on the stairs. Margaret took \
the door of her own cupboard from its hinges, carried it up to the gallery and nailed it over the gap. All night long \
she stood beside the lamp with her coat held open, and all night long the light went round. In the morning nine boats \
lay safe in the harbour. Nobody thanked her, for nobody knew, and Margaret went down to make her tea and slept until \
noon."""
# The text first and the wish after it: smollm2 does as told that way, and says that it is sorry the other way round.
QUESTION = f'{TEXT}\n\nRepeat the text above exactly, but write "Eleanor" instead of "Margaret".'


class Wrong:
    """Guesses what is hardly ever said: the token that was said a moment ago."""

    NAME = "wrong"

    def propose(self, ids: Sequence[int], count: int) -> list[int]:
        """Return the last id, again and again."""
        return [ids[-1]] * count


def reply(
    session: Session, prompt: Sequence[int], tokens: int, reach: int, proposer: Proposer
) -> tuple[list[int], float, Speculation]:
    """Return the ids of a reply, tokens a second after the first, and what was guessed."""
    settings = SamplerSettings(temperature=0.0, speculate=reach)
    speculation = Speculation(proposer)
    ids: list[int] = []
    began = 0.0
    steps = generate(session.context, prompt, settings, seed=0, detail="basic", speculation=speculation)
    for step in steps:
        if isinstance(step, Choice):
            began = began or time.perf_counter()
            ids.append(step.token_id)
            if len(ids) == tokens or step.token_id in session.opened.end_ids:
                break
    seconds = time.perf_counter() - began
    steps.close()
    return ids, (len(ids) - 1) / seconds, speculation


@torch.inference_mode()
def lead(session: Session, ids: Sequence[int]) -> float:
    """Return by how much the best logit after `ids` leads the next one."""
    session.context.clear()
    best = session.context.forward(ids).topk(2).values
    return float(best[0] - best[1])


def measure(session: Session, reach: int, rounds: int, tokens: int) -> list[str]:
    """Return what is to be printed."""
    prompt = render(session.opened.tokenizer, session.opened.template, (Message("user", QUESTION),)).ids
    lines = []
    for name, kind in (("quoting", PromptLookup), ("always wrong", Wrong)):
        pairs = []
        reply(session, prompt, 16, reach, kind())
        for _ in range(rounds):
            plain, slow, _ = reply(session, prompt, tokens, 0, kind())
            guessed, fast, speculation = reply(session, prompt, tokens, reach, kind())
            pairs.append((fast, slow))
        fast, slow = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(one / other for one, other in pairs)
        rate = speculation.accepted / max(1, speculation.drafted)
        lines.append(
            f"{name}: {fast:.1f} tok/s with {reach} guesses, {slow:.1f} without: {ratio:.2f}; {len(plain)} tokens, "
            f"{speculation.accepted} of {speculation.drafted} guesses accepted ({rate:.0%})"
        )
        at = next((n for n, (a, b) in enumerate(zip(guessed, plain, strict=False)) if a != b), None)
        same = "the same tokens" if at is None else f"other tokens from {at} on"
        lines.append(same if at is None else f"{same}, where the best leads by {lead(session, [*prompt, *plain[:at]])}")
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--reach", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=280)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    with Headless() as headless:
        card = Catalog.load().resolve(arguments.model)
        info = headless.load(LoadModel(1, card, dtype=arguments.dtype, threads=arguments.threads)).info
        print(f"{info.name}, {info.dtype_reason}, {info.kernel}, {info.threads} threads")
        for line in headless.engine.call(
            lambda session: measure(session, arguments.reach, arguments.rounds, arguments.tokens)
        ):
            print(line)


if __name__ == "__main__":
    main()
