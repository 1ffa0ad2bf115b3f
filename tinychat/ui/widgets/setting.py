"""A number of the sampler that can be typed: what sliders and the seed have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from textual import events
from textual.binding import Binding
from textual.message import Message
from textual.reactive import var

from tinychat.ui.widgets.line_widget import Line, LineWidget

LABEL_CELLS: Final = 14
VALUE_CELLS: Final = 8


class Setting(LineWidget, can_focus=True):
    """One line with a label and a value. Typing digits begins an entry, Enter takes it, Esc drops it."""

    BINDINGS = [
        Binding("r,backspace,delete", "reset", "reset", tooltip="Back to the model's own value", id="setting.reset"),
    ]

    COMPONENT_CLASSES = {
        "setting--label",
        "setting--value",
        "setting--moved",
        "setting--entry",
        "setting--fill",
        "setting--rest",
        "setting--knob",
    }

    DEFAULT_CSS = """
    Setting {
        height: 1;
        & .setting--label { color: $quiet; }
        & .setting--value { color: $foreground; }
        & .setting--moved { color: $accent; text-style: bold; }
        & .setting--entry { color: $foreground; text-style: reverse; }
        & .setting--fill { color: $primary; }
        & .setting--rest { color: $rule; }
        & .setting--knob { color: $foreground; text-style: bold; }
        &:focus .setting--label { color: $foreground; text-style: bold; }
        &:focus .setting--knob { color: $accent; }
        &:focus .setting--fill { color: $accent; }
        &:hover .setting--label { color: $foreground; }
        &:disabled .setting--value, &:disabled .setting--knob, &:disabled .setting--fill { color: $rule; }
    }
    """

    value: var[float | None] = var[float | None](None, init=False)
    """The setting's value; None is "unset" where that is possible (a seed)."""

    class Changed(Message):
        """A person chose another value."""

        def __init__(self, setting: Setting, value: float | None) -> None:
            super().__init__()
            self.setting = setting
            self.value = value

        @property
        def control(self) -> Setting:
            """The setting that was changed."""
            return self.setting

    class Refused(Message):
        """A person typed a value that can't be."""

        def __init__(self, setting: Setting, sentence: str) -> None:
            super().__init__()
            self.setting = setting
            self.sentence = sentence

        @property
        def control(self) -> Setting:
            """The setting that was typed into."""
            return self.setting

    def __init__(self, field: str, label: str, *, id: str | None = None) -> None:
        """Prepare a setting.

        Args:
            field: The field of `SamplerSettings` it stands for.
            label: What a person calls it.
            id: The widget's id.
        """
        super().__init__(id=id)
        self.field = field
        self.label = label
        self.default: float | None = None
        """What reset goes back to: the value the model came with."""
        self.entry: str | None = None
        """What has been typed so far, None while nothing is."""

    def check(self, text: str) -> float | None:
        """Return the value that a typed text stands for.

        Raises:
            ValueError: It stands for none; the message is a sentence with the range.
        """
        raise NotImplementedError

    def describe(self) -> str:
        """Return the value as it is drawn."""
        raise NotImplementedError

    @property
    def moved(self) -> bool:
        """Whether a person changed it from what the model came with."""
        return self.value != self.default

    def start(self, value: float | None) -> None:
        """Set the value that the model came with."""
        self.default = self.value = value
        self.update_lines()

    def choose(self, value: float | None) -> None:
        """Take a value a person chose, and tell."""
        if value != self.value:
            self.value = value
            self.post_message(self.Changed(self, value))

    def watch_value(self) -> None:
        self.update_lines()

    def compose_lines(self, width: int) -> Sequence[Line]:
        """Return label and value, right-aligned."""
        space = max(1, width - LABEL_CELLS)
        return [((self.drawn_label(), "setting--label"), *self.drawn_value(space))]

    def drawn_label(self) -> str:
        """Return the label, with a mark where the focus is (colour alone would not do)."""
        return f"{'›' if self.has_focus else ' '} {self.label}".ljust(LABEL_CELLS)

    def drawn_value(self, width: int) -> Line:
        """Return the value or the entry, right-aligned in `width` cells."""
        if self.entry is not None:
            shown = f"{self.entry[1 - width :]}▏"
            return ((" " * (width - len(shown)), ""), (shown, "setting--entry"))
        if self.disabled:
            return (("—".rjust(width), "setting--value"),)
        return ((self.describe().rjust(width), "setting--moved" if self.moved else "setting--value"),)

    def watch_has_focus(self, has_focus: bool) -> None:
        super().watch_has_focus(has_focus)
        if not has_focus:
            self.entry = None
        self.update_lines()

    def watch_disabled(self, disabled: bool) -> None:
        super().watch_disabled(disabled)
        self.update_lines()

    def on_key(self, event: events.Key) -> None:
        """Handle the entry; keys that belong to it go no further."""
        if event.character is not None and event.character in "0123456789.-":
            self.entry = (self.entry or "") + event.character
        elif self.entry is None:
            return
        elif event.key == "enter":
            self._accept(self.entry)
        elif event.key == "escape":
            self.entry = None
        elif event.key == "backspace":
            self.entry = self.entry[:-1]
        else:
            return
        event.stop()
        event.prevent_default()
        self.update_lines()

    def action_reset(self) -> None:
        """Go back to the value that the model came with."""
        self.choose(self.default)

    def _accept(self, text: str) -> None:
        """Take what was typed, or say why not and keep it to be mended."""
        try:
            value = self.check(text)
        except ValueError as error:
            self.post_message(self.Refused(self, str(error)))
        else:
            self.entry = None
            self.choose(value)
