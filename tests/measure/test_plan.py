"""From a request to cases: defaults, order and refusals, without a device."""

from __future__ import annotations

import re
from itertools import pairwise

import msgspec
import pytest
import torch
from click.testing import CliRunner

from gpubench import memory, predict
from gpubench.cli.app import app
from gpubench.discovery import load_workload
from gpubench.errors import MisuseError
from gpubench.executions import OF_TORCH
from gpubench.measure.budget import DEFAULT, PUBLISH
from gpubench.measure.launcher import Record
from gpubench.measure.messages import Place, place_under_torchrun
from gpubench.measure.plan import Group, Plan, PlannedCase, check_request, plan
from gpubench.measure.request import RunRequest
from gpubench.measure.step import built, move
from gpubench.models import (
    BlockSizes,
    Checkpointing,
    DeviceProfile,
    Execution,
    Framework,
    MemoryFormat,
    ParallelMode,
    Precision,
    Status,
    TaskKind,
    Trainable,
    WeightType,
)
from gpubench.options import asked_recipe
from gpubench.profile import classic_names, load_profiles, profile_of, profiles_of
from gpubench.session import resume, session

KNOWN = ("cnn", "lstm", "vgg16")


@pytest.fixture
def profiles(make_profile):
    vgg16 = make_profile(
        "vgg16", batches=(32, 64, 128), train_flops_per_sample=92.65e9, forward_flops_per_sample=30.94e9
    )
    return {
        "cnn": make_profile("cnn"),
        "lstm": make_profile("lstm", is_image=False),
        "vgg16": vgg16,
        "resnet50": make_profile("resnet50"),
    }


def labels(made):
    return [planned.case.label for planned in made.cases]


def test_the_default_suite_of_a_gpu_is_seven_graphs_at_the_main_batch_in_three_launches(h100, profiles):
    made = plan(RunRequest(), h100, profiles)
    cases = {planned.case for planned in made.cases}
    both = (Precision.FP32, Precision.AMP_BF16)
    assert {(c.workload, c.precision) for c in cases} == {
        *((name, precision) for name in ("cnn", "lstm", "vgg16") for precision in both),
        ("resnet50", Precision.AMP_BF16),
    }
    assert {c.execution for c in cases} == {Execution.GRAPH}
    batches = {(c.workload, c.batch_size) for c in cases if c.workload != "resnet50"}
    assert batches == {("cnn", 512), ("lstm", 512), ("vgg16", 64)}
    assert len(made.cases) == 7
    assert made.budget == DEFAULT


def test_the_modern_suite_is_four_networks_at_amp_eager_and_compiled(h100):
    made = plan(RunRequest(suite="modern"), h100, load_profiles())
    names = ("resnet50", "vit_b16", "bert_base", "llama_1b")
    assert {(p.case.workload, p.case.precision, p.case.execution) for p in made.cases} == {
        (name, Precision.AMP_BF16, execution)
        for name in names
        for execution in (Execution.EAGER, Execution.COMPILE)
    }


def test_named_precisions_and_executions_replace_those_of_the_suite(h100, profiles):
    made = plan(RunRequest(precisions=("fp32", "tf32"), executions=("eager",)), h100, profiles)
    assert len(made.cases) == 4 * 2
    assert {p.case.execution for p in made.cases} == {Execution.EAGER}
    assert {p.case.precision for p in made.cases} == {Precision.FP32, Precision.TF32}


def test_the_first_figure_of_a_run_is_the_amp_case_of_the_most_arithmetic(h100):
    for seed in range(20):
        first = plan(RunRequest(seed=seed), h100, load_profiles()).units()[0].planned.case
        assert (first.workload, first.precision) == ("vgg16", Precision.AMP_BF16)


def test_the_limits_of_a_plan_add_up_and_a_time_limit_caps_them(h100, profiles):
    made = plan(RunRequest(), h100, profiles)
    assert made.most_s() == 3 * 7 * (DEFAULT.warmup_most_s + DEFAULT.timed_s)
    assert plan(RunRequest(time_limit_s=50.0), h100, profiles).most_s() == 50.0
    assert plan(RunRequest(micro="only"), h100, profiles).most_s() == 0.0


