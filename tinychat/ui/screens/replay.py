"""A recorded chat on the screen: what the person of then said and moved happens again, and nothing can be added."""

from __future__ import annotations

from typing import Final

from textual import on
from textual.binding import Binding

from tinychat.protocol import Generate, Pace, Paused, Replayed, SetSampler, Tokenize
from tinychat.ui.activity import Activity
from tinychat.ui.bridge import Bridge, Update
from tinychat.ui.conversation import Conversation, Phase
from tinychat.ui.foreign_text import inert
from tinychat.ui.remarks import Remark
from tinychat.ui.replayed_path import Step, take_step
from tinychat.ui.screens.chat import ChatScreen
from tinychat.ui.views.why import WhyView
from tinychat.ui.widgets.note import Note
from tinychat.ui.widgets.prompt_editor import PromptEditor
from tinychat.ui.widgets.sampler_panel import SamplerPanel

_LOOKING: Final = {
    "stop", "back", "help", "panel", "sampler", "copy_reply", "raw", "thinking", "choose", "scroll_transcript",
    "follow", "interrupt", "views", "view", "tokens", "pause", "step", "rate", "version",
}  # fmt: skip
"""Of the chat's actions, those that add nothing to it."""
_ACTIONS: Final = {binding.action.partition("(")[0] for binding in Binding.make_bindings(ChatScreen.BINDINGS)}
_SAYING: Final = {action for action in _ACTIONS - _LOOKING if "." not in action}
"""All others, but the app's own."""
_KEYS: Final = "F7 waits and goes on, F8 makes one token, + and − set the pace, Esc shows the rest of a reply at once."


class ReplayScreen(ChatScreen):
    """Plays what its engine, a recording, says; the keys that look and pace are the chat's."""

    AUTO_FOCUS = ""

    def __init__(self, bridge: Bridge, chat: Conversation, about: str, view: str = "") -> None:
        """Prepare the screen.

        Args:
            bridge: The recording.
            chat: An empty conversation.
            about: What is played, as a sentence.
            view: The view to open at once, empty for none.
        """
        super().__init__(bridge, chat, view=view)
        self._about = about
        self._typed = ""
        """What the person of then had typed."""
        self._holding = False
        """Whether the recording shall wait before what the person does next."""
        self._waits = False
        """Whether it does."""

    def begin(self) -> None:
        """Leave the keyboard to the keys that pace, since there is nothing to type, and play."""
        self.editor.placeholder = inert("A recording: Space waits and goes on, Ctrl+Q leaves")
        self.transcript.add(Note("replay", [Remark(self._about), Remark(_KEYS)]))
        if self.focused is self.editor:
            self.set_focus(None)
        super().begin()

    def show_activity(self) -> None:
        """Say where the recording waits."""
        if self._waits:
            self.status.show(Activity("the recording WAITS", None, "F7 goes on"))
        elif self.chat.phase is Phase.READY:
            self.status.show(Activity("a recording"))
        else:
            super().show_activity()

    # What happened then

    def _show(self, update: Update) -> None:
        if isinstance(update, Replayed):
            self._repeat(update)
        elif isinstance(update, Paused) and not self.chat.busy:
            self._waits = self._holding = True
        super()._show(update)

    def _repeat(self, replayed: Replayed) -> None:
        """Do what the person did."""
        match replayed.command:
            case SetSampler(sampler=sampler):
                self.chat.sampler = sampler
                self.sampler_panel.show(sampler)
            case Tokenize(text=text):
                self._type(text)
            case Generate():
                self._type("")
                self._waits = self._holding = False
                self._put_on_screen(take_step(self.chat, replayed.command))

    def _type(self, text: str) -> None:
        """Put into the prompt what stood there then, unless somebody has typed there now."""
        if self.editor.draft == self._typed:
            if self._typed:
                self.editor.clear_draft()
            if text:
                self.editor.put(text)
            self._typed = text

    def _put_on_screen(self, step: Step) -> None:
        """Show the path of turns that ends with the reply now being made."""
        path = self.chat.tree.path()
        shown = list(self.views)
        kept = next((i for i, turn in enumerate(path) if i >= len(shown) or shown[i] != turn.turn_id), len(path))
        for turn_id in shown[kept:]:
            self.views.pop(turn_id).remove()
        if shown and not kept:
            self.transcript.add(Note("new chat", [Remark(f"with {self.chat.name}")]))
        if step.system_changed:
            self.show_system_prompt()
        for turn in path[kept:]:
            self.add_view(turn, "you" if turn.role == "user" else self.chat.name)

    # What a person wants now

    @on(PromptEditor.Submitted)
    def _nothing_said(self, event: PromptEditor.Submitted) -> None:
        event.prevent_default()
        self.hint("A recording takes no new messages. Your text is kept; `tinychat run` opens a chat.")

    @on(WhyView.Chosen)
    def _nothing_chosen(self, event: WhyView.Chosen) -> None:
        event.prevent_default()
        self.hint("A recording has no branches but those of then.")

    @on(SamplerPanel.Changed)
    def _slider_moved(self) -> None:
        self.hint("The tokens are those of then, whatever the sliders say; the view why can follow them.")

    def action_pause(self, _typed: bool = False) -> None:
        """Have the reply wait, or go on; where none is being made, the person of then."""
        if self.chat.busy:
            super().action_pause(_typed)
            return
        self._holding = not self._holding
        self._waits = self._waits and self._holding
        self._bridge.send(Pace("pause" if self._holding else "play", self.chat.pacing.rate))
        self.hint("The recording waits before the next message." if self._holding else "")
        self.show_activity()

    def check_key(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Tell which keys apply: those that pace, always."""
        if action in ("pause", "rate"):
            return self.chat.info is not None and self.chat.phase is not Phase.STOPPING
        return super().check_key(action, parameters)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Tell which keys apply: none that would say something new."""
        return False if action in _SAYING else super().check_action(action, parameters)
