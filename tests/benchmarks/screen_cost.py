"""What the screen burns while a reply streams: seconds of processor time of the UI thread, a second.

    python tests/benchmarks/screen_cost.py [--rate 200] [--seconds 10] [--size 160x48] [--view tokens]

Runs the real screen on a pseudo-terminal of the given size, which a second process empties, with an engine that talks
by the clock. Both cores of a small machine are the engine's: whatever this prints is taken from it, and more. The aim
is under 5 % of a core at 200 tokens a second; an open view takes about half as much again. Also printed: bytes written
to the terminal, and the cost of an idle screen.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "ui")]

TEXT = (
    "The capital of France is Paris, which lies on the river Seine and has been the largest city of the country since"
    " the early middle ages; some two million people live in it, and twelve in the region around it.\n\n"
)
WORDS = [f" {word}" for word in TEXT.split(" ")]


def screen(rate: float, seconds: float, view: str | None, result: Path) -> None:
    """Run the screen in this process, with a view open or none; write what it cost into `result`."""
    from scripted_engine import PacedEngine

    from tinychat.catalog import HubSource, ModelCard
    from tinychat.protocol import Event, LoadModel
    from tinychat.ui.app import ChatApp
    from tinychat.ui.widgets.prompt import Prompt

    class Metered(PacedEngine):
        """Looks at the clocks of the thread that polls it, the UI's: three seconds idle, then `seconds` of a reply."""

        def __init__(self) -> None:
            super().__init__(rate, WORDS, length=10**9)
            self._since = (0.0, 0.0)
            self._stage = "starting"
            self._idle = 0.0

        def poll(self, timeout: float = 0.0) -> list[Event]:
            now = (time.thread_time(), time.monotonic())
            lasted = now[1] - self._since[1]
            if self._stage == "starting" and self.commands:
                self._stage, self._since = "settling", now
            elif self._stage == "settling" and lasted > 1.5:
                self._stage, self._since = "idle", now
            elif self._stage == "idle" and lasted > 3:
                self._idle = (now[0] - self._since[0]) / lasted
                app.screen.query_one(Prompt).editor.put("What is the capital of France?")
                app.simulate_key("enter")
                self._stage, self._since = "answering", now
            elif self._stage == "answering" and lasted > seconds:
                busy = (now[0] - self._since[0]) / lasted
                result.write_text(json.dumps({"busy": busy, "idle": self._idle, "tokens": self._said}))
                self._stage = "done"
                app.exit()
            return super().poll(timeout)

    engine = Metered()
    app = ChatApp(engine, LoadModel(0, ModelCard("smollm2", HubSource("org/name"))), view=view)
    app.run()


def measure(rate: float, seconds: float, columns: int, rows: int, view: str | None) -> dict[str, float]:
    """Run the screen on a pseudo-terminal in a child process and read everything it paints."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        child, terminal = pty.fork()
        if child == 0:
            os.environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
            screen(rate, seconds, view, result)
            os._exit(0)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        painted = 0
        while True:
            try:
                data = os.read(terminal, 1 << 16)
            except OSError:
                break
            if not data:
                break
            painted += len(data)
        os.waitpid(child, 0)
        figures: dict[str, float] = json.loads(result.read_text())
        return figures | {"bytes_a_second": painted / seconds}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--size", default="160x48")
    parser.add_argument("--view", help="tokens, why, layers, prompt, time, bpe or cache; default: none")
    arguments = parser.parse_args()
    columns, rows = map(int, arguments.size.split("x"))
    figures = measure(arguments.rate, arguments.seconds, columns, rows, arguments.view)
    what = f"{arguments.rate:g} tok/s, {arguments.size}, view {arguments.view or 'none'}"
    print(f"UI thread at {what}: {100 * figures['busy']:.1f} % of a core")
    print(f"idle: {100 * figures['idle']:.1f} %; painted {figures['bytes_a_second'] / 1000:.0f} kB a second")


if __name__ == "__main__":
    main()
