"""Derive how a step's memory grows with its batch from traces at a few batch sizes: as lines, or as points.

Two small batches determine a line for each moment of the step, and the peak is the highest of the lines: at a
small batch that may be the update of the weights, at a large one the loss. A third, large batch checks
whether the lines fit. If they do not (samples interact in pairs, or a large batch runs other operators), the
step is traced at batches up to the largest that can be requested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, pairwise, takewhile
from operator import add, eq, ne, sub
from typing import Any, NamedTuple, TypeVar

import msgspec

from gpubench.models import MemoryLine, MemoryPoint, Recipe, StepMemory, TaskKind

BATCHES = (2, 4)
"""The two small batches. Neither is 1, because at a batch of 1 some layouts coincide and copies vanish."""
LARGE_BATCHES = (4096, 512, 64, 16)
"""The largest of these that can be traced checks whether the lines fit."""
LADDER = tuple(4**n for n in range(2, 11))
"""Batches to trace if the lines do not fit, up to the largest that a batch search tries."""
TOLERANCE = 1e-3
"""Largest relative distance of a peak from a line that fits: far below the error of the allowance's fit, far
above the rounding of a trace."""
# Shares of the gradients that one of several GPUs may hold
_SHARES = (1.0, 0.5, 0.25, 0.125, 0.0)


class Moment(NamedTuple):
    """Bytes alive after one operator.

    Attributes:
        gradients: The part in weight gradients.
        outputs: Model outputs that this step has freed, and that a loop with a variable for them would still
            hold. They are not in the total.
    """

    total: int
    gradients: int
    outputs: int = 0


@dataclass(frozen=True)
class StepTrace:
    """The live bytes during one step at one batch size [B].

    Attributes:
        trained: The weights that are trained.
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
"""With fewer events in the middle (see ``longer``), none may differ: it could match in several places."""


def longer(
    one: Sequence[_T], two: Sequence[_T], times: int, at: Callable[[_T, _T], _T] | None = None
) -> list[_T] | None:
    """Extrapolate the events of two models that differ by one period of layers to a model with more periods.

    A sequence passes each period once, or once forward and once backward with a middle between them.

    Args:
        one: The events of the shorter model, in order.
        two: The events of the longer one.
        times: How many more periods the new model has than the shorter one.
        at: Computes an event of the middle from those of the two models. One event may then differ: the one
            where everything that the layers hold is freed at once. None if no event may differ.

    Returns:
        The events of the new model; None if the two differ in another way.

    >>> "".join(longer("[fM b]", "[ffM bb]", 3))
    '[ffffM bbbb]'
    """
    place = _inserted(one, two, (0,) if at is None else (0, 1))
    if place is None:
        return None
    middle = one[place.before : place.end]
    return place.repeated(one, times, middle if at is None else map(at, middle, place.other_middle))