def test_a_row_records_whether_it_convolves_and_its_target(h100):
    """From the shipped profiles, through the plan or a resumed one, to the stored measurement."""
    profiles = load_profiles()
    asked = RunRequest(workloads=("cnn", "lstm", "resnet50", "bert_base"), budget="default")
    made = plan(asked, h100, profiles)
    record = Record(plan=made, device=h100)
    rows = [record.measurement(unit, {}) for unit in made.units()]
    convolving = {"cnn": True, "lstm": False, "resnet50": True, "bert_base": False}
    assert {row.case.workload: row.convolves for row in rows} == convolving
    assert {row.target for row in rows} == {0.015}
    again = [resume._planned(p.case, {n: (n, x) for n, x in profiles.items()}) for p in made.cases]
    assert again == list(made.cases)


def test_publish_measures_every_execution_in_eight_launches_of_thirty_seconds(h100, profiles):
    made = plan(RunRequest(budget="publish"), h100, profiles)
    assert {p.case.execution for p in made.cases} == set(OF_TORCH)
    assert made.budget == PUBLISH


def test_an_older_gpu_gets_fp16_and_no_tf32(h100, profiles):
    t4 = msgspec.structs.replace(h100, compute_capability=(7, 5))
    made = plan(RunRequest(precisions=("fp32", "amp")), t4, profiles)
    assert {p.case.precision for p in made.cases} == {Precision.FP32, Precision.AMP_FP16}
    assert {p.case.precision for p in plan(RunRequest(), t4, profiles).cases} == {
        Precision.FP32,
        Precision.AMP_FP16,
    }


def test_a_cpu_gets_eager_the_quick_budget_and_batches_it_can_run(cpu, profiles):
    made = plan(RunRequest(), cpu, profiles)
    cases = [planned.case for planned in made.cases]
    assert {c.execution for c in cases} == {Execution.EAGER}
    assert {c.precision for c in cases} == {Precision.FP32, Precision.AMP_BF16}
    assert {(c.workload, c.batch_size) for c in cases} == {("cnn", 64), ("lstm", 64), ("vgg16", 1)}
    assert made.budget.launches == 1
    assert (made.budget.name, made.budget.warmup_steps) == ("quick", 5)


def test_heavy_user_model_on_a_cpu_uses_the_smallest_batch_it_can_train(cpu, profiles):
    """Batch norm over a single value cannot train at batch 1."""
    own = msgspec.structs.replace(profiles["vgg16"], name="mine.py")
    made = plan(RunRequest(workloads=("./mine.py",)), cpu, {"./mine.py": own})
    assert {planned.case.batch_size for planned in made.cases} == {2}


@pytest.mark.parametrize(("batches", "batch"), [((1, 8, 32), 8), ((2, 8), 2), ((1,), 1)])
def test_a_users_light_model_has_more_than_one_sample_on_a_cpu_if_possible(cpu, profiles, batches, batch):
    """Batch norm over a single value cannot train at batch 1."""
    own = msgspec.structs.replace(
        profiles["cnn"], name="mine.py", batches=batches, train_flops_per_sample=1e3
    )
    made = plan(RunRequest(workloads=("./mine.py",)), cpu, {"./mine.py": own})
    assert {planned.case.batch_size for planned in made.cases} == {batch}


def test_a_cpu_without_bf16_instructions_gets_only_fp32_with_the_reason(cpu, profiles):
    plain = msgspec.structs.replace(cpu, tensor_core_precisions=())
    assert {p.case.precision for p in plan(RunRequest(), plain, profiles).cases} == {Precision.FP32}
    made = plan(RunRequest(precisions=("fp32", "amp")), plain, profiles)
    assert {m.status for m in made.unsupported} == {Status.UNSUPPORTED}
    assert {m.reason.endswith("no bf16 instructions") for m in made.unsupported} == {True}


