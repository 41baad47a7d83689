"""Derive how a step's memory grows with its batch from traces at a few batch sizes: as lines, or as points.

Two small batches determine a line for each moment of the step, and the peak is the highest of the lines: at a
small batch that may be the update of the weights, at a large one the loss. A third, large batch checks
whether the lines fit. If they do not (samples interact in pairs, or a large batch runs other operators), the
step is traced at more batches, up to the largest that can be requested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, pairwise, takewhile
from operator import add, eq, ne, sub
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from gpubench.arrays import Floats
from gpubench.models import MemoryLine, MemoryPoint, Recipe, StepMemory, TaskKind

BATCHES = (2, 4)
"""The two small batches. Neither is 1, because at a batch of 1 some layouts coincide and copies vanish."""
LARGE_BATCHES = (4096, 512, 64, 16)
"""The largest of these that can be traced checks whether the lines fit."""
LADDER = tuple(4**n for n in range(2, 11))
"""Batches to trace if the lines do not fit; the last is the largest that a batch search tries."""
TOLERANCE = 1e-3
"""A line fits a peak if they differ by at most this share of the peak: far below the error of the allowance's
fit, far above the rounding of a trace."""
# Shares of the gradients that one of several GPUs may hold
_SHARES = (1.0, 0.5, 0.25, 0.125, 0.0)


class Moment(NamedTuple):
    """Bytes alive after one operator.

    Attributes:
        gradients: The part in weight gradients.
        outputs: Model outputs that this step has freed. A loop with a variable for them would still hold
            them. They are not in the total.
    """

    total: int
    gradients: int
    outputs: int = 0


@dataclass(frozen=True)
class StepTrace:
    """The live bytes during one step at one batch size [B].

    Attributes:
        trained: The part of the weights that is trained.
        saved: Live after forward pass and loss, without weights, gradients and optimizer state.
    """

    timeline: Sequence[Moment]
    weights: int
    trained: int
    optimizer: int
    saved: int

    @property
    def keeping(self) -> StepTrace:
        """The same step in a loop that holds the model's outputs until the step ends."""
        return replace(self, timeline=[Moment(m.total + m.outputs, m.gradients) for m in self.timeline])


_T = TypeVar("_T")


LEAST_MIDDLE = 8
"""A middle (see ``longer``) with fewer events must match exactly, since it could match in several places."""


def longer(
    one: Sequence[_T], two: Sequence[_T], times: int, at: Callable[[_T, _T], _T] | None = None
) -> list[_T] | None:
    """Extrapolate the events of two models that differ by one period of layers to a model with more periods.

    An event is a kernel, a call, or a change of memory. A sequence of events passes each period once, or once
    forward and once backward with a middle in between.

    Args:
        one: The events of the shorter model, in order.
        two: The events of the longer one.
        times: How many more periods the new model has than the shorter one.
        at: Computes an event of the middle from those of the two models. One event of the middle may then
            differ: the one where everything that the layers hold is freed at once. None if none may differ.

    Returns:
        The events of the new model; None if the two models differ in another way.

    >>> "".join(longer("[fM b]", "[ffM bb]", 3))
    '[ffffM bbbb]'
    """
    place = _inserted(one, two, (0,) if at is None else (0, 1))
    if place is None:
        return None
    middle = one[place.before : place.end]
    return place.repeated(one, times, middle if at is None else map(at, middle, place.other_middle))


