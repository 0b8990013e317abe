"""Generating text for many requests in one step each. Worker process only.

A step is one `llama_decode`: first one row for each sequence that generates, then as many prompt tokens as are computed in a
bounded time, so that a long prompt never holds up those who are already reading, and leaves its slot soon when it is
cancelled. Sequences that wait for a slot, or for another's prefill of the same beginning, are simply not in the batch.

Every request has one sequence that is sure of a slot; the further choices of `n > 1` run in slots that nobody else needs, and
give theirs back to a new request. What they computed is then computed again, mostly from what their slot still holds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from cardcage_platform_llamacpp.binding import DECODE_NO_ROOM, Batch
from cardcage_platform_llamacpp.sampling import Candidates, token_logprob
from cardcage_platform_llamacpp.slots import Occupant, SlotTable
from cardcage_sdk.errors import EngineFailedError
from cardcage_sdk.events import Failed, Finished, Progress, Text, Timings, Usage

if TYPE_CHECKING:
    from cardcage_platform_llamacpp.binding import Context, Vocabulary
    from cardcage_platform_llamacpp.chunks import ChunkPacer
    from cardcage_platform_llamacpp.sampling import Sampler
    from cardcage_platform_llamacpp.slots import Slot
    from cardcage_sdk.engine import BatchOutput
    from cardcage_sdk.events import TokenLogprob

__all__ = ["GenerationLoop", "Sequence"]


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence(Occupant):
    """One answer in the making.

    Attributes:
        max_tokens: Most tokens to generate, or None for what the context holds.
        logprobs: Number of alternatives to report, or None.
        reuse: May start from what other requests computed.
    """

    request_id: str
    choice: int
    prompt_tokens: int
    sampler: Sampler
    max_tokens: int | None
    logprobs: int | None
    reuse: bool
    slot: Slot | None = None
    cached_tokens: int | None = None
    started_at: float = 0.0
    first_token_at: float = 0.0
    wanted_rows: int = field(default=0)

    @property
    def generated(self) -> int:
        """Tokens of the answer so far."""
        return self.length - self.prompt_tokens

    @property
    def is_generating(self) -> bool:
        """One token is all that is to be computed before the next can be chosen."""
        return self.generated > 0 and self.length - self.computed == 1


class GenerationLoop:
    """The running sequences of one context."""

    def __init__(
        self,
        context: Context,
        vocabulary: Vocabulary,
        *,
        slots: SlotTable,
        context_tokens: int,
        batch_tokens: int,
        pacer: ChunkPacer,
    ) -> None:
        self._context = context
        self._vocabulary = vocabulary
        self._table = slots
        self._context_tokens = context_tokens
        self._pacer = pacer
        self._batch = Batch(batch_tokens)
        self._candidates = Candidates(vocabulary.size)
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        """Take a sequence; it computes from the next step on."""
        sequence.started_at = time.monotonic()
        self._waiting.append(sequence)

    def find(self, request_id: str, choice: int) -> Sequence | None:
        """A sequence that has not ended."""
        for sequence in (*self._running, *self._waiting):
            if sequence.request_id == request_id and sequence.choice == choice:
                return sequence
        return None

    def cancel(self, request_id: str, choice: int | None) -> None:
        """Forget a request, or one choice of it."""
        for sequence in [*self._running, *self._waiting]:
            if sequence.request_id == request_id and choice in {None, sequence.choice}:
                self._remove(sequence)

    def _remove(self, sequence: Sequence) -> None:
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        if sequence.slot is not None:
            self._table.release(sequence.slot)
            sequence.slot = None
        sequence.sampler.close()

    # --- one step ---------------------------------------------------------------------------------------------------

    def step(self) -> list[tuple[str, BatchOutput]]:
        """Advance all of them."""
        self._admit()
        last_rows = self._fill()
        if not len(self._batch):
            return []
        started = time.monotonic()
        code = self._context.decode(self._batch)
        if any(not sequence.is_generating for sequence, _ in last_rows):
            self._pacer.measured(len(self._batch), time.monotonic() - started)
        if code == DECODE_NO_ROOM:
            return self._make_room()
        if code != 0:
            self._reset()
            raise EngineFailedError(f"llama_decode ended with {code}")
        outputs: list[tuple[str, BatchOutput]] = []
        for sequence, row in last_rows:
            sequence.computed += sequence.wanted_rows
            if sequence.computed < sequence.length:
                if sequence.choice == 0:
                    progress = Progress(prefill_tokens=sequence.computed, prompt_tokens=sequence.prompt_tokens)
                    outputs.append((sequence.request_id, progress))
                continue
            self._next_token(sequence, row, outputs)
        return outputs

    def _admit(self) -> None:
        """Give slots to those who wait, first choices before further ones."""
        self._waiting.sort(key=lambda sequence: sequence.choice > 0)  # stable: first come, first served
        for sequence in list(self._waiting):
            if not self._table.has_room and (sequence.choice > 0 or not self._preempt()):
                return
            placement = self._table.place(sequence.tokens[: sequence.length], reuse=sequence.reuse)
            if placement is None:
                continue
            keep = placement.keep
            if placement.source is not None:
                self._context.copy_sequence(
                    placement.source.index, placement.slot.index, held_tokens=len(placement.source.held)
                )
            if not self._context.cut_sequence(placement.slot.index, keep):
                self._context.cut_sequence(placement.slot.index, 0)
                keep = 0
            self._table.occupy(placement, sequence)
            sequence.computed = keep
            sequence.slot = placement.slot
            if sequence.cached_tokens is None:
                sequence.cached_tokens = keep
            self._waiting.remove(sequence)
            self._running.append(sequence)

    def _preempt(self) -> bool:
        """Take the slot of the further choice that loses least."""
        further = [sequence for sequence in self._running if sequence.choice > 0]
        if not further:
            return False
        victim = min(further, key=lambda sequence: sequence.generated)
        self._running.remove(victim)
        if victim.slot is not None:
            self._table.release(victim.slot)
            victim.slot = None
        victim.computed = 0
        self._waiting.append(victim)
        return True

    def _fill(self) -> list[tuple[Sequence, int]]:
        """Fill the batch; returns each sequence in it with the row of its last token."""
        generating = sum(sequence.is_generating for sequence in self._running)
        room = self._batch.capacity - generating
        room = min(room, self._pacer.rows(shared=generating > 0))
        for sequence in self._running:  # in order of admission: the first prompt is done first
            if sequence.is_generating:
                sequence.wanted_rows = 1
            else:
                sequence.wanted_rows = min(sequence.length - sequence.computed, room)
                room -= sequence.wanted_rows
        self._batch.clear()
        last_rows: list[tuple[Sequence, int]] = []
        for slot in self._table.occupied:
            running = slot.occupant
            if not isinstance(running, Sequence) or not running.wanted_rows:
                continue
            end = running.computed + running.wanted_rows
            row = self._batch.add(
                running.tokens[running.computed : end],
                sequence=slot.index,
                position=running.computed,
                output=end == running.length,
            )
            last_rows.append((running, row))
        return last_rows

    def _next_token(self, sequence: Sequence, row: int, outputs: list[tuple[str, BatchOutput]]) -> None:
        if not sequence.first_token_at:
            sequence.first_token_at = time.monotonic()
        if sequence.max_tokens == 0:
            self._finish(sequence, "length", outputs)
            return
        try:
            token = sequence.sampler.next(self._context, row, self._candidates)
            ends = token is None or token in self._vocabulary.end_tokens
            if token is not None and not ends:
                sequence.sampler.accept(token)
        except EngineFailedError as error:
            # An answer's form that is too much work to follow is that request's misfortune alone.
            self.cancel(sequence.request_id, None)
            outputs.append((sequence.request_id, Failed(error=error)))
            return
        if token is None or ends:
            self._finish(sequence, "stop", outputs)
            return
        logprobs: tuple[TokenLogprob, ...] = ()
        if sequence.logprobs is not None:
            logprobs = (token_logprob(self._context.logits(row), token, sequence.logprobs, self._vocabulary),)
        sequence.tokens[sequence.length] = token
        sequence.length += 1
        piece = self._vocabulary.pieces[token]
        outputs.append((sequence.request_id, Text(piece, (token,), logprobs, sequence.choice)))
        if sequence.sampler.is_complete:
            self._finish(sequence, "stop", outputs)
            return
        spent = sequence.max_tokens is not None and sequence.generated >= sequence.max_tokens
        if spent or sequence.length >= self._context_tokens:
            self._finish(sequence, "length", outputs)

    def _finish(self, sequence: Sequence, reason: str, outputs: list[tuple[str, BatchOutput]]) -> None:
        now = time.monotonic()
        usage = Usage(
            prompt_tokens=sequence.prompt_tokens,
            completion_tokens=sequence.generated,
            cached_tokens=sequence.cached_tokens,
        )
        timings = Timings(
            prefill_seconds=sequence.first_token_at - sequence.started_at,
            decode_seconds=now - sequence.first_token_at,
        )
        outputs.append(
            (sequence.request_id, Finished(reason=reason, usage=usage, timings=timings, choice=sequence.choice))
        )
        self._remove(sequence)

    def _make_room(self) -> list[tuple[str, BatchOutput]]:
        """The shared cache is full: drop what ended sequences left in it, then the newest request."""
        held = [slot for slot in self._table.slots if slot.occupant is None and len(slot.held)]
        for slot in held:
            self._context.cut_sequence(slot.index, 0)
            slot.left = np.zeros(0, dtype=np.int32)
        for sequence in self._running:
            # The batch may be in the cache up to where it did not fit.
            self._context.cut_sequence(sequence.slot.index if sequence.slot else 0, sequence.computed)
        if held:
            return []
        newest = self._running[-1]
        self.cancel(newest.request_id, None)
        error = EngineFailedError("the key-value cache that all slots share is full")
        return [(newest.request_id, Failed(error=error))]

    def _reset(self) -> None:
        """Start over with an empty context after a failed step."""
        for sequence in [*self._running, *self._waiting]:
            sequence.sampler.close()
        self._running.clear()
        self._waiting.clear()
        self._context.clear()
        self._table.forget()

    def close(self) -> None:
        """Free the samplers."""
        for sequence in [*self._running, *self._waiting]:
            sequence.sampler.close()