def test_a_missing_requested_execution_is_unsupported_with_its_reason(cpu, profiles):
    made = plan(RunRequest(precisions=("fp32", "tf32"), executions=("eager", "graph")), cpu, profiles)
    reasons = {(m.case.precision, m.case.execution): m.reason for m in made.unsupported}
    assert "tensor cores" in reasons[Precision.TF32, Execution.EAGER]
    assert "CUDA graph" in reasons[Precision.FP32, Execution.GRAPH]
    with pytest.raises(MisuseError, match="here: tf32"):
        plan(RunRequest(precisions=("tf32",)), cpu, profiles)


def test_the_memory_format_is_the_faster_one_and_part_of_the_case(h100, profiles):
    formats = {
        (p.case.workload, p.case.precision): p.case.memory_format
        for p in plan(RunRequest(precisions=("fp32", "tf32", "amp")), h100, profiles).cases
    }
    assert formats["vgg16", Precision.FP32] is MemoryFormat.CONTIGUOUS
    assert formats["vgg16", Precision.TF32] is MemoryFormat.CHANNELS_LAST
    assert formats["vgg16", Precision.AMP_BF16] is MemoryFormat.CHANNELS_LAST
    assert formats["lstm", Precision.AMP_BF16] is None


def test_launches_are_interleaved_in_an_order_that_the_seed_fixes(h100, profiles):
    made = plan(RunRequest(seed=7), h100, profiles)
    units = made.units()
    assert units == plan(RunRequest(seed=7), h100, profiles).units()
    assert units != plan(RunRequest(seed=8), h100, profiles).units()
    assert len(units) == 3 * 7
    per_launch = [[u.planned.case for u in units if u.launch == n] for n in range(3)]
    assert per_launch[0] != per_launch[1]
    assert {frozenset(cases) for cases in per_launch} == {frozenset(p.case for p in made.cases)}


def test_a_launch_is_one_process_and_its_executions_follow_each_other(h100, profiles):
    units = plan(RunRequest(budget="publish"), h100, profiles).units()
    for launch in range(8):
        group = [u.planned.case for u in units if u.launch == launch]
        assert {u.group for u in units if u.launch == launch} == {Group(launch)}
        assert {c.precision for c in group} == {Precision.FP32, Precision.AMP_BF16}
        executions = [c.execution for c in group]
        first_compile = executions.index(Execution.COMPILE)
        assert set(executions[first_compile:]) == {Execution.COMPILE}
        for eager, graph in zip(group[:first_compile:2], group[1:first_compile:2], strict=True):
            assert msgspec.structs.replace(eager, execution=Execution.GRAPH) == graph


def test_the_order_within_one_process_changes_from_launch_to_launch(h100, profiles):
    made = plan(RunRequest(executions=("eager",), budget="publish"), h100, profiles)
    orders = {tuple(u.planned.case for u in made.units() if u.launch == launch) for launch in range(8)}
    assert len(orders) > 4
    assert len({frozenset(order) for order in orders}) == 1


def test_eager_comes_before_graph_in_any_order_of_the_request(h100, profiles):
    units = plan(RunRequest(executions=("graph", "eager")), h100, profiles).units()
    for eager, graph in zip(units[::2], units[1::2], strict=True):
        assert eager.planned.case.execution is Execution.EAGER
        assert graph.planned.case == msgspec.structs.replace(eager.planned.case, execution=Execution.GRAPH)


