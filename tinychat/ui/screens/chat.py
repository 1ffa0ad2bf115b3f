"""The chat: what a person types, presses and moves becomes commands.

What the engine answers is drawn by the other half, `engine_screen.py`. Nothing is decided here that the conversation
could decide.
"""

from __future__ import annotations

from textual import events, on
from textual.binding import Binding
from textual.timer import Timer
from textual.widget import Widget

from tinychat.ui import figures
from tinychat.ui.bridge import Bridge
from tinychat.ui.conversation import Conversation, Phase
from tinychat.ui.foreign_text import inert
from tinychat.ui.keeping import Keeping
from tinychat.ui.remarks import Remark
from tinychat.ui.screens.glass_keys import GLASS_KEYS
from tinychat.ui.screens.help import HelpScreen
from tinychat.ui.screens.revision_keys import REVISION_KEYS
from tinychat.ui.screens.session_screen import SessionScreen
from tinychat.ui.screens.system_prompt import SystemPromptScreen
from tinychat.ui.views.view import View
from tinychat.ui.widgets.editor import Editor
from tinychat.ui.widgets.new_text import NewText
from tinychat.ui.widgets.note import Note
from tinychat.ui.widgets.prompt import Prompt
from tinychat.ui.widgets.prompt_editor import PromptEditor
from tinychat.ui.widgets.sampler_panel import SamplerPanel
from tinychat.ui.widgets.setting import Setting
from tinychat.ui.widgets.transcript import Transcript