class _Inserted(NamedTuple):
    """Where a longer model has additional events; ``before`` to ``end`` is the middle of the shorter one."""

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
        """Return the same for the shorter model's events at another batch size, or None if that is unclear.

        The longer model was not traced there. It has one more period, like the last one of the shorter model.
        That period must agree with the one before it on the side of the middle. If not, its bounds were found
        by chance, since events can be equal at one batch size and differ at another. The far ends may differ,
        because the first layer follows something else.
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
    before = _shared(one, two)
    after = min(_shared(one[::-1], two[::-1]), len(one) - before)
    end = len(one) - after
    middle, more = one[before:end], two[before : len(two) - after]
    for allowed in differing[:1] if len(middle) < LEAST_MIDDLE else differing:
        for forward in range(len(two) - len(one) + 1):  # number of events of the additional forward period
            backward = forward + len(middle)
            there = more[forward:backward]
            if sum(map(ne, middle, there)) == allowed:
                return _Inserted(before, more[:forward], there, more[backward:], end)
    return None


def _shared(one: Sequence[object], two: Sequence[object]) -> int:
    return sum(takewhile(bool, map(eq, one, two)))  # length of the common prefix


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
        The step of the new model at that batch size; None if the three do not determine it.
    """
    short, events = _changes(one), _changes(other)
    place = _inserted(short, _changes(two), (0,))
    there = None if place is None or len(events) != len(short) else place.at(events)
    if place is None or there is None or place.at(short) != place:
        return None
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
    """Return the step as lines through its moments at the two small batches, for both kinds of loop."""
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
    """Check the lines of a step at large batches, and add points to it if they do not fit.

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
    """Return the step without ``keeping``, the loop that holds outputs, if it takes about the same memory."""
    kept = step.keeping
    batches = (1, *BATCHES, *LADDER)
    if kept is None or all(kept.peak(n).at(n) <= (1 + TOLERANCE) * step.peak(n).at(n) for n in batches):
        return msgspec.structs.replace(step, keeping=None)
    return step


def _beyond_lines(step: StepMemory, trace_at: TraceAt) -> StepMemory:
    traced: dict[int, MemoryPoint] = {}

    def holds(batch_size: int) -> bool | None:
        """Whether the lines fit this batch; None if it could not be traced."""
        found = trace_at(batch_size)
        if found is None:
            return None
        traced[batch_size] = point = _point(batch_size, found)
        peak = max(moment.fixed_bytes for moment in point.moments)
        likely = step.peak(batch_size).at(batch_size)
        return abs(peak - likely) <= TOLERANCE * peak

    tried = ((n, holds(n)) for n in LARGE_BATCHES)
    large, is_line = next(((n, answer) for n, answer in tried if answer is not None), (None, None))
    if large is None:
        return msgspec.structs.replace(step, largest_traced=BATCHES[-1])
    if is_line:
        return step if large == LARGE_BATCHES[0] else msgspec.structs.replace(step, largest_traced=large)
    first = _on_line(step, BATCHES[-1])  # the last batch that the lines fit; points follow it
    for batch_size in LADDER:
        if batch_size == large:
            continue
        answer = holds(batch_size)
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
    kept = dict.fromkeys(line for share in _SHARES for line in _highest(flat, share))
    return MemoryPoint(batch_size=batch_size, moments=tuple(kept), saved_bytes=float(trace.saved))


def _on_line(step: StepMemory, batch_size: int) -> MemoryPoint:
    # The point of a step at a batch that its lines fit.
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

    Each share of the gradients that a GPU may hold is considered, because another moment may be the highest
    if several GPUs shard the gradients.
    """
    if len(one) != len(two):  # the operators differ between batches: only the peaks can be compared
        one, two = [max(one)], [max(two)]
    lines = {
        _line(first.total, second.total, first.gradients) for first, second in zip(one, two, strict=True)
    }
    kept = {line for share in _SHARES for line in _highest(lines, share)}
    return tuple(sorted(kept, key=lambda line: (line.bytes_per_sample, line.fixed_bytes)))


def _highest(lines: Iterable[MemoryLine], share: float) -> list[MemoryLine]:
    """Return the lines that are the highest at some batch with this share of their gradients, by slope.

    They are the upper envelope of all lines at batches of at least 1.
    """
    found: dict[float, tuple[tuple[float, float, float], MemoryLine]] = {}
    for line in lines:
        held = line.fixed_bytes - (1 - share) * line.gradient_bytes
        # of two that are equal at this share, keep the one that is higher at other shares
        rank = held, line.fixed_bytes, -line.gradient_bytes
        if line.bytes_per_sample not in found or found[line.bytes_per_sample][0] < rank:
            found[line.bytes_per_sample] = rank, line

    def crossing(low: tuple[float, MemoryLine], steep: tuple[float, MemoryLine]) -> float:
        """Return the batch size above which the steeper line is higher."""
        return (low[0] - steep[0]) / (steep[1].bytes_per_sample - low[1].bytes_per_sample)

    kept: list[tuple[float, MemoryLine]] = []
    for slope in sorted(found):
        (held, *_), line = found[slope]
        steep = held, line
        while kept and kept[-1][0] + kept[-1][1].bytes_per_sample <= steep[0] + slope:
            kept.pop()  # the steeper one is above it from a batch of 1 on
        while len(kept) > 1 and crossing(kept[-2], steep) <= crossing(kept[-2], kept[-1]):
            kept.pop()
        kept.append(steep)
    return [line for _, line in kept]


def _line(at_small: int, at_large: int, gradients: int = 0) -> MemoryLine:
    # A line that does not fall, and is nowhere below the two values
    small, large = BATCHES
    slope = max(0.0, (at_large - at_small) / (large - small))
    fixed = max(at_small - small * slope, at_large - large * slope)
    return MemoryLine(fixed_bytes=fixed, bytes_per_sample=slope, gradient_bytes=float(gradients))