@pytest.mark.parametrize("variable", ["NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"])
def test_fp32_is_refused_while_a_variable_forces_tf32_and_named(h100, profiles, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    with pytest.raises(MisuseError, match=f"unset {variable}"):
        plan(RunRequest(), h100, profiles)
    with pytest.raises(MisuseError, match=f"unset {variable}"):
        plan(RunRequest(micro="only"), h100, profiles)
    assert plan(RunRequest(precisions=("tf32",)), h100, profiles).cases
    monkeypatch.setenv(variable, "0")
    assert plan(RunRequest(), h100, profiles).cases


def test_fp32_on_a_cpu_is_refused_while_a_variable_lowers_its_precision(cpu, profiles, monkeypatch):
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
    for request in (RunRequest(), RunRequest(micro="only")):
        with pytest.raises(MisuseError, match="unset ONEDNN_DEFAULT_FPMATH_MODE"):
            plan(request, cpu, profiles)
    for strict in ("", "strict"):
        monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", strict)
        assert plan(RunRequest(), cpu, profiles).cases


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpus": 2, "batch_size": "max"}, "--batch-size max is for one GPU"),
        ({"gpus": 2, "micro": "only"}, "`--micro only` is for one GPU"),
        ({"jobs": "fsdp"}, "--jobs fsdp is for several GPUs: add --gpus N"),
        ({"strong": True}, "--strong is for several GPUs: add --gpus N"),
        ({"gpus": 2, "strong": True, "jobs": "independent"}, "leave out --jobs independent"),
        ({"gpus": 2, "strong": True, "task": "infer"}, "leave out --task infer"),
        ({"micro": "only", "precisions": ("fp32",)}, "`--micro only` runs no workload"),
        ({"micro": "only", "asked": ("workload", "micro")}, "`--micro only` runs no workload"),
        ({"micro": "only", "task": "infer"}, "`--micro only` runs no workload"),
        ({"micro": "only", "trainable": "lora"}, "`--micro only` runs no workload"),
        ({"resume": "latest", "asked": ("resume", "gpus")}, "leave out --gpus"),
        ({"resume": "latest", "asked": ("workload",), "workloads": ("cnn",)}, "leave out workloads by name"),
        ({"device": "toaster"}, "'toaster' is not a device"),
        (
            {"suite": "modern", "workloads": ("cnn",)},
            "--suite measures its own workloads: leave out the workloads",
        ),
    ],
)
def test_an_impossible_request_is_refused_in_one_line(changes, words):
    with pytest.raises(MisuseError, match=words) as caught:
        check_request(RunRequest(**changes), KNOWN)
    assert "\n" not in str(caught.value)


def test_all_means_every_workload_and_repeated_names_count_once():
    assert check_request(RunRequest(workloads=("all", "cnn")), KNOWN).workloads == KNOWN


def test_micro_only_has_no_case_and_the_micro_benchmarks_of_a_run_come_once(h100, cpu, profiles):
    alone = plan(RunRequest(micro="only"), DeviceProfile(backend="cpu"), {})
    assert (alone.cases, alone.micro_left, alone.budget.launches) == ((), True, 1)
    made = plan(RunRequest(), h100, profiles)
    assert made.micro_left
    begun = frozenset({(made.cases[0].case, 0)})  # the run stopped before them
    assert msgspec.structs.replace(made, done=begun).micro_left
    assert not msgspec.structs.replace(made, done=begun, has_micro=True).micro_left
    assert not plan(RunRequest(micro="none"), h100, profiles).micro_left
    assert not plan(RunRequest(frameworks=(Framework.KERAS_JAX,)), cpu, profiles).micro_left


def test_several_gpus_and_one_are_timed_eagerly_in_separate_processes(h100, profiles):
    made = plan(RunRequest(gpus=4, precisions=("amp",)), h100, profiles, (h100,) * 3)
    counts = {(p.case.workload, p.case.execution, p.case.gpu_count) for p in made.cases}
    assert counts == {
        (name, execution, count)
        for name in profiles
        for execution, count in ((Execution.GRAPH, 1), (Execution.EAGER, 4))
    }
    assert made.peers == (h100,) * 3
    groups = [unit.group for unit in made.units()]
    assert len({*groups}) == sum(a != b for a, b in pairwise(groups)) + 1 == 3 * 2  # none is opened twice