class ChatScreen(SessionScreen):
    """One conversation with one model, and the keys to it."""

    BINDING_GROUP_TITLE = "Chat"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-minimal"), (5, "-tiny"), (10, "-short"), (16, "-normal"), (36, "-tall")]

    BINDINGS = [
        Binding("escape", "stop", "stop", tooltip="Stop the reply or the loading; text is kept", id="chat.stop"),
        Binding("escape", "back", "back", tooltip="Go back to the prompt", id="chat.back"),
        Binding("f1", "help", "help", tooltip="Keys, what has the focus, facts about the model", id="chat.help"),
        Binding("f2", "panel", "panel", tooltip="Show or hide sampler and gauges", id="chat.panel"),
        Binding("f3", "sampler", "sampler", tooltip="Go to the sampler's sliders", id="chat.sampler"),
        Binding("ctrl+n", "start_anew", "new chat", tooltip="Begin an empty conversation", id="chat.new"),
        Binding("ctrl+r", "regenerate", "regenerate", tooltip="Have the last question answered again", id="chat.again"),
        Binding("ctrl+o", "copy_reply", "copy", tooltip="Copy the last or the chosen reply", id="chat.copy"),
        Binding("f4", "system_prompt", "system", tooltip="Show and change the system prompt", id="chat.system"),
        Binding("f5", "raw", "raw", tooltip="Show the reply raw, or as Markdown", id="chat.raw"),
        *REVISION_KEYS,
        *GLASS_KEYS,
        Binding("ctrl+t", "thinking", "thinking", tooltip="Fold or unfold the thinking", id="chat.thinking"),
        Binding("ctrl+l", "load_again", "load again", tooltip="Try to load the model again", id="chat.load"),
        Binding("f9", "app.change_theme", "theme", tooltip="Choose other colours", id="chat.theme"),
        Binding("ctrl+up", "choose(-1)", "reply above", show=False, tooltip="Choose the reply above", id="chat.above"),
        Binding("ctrl+down", "choose(1)", "reply below", show=False, tooltip="Choose the reply below", id="chat.below"),
        Binding("pageup", "scroll_transcript(-1)", "scroll up", show=False, tooltip="Scroll up", id="chat.up"),
        Binding("pagedown", "scroll_transcript(1)", "scroll down", show=False, tooltip="Scroll down", id="chat.down"),
        Binding("ctrl+end", "follow", "to the end", show=False, tooltip="Go to the end and follow it", id="chat.end"),
        Binding("ctrl+c", "interrupt", "stop or clear", show=False, tooltip="Copy, stop or clear", id="chat.interrupt"),
    ]

    def __init__(
        self,
        bridge: Bridge,
        chat: Conversation,
        first_prompt: str = "",
        view: str = "",
        keeping: Keeping | None = None,
    ) -> None:
        """Prepare the screen.

        Args:
            bridge: The engine.
            chat: The conversation to show.
            first_prompt: What to say as soon as the model is ready, empty for nothing.
            view: The view of the glass box to open at once, empty for none.
            keeping: Keeps the conversation; None: it is private.
        """
        super().__init__(bridge, chat, keeping)
        self._first_prompt = first_prompt
        self._first_view = view
        self._asking: Timer | None = None

    def on_mount(self) -> None:
        """Take the keyboard, paint, and only then load: importing torch stalls the loop once."""
        self.editor.focus()
        self.editor.placeholder = inert("Say how it begins" if self.chat.raw else "Say something")
        if self._first_prompt:
            self.editor.put(self._first_prompt)
            self.queued = True
        if self.chat.tree.head is None:
            self.show_system_prompt()
        else:
            self.show_resumed()
        self.show_activity()
        if self._first_view:
            self.open_view(self._first_view, enter=False)
        self.call_after_refresh(self.begin)

    def phase_changed(self) -> None:
        """Send a draft that waited for this."""
        super().phase_changed()
        if self.queued and self.chat.phase is Phase.READY:
            self.queued = False
            if self.editor.draft.strip():
                self._send(self.editor.draft)
        elif self.chat.phase is Phase.NO_MODEL:
            self.queued = False

    # The prompt

    @on(PromptEditor.Submitted)
    def _submitted(self, event: PromptEditor.Submitted) -> None:
        """Send the draft, have it wait for the reply or the model, or say why not; till it is sent it stays there."""
        if not event.text.strip():
            return
        match self.chat.phase:
            case Phase.READY:
                self._send(event.text)
            case Phase.NO_MODEL:
                self.hint("No model is loaded. Ctrl+L tries again; your text is kept.")
            case _:
                self.queued = True
                when = "this reply has ended" if self.chat.busy else "the model is ready"
                self.hint(f"Your message is sent when {when}; Esc takes it back.")
                self.refresh_bindings()
                self.show_activity()

    def _send(self, text: str) -> None:
        """Ask the model, or say what was edited."""
        if self.editing is not None:
            self.say_edit(text)
            return
        question, reply = self.chat.ask(text)
        self.editor.clear_draft()
        self.add_view(question, "you")
        self.add_view(reply, self.chat.name)
        self.phase_changed()

    @on(Prompt.Edited)
    def _edited(self, event: Prompt.Edited) -> None:
        """Have the draft cut into pieces, a moment after the last key; the longer it is, the later."""
        editor = self.editor
        self.inspector.move_cursor(editor.cursor_byte)
        if not event.draft_changed:
            return
        if self._asking is not None:
            self._asking.stop()
        draft = editor.draft
        if draft:
            self._asking = self.set_timer(0.04 + len(draft) / 500_000, lambda: self.drafts.ask(draft))
        else:
            self.inspector.show((), ready=self.drafts.ready)

    # Other widgets

    @on(SamplerPanel.Changed)
    def _sampler_changed(self, event: SamplerPanel.Changed) -> None:
        self.chat.set_sampler(event.sampler)

    @on(Setting.Refused)
    def _setting_refused(self, event: Setting.Refused) -> None:
        self.hint(event.sentence)

    @on(Transcript.Scrolled)
    def _scrolled(self, event: Transcript.Scrolled) -> None:
        if event.at_end:
            self.new_text.display = False

    @on(NewText.Clicked)
    def action_follow(self) -> None:
        """Go to the end and follow it."""
        self.transcript.follow()
        self.new_text.display = False

    def on_resize(self) -> None:
        """Give the inspector the rows the screen has for it."""
        self.fit_inspector()

    def on_key(self, event: events.Key) -> None:
        """Let a person type wherever the focus is: letters that nobody else wants go to the prompt."""
        wanted = isinstance(self.focused, Editor) or event.key in self.active_bindings
        if event.is_printable and event.character and not wanted:
            self.editor.focus()
            self.editor.insert(event.character)

    # Actions

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Tell which keys apply: None greys one, False hides it."""
        chat, phase = self.chat, self.chat.phase
        match action:
            case "stop":
                if isinstance(self.focused, View):
                    return False
                if self.queued or ((chat.busy or phase is Phase.LOADING) and phase is not Phase.STOPPING):
                    return True
                return False if self._elsewhere else None
            case "back":
                return self._elsewhere
            case "regenerate":
                return True if phase is Phase.READY and chat.tree.head is not None else None
            case "copy_reply" | "raw" | "choose":
                return True if any(view.turn.role == "assistant" for view in self.views.values()) else None
            case "system_prompt":
                return None if chat.raw else True
            case "thinking":
                return chat.info is not None and chat.info.thinking
            case "load_again":
                return phase is Phase.NO_MODEL
        return self.check_key(action, parameters)

    def action_stop(self) -> None:
        """Take back what waits to be sent; or else stop what runs."""
        if self.queued:
            self.queued = False
        else:
            self.chat.stop()
        self.phase_changed()

    def action_back(self) -> None:
        """Close what has the focus or lies over the transcript, and go back to the prompt; leave an edit."""
        if self.editing is not None and self.focused is self.editor:
            self.leave_edit()
            return
        if self.glass.view and (self.focused is self.editor or isinstance(self.focused, View)):
            self.open_view("")
        self.remove_class("-panel-open")
        self.editor.focus()
        self.transcript.choose(None)
        self.refresh_bindings()

    def action_interrupt(self) -> None:
        """Ctrl+C: copy what is selected, stop what runs, or clear the draft, in this order; never quit by surprise."""
        if self.editor.selected_text:
            self.editor.action_copy()
        elif selected := self.get_selected_text():
            self.app.copy_to_clipboard(selected)
        elif self.chat.busy:
            self.action_stop()
        elif self.editor.text:
            self.editor.clear_draft()
            self.hint("Draft cleared: Ctrl+Z brings it back.")
        else:
            self.hint("Ctrl+Q quits.")

    def action_help(self) -> None:
        """Explain the keys, the widget in focus and the model."""
        topic = next((w.HELP for w in self._focused_and_up() if w.HELP), "") or ""
        self.app.push_screen(HelpScreen(self.active_bindings.values(), topic, self.chat.info))

    def action_panel(self) -> None:
        """Show or hide the side panel; where there is no room beside the transcript it lies over it."""
        self.toggle_class("-panel-closed" if self.has_class("-wide") else "-panel-open")

    def action_sampler(self) -> None:
        """Go to the first slider."""
        self.remove_class("-panel-closed")
        if self.has_class("-narrow"):
            self.add_class("-panel-open")
        self.call_after_refresh(self.query(Setting).first().focus, scroll_visible=False)

    async def action_start_anew(self) -> None:
        """Begin an empty conversation."""
        if self.editing is not None:
            self.leave_edit()
        self.chat.start_anew()
        self.views.clear()
        self.told.clear()
        await self.transcript.clear()
        self.show_system_prompt()
        self.transcript.add(Note("new chat", [Remark(f"with {self.chat.name}")]))
        self.phase_changed()

    def action_regenerate(self) -> None:
        """Have the last question answered again."""
        self.chat.regenerate()
        self.show_path()
        self.phase_changed()

    def action_copy_reply(self) -> None:
        """Copy a reply, raw and without its thinking."""
        if view := self.transcript.chosen:
            self.app.copy_to_clipboard(view.text)
            size = figures.count(len(view.text))
            self.hint(f"Copied {size} characters to the terminal's clipboard, if it allows OSC 52.")

    def action_system_prompt(self) -> None:
        """Show the system prompt, to be changed."""
        self.app.push_screen(SystemPromptScreen(self.chat.tree.system), self._set_system_prompt)

    def action_raw(self) -> None:
        """Change between raw and Markdown."""
        if view := self.transcript.chosen:
            view.toggle_markdown()
            self.hint("Markdown" if view.markdown else "Raw: exactly what was said")

    def action_thinking(self) -> None:
        """Fold or unfold the thinking."""
        if view := self.transcript.chosen:
            view.toggle_thinking()

    def action_load_again(self) -> None:
        """Try to load the model again."""
        self.chat.start_loading()
        self.phase_changed()

    def action_choose(self, steps: int) -> None:
        """Choose the reply that keys act on."""
        self.transcript.choose_next(steps)

    def action_scroll_transcript(self, pages: int) -> None:
        """Scroll by pages."""
        self.transcript.scroll_page(pages)

    # Helpers

    @property
    def _elsewhere(self) -> bool:
        """Whether there is a way back to the prompt: the focus is elsewhere, a view is open, or the panel lies over."""
        covered = bool(self.glass.view) or (self.has_class("-narrow") and self.has_class("-panel-open"))
        return self.focused is not self.editor or covered or self.editing is not None

    def _focused_and_up(self) -> list[Widget]:
        nodes = self.focused.ancestors_with_self if self.focused is not None else []
        return [node for node in nodes if isinstance(node, Widget)]

    def _set_system_prompt(self, system: str | None) -> None:
        """Take what the editor closed with."""
        if system is None or system == self.chat.tree.system:
            return
        self.chat.tree.system = system
        if system:
            self.show_system_prompt()
        else:
            self.transcript.add(Note("system", [Remark("No system prompt any more.")]))
        self.hint("The system prompt holds from the next message on.")
