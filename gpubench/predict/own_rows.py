"""The user's own runs as further cells of the calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpubench.models import Execution, GpuSpec, Measurement, Run, Status, TaskKind, WorkloadProfile
from gpubench.predict.anchors import DISTURBED, gpu_of
from gpubench.predict.published import Table
from gpubench.predict.roofline import Arithmetic, Work, arithmetic_of, cast_bytes_of, chips_of, stack, work_of
from gpubench.profile import load_profiles


class _Own(NamedTuple):
    spec: GpuSpec
    measurement: Measurement
    profile: WorkloadProfile
    samples_per_s: float


def own_table(runs: Sequence[Run]) -> Table | None:
    """GPU training rows of standard workloads, run as a CUDA graph, as a table; None where there is none.

    A graph keeps the host out of the figure; an eager row would teach the fit about this host's Python.
    """
    profiles = load_profiles()
    rows = [row for run in sorted(runs, key=lambda r: r.run_id) for row in _rows(run, profiles)]
    if not rows:
        return None
    works: list[Work] = []
    arithmetics: list[Arithmetic] = []
    for row in rows:
        case = row.measurement.case
        works.append(work_of(row.profile.train, case.batch_size, cast_bytes_of(row.profile, case.task)))
        arithmetics.append(arithmetic_of(case.precision, case.memory_format, 1))
    cells = sorted({_cell(row) for row in rows})
    batch = np.array([float(row.measurement.case.batch_size) for row in rows])
    n, work = len(rows), stack(works)
    return Table(
        source=np.full(n, "gpubench-graph", dtype=object),
        model=np.array([row.profile.name for row in rows], dtype=object),
        precision=np.array([str(row.measurement.case.precision) for row in rows], dtype=object),
        gpu_key=np.array([row.spec.key for row in rows], dtype=object),
        batch=batch,
        log_seconds=np.log(batch / np.array([row.samples_per_s for row in rows])),
        level_known=np.ones(n, dtype=bool),
        inference=np.zeros(n, dtype=bool),
        cell=np.array([cells.index(_cell(row)) for row in rows]),
        work=work,
        chips=chips_of([row.spec for row in rows]),
        arithmetic=stack(arithmetics),
        execution=np.full(n, "graph", dtype=object),
        torch=np.full(n, "", dtype=object),
        data_input=np.full(n, "synthetic", dtype=object),
        doubt=np.full(n, "", dtype=object),
        batch_low=batch,
        batch_high=batch,
        work_low=work,
        work_high=work,
    )


def _rows(run: Run, profiles: Mapping[str, WorkloadProfile]) -> list[_Own]:
    spec = gpu_of(run.device)
    if spec is None:
        return []
    found = []
    for m in run.measurements:
        case, profile = m.case, profiles.get(m.case.workload)
        wanted = (
            m.status is Status.OK
            and case.task is TaskKind.TRAIN
            and case.execution is Execution.GRAPH
            and case.gpu_count == 1
            and not case.setup
            and not any(f.kind in DISTURBED for f in m.findings)
        )
        if wanted and profile is not None and profile.version == case.workload_version and m.samples_per_s:
            found.append(_Own(spec, m, profile, m.samples_per_s))
    return found


def _cell(row: _Own) -> tuple[str, str]:
    return row.profile.name, str(row.measurement.case.precision)
