"""What the caches hold: the ids of the tokens in them, in order, and the model that put them there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from tinychat.engine.arrivals import COMPUTED, DRAWN, GUESSED, REUSED, CacheCounts
from tinychat.errors import OutOfMemory, TinychatError
from tinychat.models.base import Model
from tinychat.models.paged import STEP
from tinychat.models.paged_cache import PagedCache, PagedCaches
from tinychat.models.probe import CLOSED, Probe
from tinychat.protocol import CacheBlocks

MOST_KEPT: Final = 8
"""Sequences that are kept beside the one that grows."""


class Context:
    """The caches of the sequence that grows, and the ids they hold. Ids are the only truth about a cache.

    Where a prompt parts from what the caches hold, what they hold is kept beside it, sharing blocks, as long as there
    are any: another version of a reply is found again without computing it.
    """

    def __init__(self, model: Model, capacity: int, dtype: torch.dtype) -> None:
        """Reserve caches of `capacity` tokens."""
        self.most_kept = MOST_KEPT
        """Sequences that may stay beside the one that grows; 0: what a prompt parts from is forgotten."""
        self.model = model
        self.capacity = capacity
        self.ids: list[int] = []
        self.arrivals = bytearray()
        """How each of `ids` came here, see `arrivals.py`."""
        self.counts = CacheCounts()
        self.sequence = PagedCaches.reserve(model.attention, capacity, dtype, model.device, model.kernels)
        self._kept: list[tuple[list[int], PagedCaches]] = []
        """Older ones first."""
        self._target = 0
        """Ids of the prompt that is being computed: how it is turned depends on its whole length."""
        self.states = torch.empty(0)
        """What the head read, activations [n, C]: of the last of the ids appended last, or of each of them."""
        self.recomputed = ""
        """Why the last prompt had to be computed afresh though its beginning was in the caches; empty: it hadn't."""

    @property
    def caches(self) -> tuple[PagedCache, ...]:
        """The cache of each layer."""
        return self.sequence.layers

    @property
    def nbytes(self) -> int:
        """Bytes reserved."""
        return self.sequence.nbytes

    @property
    def used_bytes(self) -> int:
        """Bytes of all blocks in use, those of kept sequences too."""
        return sum(pool.nbytes // pool.blocks * (pool.blocks - pool.free) for pool in self.sequence.pools)

    @property
    def blocks(self) -> CacheBlocks:
        """What became of the blocks, of all sequences together."""
        pools = self.sequence.pools
        return CacheBlocks(
            sum(pool.blocks - pool.free for pool in pools),
            sum(pool.shared for pool in pools),
            sum(pool.free for pool in pools),
            sum(pool.failures for pool in pools),
        )

    @property
    def held(self) -> tuple[tuple[int, ...], ...]:
        """The ids of every sequence there is, the growing one last."""
        return (*(tuple(ids) for ids, _ in self._kept), tuple(self.ids))

    @property
    def kept(self) -> tuple[tuple[list[int], PagedCaches], ...]:
        """The ids and caches of the sequences that are kept beside the growing one, older ones first."""
        return tuple(self._kept)

    def reuse(self, prompt: Sequence[int], most: int | None = None) -> int:
        """Keep the longest prefix of `prompt` that any cache holds, at most `most` ids of it; return its length.

        At least one id of the prompt is left to compute, since only computing gives logits.
        """
        self.recomputed = ""
        most = len(prompt) - 1 if most is None else min(most, len(prompt) - 1)
        turned = self.sequence.regime(len(prompt))

        def reach(ids: Sequence[int], sequence: PagedCaches) -> tuple[int, bool]:
            """Return how many ids of the prompt a sequence begins with, and whether it can go on from there."""
            same = _common(ids, prompt, most)
            return same, not same or (sequence.turned == turned and sequence.can_trim(same))

        same, usable = reach(self.ids, self.sequence)
        found = max(self._kept, key=lambda kept: reach(*kept), default=None)
        if found is not None and reach(*found) > (same, usable):
            same, usable = reach(*found)
            self._kept.remove(found)
            self._kept.append((self.ids, self.sequence))
            self.ids, self.sequence = found
            self.counts.returns += 1
        self._target = len(prompt)
        if not usable:
            self.recomputed = (
                "the window of its layers has moved past the place where the conversation changed"
                if self.sequence.turned == turned
                else "the model turns its positions differently at this length"
            )
            same = 0
        if same < len(self.ids) - 1:
            self._keep()
        self.counts.prompt_began(same, len(self.ids))
        self._trim(same)
        self.arrivals[:] = REUSED * same
        self.sequence.fit(len(prompt))
        return same

    def forward(self, ids: Sequence[int], probe: Probe = CLOSED, *, every_state: bool = False) -> torch.Tensor:
        """Append `ids` and return the logits after the last one, fp32 [V]; `states` has what the head reads of it.

        Where a layer raises, the caches are as before, or empty where a window or a rotation has moved on.

        Args:
            ids: At least one.
            probe: The taps.
            every_state: Have `states` of all ids.

        Raises:
            OutOfMemory: The blocks of the cache are used up.
        """
        self.states = self._append(ids, probe, every_position=every_state)
        return self._head(self.states[-1:], probe)[0]

    def verify(self, ids: Sequence[int], probe: Probe = CLOSED) -> torch.Tensor:
        """Append `ids` and return the logits after each of them, fp32 [T, V]; as `forward` otherwise."""
        self.states = self._append(ids, probe, every_position=True, later=GUESSED)
        return self._head(self.states, probe)

    def look(self, ids: Sequence[int], probe: Probe = CLOSED) -> torch.Tensor:
        """Compute the last of `ids` again, over what the caches hold of those before it, and change nothing there.

        Returns:
            What the head reads after it, activations [1, C].

        Raises:
            TinychatError: The caches don't hold enough of it any more; the sentence says why.
        """
        most = len(ids) - 1
        held = [(_common(held, ids, most), sequence) for held, sequence in ((self.ids, self.sequence), *self._kept)]
        same, sequence = max(held, key=lambda found: found[0])
        if same < len(ids) - STEP:
            raise TinychatError("The caches no longer hold what came before this token, so it can't be run again.")
        if same and sequence.regime(len(ids)) != sequence.turned:
            raise TinychatError("The model turns its positions differently by now, so this token can't be run again.")
        if not sequence.can_trim(same):
            raise TinychatError("The window of its layers has moved past this token, so it can't be run again.")
        aside = sequence.fork()
        try:
            aside.trim(same)
            aside.fit(len(ids))
            return self._step(ids[same:], probe, every_position=False, sequence=aside)
        finally:
            aside.trim(0)

    def ahead(self, most: int) -> int:
        """Return how many guessed ids, at most `most`, may be verified behind the next one.

        Where a longer sequence turns its positions differently, the next one's logits would be others than alone.
        """
        regime, length = self.sequence.regime, len(self.ids) + 1
        return next((count for count in range(most, 0, -1) if regime(length + count) == regime(length)), 0)

    def can_trim(self, length: int) -> bool:
        """Whether `trim` to this length is possible: a window may have moved on."""
        return self.sequence.can_trim(length)

    def trim(self, length: int) -> None:
        """Forget all ids from position `length` on, if there are any."""
        if length < len(self.ids):
            self.counts.refused += self.arrivals.count(GUESSED, length)
            self._trim(length)

    def clear(self) -> None:
        """Forget everything."""
        self._target = 0
        self._trim(0)
        while self._kept:
            self._drop()

    def _append(self, ids: Sequence[int], probe: Probe, *, every_position: bool, later: bytes = DRAWN) -> torch.Tensor:
        """Return what the head reads: of the last id, or of each. `later`: how those after the first come here, where
        they are none of a prompt's."""
        before = len(self.ids)
        total = max(before + len(ids), self._target)
        if before and self.sequence.turned != self.sequence.regime(total):
            # Keys in the caches are turned by other angles: the whole sequence is computed by the new ones.
            ids, before = [*self.ids, *ids], 0
            skipped = len(self.ids)
            arrivals = self.arrivals.replace(REUSED, COMPUTED)
            self._trim(0)
        else:
            skipped = 0
            arrivals = self.arrivals
        self.sequence.fit(total)
        try:
            parts = [
                # What was in the caches before needs no logits: of a long sequence they would take gigabytes.
                self._step(ids[start : start + STEP], probe, every_position=every_position and start + STEP > skipped)
                for start in range(0, len(ids), STEP)
            ]
        except BaseException:
            # After several steps, a window may have moved past what the first one began with.
            self._trim(before if self.can_trim(before) else 0)
            raise
        self.ids.extend(ids)
        new = len(ids) - skipped
        prompt = min(max(self._target - len(arrivals), 0), new)
        arrivals += COMPUTED * prompt + DRAWN * (new > prompt) + later * (new - prompt - 1)
        self.arrivals = arrivals
        self.counts.computed += prompt
        self.counts.recomputed += skipped
        return torch.cat(parts)[-(len(ids) - skipped) :] if every_position else parts[-1]

    def _head(self, states: torch.Tensor, probe: Probe) -> torch.Tensor:
        logits = self.model.logits(states)
        if probe:
            probe("unembed.hook_out", logits)
        return logits

    def _step(
        self, ids: Sequence[int], probe: Probe, *, every_position: bool, sequence: PagedCaches | None = None
    ) -> torch.Tensor:
        sequence = sequence or self.sequence
        tensor = torch.tensor(ids, dtype=torch.long, device=self.model.device)
        length = sequence.layers[0].length
        while True:
            try:
                return self.model.states(tensor, sequence.layers, probe, every_position=every_position)
            except OutOfMemory:
                sequence.trim(length)
                if not self._kept:
                    raise
                self._drop()

    def _keep(self) -> None:
        """Keep the sequence as it is; another takes its place, of the same blocks."""
        while len(self._kept) >= max(self.most_kept, 1):
            self._drop()
        if self.most_kept > 0:
            self._kept.append((self.ids[:], self.sequence))
            self.sequence = self.sequence.fork()
            self.counts.forks += 1

    def _drop(self) -> None:
        """Let go of the oldest sequence that is kept."""
        _, sequence = self._kept.pop(0)
        sequence.trim(0)

    def _trim(self, length: int) -> None:
        del self.ids[length:], self.arrivals[length:]
        self.sequence.trim(length)


def _common(ids: Sequence[int], prompt: Sequence[int], most: int) -> int:
    """Return how many ids both begin with, at most `most`."""
    most = min(len(ids), most)
    return next((i for i in range(most) if ids[i] != prompt[i]), most)