BLOCKS = BlockSizes(count=2, largest_parameters=4, outside_parameters=2)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"gpus": 4, "jobs": "fsdp"}, (64, "fsdp", 1)),
        ({"gpus": 4, "strong": True}, (16, "ddp", 1)),
        ({"gpus": 2, "nnodes": 2, "strong": True}, (16, "ddp", 2)),
        ({"gpus": 4, "jobs": "independent"}, (64, "independent", 1)),
    ],
)
def test_the_way_several_gpus_share_work_is_part_of_the_case(h100, make_profile, options, expected):
    request = RunRequest(
        workloads=("net",), precisions=("fp32",), executions=("eager",), batch_size=64, **options
    )
    assert check_request(request, ("net",)).gpus == options["gpus"]
    made = plan(request, h100, {"net": make_profile("net", blocks=BLOCKS)}, (h100,) * (options["gpus"] - 1))
    one, all_ = sorted((p.case for p in made.cases), key=lambda case: case.gpu_count)
    assert (one.gpu_count, one.parallel_mode, one.node_count) == (1, "single", 1)
    assert (all_.batch_size, all_.parallel_mode, all_.node_count) == expected
    assert (one.batch_size, all_.gpu_count) == (64, 4)
    assert one in {all_.on_one_gpu, all_.whole_on_one_gpu}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"task": "infer"}, "fsdp is only for training"),
        ({"precisions": ("amp-fp16",)}, "scales gradients"),
    ],
)
def test_a_job_that_cannot_be_sharded_is_refused_before_one_gpu_is_timed(h100, make_profile, options, reason):
    request = RunRequest(workloads=("net",), gpus=2, jobs="fsdp", executions=("eager",), **options)
    with pytest.raises(MisuseError, match=f"2 GPUs at once: .*{reason}"):
        plan(request, h100, {"net": make_profile("net", blocks=BLOCKS)}, (h100,))


@pytest.mark.parametrize(("jobs", "mode"), [(None, "fsdp"), ("ddp", "ddp"), ("independent", "independent")])
def test_a_workload_made_for_sharding_is_sharded_unless_requested_otherwise(h100, make_profile, jobs, mode):
    request = RunRequest(workloads=("net",), gpus=2, jobs=jobs, executions=("eager",), precisions=("fp32",))
    profile = make_profile("net", blocks=BLOCKS, parallel_mode=ParallelMode.FSDP)
    made = plan(request, h100, {"net": profile}, (h100,))
    assert {p.case.parallel_mode for p in made.cases} == {"single", mode}


def test_an_unshardable_model_next_to_a_shardable_one_is_unsupported_with_its_reason(h100, make_profile):
    request = RunRequest(
        workloads=("net", "flat"), gpus=2, jobs="fsdp", executions=("eager",), precisions=("fp32",)
    )
    profiles = {"net": make_profile("net", blocks=BLOCKS), "flat": make_profile("flat")}
    made = plan(request, h100, profiles, (h100,))
    assert {(p.reference, p.case.gpu_count) for p in made.cases} == {("net", 1), ("net", 2), ("flat", 1)}
    (refused,) = made.unsupported
    assert "no repeated block" in refused.reason


def test_a_batch_that_cannot_be_sharded_evenly_is_refused(h100, make_profile):
    with pytest.raises(MisuseError, match="64 is not a multiple of 3"):
        plan(
            RunRequest(workloads=("net",), gpus=3, strong=True, batch_size=64),
            h100,
            {"net": make_profile("net")},
            (h100, h100),
        )


def test_a_graph_of_several_gpus_is_unsupported_with_its_reason(h100, profiles):
    made = plan(RunRequest(gpus=2, executions=("eager", "graph")), h100, profiles, (h100,))
    assert {(m.case.gpu_count, m.case.execution) for m in made.unsupported} == {(2, "graph")}
    with pytest.raises(MisuseError, match="are measured eagerly"):
        plan(RunRequest(gpus=2, executions=("graph",)), h100, profiles, (h100,))
    assert "jobs on several GPUs" in made.unsupported[0].reason


def test_a_workload_that_is_never_trained_is_not_a_data_parallel_job(h100, make_profile):
    profiles = {"augment": make_profile("augment", tasks=(TaskKind.INFER,))}
    with pytest.raises(MisuseError, match=r"2 GPUs .* never trained"):
        plan(RunRequest(workloads=("augment",), gpus=2), h100, profiles, (h100,))


