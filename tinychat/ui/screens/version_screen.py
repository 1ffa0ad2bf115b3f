"""The versions of a reply: branches from a token on, and going from one version to another."""

from __future__ import annotations

from collections.abc import Sequence

from textual import on

from tinychat.chats import Turn
from tinychat.ui.bridge import Bridge
from tinychat.ui.conversation import Conversation, Phase
from tinychat.ui.remarks import ended
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
        self.chat.branch(turn_id, index, token_id)
        self.show_path()
        self.phase_changed()

    def action_version(self, steps: int) -> None:
        """Put another version of the reply in its place, with what followed that one."""
        if (view := self.transcript.chosen) is None:
            return
        if self.chat.busy:
            self.hint("One reply at a time: Esc stops the one being made.")
        elif (chosen := self.chat.switch_version(view.turn.turn_id, steps)) is not None:
            self.show_path()
            self.transcript.choose(self.views[chosen])
            self.follow_choice()
            self.pane.update()

    def show_path(self) -> None:
        """Show the path of the tree: what is on the screen already stays."""
        path = [turn.turn_id for turn in self.chat.tree.path()]
        shown = list(self.views)
        same = next((at for at, pair in enumerate(zip(path, shown, strict=False)) if pair[0] != pair[1]), None)
        same = min(len(path), len(shown)) if same is None else same
        for turn_id in shown[same:]:
            view = self.views.pop(turn_id)
            view.display = False  # it is gone for all who look, before it is
            view.remove()
        for turn_id in path[same:]:
            turn = self.chat.tree[turn_id]
            if turn_id not in self.told:
                self.told[turn_id] = ended(turn)
            self.add_view(turn, self.speaker(turn))
        self.transcript.choose(None)
        self.follow_choice()
        self.pane.update()

    def speaker(self, turn: Turn) -> str:
        """Return who says a turn: the person, or the model that made it."""
        return "you" if turn.role == "user" else turn.model or self.chat.name

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
        if turn.origin in versions:
            number = versions.index(turn.origin) + 1
            which += f", version {number} edited" if turn.reason == "edited" else self._parting(turn, number)
        return f"{which} · Alt+←→ shows the others"

    def _parting(self, turn: Turn, number: int) -> str:
        """Say from which of its tokens on a reply is another one than the version that it begins as."""
        old, reply = self.chat.tree[turn.origin or 0], self.chat.replies.get(turn.turn_id)
        if reply is not None:
            at, vocabulary = reply.repeated, reply.vocabulary
        else:
            at, vocabulary = _common(turn.ids, old.ids), turn.vocabulary
        # An end that was said is no more to be repeated.
        whole = vocabulary != old.vocabulary or at >= len(old.ids) - (old.reason == "eos")
        return f", going on from version {number}" if whole else f", from token {at + 1} of version {number} on"

    def check_key(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Tell which keys apply: versions are gone through where there are several."""
        if action == "version":
            chosen = self.transcript.chosen
            return chosen is not None and len(self.chat.tree.versions(chosen.turn.turn_id)) > 1
        return super().check_key(action, parameters)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many ids both begin with."""
    most = min(len(one), len(other))
    return next((n for n in range(most) if one[n] != other[n]), most)
