"""Compares two runs case by case, and lists how their conditions differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gpubench.effects import ratio
from gpubench.errors import MisuseError
from gpubench.findings import FindingKind, doubts
from gpubench.interval import Interval, faster_words
from gpubench.models import BatchChoice, Case, Measurement, Run, Status
from gpubench.units import plain


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One case in both runs.

    Attributes:
        a, b: Throughputs [samples/s].
        ratio: B's throughput divided by A's.
        a_batch_choice, b_batch_choice: How each batch was chosen; None if unknown.
        a_findings, b_findings: The findings that make each throughput doubtful.
    """

    case: Case
    a: float
    b: float
    ratio: Interval
    a_batch_choice: BatchChoice | None = None
    b_batch_choice: BatchChoice | None = None
    a_findings: tuple[FindingKind, ...] = ()
    b_findings: tuple[FindingKind, ...] = ()

    @property
    def label(self) -> str:
        """The case in words, with the runs in which its batch is the largest that fits."""
        choices = (("A", self.a_batch_choice), ("B", self.b_batch_choice))
        searched = [name for name, choice in choices if choice == "largest"]
        if not searched:
            return self.case.label
        where = "" if len(searched) == len(choices) else f" in {searched[0]}"
        return f"{self.case.label}, the largest that fits{where}"

    def slower_than(self, tolerance: float) -> bool:
        """Whether B is slower than A by more than ``tolerance`` even at the favorable end of the interval."""
        return self.ratio.high is not None and self.ratio.high < 1 - tolerance

    def undecided_at(self, tolerance: float) -> bool:
        """Whether the interval contains the limit, so ``tolerance`` may or may not be exceeded."""
        surely_within = self.ratio.low is not None and self.ratio.low >= 1 - tolerance
        return not surely_within and not self.slower_than(tolerance)

    @property
    def verdict(self) -> str:
        """A sentence about the ratio and its interval."""
        return faster_words(self.ratio, "B", "A")

    def document(self) -> dict[str, Any]:
        """Return the row as in the JSON document."""
        return {**msgspec.to_builtins(self), "verdict": self.verdict}


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    """A case with a result in A but none in B, where it was also tried."""

    case: Case
    status: Status
    reason: str | None = None
    batch_choice: BatchChoice | None = None

    @property
    def label(self) -> str:
        """The case in words, from the measurement in B."""
        return Measurement(case=self.case, status=self.status, batch_choice=self.batch_choice).label


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of two runs, and how their conditions differ."""

    rows: tuple[Row, ...]
    broken: tuple[Broken, ...] = ()
    remarks: tuple[str, ...] = ()

    def slower(self, tolerance: float) -> tuple[Row, ...]:
        """Return the cases that are certainly slower in B by more than ``tolerance``."""
        return tuple(row for row in self.rows if row.slower_than(tolerance))

    def failed(self, tolerance: float | None) -> tuple[Row | Broken, ...]:
        """Return the cases that are slower by more than ``tolerance`` or broken in B; none without one."""
        return () if tolerance is None else (*self.slower(tolerance), *self.broken)

    def undecided(self, tolerance: float | None) -> tuple[Row, ...]:
        """Return the cases that neither pass nor fail, because the interval is too wide or unknown."""
        return () if tolerance is None else tuple(row for row in self.rows if row.undecided_at(tolerance))

    def document(self, tolerance: float | None) -> dict[str, Any]:
        """Return the document of ``gpubench compare --json``."""
        return {
            "rows": [row.document() for row in self.rows],
            "broken": self.broken,
            "remarks": self.remarks,
            "failed": [each.case for each in self.failed(tolerance)],
            "undecided": [each.case for each in self.undecided(tolerance)],
        }


def compare(a: Run, b: Run, *, across_devices: bool = False) -> Comparison:
    """Compare two runs case by case, by the ratio of B's throughput to A's.

    Only cases that agree in every field are compared, for example in workload, version, task, precision,
    execution, batch and GPU count. A case with a result in A that failed in B is ``broken``; a case that B
    never tried only gets a remark.

    Raises:
        MisuseError: If the devices differ without ``across_devices``, the protocols differ, or no case is in
            both runs.
    """
    names = [plain(run.device.gpu_key or run.device.name or run.device.backend) for run in (a, b)]
    if names[0] != names[1] and not across_devices:
        raise MisuseError(f"A is from {names[0]}, B from {names[1]}: pass --by device to compare devices")
    if a.protocol != b.protocol:
        raise MisuseError(
            f"A follows protocol {plain(a.protocol)}, B follows {plain(b.protocol)}: measure one again"
        )
    good = [{m.case: m for m in run.measurements if m.status is Status.OK} for run in (a, b)]
    common = [case for case in good[0] if case in good[1]]
    broken = tuple(
        Broken(case=m.case, status=m.status, reason=m.reason, batch_choice=m.batch_choice)
        for m in b.measurements
        if m.case in good[0] and m.case not in good[1]
    )
    if not common and not broken:
        raise MisuseError(
            f"the runs have no case in common: {_first_difference(a, b)}; to measure the same case, give "
            "gpubench run the same options, such as --batch-size, --precision and --execution"
        )
    rows = tuple(_row(good[0][case], good[1][case]) for case in common)
    compared = {*common, *(each.case for each in broken)}
    return Comparison(
        rows=rows, broken=broken, remarks=(*_launch_remarks(good, common), *_remarks(a, b, compared))
    )


def _row(a: Measurement, b: Measurement) -> Row:
    assert a.samples_per_s is not None  # status ok implies a result: record/run_file.py
    assert b.samples_per_s is not None
    return Row(
        case=a.case,
        a=a.samples_per_s,
        b=b.samples_per_s,
        ratio=ratio(b, a),
        a_batch_choice=a.batch_choice,
        b_batch_choice=b.batch_choice,
        a_findings=doubts(a.findings),
        b_findings=doubts(b.findings),
    )


def share_words(share: float) -> str:
    """Format a share as a percentage with at most four digits.

    >>> share_words(0.03), share_words(0.025)
    ('3 %', '2.5 %')
    """
    return f"{share * 100:.4g} %"


def _launch_remarks(good: Sequence[dict[Case, Measurement]], common: Sequence[Case]) -> list[str]:
    """Warn about a single launch: two such runs of the same code gave a ratio of 1.04 (1.01 to 1.07)."""
    named = zip(("A", "B"), good, strict=True)
    alone = [name for name, rows in named if any(rows[case].within_one_process for case in common)]
    if not alone:
        return []
    return [
        (
            f"only one launch in {' and '.join(alone)}, so variation between processes is unknown; "
            "before trusting a small ratio, measure both in several launches (--publish: eight)"
        )
    ]


def _remarks(a: Run, b: Run, compared: set[Case]) -> list[str]:
    remarks = []
    for name, run in (("A", a), ("B", b)):
        if run.interrupted:
            remarks.append(f"{name} was interrupted: gpubench run --resume {plain(run.run_id)} continues")
        if kinds := doubts(run.findings):
            remarks.append(f"{name} has doubtful findings: {', '.join(kinds)}; see gpubench check")
    names = ("torch", "cuda", "cudnn", "driver", "gpubench", "python", "cpu", "cpu_threads")
    conditions = {name: (getattr(a.environment, name), getattr(b.environment, name)) for name in names}
    conditions["budget"] = a.budget, b.budget
    if a.device.gpu_key == b.device.gpu_key:
        conditions |= {
            name: (getattr(a.device, name), getattr(b.device, name))
            for name in ("power_limit_w", "ecc_enabled")
        }
    of_a, of_b = a.environment.variables, b.environment.variables
    conditions |= {
        name: (of_a.get(name, "not set"), of_b.get(name, "not set")) for name in sorted(of_a.keys() | of_b)
    }
    remarks += [
        f"{plain(name)} differs: A {plain(str(first))}, B {plain(str(second))}"
        for name, (first, second) in conditions.items()
        if first != second
    ]
    left_out = {
        name: ", ".join(plain(m.label) for m in run.measurements if m.case not in compared)
        for name, run in (("A", a), ("B", b))
    }
    remarks += [
        f"not measured in both, so not compared: {labels} (in {name})"
        for name, labels in left_out.items()
        if labels
    ]
    return remarks


def _first_difference(a: Run, b: Run) -> str:
    # Name the fields in which the most similar pair of cases differs.
    differences = (_differences(first, second) for first in a.measurements for second in b.measurements)
    nearest = min(differences, key=len, default=None)
    return "; ".join(nearest) if nearest else "one of them has no cases"


def _differences(first: Measurement, second: Measurement) -> list[str]:
    names = [n for n in Case.__struct_fields__ if getattr(first.case, n) != getattr(second.case, n)]
    found = [f"{name} {getattr(first.case, name)} against {getattr(second.case, name)}" for name in names]
    if {first.status, second.status} == {Status.OK}:
        return found
    return [*found, f"status {first.status} against {second.status}"]
