"""The app: themes, clipboard, palette, quitting. The chat itself is `screens/chat.py`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterable
from typing import Final

from textual.app import App, SystemCommand
from textual.binding import Binding
from textual.notifications import SeverityLevel
from textual.screen import Screen

from tinychat import paths, resources
from tinychat.chats.recorder import Recorder
from tinychat.chats.store import Saved
from tinychat.protocol import Engine, Limits, LoadModel
from tinychat.ui.bridge import Bridge
from tinychat.ui.commands import key_name, palette_commands, view_commands
from tinychat.ui.conversation import Conversation
from tinychat.ui.foreign_text import pictured
from tinychat.ui.keeping import Keeping
from tinychat.ui.screens.chat import ChatScreen
from tinychat.ui.themes import DEFAULT_THEME, load_themes, variable_defaults

_SIGNALS: Final = {"SIGTERM": 143, "SIGHUP": 129}
"""What ends the program from outside, with the exit status that says so."""


class ChatApp(App[None]):
    """tinychat's screen. `run()` returns once the terminal is restored; the engine is left to the caller to close."""

    TITLE = "tinychat"
    CSS_PATH = ["screens/chat.tcss"]  # Textual doesn't read the stylesheet of the default screen itself
    ENABLE_COMMAND_PALETTE = True

    BINDINGS = [
        Binding("ctrl+q", "quit", "quit", tooltip="Leave tinychat", id="app.quit", priority=True),
        Binding("ctrl+p", "command_palette", "commands", tooltip="Find any command by its name", id="app.palette"),
    ]

    def __init__(
        self,
        engine: Engine,
        load: LoadModel,
        *,
        system: str = "",
        limits: Limits | None = None,
        think: bool | None = None,
        raw: bool = False,
        theme: str | None = None,
        view: str | None = None,
        first_prompt: str = "",
        recorder: Recorder | None = None,
        resume: Saved | None = None,
        private: bool = False,
    ) -> None:
        """Prepare the app.

        Args:
            engine: Anything that takes commands and gives events; not started, not closed here.
            load: The model to load once the screen has been painted.
            system: The system prompt, empty for none.
            limits: When replies end.
            think: What thinking models are told; None leaves it to their template.
            raw: Continue the text as it is, without a template.
            theme: The name of a theme; an unknown one is said and the default is used.
            view: The view of the glass box to open at once; None opens none.
            first_prompt: What to say as soon as the model is ready.
            recorder: Keeps the chats; not closed here. None: they are private.
            resume: The chat to go on with; None begins one.
            private: Whether to say that nothing is kept.
        """
        super().__init__()
        themes, self._theme_errors = load_themes([resources.find("themes"), paths.config_dir() / "themes"])
        for each in themes:
            self.register_theme(each)
        wanted = theme or DEFAULT_THEME
        self._unknown_theme = wanted if wanted not in self.available_themes else ""
        self.theme = DEFAULT_THEME if self._unknown_theme else wanted
        self._bridge = Bridge(engine)
        self._chat = Conversation(self._bridge.send, load, system=system, limits=limits, think=think, raw=raw)
        if resume is not None:
            self._chat.resume(resume.session)
            if system:
                self._chat.tree.system = system
        self._keeping = None if recorder is None else Keeping(self._chat, recorder)
        if self._keeping is not None and resume is not None:
            self._keeping.resume(resume)
        self._first_prompt = first_prompt
        self._private = private
        self._view = view or ""

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Give every theme, whoever made it, a value for each of our variables."""
        return variable_defaults(self.current_theme)

    def get_default_screen(self) -> Screen[None]:
        """Begin with the chat."""
        return ChatScreen(self._bridge, self._chat, self._first_prompt, self._view, self._keeping)

    def get_key_display(self, binding: Binding) -> str:
        """Name keys as keyboards do."""
        return binding.key_display or key_name(binding.key)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Offer in the palette what applies now."""
        yield from palette_commands(screen)
        if isinstance(screen, ChatScreen):
            yield from view_commands(screen.open_view)
        yield SystemCommand("Save a screenshot", "Write the screen as an SVG file", self.deliver_screenshot)
        yield SystemCommand("Quit (Ctrl+Q)", "Leave tinychat", self.action_quit)

    def on_mount(self) -> None:
        """Say what was wrong with themes, and restore the terminal also when ended from outside."""
        for error in self._theme_errors:
            self.notify(str(error), severity="warning", timeout=12)
        if self._unknown_theme:
            self.notify(f"There is no theme {self._unknown_theme!r}; F9 lists them.", severity="warning", timeout=12)
        if self._private:
            self.notify("This is a private chat: nothing of it is kept.", timeout=12)
        for name, status in _SIGNALS.items():
            # Not every system has every signal, and only the main thread may ask for them.
            with contextlib.suppress(AttributeError, NotImplementedError, RuntimeError, ValueError):
                number = getattr(signal, name)
                asyncio.get_running_loop().add_signal_handler(number, self._leave, status)

    def on_resize(self) -> None:
        """Paint everything: a terminal drops what is outside it, also where it is back at its old size by now."""
        self.screen.refresh()

    def on_unmount(self) -> None:
        """Give the signals back."""
        for name in _SIGNALS:
            with contextlib.suppress(AttributeError, NotImplementedError, RuntimeError, ValueError):
                asyncio.get_running_loop().remove_signal_handler(getattr(signal, name))

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """Show a notification; never as markup, since any message may quote foreign text."""
        super().notify(pictured(message), title=pictured(title), severity=severity, timeout=timeout, markup=False)

    async def action_quit(self) -> None:
        """Leave, whatever is running."""
        self._leave(0)

    def _leave(self, status: int) -> None:
        self._chat.stop()
        if self._keeping is not None:
            self._keeping.look()
        self.exit(return_code=status)
