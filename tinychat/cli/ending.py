"""How a command ends: every error as a sentence, every exit status as the README says, no abort on the way out."""

from __future__ import annotations

import logging
import os
import signal
import sys
from types import FrameType, TracebackType
from typing import Final, NoReturn, Self

import typer

from tinychat.cli import log
from tinychat.cli.console import Notices, ReaderLeft
from tinychat.errors import Cancelled, TinychatError, UsageError

_LOG: Final = logging.getLogger(__name__)

DONE: Final = 0
FAILED: Final = 1
WRONG_WORDS: Final = 2
INTERRUPTED: Final = 130
_SIGNALS: Final = ("SIGTERM", "SIGHUP")
"""What ends the program from outside; the exit status is 128 and the signal's number."""


class Terminated(BaseException):
    """A signal asks the program to end."""

    def __init__(self, status: int) -> None:
        """Carry the exit status."""
        super().__init__(status)
        self.status = status


class Interruption:
    """Notes a Ctrl-C or a signal that ends, where raising would lose something; a second one raises."""

    status = 0
    """The exit status it asks for; 0 while nothing has come."""

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in _numbers("SIGINT", *_SIGNALS)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.status:
            raise Terminated(self.status)
        self.status = 128 + number


def run_command(arguments: list[str]) -> int:
    """Run the command that `arguments` name; print what went wrong as a sentence; return the exit status."""
    notices = Notices()
    try:
        _listen()
        log.begin()
        # Here, so that a Ctrl-C while it is imported ends quietly, too.
        from tinychat.cli.app import app

        status = app(arguments, prog_name="tinychat", standalone_mode=False)
        return status if isinstance(status, int) else DONE
    except typer.TyperException as error:
        notices.line(_words(error))
        return WRONG_WORDS
    except (ReaderLeft, SystemExit):  # Typer leaves so where help is piped into a reader that has left
        return _without_reader()
    except UsageError as error:
        notices.line(str(error))
        return WRONG_WORDS
    except Cancelled:
        return INTERRUPTED
    except TinychatError as error:
        return _failed(notices, error, error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Terminated as signal_:
        return signal_.status
    except Exception as error:
        return _failed(notices, unforeseen(error), error)


def unforeseen(error: BaseException) -> TinychatError:
    """Return the sentence for an error that nobody thought of."""
    if isinstance(error, MemoryError):
        return TinychatError("The machine ran out of memory.", "Close other programs, or choose a smaller model.")
    return TinychatError(
        f"Something went wrong that tinychat has no sentence for: {type(error).__name__}: {error}",
        f"{log.path()} has the whole story; please report it.",
    )


def leave(status: int) -> NoReturn:
    """End the process at once, whatever its other threads are doing.

    Not by way of the interpreter's own end: it takes 0.4 s where torch is loaded, and aborts the process (exit status
    134) where a thread is still inside torch.
    """
    for number in _numbers("SIGINT", *_SIGNALS):  # it ends anyway, and at once
        signal.signal(number, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _without_reader()
    os._exit(status)


def _listen() -> None:
    """Have the signals that end a program end it in order."""

    def end(number: int, _: FrameType | None) -> None:
        raise Terminated(128 + number)

    for number in _numbers(*_SIGNALS):
        signal.signal(number, end)


def _numbers(*names: str) -> list[int]:
    """Return signals by name, those left out that whoever started the program has it ignore (nohup, a shell's &)."""
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def _without_reader() -> int:
    """Send what is still in buffers nowhere: nobody reads it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return DONE


def _failed(notices: Notices, error: TinychatError, cause: Exception) -> int:
    _LOG.debug("The command failed.", exc_info=cause)
    notices.line(str(error))
    return FAILED


def _words(error: typer.TyperException) -> str:
    """Return Typer's complaint about the words as a sentence, and what to do about it."""
    said = error.format_message().strip()
    sentence = said if said.endswith((".", "?")) else f"{said}."
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "tinychat"
    if said.startswith("Got unexpected extra argument") and command.endswith(" run"):
        return f'{sentence} Put the prompt in quotes: {command} MODEL "PROMPT".'
    if said.startswith("No such option"):
        return f"{sentence} `{command} --help` lists them; a text that begins with a dash comes after `--`."
    return f"{sentence} `{command} --help` tells what there is."
