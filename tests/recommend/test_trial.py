"""The task of a trial: in SkyPilot's format, capped in time and money, and no name reaches a shell."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from datetime import date
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

import jsonschema
import msgspec
import pytest

from gpubench.cli.table import TryRequest
from gpubench.errors import MisuseError
from gpubench.folders import data_rows
from gpubench.models import RANKING_SCHEMA, Pricing
from gpubench.options import options_of, request_from, words_of
from gpubench.recommend import trial
from gpubench.recommend.rank import document
from gpubench.recommend.request import Range, RankRequest
from gpubench.recommend.trial import (
    Row,
    accelerator,
    carried,
    choose,
    clouds,
    package_to_install,
    run_of,
    tasks_of,
    usd_of,
    why_not,
    work_of,
    write_trial,
)
from gpubench.specs import load_specs

from .builders import A100, H100, L4, RTX5090, T4, estimate, offer, rank_of

yaml = pytest.importorskip("yaml")

VGG16 = RankRequest(workloads=("vgg16",))
NAMES = {"vgg16": "vgg16"}
SOURCE = "./gpubench-source[run]"


@pytest.fixture(autouse=True)
def _no_packing(monkeypatch, request):
    """Skip reading every file of the package, which takes a second, except in tests that ask for ``packs``."""
    if "packs" not in request.fixturenames:
        monkeypatch.setattr(trial, "package_to_install", lambda: (SOURCE, {"gpubench-source/a.py": b"a"}))


@pytest.fixture
def packs():
    """Let a test gather the package for real."""


def rows_of(ranking) -> tuple[Row, ...]:
    return tuple(msgspec.convert(row.flat(), Row) for row in ranking.rows)


def row_of(given, **asked) -> Row:
    (row,) = rows_of(rank_of([given], {given.gpu_key: 3000}, gpus=(given.gpu_key,), **asked))
    return row


def task(given, request=VGG16, minutes=5):
    row = row_of(given)
    return tasks_of(row, work_of(row, request, minutes), minutes)["sky"]


def ranking():
    offers = [
        offer(L4, 0.4, provider="gcp", instance="g2-standard-4", region="us-central1"),
        offer(H100, 3.0, provider="aws", instance="p5.4xlarge", region="us-east-1"),
        offer(H100, 3.1, provider="aws", instance="p5.4xlarge", region="us-west-2"),
        offer(RTX5090, 0.5, provider="civo", instance="1RTX5090"),
        offer(T4, 0.5, provider="aws", instance="g4dn.xlarge"),
    ]
    return rank_of(offers, {L4: 500, H100: 3000, RTX5090: 900, T4: estimate(T4, 200, basis="measured")})


def answered(folder: Path, ranking, request: RankRequest = VGG16) -> Path:
    """Return a file with the output of ``gpubench rank --json``."""
    path = folder / "answer.json"
    path.write_bytes(msgspec.json.encode(document(ranking, request), enc_hook=str))
    return path


def written(folder: Path, ranking, request: RankRequest = VGG16, gpu: str | None = None, minutes: float = 10):
    """Return the task and the script from a ranking, and the messages."""
    said = write_trial(answered(folder, ranking, request), folder / "tasks", gpu, minutes)
    text = (folder / "tasks" / "task.yaml").read_text()
    return yaml.safe_load(text), (folder / "tasks" / "try.sh").read_text(), said


# --- which machine ------------------------------------------------------------------------------------------


def test_the_best_row_that_can_be_rented_is_the_task(tmp_path):
    task, script, made = written(tmp_path, ranking())
    reason = "SkyPilot does not rent from civo and dstack does not rent from civo"
    assert [each.partition(": ")[2] for each in made.passed_over] == [reason]
    assert made.machine.startswith("1x L4 at gcp g2-standard-4: about ")
    assert task["name"] == "gpubench-gcp-1x-l4"
    assert task["resources"]["infra"] == "gcp/us-central1"
    assert task["resources"]["accelerators"] == "L4:1"
    assert "instance_type" not in task["resources"]
    assert task["resources"]["autostop"] == {"idle_minutes": 5, "down": True}
    assert task["workdir"] == "work"
    assert (tmp_path / "tasks" / "work" / "gpubench-source" / "a.py").read_bytes() == b"a"
    assert "--time-limit 600" in task["run"]
    assert task["setup"].rstrip().endswith(f"~/gpubench-venv/bin/python '{SOURCE}'")
    for command in (task["setup"], task["run"], script):
        assert subprocess.run(["sh", "-n"], input=command, text=True, check=False).returncode == 0


def test_explicitly_named_gpu_is_the_one_measured(tmp_path):
    task, _, made = written(tmp_path, ranking(), gpu="h100")
    assert task["resources"]["infra"] == "aws/us-east-1"
    assert task["resources"]["instance_type"] == "p5.4xlarge"
    assert "accelerators" not in task["resources"]
    assert task["resources"]["max_hourly_cost"] == pytest.approx(3.75)
    assert not made.passed_over


def test_a_tool_without_a_task_is_reported_with_its_reason(tmp_path, capsys):
    at_paperspace = rank_of([offer(H100, 3.0, provider="paperspace", instance="H100")], {H100: 3000})
    request = TryRequest(answer=answered(tmp_path, at_paperspace), output=tmp_path / "tasks")
    import_module("gpubench.cli.verbs.try").verb(request, as_json=True)
    out, err = capsys.readouterr()
    assert json.loads(out)["without_task"] == {"dstack": "dstack does not rent from paperspace"}
    assert "no dstack task: dstack does not rent from paperspace\n" in err
    assert {path.name for path in (tmp_path / "tasks").iterdir()} == {"task.yaml", "try.sh", "work"}


def test_an_offer_that_neither_tool_can_launch_is_refused_with_the_reasons(tmp_path):
    for gpu, words in (
        ("rtx 5090", "1x RTX 5090 at civo 1RTX5090: SkyPilot does not rent from civo"),
        ("t4", "it has been measured already"),
        ("b200", "it has no b200"),
    ):
        with pytest.raises(MisuseError, match=words):
            written(tmp_path, ranking(), gpu=gpu)
    with pytest.raises(MisuseError, match="unknown GPU 'h1000'"):
        written(tmp_path, ranking(), gpu="h1000")
    bought = rank_of([offer(H100, 2.0, pricing=Pricing.OWNED, kind="owned")], {H100: 3000})
    with pytest.raises(MisuseError, match="not rented by the hour"):
        written(tmp_path, bought)
    assert not (tmp_path / "tasks").exists()


def test_a_spot_price_without_skypilot_support_is_skipped():
    spot = offer(H100, 1.0, provider="lambda", instance="gpu_1x_h100_sxm5", pricing=Pricing.SPOT)
    rows = rows_of(rank_of([spot, offer(H100, 3.0, provider="aws")], {H100: 3000}, spot=True))
    row, passed_over = choose(rows, None)
    assert (row.provider, passed_over) == ("lambda", [])
    assert why_not(row, "sky") == "SkyPilot does not rent spot machines there"
    assert [*tasks_of(row, work_of(row, VGG16, 5), 5)] == ["dstack"]


def test_a_cloud_may_name_a_gpu_in_its_own_way_or_not_have_it():
    sxm = offer(H100, 3.0, provider="runpod", instance="H100 SXM")
    assert task(sxm)["resources"]["accelerators"] == "H100-SXM:1"
    pcie = "nvidia-tesla-v100-pcie-16gb"
    row = row_of(offer(pcie, 0.2, provider="runpod"))
    assert why_not(row, "sky") == "SkyPilot has no name for this GPU there"
    gpu = tasks_of(row, work_of(row, VGG16, 5), 5)["dstack"]["resources"]["gpu"]
    assert gpu == {"name": "V100", "count": 1, "memory": "14GB.."}


@pytest.mark.parametrize(
    ("gpu_key", "provider", "instance", "chooses"),
    [
        ("nvidia-v100-unstated-16gb", "verda", "1V100.6V", {"accelerators": "V100:1"}),
        ("nvidia-v100-unstated-16gb", "lambda", "gpu_8x_v100", {"instance_type": "gpu_8x_v100"}),
        ("nvidia-a100-unstated-80gb", "gcp", "a2", {"accelerators": "A100-80GB:1"}),
    ],
)
def test_offer_without_form_factor_can_be_launched(gpu_key, provider, instance, chooses):
    given = offer(gpu_key, 0.2, provider=provider, instance=instance)
    row, passed_over = choose((row_of(given),), None)
    assert (row.instance, passed_over) == (instance, [])
    resources = task(given)["resources"]
    assert {name: resources[name] for name in chooses} == chooses


def test_offer_without_form_factor_is_named_only_if_skypilot_has_one_name_for_it():
    """If SkyPilot distinguishes the form factors, no single name matches the offer."""
    for key, spec in load_specs().items():
        names = {accelerator("", each) for each in spec.variants} - {""}
        assert accelerator("", key) in (names or {""}) or not spec.variants, key
    assert not accelerator("runpod", "nvidia-h100-unstated-80gb")


def test_every_gpu_name_of_a_trial_is_a_known_gpu():
    named = list(data_rows("rented_gpus.csv"))
    assert {row["gpu_key"] for row in named} <= set(load_specs())
    assert {row["provider"] for row in named} <= {"", *clouds()}
    assert len({(row["provider"], row["gpu_key"]) for row in named}) == len(named) > 40
    for tool in ("sky", "dstack"):
        named_by_tool = [row[tool] for row in clouds().values() if row[tool]]
        assert len({*named_by_tool}) == len(named_by_tool) >= 10
    for row in clouds().values():
        assert {row[name] for name in ("autostop", "spot", "instance_names", "regions")} <= {"yes", "no"}


# --- the task -----------------------------------------------------------------------------------------------


def test_the_likely_and_the_maximum_cost_are_reported(tmp_path):
    """10 minutes of measuring, 15 of set-up, 5 idle at 3.00 USD/h: 1.50; cut off after 35 at no more than 3.75: 2.19."""
    task, script, made = written(tmp_path, ranking(), gpu="h100")
    machine = made.machine
    assert machine == "1x H100 SXM5 80GB at aws p5.4xlarge: about $1.50, at most $2.19"
    assert (
        (tmp_path / "tasks" / "task.yaml")
        .read_text()
        .startswith(f"# {machine}, at the price of 2026-11-20.\n")
    )
    assert "timeout --foreground 2100 sky launch" in script
    assert task["resources"]["max_hourly_cost"] * 35 / 60 == pytest.approx(2.19, abs=0.01)


def test_the_cost_counts_tax_and_whole_billing_increments():
    """Half an hour at 3.00 and 20 %: 1.80; billed by the hour 3.60."""
    assert usd_of(RankRequest(tax=0.2), 3.0, 30) == pytest.approx(1.8)
    assert usd_of(RankRequest(tax=0.2, billing_minutes=60), 3.0, 30) == pytest.approx(3.6)


def test_a_spot_machine_is_requested_as_spot():
    spot = offer(
        T4, 0.15, provider="azure", instance="Standard_NC4as_T4_v3", region="eastus", pricing=Pricing.SPOT
    )
    row = row_of(spot, spot=True)
    work = work_of(row, VGG16, 5)
    tasks = tasks_of(row, work, 5)
    task = tasks["sky"]
    assert tasks["dstack"]["spot_policy"] == "spot"
    assert task["resources"]["use_spot"] is True
    assert task["resources"]["infra"] == "azure/eastus"
    assert task["resources"]["instance_type"] == "Standard_NC4as_T4_v3"


def test_cloud_without_autostop_gets_a_task_without_autostop():
    verda = offer(H100, 3.0, provider="verda", instance="1H100.80S.30V")
    assert "autostop" not in task(verda)["resources"]
    assert task(verda)["resources"]["infra"] == "verda"
    assert "autostop" in task(offer(H100, 3.0, provider="aws"))["resources"]


@pytest.mark.parametrize(
    ("gpu_key", "pins"),
    [("nvidia-tesla-v100-sxm2-16gb", "--torch-backend cu126 'torch==2.14.*' "), (H100, "")],
)
def test_a_task_installs_a_build_of_torch_that_has_kernels_for_its_gpu(gpu_key, pins):
    setup = task(offer(gpu_key, 1.0, provider="lambda", instance="one"))["setup"]
    assert setup.splitlines()[-1].endswith(f"/bin/python {pins}'{SOURCE}'")


def test_hostile_names_stay_data(tmp_path):
    hostile = offer(H100, 3.0, provider="aws", instance="x'; rm -rf /\n#", region="$(reboot)")
    request = RankRequest(workloads=("a'; reboot #",), regions=("$(reboot)",))
    task, script, _ = written(tmp_path, rank_of([hostile], {H100: 3000}), request)
    assert task["resources"]["infra"] == "aws"
    assert task["resources"]["accelerators"] == "H100:1"
    assert "instance_type" not in task["resources"]
    for command in (task["run"], script):
        assert subprocess.run(["sh", "-n"], input=command, text=True, check=False).returncode == 0
    assert shlex.split(task["run"].splitlines()[-1])[4:6] == ["--workload", "a'; reboot #"]
    assert shlex.split(script.splitlines()[-1])[-2:] == ["--region", "$(reboot)"]
    assert "\n#'" not in script


SCHEMAS = Path(__file__).parents[1] / "data" / "schemas"


def faults(value, schema):
    """Return what in a task does not match the schema of a tool."""
    return [each.message for each in jsonschema.Draft202012Validator(schema).iter_errors(value)]


GIVEN = [
    offer(H100, 3.0, provider="aws", instance="p5.4xlarge", region="us-east-1"),
    offer(L4, 0.4, provider="gcp", instance="g2-standard-4"),
    offer(T4, 0.15, provider="azure", pricing=Pricing.SPOT),
    offer(H100, 24.0, provider="runpod", gpu_count=8),
    offer(RTX5090, 0.4, provider="lium", instance="rtx 5090"),
]


@pytest.mark.parametrize("given", GIVEN, ids=lambda given: given.provider)
@pytest.mark.parametrize("name", ["vgg16", "llama-3.1-8b"])
def test_each_tool_accepts_its_task_by_its_own_schema(given, name):
    """The schemas are those of skypilot 0.14.1 and dstack 0.22.5; `tests/data/schemas` has the source."""
    row = row_of(given, spot=given.pricing is Pricing.SPOT)
    work = work_of(row, RankRequest(workloads=(name,)), 5)
    tasks = tasks_of(row, work, 5)
    assert [*tasks] == (["dstack"] if given.provider == "lium" else ["sky", "dstack"])
    sky, dstack = (json.loads((SCHEMAS / f"{tool}.json").read_text()) for tool in ("skypilot", "dstack"))
    assert not faults(tasks["dstack"], dstack["schema"])
    if "sky" in tasks:
        assert not faults(tasks["sky"], sky["task"])
        assert not faults(tasks["sky"]["resources"], sky["resources"])


def test_invalid_task_fails_the_dstack_schema():
    row = row_of(GIVEN[0])
    schema = json.loads((SCHEMAS / "dstack.json").read_text())["schema"]
    task = tasks_of(row, work_of(row, VGG16, 5), 5)["dstack"]
    for field, value in (("max_hourly_cost", 3.0), ("max_price", "dear"), ("backends", ["amazon"])):
        assert faults(task | {field: value}, schema), field


@pytest.mark.network
def test_skypilot_and_dstack_accept_the_tasks_themselves():
    """Opt-in: it needs ``pip install skypilot dstack``, which are not our dependencies."""
    configurations = pytest.importorskip("dstack._internal.core.models.configurations")
    row = row_of(GIVEN[0])
    given = tasks_of(row, work_of(row, VGG16, 5), 5)["dstack"]
    assert configurations.TaskConfiguration.model_validate(given)
    schemas = pytest.importorskip("sky.utils.schemas")
    assert not faults(task(GIVEN[0]), schemas.get_task_schema())
    assert not faults(task(GIVEN[0])["resources"], schemas.get_resources_schema())


# --- a published language model -----------------------------------------------------------------------------


def trained(**asked):
    """Return the script that trains a published model, and the task that runs it."""
    request = RankRequest(workloads=("llama-3.1-8b",), **asked)
    row = msgspec.structs.replace(
        row_of(offer(H100, 24.0, gpu_count=8, provider="aws")), batch_size=4, samples_per_s=20.0,
        samples_per_s_low=14.0, samples_per_s_high=30.0,
    )  # fmt: skip
    work = work_of(row, request, 10)
    return work.files["train.py"].decode(), work


@pytest.mark.parametrize(
    ("asked", "lines"),
    [
        ({"trainable": "lora"}, ["TRAINABLE = 'lora'", "CONTEXT = 2048", "CHECKPOINTING = True", "CHUNKED_LOSS = False", "SHARDED = False"]),
        ({"trainable": "qlora", "context_tokens": 512}, ["TRAINABLE = 'qlora'", "CONTEXT = 512"]),
        ({"checkpointing": "none", "loss_chunks": 8}, ["TRAINABLE = 'full'", "CHECKPOINTING = False", "CHUNKED_LOSS = True", "SHARDED = True"]),
    ],
)  # fmt: skip
def test_a_published_model_is_trained_by_the_stack_that_was_assumed(asked, lines):
    script, work = trained(**asked)
    compile(script, "train.py", "exec")
    for line in (*lines, "BATCH = 4", "predicted 20 (14 to 30)"):
        assert line in script
    assert "meta-llama/Meta-Llama-3.1-8B" in script
    assert work.command.endswith("torchrun --nproc-per-node 8 train.py")
    assert "peft" in work.setup[-1]
    assert "trl" in work.setup[-1]


def test_no_run_is_fetched_for_a_model_that_gpubench_does_not_measure(tmp_path):
    task, script, _ = written(tmp_path, ranking(), RankRequest(workloads=("llama-3.1-8b",), trainable="lora"))
    assert (tmp_path / "tasks" / "work" / "train.py").exists()
    assert "train.py" in task["run"]
    assert task["resources"]["disk_size"] == 64 + 16
    assert "results add" not in script
    assert "rsync" not in script
    assert script.rstrip().endswith("sky down --yes gpubench-gcp-1x-l4")
    with pytest.raises(MisuseError, match="rank one workload"):
        work_of(row_of(GIVEN[0]), RankRequest(workloads=("llama-3.1-8b", "vgg16")), 5)


# --- the script ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("launched", [0, 1])
def test_the_script_always_shuts_down_its_machine_and_asks_again_in_the_original_folder(
    tmp_path, monkeypatch, launched
):
    """Tools that record their calls replace the real ones; test_trial_loop.py runs the tasks on a fake cloud."""
    tools, asked_in, log = tmp_path / "tools", tmp_path / "asked here", tmp_path / "log"
    tools.mkdir()
    asked_in.mkdir()
    monkeypatch.chdir(asked_in)
    for name in ("sky", "rsync", "gpubench"):
        tool = tools / name
        ends = launched if name == "sky" else 0
        tool.write_text(f'#!/bin/sh\necho "{name} $* in $(basename "$PWD")" >> "{log}"\nexit {ends}\n')
        tool.chmod(0o755)
    written(tmp_path, ranking())
    done = subprocess.run(
        ["sh", str(tmp_path / "tasks" / "try.sh")],
        cwd="/",
        env={"PATH": f"{tools}:/usr/bin:/bin"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    launch, fetch, down, add, again = log.read_text().splitlines()
    name = "gpubench-gcp-1x-l4"
    assert launch == f"sky launch --yes --cluster {name} task.yaml in tasks"
    assert fetch.startswith(f"rsync -rt --no-links {name}:sky_workdir/results/ ")
    assert down == f"sky down --yes {name} in tasks"
    (fetched,) = (tmp_path / "tasks").glob("results.*")
    assert add == f"gpubench results add {fetched} in asked here"
    assert again == "gpubench rank --workload vgg16 in asked here"


REQUESTS = [
    RankRequest(),
    RankRequest(workloads=("llama_1b",), checkpointing="full", loss_chunks=8),
    RankRequest(mix={"vgg16": 0.25, "./a model.py": 0.75}, batch_size="max", tax=0.19),
    RankRequest(workloads=("a", "b"), batch_size=7, resale=Range.of(0.00001), tariff=Range(0.1, 0.1, 0.3)),
    RankRequest(rent_or_buy="buy", own=("2x RTX 4090, 3800 USD",), nvlink=True, limit=3, count=2),
    RankRequest(offers=Path("my prices.csv"), accept_outliers=True, egress_usd=1e-5, samples=1e12),
    RankRequest(
        workloads=("vgg16",), samples=2.5e7, spot=True, gpus=("H100 SXM", "l4"), results=Path("my results"),
        rent_or_buy="rent", utilization=Range(0.2, 0.3, 0.9), as_of=date(2026, 11, 20),
    ),
    RankRequest(workloads=("llama_8b",), trainable="lora", context_tokens=512, precision="bf16"),
]  # fmt: skip


@pytest.mark.parametrize("request_", REQUESTS)
def test_an_answer_contains_the_original_question(request_):
    told = msgspec.json.decode(msgspec.json.encode(request_.question, enc_hook=str))
    assert msgspec.structs.replace(request_from(RankRequest, told), asked=()) == request_


def test_the_script_asks_the_same_question_again(tmp_path):
    request = REQUESTS[-2]
    _, script, _ = written(tmp_path, ranking(), request)
    *_, add, again = script.splitlines()
    assert shlex.split(add)[-4:-2] == ["--results", "my results"]
    program, verb, *words = shlex.split(again)
    assert (program, verb) == ("gpubench", "rank")
    assert msgspec.structs.replace(parsed(words), asked=()) == typed(request)


def parsed(words):
    """Return the request that the command line makes from these words."""
    from click.testing import CliRunner

    from gpubench.cli.table import command_of
    from gpubench.cli.verbs import rank as verb

    with patch.object(verb, "verb", return_value=None) as called:
        done = CliRunner().invoke(command_of("rank"), words)
    assert done.exit_code == 0, done.output
    return called.call_args.args[0]


def typed(request_):
    """Return the part of a request that can be typed; settings and Python-only options have their defaults."""
    usual = {
        each.field: each.initial for each in options_of(RankRequest) if each.way in {"setting", "python"}
    }
    usual.pop("rent_or_buy") if request_.rent_or_buy == "buy" else usual.update(rent_or_buy=None)
    return msgspec.structs.replace(request_, **usual)


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_request_printed_as_options_gives_the_same_request(request_):
    again = parsed(list(words_of(request_)))
    assert msgspec.structs.replace(again, asked=()) == typed(request_)
    assert parsed(list(words_of(again))) == again


def test_explicit_default_is_repeated_in_the_generated_command():
    asked = parsed(["--sort", "value", "--samples", "1e6"])
    assert words_of(asked) == ("--samples", "1000000", "--sort", "value")
    assert asked.question == {"samples": 1e6, "sort": "value"}


# --- the measurement ----------------------------------------------------------------------------------------


def test_a_trial_measures_the_question_of_the_ranking():
    request = RankRequest(
        workloads=("vgg16",), precision="tf32", execution="compile", task="infer", batch_size=48
    )
    run = run_of(row_of(offer(H100)), request, NAMES, 10)
    assert (run.workloads, run.precisions, run.executions) == (("vgg16",), ("tf32",), ("compile",))
    assert (run.task, run.batch_size, run.gpus, run.time_limit_s) == ("infer", 48, 1, 600)


def test_a_trial_measures_the_requested_recipe():
    request = RankRequest(workloads=("llama_8b",), trainable="lora", context_tokens=512)
    run = run_of(row_of(offer(H100)), request, {"llama_8b": "llama_8b"}, 10)
    assert (run.trainable, run.context_tokens, run.weight_type) == ("lora", 512, None)


@pytest.mark.parametrize(
    ("name", "asked", "measured"),
    [
        ("vgg16", {"samples": 1e6}, (8, "ddp")),
        ("vgg16", {}, (8, "ddp")),
        ("vgg16", {"relative": True}, (1, None)),
        ("vgg16", {"samples": 1e6, "jobs": "independent"}, (1, None)),
        # Weights, gradients and Adam's state of 8 B parameters are 128 GB, too much for one H100 of 80 GB.
        ("llama_8b_fsdp", {"samples": 1e5, "as_of": date(2026, 11, 20)}, (8, "fsdp")),
        ("llama_8b", {"as_of": date(2026, 11, 20)}, (1, None)),  # generation runs one job per GPU by default
    ],
)
def test_one_job_over_all_gpus_is_measured_on_all_of_them_and_another_on_one(name, asked, measured):
    request = RankRequest(workloads=(name,), **asked)
    run = run_of(row_of(offer(H100, 24.0, gpu_count=8)), request, {name: name}, 10)
    assert (run.gpus, run.jobs) == measured


def test_the_batch_that_meets_a_latency_limit_is_measured():
    row = msgspec.structs.replace(row_of(offer(H100)), batch_size=7)
    asked = RankRequest(workloads=("vgg16",), task="infer", max_latency_ms=20.0)
    assert run_of(row, asked, NAMES, 10).batch_size == 7
    with pytest.raises(MisuseError, match="rank one workload"):
        run_of(row, asked, {"cnn": "cnn", "vgg16": "vgg16"}, 10)


# --- the transferred files ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("packs")
def test_the_running_source_is_the_one_installed():
    package, files = package_to_install()
    import gpubench

    assert package == SOURCE
    assert files["gpubench-source/gpubench/__init__.py"] == Path(gpubench.__file__).read_bytes()
    assert {f"gpubench-source/{name}" for name in ("pyproject.toml", "workloads/cnn.py", "gpubench/data/gpus.csv", "results/shared/README.md")} <= set(files)  # fmt: skip
    assert ".skyignore" in files
    assert not any("__pycache__" in name or "/tests/" in name or ".git/" in name for name in files)


@pytest.mark.slow
@pytest.mark.usefixtures("packs")
def test_a_wheel_can_be_built_from_the_transferred_files(tmp_path):
    _, files = package_to_install()
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    subprocess.run(build, cwd=tmp_path / "gpubench-source", check=True, capture_output=True)
    assert len(list((tmp_path / "dist").glob("gpubench_suite-*.whl"))) == 1


@pytest.mark.usefixtures("packs")
@pytest.mark.parametrize(
    ("told", "package"),
    [
        ({"url": "file://{root}", "dir_info": {}}, SOURCE),
        (
            {"url": "https://example.org/gpubench", "vcs_info": {"vcs": "git", "commit_id": "abc123"}},
            "gpubench-suite[run] @ git+https://example.org/gpubench@abc123",
        ),
        ({"url": "file:///nowhere", "dir_info": {}}, None),
        (None, None),
    ],
)
def test_installed_gpubench_is_reinstalled_from_its_origin(monkeypatch, tmp_path, told, package):
    """The name on the index may belong to somebody else, so it is never used."""
    root = tmp_path / "a prüfstand"
    root.mkdir()
    (root / "pyproject.toml").write_text("")
    text = None if told is None else json.dumps(told).replace("{root}", root.as_uri().removeprefix("file://"))

    class Installed:
        def read_text(self, name):
            assert name == "direct_url.json"
            return text

    monkeypatch.setattr("gpubench.discovery.checkout", lambda: None)
    monkeypatch.setattr(trial.importlib.metadata, "distributions", lambda name: [Installed()])
    if package is None:
        with pytest.raises(MisuseError, match="install gpubench again"):
            package_to_install()
        return
    found, files = package_to_install()
    assert found == package
    assert ("gpubench-source/pyproject.toml" in files) == (package == SOURCE)


def test_a_users_model_is_transferred_with_its_imports(tmp_path, monkeypatch):
    (tmp_path / "parts").mkdir()
    for name, text in (("tagger.py", "MODEL"), ("parts/head.py", "HEAD")):
        (tmp_path / name).write_text(text)
    own = (tmp_path, (tmp_path / "tagger.py", tmp_path / "parts" / "head.py"))
    monkeypatch.setattr("gpubench.profile.cache.files_of", lambda reference: own)
    files = {}
    assert carried("vgg16", files) == "vgg16"
    assert not files
    assert carried("../models/tagger.py:small", files) == "./tagger.py:small"
    assert files == {"tagger.py": b"MODEL", "parts/head.py": b"HEAD"}
    with pytest.raises(MisuseError, match=r"other\.py is a link, which cannot be copied to the machine"):
        carried("./other.py", {})
    monkeypatch.setattr("gpubench.profile.cache.files_of", lambda reference: (tmp_path, ()))
    with pytest.raises(MisuseError, match="part of an installed package"):
        carried("somebody.models:NET", {})


def test_files_are_written_only_into_an_empty_folder(tmp_path):
    """Files there would be transferred to the machine, and a planted link would lead out of the folder."""
    written(tmp_path, ranking())
    with pytest.raises(MisuseError, match="is not an empty folder: name another --output"):
        written(tmp_path, ranking())
    (tmp_path / "file").write_text("")
    with pytest.raises(MisuseError, match="is not an empty folder: name another --output"):
        write_trial(answered(tmp_path, ranking()), tmp_path / "file", None, 10)


@pytest.mark.parametrize(
    ("field", "value"), [("gpu_count", 0), ("price_usd_per_hour", 0), ("price_usd_per_hour", -1)]
)
def test_an_impossible_number_in_an_answer_is_refused(tmp_path, field, value):
    path = answered(tmp_path, ranking())
    changed = json.loads(path.read_bytes())
    changed["rows"][0][field] = value
    path.write_text(json.dumps(changed))
    with pytest.raises(MisuseError, match=field):
        write_trial(path, tmp_path / "tasks", None, 10)


def test_an_invalid_answer_is_refused_in_one_line(tmp_path):
    path = tmp_path / "answer.json"
    named = f'"schema": "{RANKING_SCHEMA}"'
    shade = f'{{{named}, "question": {{"asked": {{"shade": 1}}}}, "rows": []}}'
    for text in ("", "[]", '{"rows": []}', f'{{{named}, "rows": []}}', shade):
        path.write_text(text)
        with pytest.raises(MisuseError, match=r"gpubench rank --json writes one|no option shade"):
            write_trial(path, tmp_path / "tasks", None, 10)
    with pytest.raises(MisuseError, match="cannot read"):
        write_trial(tmp_path / "nothing", tmp_path / "tasks", None, 10)


@pytest.mark.parametrize(
    ("stated", "seen"),
    [
        ({"schema": "gpubench.ranking/2"}, "gpubench.ranking/2"),
        ({"schema": "gpubench.ranking/99"}, "gpubench.ranking/99"),
        ({"schema_version": 2}, "no schema"),
        ({}, "no schema"),
    ],
)
def test_an_answer_of_another_version_is_refused_by_its_version(tmp_path, stated, seen):
    """The version is the reason given, even if the file lacks other keys."""
    path = tmp_path / "answer.json"
    path.write_bytes(msgspec.json.encode({**stated, "rows": [{}]}))
    with pytest.raises(MisuseError) as refused:
        write_trial(path, tmp_path / "tasks", None, 10)
    assert str(refused.value).startswith(
        f"answer.json has {seen}, and this gpubench reads only {RANKING_SCHEMA}"
    )


def test_the_best_of_several_gpus_of_one_name_is_tried():
    rows = rows_of(
        rank_of(
            [offer(A100, 1.0, provider="gcp"), offer(H100, 3.0, provider="aws")], {A100: 1700, H100: 3000}
        )
    )
    assert {choose(rows, name)[0].gpu_key for name in ("sxm", "80gb")} == {A100}
    assert choose(rows, "h100")[0].gpu_key == H100
