"""The schemas of files: an old run is still read, and a case stores only the fields that it needs."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from gpubench.errors import MisuseError
from gpubench.models import (
    CHECK_VERSION,
    MEMORY_VERSION,
    RANKING_SCHEMA,
    RUN_VERSION,
    Case,
    Checkpointing,
    Framework,
    ParallelMode,
    Trainable,
    WeightType,
)
from gpubench.offers.snapshot import SNAPSHOT_VERSION
from gpubench.predict.answers import PREDICTION_VERSION
from gpubench.record import store

OLD = Path(__file__).parents[1] / "data" / "run_schema_1.json"
"""Written with the first schema; never rewrite it."""
NEW_FIELDS = {
    "framework": Framework.KERAS_JAX,
    "weight_type": WeightType.BFLOAT16,
    "checkpointing": Checkpointing.SELECTIVE,
    "trainable": Trainable.QLORA,
    "loss_chunks": 8,
    "prompt_tokens": 512,
    "new_tokens": 128,
    "cache_tokens": 640,
    "context_tokens": 4096,
    "stack": "fused",
    "threads": 2,
}
SPREAD_FIELDS = {"parallel_mode": ParallelMode.FSDP, "node_count": 2}


@pytest.fixture
def case(make_run) -> Case:
    return make_run().measurements[0].case


def test_a_run_of_the_first_schema_reads_with_the_defaults_and_is_written_as_the_current_one():
    stored = json.loads(OLD.read_bytes())
    assert stored["schema_version"] == 1
    run = store.read_run(OLD)
    assert run.schema_version == RUN_VERSION
    assert len(run.measurements) == len(stored["measurements"]) > 0
    for measurement, old in zip(run.measurements, stored["measurements"], strict=True):
        assert measurement.case.setup == {}
        assert measurement.case.parallel_mode is ParallelMode.SINGLE
        assert measurement.case.node_count == 1
        assert json.loads(msgspec.json.encode(measurement.case)) == old["case"]


def test_several_gpus_of_the_first_schema_were_one_data_parallel_job(case):
    old = json.loads(msgspec.json.encode(case)) | {"gpu_count": 4}
    assert "parallel_mode" not in old
    four = msgspec.convert(old, Case)
    assert four.parallel_mode is ParallelMode.DDP
    assert four == msgspec.structs.replace(case, gpu_count=4)
    assert msgspec.structs.replace(four, gpu_count=1) == case


@pytest.mark.parametrize("name", NEW_FIELDS)
def test_every_field_is_part_of_the_identity_is_stored_and_is_named(case, name):
    other = msgspec.structs.replace(case, **{name: NEW_FIELDS[name]})
    assert other != case
    assert other.label != case.label
    assert other.setup == {name: NEW_FIELDS[name]}
    assert json.loads(msgspec.json.encode(other))[name] == NEW_FIELDS[name]
    assert msgspec.json.decode(msgspec.json.encode(other), type=Case) == other


def test_a_sharded_job_over_nodes_is_another_case_than_a_replicated_one(case):
    eight = msgspec.structs.replace(case, gpu_count=8)
    other = msgspec.structs.replace(eight, **SPREAD_FIELDS)
    assert other != eight
    assert other.setup == {}, "the work of each GPU is the same"
    assert {"fsdp", "2 nodes"} <= set(other.setup_words)
    assert msgspec.json.decode(msgspec.json.encode(other), type=Case) == other


def test_every_field_added_after_the_first_schema_has_a_default_and_a_test(case):
    first = set(json.loads(OLD.read_bytes())["measurements"][0]["case"])
    assert set(Case.__struct_fields__) == first | set(NEW_FIELDS) | set(SPREAD_FIELDS)


@pytest.mark.parametrize(
    "changes",
    [
        {"node_count": 0},
        {"loss_chunks": 0},
        {"prompt_tokens": -1},
        {"cache_tokens": 10**12},
        {"node_count": 3},
    ],
)
def test_impossible_case_is_refused(tmp_path, make_run, changes):
    document = json.loads(msgspec.json.encode(make_run()))
    document["measurements"][0]["case"] |= changes
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document))
    with pytest.raises(MisuseError):
        store.read_run(path)


def test_files_that_an_older_gpubench_reads_keep_their_version():
    """An older gpubench refuses runs and snapshots of a newer version, so these stay at 2, while rankings are at 3."""
    assert RANKING_SCHEMA == "gpubench.ranking/3"
    written = (RUN_VERSION, SNAPSHOT_VERSION, MEMORY_VERSION, PREDICTION_VERSION)
    assert written == (2,) * 4
    assert CHECK_VERSION == 3
