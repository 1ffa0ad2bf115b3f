"""What the screen takes from a reply, and how soon it is there: the real chat beside one reply without a screen.

    python tests/benchmarks/chat_speed.py [MODEL] [--rounds 3] [--tokens 300] [--size 160x48] [--views why,time]

Each round runs both, one after the other, on the same greedy reply, and then the chat with each of the views open.
Prints, as medians: tokens a second with and without the screen, the ratio of each round's pair, and the seconds from
the start of the program until the prompt box was painted. Chats are kept as a person's are, but in a folder that goes.
Speed beside other programs is measured elsewhere: `tinychat bench` gives the figures for it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

import pexpect

QUESTION = "Tell me a long story about a fox who lives at the sea."
SPACE = rb"(?: |\xc2\xa0)"  # a figure and its unit are kept on one line
FOOTER = re.compile(rb"([\d,.]+)%btok/s%b\xc2\xb7 first%btoken" % (SPACE, SPACE, SPACE))


def headless(command: list[str]) -> float:
    """Tokens a second of one reply without a screen."""
    lines = subprocess.run([*command, "--json", QUESTION], capture_output=True, text=True, check=True).stdout
    return float(json.loads(lines.splitlines()[-1])["decode_tok_s"])


def on_screen(command: list[str], columns: int, rows: int) -> tuple[float, float]:
    """Tokens a second that the chat says once the same reply is over, and seconds until its prompt box was painted."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"XDG_DATA_HOME": folder}
        began = time.monotonic()
        chat = pexpect.spawn(command[0], command[1:], dimensions=(rows, columns), timeout=120, env=environment)
        chat.expect(b"Say something")
        box = time.monotonic() - began
        chat.expect(b"Context [0-9,]+")
        chat.send(f"{QUESTION}\r")
        # The title says it all along; the line under the reply comes with its end and names the prompt's tokens.
        chat.expect(rb"prompt%b[0-9,]+" % SPACE)
        rate = float(FOOTER.findall(chat.before)[-1].replace(b",", b""))
        chat.send("\x11")
        chat.expect(pexpect.EOF)
    return rate, box


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--size", default="160x48")
    parser.add_argument("--views", default="", help="names as `run --view` takes them, with commas between them")
    arguments = parser.parse_args()
    columns, rows = map(int, arguments.size.split("x"))
    command = [sys.executable, "-m", "tinychat", "run", arguments.model, "-t", "0", "-n", str(arguments.tokens)]
    screens = {"screen": command} | {
        f"view {name}": [*command, "--view", name] for name in filter(None, arguments.views.split(","))
    }
    alone: list[float] = []
    shown: dict[str, list[tuple[float, float]]] = {name: [] for name in screens}
    for _ in range(arguments.rounds):
        alone.append(headless(command))
        for name, one in screens.items():
            shown[name].append(on_screen(one, columns, rows))
    print(f"without a screen {statistics.median(alone):.1f} tok/s")
    for name, pairs in shown.items():
        rates, boxes = zip(*pairs, strict=True)
        ratio = statistics.median(rate / other for rate, other in zip(rates, alone, strict=True))
        box = statistics.median(boxes)
        print(f"{name}: {statistics.median(rates):.1f} tok/s, {ratio:.2f}; prompt box after {box:.2f} s")


if __name__ == "__main__":
    main()