class _Inserted(NamedTuple):
    """The additional events of the longer of two models, and where they are.

    Attributes:
        before, end: Where the middle of the shorter model starts and ends.
        forward, backward: The additional events before and after the middle.
        other_middle: The middle of the longer model.
    """

    before: int
    forward: Sequence[Any]
    other_middle: Sequence[Any]
    backward: Sequence[Any]
    end: int

    def repeated(self, one: Sequence[_T], times: int, middle: Iterable[_T]) -> list[_T]:
        """Return the events of the shorter model with this middle and more periods."""
        periods = [*self.forward] * times, [*self.backward] * times
        return [*one[: self.before], *periods[0], *middle, *periods[1], *one[self.end :]]

    def at(self, events: Sequence[_T]) -> _Inserted | None:
        """Return the additional events at another batch size, given the shorter model's; None if unclear.

        The longer model was not traced there, so its additional period is assumed to equal the last one of
        the shorter model. That one must agree with the period before it in the half next to the middle. If
        not, the bounds of the period were found by chance, since events can be equal at one batch size and
        differ at another. The far halves may differ, because the first layer follows something else.
        """
        width, back = len(self.forward), len(self.backward)
        if self.before < 2 * width or self.end + 2 * back > len(events):
            return None
        earlier, forward = (events[self.before - n * width :][:width] for n in (2, 1))
        backward, later = (events[self.end + n * back :][:back] for n in (0, 1))
        if earlier[width // 2 :] != forward[width // 2 :] or later[: back // 2] != backward[: back // 2]:
            return None
        return self._replace(forward=forward, other_middle=events[self.before : self.end], backward=backward)


def _inserted(one: Sequence[Any], two: Sequence[Any], differing: Sequence[int]) -> _Inserted | None:
    # ``differing``: how many events of the middle may differ, the preferred number first
    before = _common_start(one, two)
    after = min(_common_start(one[::-1], two[::-1]), len(one) - before)
    end = len(one) - after
    middle, more = one[before:end], two[before : len(two) - after]
    for allowed in differing[:1] if len(middle) < LEAST_MIDDLE else differing:
        for forward in range(len(two) - len(one) + 1):  # number of events of the additional forward period
            backward = forward + len(middle)
            there = more[forward:backward]
            if sum(map(ne, middle, there)) == allowed:
                return _Inserted(before, more[:forward], there, more[backward:], end)
    return None


def _common_start(one: Sequence[object], two: Sequence[object]) -> int:
    return sum(takewhile(bool, map(eq, one, two)))


def _changes(step: StepTrace) -> list[Moment]:
    return [Moment(*map(sub, later, earlier)) for earlier, later in pairwise(step.timeline)]


def _after(moment: Moment, change: Moment) -> Moment:
    return Moment(*map(add, moment, change))


def longer_step(one: StepTrace, two: StepTrace, times: int) -> StepTrace | None:
    """Extrapolate the live bytes of a step to a model with more periods of layers. Args as in ``longer``."""

    def at(short: int, long: int) -> int:
        return short + times * (long - short)

    def moment_at(short: Moment, long: Moment) -> Moment:
        return Moment(*map(at, short, long))

    course = longer(_changes(one), _changes(two), times, moment_at)
    if course is None:
        return None

    start = moment_at(one.timeline[0], two.timeline[0])
    return StepTrace(
        timeline=[*accumulate(course, _after, initial=start)],
        weights=at(one.weights, two.weights),
        trained=at(one.trained, two.trained),
        optimizer=at(one.optimizer, two.optimizer),
        saved=at(one.saved, two.saved),
    )


def longer_step_at(other: StepTrace, one: StepTrace, two: StepTrace, times: int) -> StepTrace | None:
    """Extrapolate a step at another batch size, where only the shorter model was traced.

    Args:
        other: The step of the shorter model at that batch size.
        one: The step of the shorter model at a batch size where both were traced.
        two: The step of the longer one there.
        times: As in ``longer``.

    Returns:
        The step of the new model at that batch size; None if the three steps do not determine it.
    """
    short, events = _changes(one), _changes(other)
    place = _inserted(short, _changes(two), (0,))
    there = None if place is None or len(events) != len(short) else place.at(events)
    # Where both models were traced, the assumption of ``at`` must hold
    if place is None or there is None or place.at(short) != place:
        return None
    # A forward period must save all that it leaves alive
    saved, more_saved = (sum(change.total for change in each.forward) for each in (place, there))
    if two.saved - one.saved != saved:
        return None

    def at(name: str) -> int:
        return int(getattr(other, name) + times * (getattr(two, name) - getattr(one, name)))

    added = map(sub, two.timeline[0], one.timeline[0])
    start = Moment(*(held + times * more for held, more in zip(other.timeline[0], added, strict=True)))
    course = there.repeated(events, times, there.other_middle)
    return StepTrace(
        timeline=[*accumulate(course, _after, initial=start)],
        weights=at("weights"),
        trained=at("trained"),
        optimizer=at("optimizer"),
        saved=other.saved + times * more_saved,
    )


TraceAt = Callable[[int], StepTrace | None]
"""Traces the step at one batch size; returns None if that fails."""


def on_lines(one: StepTrace, two: StepTrace, kind: TaskKind, *, is_amp: bool, recipe: Recipe) -> StepMemory:
    """Return the step as lines through its moments at two batches; also for a loop that keeps outputs."""
    step = StepMemory(
        task=kind,
        is_amp=is_amp,
        lines=_lines(one.timeline, two.timeline),
        weights_bytes=float(one.weights),
        trained_bytes=float(one.trained),
        optimizer_bytes=float(one.optimizer),
        saved=_line(one.saved, two.saved),
        recipe=recipe,
    )
    kept = msgspec.structs.replace(step, lines=_lines(one.keeping.timeline, two.keeping.timeline))
    return msgspec.structs.replace(step, keeping=kept)


def beyond_lines(step: StepMemory, trace_at: TraceAt) -> StepMemory:
    """Check the lines of a step at large batches; if they do not fit, add points to the step.

    Args:
        step: The step as lines.
        trace_at: Traces a batch; batches for which it returns None are left out.
    """
    assert step.keeping is not None
    once = cache(trace_at)

    def keeping(batch_size: int) -> StepTrace | None:
        trace = once(batch_size)
        return None if trace is None else trace.keeping

    return msgspec.structs.replace(_beyond_lines(step, once), keeping=_beyond_lines(step.keeping, keeping))


def without_equal_loop(step: StepMemory) -> StepMemory:
    """Return the step without ``keeping``, if a loop that keeps the outputs takes about the same memory."""
    kept = step.keeping
    batches = (1, *BATCHES, *LADDER)
    if kept is None or all(kept.peak(n).at(n) <= (1 + TOLERANCE) * step.peak(n).at(n) for n in batches):
        return msgspec.structs.replace(step, keeping=None)
    return step


def _beyond_lines(step: StepMemory, trace_at: TraceAt) -> StepMemory:
    traced: dict[int, MemoryPoint] = {}

    def lines_fit(batch_size: int) -> bool | None:
        """Whether the lines fit the peak at this batch; None if the batch could not be traced."""
        found = trace_at(batch_size)
        if found is None:
            return None
        traced[batch_size] = point = _point(batch_size, found)
        peak = max(moment.fixed_bytes for moment in point.moments)
        likely = step.peak(batch_size).at(batch_size)
        return abs(peak - likely) <= TOLERANCE * peak

    tried = ((n, lines_fit(n)) for n in LARGE_BATCHES)
    large, is_line = next(((n, answer) for n, answer in tried if answer is not None), (None, None))
    if large is None:
        return msgspec.structs.replace(step, largest_traced=BATCHES[-1])
    if is_line:
        return step if large == LARGE_BATCHES[0] else msgspec.structs.replace(step, largest_traced=large)
    first = _on_line(step, BATCHES[-1])  # the last batch that the lines fit; points follow it
    for batch_size in LADDER:
        if batch_size == large:
            continue
        answer = lines_fit(batch_size)
        if answer is None and batch_size > large:
            break
        if answer and batch_size < large:
            first = traced.pop(batch_size)
    later = [traced[n] for n in sorted(traced) if n > first.batch_size]
    return msgspec.structs.replace(step, points=(first, *later))


def _point(batch_size: int, trace: StepTrace) -> MemoryPoint:
    flat = {
        MemoryLine(
            fixed_bytes=float(moment.total), bytes_per_sample=0.0, gradient_bytes=float(moment.gradients)
        )
        for moment in set(trace.timeline)
    }
    kept = dict.fromkeys(_highest(flat))
    return MemoryPoint(batch_size=batch_size, moments=tuple(kept), saved_bytes=float(trace.saved))


def _on_line(step: StepMemory, batch_size: int) -> MemoryPoint:
    # The point of a step at a batch that its lines fit
    moments = dict.fromkeys(step.peak(batch_size, share) for share in _SHARES)
    return MemoryPoint(
        batch_size=batch_size,
        moments=tuple(
            msgspec.structs.replace(line, fixed_bytes=line.at(batch_size), bytes_per_sample=0.0)
            for line in moments
        ),
        saved_bytes=step.saved_at(batch_size),
    )


# --- lines -----------------------------------------------------------------------------------------------


def _lines(one: Sequence[Moment], two: Sequence[Moment]) -> tuple[MemoryLine, ...]:
    """Return the lines that are highest at some batch, fitted to the same moments at two batch sizes.

    This is done for each share of the gradients that a GPU may hold, because if several GPUs shard them,
    another moment may be the highest.
    """
    if len(one) != len(two):  # the operators differ between batches: only the peaks can be compared
        one, two = [max(one)], [max(two)]
    lines = {
        _line(first.total, second.total, first.gradients) for first, second in zip(one, two, strict=True)
    }
    return tuple(sorted({*_highest(lines)}, key=lambda line: (line.bytes_per_sample, line.fixed_bytes)))


def _highest(lines: Iterable[MemoryLine]) -> list[MemoryLine]:
    """Return the lines that are the highest at some batch with some share of their gradients.

    For each share, they are the upper envelope of all lines at batches of at least 1, by slope. A line is
    repeated if it is in several envelopes.
    """
    lines = [*lines]
    amounts = [(line.fixed_bytes, line.bytes_per_sample, line.gradient_bytes) for line in lines]
    fixed, slope, gradient = np.array(amounts).T
    kept: list[MemoryLine] = []
    for share in _SHARES:
        held = fixed - (1 - share) * gradient
        # Of lines that are equal at this share, the last one is the highest at other shares
        order = np.lexsort((-gradient, fixed, held, slope))
        at_one = (held + slope)[order]
        above = np.maximum.accumulate(at_one[::-1])[::-1]
        order = order[np.append(at_one[:-1] > above[1:], True)]  # the others are below a steeper line
        kept += [lines[place] for place in _envelope(order.tolist(), held, slope)]
    return kept


def _envelope(places: Sequence[int], held: Floats, slope: Floats) -> list[int]:
    """Return the places of lines on the upper envelope; each line is steeper than the one before it."""

    def crossing(low: int, steep: int) -> float:
        """Return the batch size above which the steeper line is higher."""
        return float((held[low] - held[steep]) / (slope[steep] - slope[low]))

    kept: list[int] = []
    for steep in places:
        while len(kept) > 1 and crossing(kept[-2], steep) <= crossing(kept[-2], kept[-1]):
            kept.pop()
        kept.append(steep)
    return kept


def _line(at_small: int, at_large: int, gradients: int = 0) -> MemoryLine:
    # A line that does not fall with the batch, and is below neither value
    small, large = BATCHES
    slope = max(0.0, (at_large - at_small) / (large - small))
    fixed = max(at_small - small * slope, at_large - large * slope)
    return MemoryLine(fixed_bytes=fixed, bytes_per_sample=slope, gradient_bytes=float(gradients))