def test_inference_of_a_training_workload_is_refused_and_of_an_inference_workload_implied(h100, make_profile):
    tasks = {"lora": (TaskKind.TRAIN,), "augment": (TaskKind.INFER,)}
    profiles = {name: make_profile(name, tasks=each) for name, each in tasks.items()}
    with pytest.raises(MisuseError, match=r"inference of lora is not modeled: .* --task infer$"):
        plan(RunRequest(workloads=("lora",), task="infer"), h100, profiles)
    made = plan(RunRequest(workloads=("lora", "augment")), h100, profiles)
    assert {(each.case.workload, each.case.task) for each in made.cases} == {
        ("lora", TaskKind.TRAIN),
        ("augment", TaskKind.INFER),
    }


def test_a_job_of_unequal_gpus_uses_what_all_of_them_support(h100, profiles):
    """amp means float16 if one of the GPUs has no bfloat16; a named precision is refused only for the job."""
    t4 = DeviceProfile(backend="cuda", name="Tesla T4", compute_capability=(7, 5))
    asked = RunRequest(gpus=2, executions=("eager",))
    usual = plan(asked, h100, profiles, (t4,))
    assert {p.case.precision for p in usual.cases} == {Precision.FP32, Precision.AMP_FP16}
    named = plan(msgspec.structs.replace(asked, precisions=("fp32", "amp-bf16")), h100, profiles, (t4,))
    assert {p.case.gpu_count for p in named.cases if p.case.precision is Precision.AMP_BF16} == {1}
    reasons = {m.reason for m in named.unsupported}
    assert {m.case.gpu_count for m in named.unsupported} == {2}
    assert all((reason or "").startswith("Tesla T4: ") for reason in reasons)


# --- under a user's torchrun --------------------------------------------------------------------------------


TOLD = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
}
PLACE = Place(rank=5, size=8, local_rank=1, local_size=4)


@pytest.fixture
def tell(monkeypatch):
    def told(**changes: str | None) -> None:
        for name, value in (TOLD | changes).items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)

    return told


def test_the_rank_comes_from_torchrun(tell):
    tell()
    assert place_under_torchrun() == PLACE
    assert PLACE.machines == 2


def test_without_torchrun_or_as_its_only_process_a_run_is_unchanged(tell):
    tell(TORCHELASTIC_RUN_ID=None)  # other launchers also set the size of a world
    assert place_under_torchrun() is None
    tell(WORLD_SIZE="1", RANK="0", LOCAL_WORLD_SIZE="1", LOCAL_RANK="0")
    assert place_under_torchrun() is None


def test_run_must_use_the_machines_given_by_torchrun():
    request = session.with_torchrun_size(RunRequest(), PLACE)
    assert (request.gpus, request.nnodes, request.gpu_count) == (4, 2, 8)
    session.check_process_count(request, PLACE)
    session.check_process_count(RunRequest(gpus=2), None)
    for wrong, place in (
        (session.with_torchrun_size(RunRequest(gpus=3), PLACE), PLACE),
        (RunRequest(gpus=4, nnodes=2), None),
        (RunRequest(gpus=4, nnodes=3), PLACE),
    ):
        start = f"torchrun --nnodes {wrong.nnodes} --nproc-per-node {wrong.gpus} "
        with pytest.raises(MisuseError, match=re.escape(start)):
            session.check_process_count(wrong, place)


def test_command_runs_the_first_launch_missing_from_any_case(make_case):
    one, other = (make_case(batch_size=size) for size in (1, 2))
    cases = tuple(PlannedCase(reference="vgg16", case=case) for case in (one, other))
    made = Plan(budget=DEFAULT, seed=0, cases=cases)

    def launches(*done) -> int:
        return session.one_launch(msgspec.structs.replace(made, done=frozenset(done))).budget.launches

    assert launches() == 1
    assert launches((one, 0)) == 1
    assert launches((one, 0), (other, 0)) == 2
    # A failed case has no further launches.
    assert launches((one, 0), *((other, index) for index in range(3))) == 2


def test_a_run_keeps_the_id_of_the_previous_attempt(monkeypatch):
    monkeypatch.setattr(session, "_run_numbers", iter((0, 1)))
    first, second = session.run_id_under_torchrun(), session.run_id_under_torchrun()
    assert re.fullmatch(r"\d{8}t\d{6}z-[0-9a-f]{8}", first)
    assert first != second
    monkeypatch.setattr(session, "_run_numbers", iter((0,)))
    assert session.run_id_under_torchrun() == first


