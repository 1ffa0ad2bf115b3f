"""The versions of a reply: branches from a token on, and going from one version to another."""

from __future__ import annotations

from textual import on

from tinychat.chats import Turn
from tinychat.ui.bridge import Bridge
from tinychat.ui.conversation import Conversation, Phase
from tinychat.ui.screens.glass_screen import GlassScreen
from tinychat.ui.views.why import WhyView


class VersionScreen(GlassScreen):
    """Adds what a person does with the versions of a reply. The tree of turns keeps them all; one path is shown."""

    def __init__(self, bridge: Bridge, chat: Conversation) -> None:
        super().__init__(bridge, chat)
        self._branching: tuple[int, int, int, bool] | None = None
        """(turn, index, token id, whether to pause then) of a branch that waits for its reply to be stopped."""

    def phase_changed(self) -> None:
        """Begin a branch that waited for its reply to end."""
        super().phase_changed()
        if self._branching is not None and self.chat.phase is Phase.READY:
            branch, self._branching = self._branching, None
            self._begin_branch(*branch)

    @on(WhyView.Chosen)
    def _candidate_chosen(self, event: WhyView.Chosen) -> None:
        """Have the reply go on with a candidate; one that is being made is stopped first."""
        reply = self.chat.replies.get(event.turn_id)
        said = reply.tokens[event.index].token_id if reply and event.index < len(reply.tokens) else None
        if not self.chat.can_branch(event.turn_id):
            self.hint("Another model said this; only replies of this one can branch.")
        elif event.token_id == said:
            self.hint("This is the token that was said. Choose another one.")
        elif not self.chat.busy:
            self._begin_branch(event.turn_id, event.index, event.token_id)
        elif self.chat.live == event.turn_id and self.chat.stop():
            self._branching = (event.turn_id, event.index, event.token_id, self.chat.pacing.holding)
            self.phase_changed()
        else:
            self.hint("One reply at a time: Esc stops the one being made.")

    def _begin_branch(self, turn_id: int, index: int, token_id: int, hold: bool = False) -> None:
        if turn_id not in self.chat.tree or not self.chat.can_branch(turn_id):
            return  # a new chat or another model came in between
        self.chat.pacing.holding = hold
        reply = self.chat.branch(turn_id, index, token_id)
        self._replace_from(turn_id, reply.turn_id)
        self.phase_changed()

    def action_version(self, steps: int) -> None:
        """Put another version of the reply in its place, with what followed that one."""
        if (view := self.transcript.chosen) is None:
            return
        if self.chat.busy:
            self.hint("One reply at a time: Esc stops the one being made.")
        elif (chosen := self.chat.switch_version(view.turn.turn_id, steps)) is not None:
            self._replace_from(view.turn.turn_id, chosen)
            self.transcript.choose(self.views[chosen])
            self.follow_choice()
            self.pane.update()

    def _replace_from(self, old: int, new: int) -> None:
        """Take a turn and all that follow it off the screen, and put the path from another one on in their place."""
        shown = list(self.views)
        for turn_id in shown[shown.index(old) :] if old in shown else ():
            self.views.pop(turn_id).remove()
        path = [turn.turn_id for turn in self.chat.tree.path()]
        for turn_id in path[path.index(new) :]:
            turn = self.chat.tree[turn_id]
            self.add_view(turn, "you" if turn.role == "user" else self.chat.name)

    def add_view(self, turn: Turn, label: str) -> None:
        """Put a turn at the end of the transcript; a reply with other versions says which it is."""
        super().add_view(turn, label)
        self.views[turn.turn_id].set_heading(self._version(turn))
        if self.is_mounted:
            self.follow_choice()

    def _version(self, turn: Turn) -> str:
        """Return "version 2 of 3, from token 5 of version 1 on · Alt+←→"; "" where there is but one."""
        versions = [each.turn_id for each in self.chat.tree.versions(turn.turn_id)]
        if turn.role != "assistant" or len(versions) < 2:
            return ""
        which = f"version {versions.index(turn.turn_id) + 1} of {len(versions)}"
        reply = self.chat.replies.get(turn.turn_id)
        if reply is not None and reply.branch_of in versions:
            which += f", from token {reply.repeated + 1} of version {versions.index(reply.branch_of) + 1} on"
        return f"{which} · Alt+←→ shows the others"

    def check_key(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Tell which keys apply: versions are gone through where there are several."""
        if action == "version":
            chosen = self.transcript.chosen
            return chosen is not None and len(self.chat.tree.versions(chosen.turn.turn_id)) > 1
        return super().check_key(action, parameters)