# --- the recipe of a case -----------------------------------------------------------------------------------


def planned(device, **asked):
    request = RunRequest(**asked)
    profiles = profiles_of(request.workloads, asked_recipe(request), gpu_count=request.gpu_count)
    return plan(request, device, profiles, (device,) * (request.gpus - 1))


def test_a_model_of_a_billion_weights_is_trained_in_bfloat16_and_also_under_amp(h100):
    made = planned(h100, workloads=("llama_1b",), executions=("graph",))
    found = {p.case.precision: p.case for p in made.cases}
    assert {*found} == {Precision.BF16, Precision.AMP_BF16}
    assert found[Precision.BF16].weight_type is WeightType.BFLOAT16
    assert found[Precision.AMP_BF16].weight_type is WeightType.FLOAT32
    assert {c.loss_chunks for c in found.values()} == {8}
    assert {c.checkpointing for c in found.values()} == {Checkpointing.NONE}


def test_the_requested_recipe_is_in_the_case_and_its_profile(h100):
    made = planned(
        h100, workloads=("llama_1b",), executions=("graph",), precisions=("bf16",), checkpointing="full"
    )
    (one,) = made.cases
    assert one.case.checkpointing is Checkpointing.FULL
    assert "full checkpointing" in one.case.label
    usual, again = profile_of("llama_1b"), profile_of("llama_1b", {"checkpointing": "full"})
    assert again.recipe.checkpointing is Checkpointing.FULL
    assert again.train_flops_per_sample == usual.train_flops_per_sample == one.flops_per_sample
    assert one.hardware_flops_per_sample == again.hardware_flops_per_sample
    extra = again.hardware_flops_per_sample - usual.hardware_flops_per_sample
    head = 2 * 2048 * 2048 * 128_256
    last = 16 * 2 * 2048 * 8192 * 2048  # the last product of each layer: nothing needs its output again
    assert extra == pytest.approx(usual.forward_flops_per_sample - head - last)


@pytest.mark.usefixtures("traced_as_asked")
@pytest.mark.parametrize(
    ("name", "asked", "tokens"),
    [
        ("llama_1b", {}, 2048),
        pytest.param("llama_1b", {"context_tokens": 512}, 512, marks=pytest.mark.slow),
        ("vit_b16", {}, None),
        ("llama_8b", {"task": "infer"}, None),
    ],
)
def test_case_records_its_tokens_per_sample(h100, name, asked, tokens):
    """A generation has no single number: prompt tokens are computed at once, new tokens one by one."""
    made = planned(h100, workloads=(name,), executions=("graph",), **asked)
    assert {each.tokens_per_sample for each in made.cases} == {tokens}


@pytest.mark.parametrize(
    ("asked", "how"),
    [
        ({}, Checkpointing.FULL),
        ({"gpus": 7, "jobs": "fsdp"}, Checkpointing.FULL),
        ({"gpus": 8, "jobs": "fsdp"}, Checkpointing.SELECTIVE),
        ({"gpus": 4, "nnodes": 2, "jobs": "fsdp"}, Checkpointing.SELECTIVE),
        ({"gpus": 2, "jobs": "fsdp", "checkpointing": "selective"}, Checkpointing.SELECTIVE),
        ({"gpus": 8, "jobs": "fsdp", "checkpointing": "full"}, Checkpointing.FULL),
    ],
)
def test_below_eight_gpus_every_block_is_computed_again_by_default(h100, asked, how):
    """The row of one GPU has the recipe of the job, so the gain from more GPUs is for the same work."""
    made = planned(h100, workloads=("llama_8b_fsdp",), executions=("eager",), **asked)
    cases = [planned.case for planned in made.cases]
    assert {case.gpu_count for case in cases} == {1, asked.get("gpus", 1) * asked.get("nnodes", 1)}
    assert {case.checkpointing for case in cases} == {how}
    (work,) = {planned.hardware_flops_per_sample for planned in made.cases}
    named = profile_of("llama_8b_fsdp", {"checkpointing": how.value})
    assert work == named.hardware_flops_per_sample


def test_a_frozen_base_stays_in_its_type_and_other_precisions_are_refused(h100):
    (one,) = planned(h100, workloads=("llama_8b_lora",), executions=("graph",)).cases
    assert (one.case.trainable, one.case.weight_type) == (Trainable.LORA, WeightType.BFLOAT16)
    with pytest.raises(MisuseError, match="supports bf16, not fp32"):
        planned(h100, workloads=("llama_8b_lora",), precisions=("fp32",))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"workloads": ("cnn",), "checkpointing": "full"}, "cnn: checkpointing full cannot be set"),
        ({"workloads": ("cnn",), "trainable": "lora"}, "cnn: --lora cannot be set: it has only one recipe"),
        ({"workloads": ("cnn",), "context_tokens": 12}, "cnn: --context 12 cannot be set: .*; leave it out"),
        (
            {"workloads": ("llama_1b",), "prompt_tokens": 512},
            "it takes weight_type, checkpointing, loss_chunks",
        ),
    ],
)
def test_a_recipe_option_that_a_workload_lacks_is_refused_in_one_line(h100, asked, words):
    with pytest.raises(MisuseError, match=words) as caught:
        planned(h100, **asked)
    assert "\n" not in str(caught.value)


def test_all_excludes_workloads_that_need_a_large_card():
    assert "vgg16" in classic_names()
    assert not {"llama_1b", "llama_8b_lora"} & {*classic_names()}


def test_any_model_is_cast_for_bf16_and_the_cast_is_in_the_case(h100):
    made = planned(h100, workloads=("cnn",), precisions=("bf16",), executions=("eager",), batch_size=2)
    case = made.cases[0].case
    assert (case.precision, case.weight_type) == (Precision.BF16, WeightType.BFLOAT16)
    assert case.execution is Execution.EAGER
    work = move(built("cnn", case, 0), case, torch.device("cpu"))
    assert {p.dtype for p in work.model.parameters()} == {torch.bfloat16}
    assert work.batches[0][0].dtype is torch.bfloat16
    assert work.edge_loss(work.step(0), 0) > 0


def test_changed_recipe_builds_a_changed_model():
    workload = load_workload("llama_1b")
    again = workload.at(workload.recipe.changed({"checkpointing": "full", "loss_chunks": 2}))
    assert again.name == workload.name
    model = again.tiny(2, 0).model
    assert (model.recipe.checkpointing, model.recipe.loss_chunks) == (Checkpointing.FULL, 2)


@pytest.mark.parametrize("verb", [("memory",), ("predict", "show"), ("rank",), ("run", "--device", "cpu")])
@pytest.mark.parametrize(
    ("weights", "precision"), [("float32", "bf16"), ("bfloat16", "amp"), ("float16", "fp32")]
)
def test_weights_that_a_precision_would_override_are_refused_by_every_verb(verb, weights, precision):
    words = (*verb, "--workload", "vgg16", "--recipe", f"weight-type={weights}", "--precision", precision)
    refused = CliRunner().invoke(app, words).exception
    assert isinstance(refused, MisuseError), refused
    assert f"vgg16: weights in {weights} at {precision}" in str(refused)
    assert "\n" not in str(refused)


@pytest.mark.parametrize("ask", [memory, predict])
def test_options_given_with_a_profile_are_not_dropped(ask):
    profile = profile_of("llama_1b")
    given = [profile] if ask is memory else profile
    found = ask(given, gpu="L4", batch_size=1, checkpointing="full")
    case = found[0].case if ask is memory else found["nvidia-l4-24gb"].case
    assert case.checkpointing is Checkpointing.FULL
    with pytest.raises(MisuseError, match="loss in 3 chunks"):
        ask(given, gpu="L4", batch_size=1, loss_chunks=3)
    with pytest.raises(MisuseError, match="float32 at bf16"):
        ask(given, gpu="L4", batch_size=1, precision="bf16", weight_type="float32")
