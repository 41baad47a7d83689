"""Task files: SkyPilot's own shape, capped in time and money, and nothing of a name reaches a shell."""

from __future__ import annotations

import json
import shlex
import subprocess
import zipfile
from pathlib import Path

import msgspec
import pytest

from gpubench.errors import MisuseError, StorageError
from gpubench.models import Pricing
from gpubench.options import check_fields, words_of
from gpubench.recommend.request import Range, RankRequest
from gpubench.recommend.skypilot import (
    ACCELERATORS,
    ACCELERATORS_AT,
    CLOUDS,
    WITHOUT_AUTOSTOP,
    WITHOUT_SPOT,
    runs_of,
    task_limit_s,
    task_of,
    task_text,
    write_task_files,
)
from gpubench.recommend.trial_request import TrialRequest
from gpubench.recommend.workdir import Workdir, pack
from gpubench.specs import load_specs

from .builders import H100, L4, RTX5090, T4, estimate, offer, rank_of

yaml = pytest.importorskip("yaml")

VGG16 = RankRequest(workloads=("vgg16",))
PARCEL = Workdir(
    {"gpubench_suite-1-py3-none-any.whl": b"packed"}, "gpubench_suite-1-py3-none-any.whl", {"vgg16": "vgg16"}
)


@pytest.fixture(autouse=True)
def _no_packing(monkeypatch, request):
    """Packing reads every file of the package; tests/recommend/test_skypilot_loop.py does it for real."""
    if "packs" not in request.fixturenames:
        names = {"references": {}, "wheel": PARCEL.wheel, "files": PARCEL.files}
        monkeypatch.setattr(
            "gpubench.recommend.workdir.pack",
            lambda workloads, wheel: Workdir(**names | {"references": {name: name for name in workloads}}),
        )


@pytest.fixture
def packs():
    """Let a test pack a workdir for real."""


def row_of(given):
    (row,) = rank_of([given], {given.gpu_key: 3000}, gpus=(given.gpu_key,)).rows
    return row


def task(given, request=VGG16, minutes=5):
    return task_of(row_of(given), request, PARCEL, minutes=minutes)


def ranking():
    offers = [
        offer(L4, 0.4, provider="gcp", instance="g2-standard-4", region="us-central1"),
        offer(H100, 3.0, provider="aws", instance="p5.4xlarge", region="us-east-1"),
        offer(H100, 3.1, provider="aws", instance="p5.4xlarge", region="us-west-2"),
        offer(RTX5090, 0.5, provider="civo", instance="1RTX5090"),
        offer(T4, 0.5, provider="aws", instance="g4dn.xlarge"),
    ]
    return rank_of(offers, {L4: 500, H100: 3000, RTX5090: 900, T4: estimate(T4, 200, basis="measured")})


def test_the_best_offer_of_each_gpu_that_can_be_rented_is_written(tmp_path):
    files, passed = write_task_files(ranking().rows, VGG16, 3, tmp_path / "tasks", minutes=10)
    assert [file.name for file in files] == ["try-1-gcp-1x-l4.yaml", "try-2-aws-1x-h100.yaml", "try.sh"]
    assert [each.partition(":")[0] for each in passed] == ["civo 1RTX5090"]
    task = yaml.safe_load(files[1].read_text())
    assert task["resources"]["infra"] == "aws/us-east-1"
    assert task["resources"]["instance_type"] == "p5.4xlarge"
    assert "accelerators" not in task["resources"]
    assert yaml.safe_load(files[0].read_text())["resources"]["accelerators"] == "L4:1"
    assert task["resources"]["autostop"] == {"idle_minutes": 5, "down": True}
    assert task["resources"]["max_hourly_cost"] == pytest.approx(3.75)
    assert task["workdir"] == "work"
    assert (tmp_path / "tasks" / "work" / PARCEL.wheel).read_bytes() == b"packed"
    assert "--time-limit 600" in task["run"]
    assert task["setup"].rstrip().endswith(f"~/gpubench-venv/bin/python './{PARCEL.wheel}[run]'")
    for command in (task["setup"], task["run"]):
        assert subprocess.run(["sh", "-n"], input=command, text=True, check=False).returncode == 0


def test_the_head_states_what_it_likely_costs_and_what_at_most():
    """10 minutes of measuring, 15 of set-up, 5 idle at 3.00 USD/h: 1.50; cut off after 35 at 3.75 at most: 2.19."""
    row = row_of(offer(H100, 3.0, provider="aws"))
    text = task_text(row, VGG16, PARCEL, minutes=10)
    limit_s = task_limit_s(10)
    assert limit_s == 35 * 60
    most = task_of(row, VGG16, PARCEL, minutes=10)["resources"]["max_hourly_cost"] * limit_s / 3600
    assert "About 30 minutes and $1.50" in text
    assert f"at most ${most:.2f}." in text
    assert most == pytest.approx(3.75 * 35 / 60)


def test_the_head_counts_tax_and_whole_billing_increments():
    """Half an hour at 3.00 and 20 %: 1.80; billed by the hour 3.60, and 35 minutes at 3.75 at most: 4.50."""
    row = row_of(offer(H100, 3.0, provider="aws"))
    for asked, usual, most in (
        ({"tax": 0.2}, "$1.80", "$2.62"),
        ({"tax": 0.2, "billing_minutes": 60}, "$3.60", "$4.50"),
    ):
        text = task_text(row, msgspec.structs.replace(VGG16, **asked), PARCEL, minutes=10)
        assert f"About 30 minutes and {usual}:" in text
        assert f"at most {most}, with 20 % of" in text


def test_the_script_cuts_off_where_the_head_says(tmp_path):
    *_, script = write_task_files(ranking().rows, VGG16, 1, tmp_path, minutes=10)[0]
    assert f"timeout --foreground {task_limit_s(10)} sky launch" in script.read_text()


def test_the_yaml_says_what_the_data_says():
    spot = offer(
        T4, 0.15, provider="azure", instance="Standard_NC4as_T4_v3", region="eastus", pricing=Pricing.SPOT
    )
    row = rank_of([spot], {T4: 200}, spot=True).rows[0]
    task = task_of(row, VGG16, PARCEL, minutes=5)
    assert yaml.safe_load(task_text(row, VGG16, PARCEL, minutes=5)) == task
    assert json.loads(json.dumps(task)) == task
    assert task["resources"]["use_spot"] is True


def test_the_script_is_a_shell_script_that_takes_every_machine_down(tmp_path):
    files, _ = write_task_files(ranking().rows, VGG16, 2, tmp_path, minutes=10)
    script = files[-1]
    assert subprocess.run(["sh", "-n", str(script)], check=False).returncode == 0
    text = script.read_text()
    assert text.count("sky launch") == text.count("\nsky down") == text.count("trap 'sky down") == 2
    assert "gpubench results add" in text


@pytest.mark.parametrize("launched", [0, 1])
def test_the_script_takes_down_what_it_launched_be_it_in_vain_and_asks_again_where_it_was_asked(
    tmp_path, launched
):
    """Tools that write down how they are called stand for the real ones; the slow test runs those."""
    tools, asked_in, log = tmp_path / "tools", tmp_path / "asked here", tmp_path / "log"
    tools.mkdir()
    asked_in.mkdir()
    for name in ("sky", "rsync", "gpubench"):
        tool = tools / name
        ends = launched if name == "sky" else 0
        tool.write_text(f'#!/bin/sh\necho "{name} $* in $(basename "$PWD")" >> "{log}"\nexit {ends}\n')
        tool.chmod(0o755)
    files, _ = write_task_files(ranking().rows, VGG16, 1, tmp_path / "tasks", minutes=10, asked_in=asked_in)
    done = subprocess.run(
        ["sh", str(files[-1])],
        cwd="/",
        env={"PATH": f"{tools}:/usr/bin:/bin"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    launch, fetch, down, add, again = log.read_text().splitlines()
    assert launch.split() == [
        "sky",
        "launch",
        "--yes",
        "--cluster",
        "gpubench-try-1",
        files[0].name,
        "in",
        "tasks",
    ]
    assert fetch.startswith("rsync -rt --no-links gpubench-try-1:sky_workdir/results/ ")
    assert down.split() == ["sky", "down", "--yes", "gpubench-try-1", "in", "tasks"]
    (fetched,) = (tmp_path / "tasks").glob("results.*")
    assert add == f"gpubench results add {fetched} in asked here"
    assert again.split() == ["gpubench", "rank", "--workload", "vgg16", "in", "asked", "here"]


def test_hostile_names_stay_data(tmp_path):
    hostile = offer(H100, 3.0, provider="aws", instance="x'; rm -rf /\n#", region="$(reboot)")
    rows = rank_of([hostile], {H100: 3000}).rows
    request = RankRequest(workloads=("a'; reboot #",), regions=("$(reboot)",))
    files, _ = write_task_files(rows, request, 1, tmp_path, minutes=10)
    task = yaml.safe_load(files[0].read_text())
    assert task["resources"]["infra"] == "aws"
    assert task["resources"]["accelerators"] == "H100:1"
    assert "instance_type" not in task["resources"]
    for command in (task["run"], files[-1].read_text()):
        checked = subprocess.run(["sh", "-n"], input=command, text=True, check=False)
        assert checked.returncode == 0
    assert shlex.split(task["run"].splitlines()[-1])[4:6] == ["--workload", "a'; reboot #"]
    assert shlex.split(files[-1].read_text().splitlines()[-1])[-2:] == ["--region", "$(reboot)"]
    assert "\n#'" not in files[-1].read_text()


def test_a_cloud_may_name_a_gpu_in_its_own_way_or_not_have_it():
    sxm = offer(H100, 3.0, provider="runpod", instance="H100 SXM")
    assert task(sxm)["resources"]["accelerators"] == "H100-SXM:1"
    pcie = "nvidia-tesla-v100-pcie-16gb"
    offers = [offer(pcie, 0.2, provider="runpod"), sxm]
    rows = rank_of(offers, {pcie: 400, H100: 3000}, gpus=("v100", "h100")).rows
    chosen, passed = task_files_of(rows)
    assert [row.offer for row in chosen] == [sxm]
    assert "no name" in passed[0]


@pytest.mark.parametrize(
    ("gpu_key", "provider", "instance", "chooses"),
    [
        ("nvidia-v100-unstated-16gb", "verda", "1V100.6V", {"accelerators": "V100:1"}),
        ("nvidia-v100-unstated-16gb", "lambda", "gpu_8x_v100", {"instance_type": "gpu_8x_v100"}),
        ("nvidia-a100-unstated-80gb", "gcp", "a2", {"accelerators": "A100-80GB:1"}),
    ],
)
def test_a_card_whose_form_factor_is_not_stated_can_be_tried(gpu_key, provider, instance, chooses):
    given = offer(gpu_key, 0.2, provider=provider, instance=instance)
    chosen, passed = task_files_of(rank_of([given], {gpu_key: 400}, gpus=(gpu_key,)).rows)
    assert ([row.offer for row in chosen], passed) == ([given], [])
    resources = task(given)["resources"]
    assert {name: resources[name] for name in chooses} == chooses


@pytest.mark.parametrize(
    ("gpu_key", "pins"),
    [("nvidia-tesla-v100-sxm2-16gb", "--torch-backend cu126 'torch==2.14.*' "), (H100, "")],
)
def test_a_task_installs_a_build_of_torch_that_has_kernels_for_its_gpu(gpu_key, pins):
    setup = task(offer(gpu_key, 1.0, provider="lambda", instance="one"))["setup"]
    assert setup.splitlines()[-1].endswith(f"/bin/python {pins}'./{PARCEL.wheel}[run]'")


def test_a_card_whose_form_factor_is_not_stated_is_named_as_any_that_it_can_be():
    """Where SkyPilot tells the form factors apart, no one name is the offer's."""
    for key, spec in load_specs().items():
        names = {ACCELERATORS[each] for each in spec.variants if each in ACCELERATORS}
        assert ACCELERATORS.get(key) in (names or {None}) or not spec.variants, key
    chosen, passed = task_files_of(
        rank_of(
            [offer("nvidia-h100-unstated-80gb", provider="runpod")], {"nvidia-h100-unstated-80gb": 3000}
        ).rows
    )
    assert not chosen
    assert "no name" in passed[0]


def task_files_of(rows):
    from gpubench.recommend.skypilot import _choose

    return _choose(rows, 2)


def test_our_names_are_known_gpus():
    assert set(ACCELERATORS) <= set(load_specs())
    for names in ACCELERATORS_AT.values():
        assert set(names) <= set(load_specs())
    assert len(CLOUDS) == len(set(CLOUDS.values()))
    assert set(CLOUDS.values()) >= WITHOUT_AUTOSTOP | WITHOUT_SPOT


def test_misuse(tmp_path):
    with pytest.raises(MisuseError, match="go together"):
        TrialRequest(count=3).check()
    with pytest.raises(MisuseError, match="--try 0 must be at least 1"):
        check_fields(TrialRequest(count=0, folder=tmp_path))
    with pytest.raises(MisuseError, match="--try-minutes 0"):
        check_fields(TrialRequest(minutes=0))
    with pytest.raises(MisuseError, match="--try N --out"):
        TrialRequest(wheel=tmp_path / "gpubench_suite-1-py3-none-any.whl").check()
    rows = rank_of([offer(H100)], {H100: 3000}).rows
    with pytest.raises(MisuseError, match="ranked offers"):
        write_task_files(rows, VGG16, 1, tmp_path, minutes=10)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        write_task_files(ranking().rows, VGG16, 1, tmp_path / "file", minutes=10)


# --- the question, replayed -------------------------------------------------------------------------------


def test_a_run_measures_what_was_asked():
    request = RankRequest(
        workloads=("vgg16",), precision="tf32", execution="compile", task="infer", batch_size=48
    )
    (run,) = runs_of(row_of(offer(H100)), request, {"vgg16": "vgg16"}, minutes=10)
    assert (run.workloads, run.precisions, run.executions) == (("vgg16",), ("tf32",), ("compile",))
    assert (run.task, run.batch_size, run.gpus, run.time_limit_s) == ("infer", 48, 1, 600)


def test_a_model_of_the_users_own_is_measured_under_its_name_in_the_folder():
    request = RankRequest(workloads=("../models/net.py:small",))
    (run,) = runs_of(row_of(offer(H100)), request, {"../models/net.py:small": "./net.py:small"}, minutes=10)
    assert run.workloads == ("./net.py:small",)


@pytest.mark.parametrize(
    ("asked", "gpus"),
    [({"samples": 1e6}, 8), ({}, 8), ({"relative": True}, 1), ({"samples": 1e6, "jobs": "independent"}, 1)],
)
def test_one_job_over_all_gpus_is_measured_on_all_of_them(asked, gpus):
    request = RankRequest(workloads=("vgg16",), **asked)
    (run,) = runs_of(row_of(offer(H100, 24.0, gpu_count=8)), request, {"vgg16": "vgg16"}, minutes=10)
    assert run.gpus == gpus


def test_the_batches_that_a_limit_of_latency_chose_are_measured_each():
    row = row_of(offer(H100))
    parts = (
        row.estimate,
        msgspec.structs.replace(row.estimate, case=msgspec.structs.replace(row.estimate.case, batch_size=7)),
    )
    request = RankRequest(workloads=("cnn", "vgg16"), task="infer", max_latency_ms=20.0)
    runs = runs_of(
        msgspec.structs.replace(row, parts=parts), request, {"cnn": "cnn", "vgg16": "vgg16"}, minutes=10
    )
    assert [(run.workloads, run.batch_size, run.time_limit_s) for run in runs] == [
        (("cnn",), row.estimate.case.batch_size, 300),
        (("vgg16",), 7, 300),
    ]


def test_the_script_asks_the_same_question_again_in_the_folder_it_was_asked_in(tmp_path):
    request = RankRequest(
        workloads=("vgg16",), samples=2.5e7, spot=True, gpus=("H100 SXM", "l4"), results=Path("my results"),
        mix={}, rent_or_buy="rent", utilization=Range(0.2, 0.3, 0.9), as_of="2026-11-20",
    )  # fmt: skip
    asked_in = tmp_path / "a folder"
    files, _ = write_task_files(ranking().rows, request, 1, tmp_path, minutes=10, asked_in=asked_in)
    *_, go, add, again = files[-1].read_text().splitlines()
    assert shlex.split(go)[:2] == ["cd", str(asked_in)]
    assert shlex.split(add)[-4:-2] == ["--results", "my results"]
    program, verb, *words = shlex.split(again)
    assert (program, verb) == ("gpubench", "rank")
    assert msgspec.structs.replace(parsed(words), asked=()) == request


def parsed(words):
    """Return the request that the command line makes of words."""
    import typer
    from typer.testing import CliRunner

    from gpubench.cli.options import with_options

    seen = []
    app = typer.Typer()

    def verb(request: RankRequest, *, as_json: bool) -> None:
        assert not as_json
        seen.append(request)

    app.command()(with_options(verb, {}))
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return seen[0]


@pytest.mark.parametrize(
    "request_",
    [
        RankRequest(),
        RankRequest(mix={"vgg16": 0.25, "./a model.py": 0.75}, batch_size="max", tax=0.19),
        RankRequest(
            workloads=("a", "b"), batch_size=7, resale=Range.of(0.00001), tariff=Range(0.1, 0.1, 0.3)
        ),
        RankRequest(rent_or_buy="buy", own=("2x RTX 4090, 3800 USD",), nvlink=True, limit=3, count=2),
        RankRequest(offers=Path("my prices.csv"), accept_outliers=True, egress_usd=1e-5, samples=1e12),
    ],
)
def test_the_words_of_a_request_make_the_same_request(request_):
    again = parsed(list(words_of(request_)))
    assert msgspec.structs.replace(again, asked=()) == request_
    assert parsed(list(words_of(again))) == again


def test_a_default_that_was_asked_for_is_asked_for_again():
    asked = parsed(["--years", "3", "--samples", "1e6"])
    assert words_of(asked) == ("--samples", "1000000", "--years", "3")


# --- what travels -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("packs")
def test_a_wheel_that_is_given_is_the_one_that_is_installed(tmp_path):
    wheel = tmp_path / "gpubench_suite-9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("gpubench/__init__.py", "")
    workdir = pack(("vgg16",), wheel)
    assert workdir.files[workdir.wheel] == wheel.read_bytes()
    assert workdir.wheel == wheel.name


@pytest.mark.usefixtures("packs")
@pytest.mark.parametrize(
    "name", ["torch-2.9-py3-none-any.whl", "gpubench_suite-9.9-py3-none-any.whl", "a b.whl"]
)
def test_what_is_no_wheel_of_gpubench_is_misuse(tmp_path, name):
    (tmp_path / name).write_bytes(b"PK nothing")
    with pytest.raises(MisuseError, match=r"--wheel .*gpubench"):
        pack(("vgg16",), tmp_path / name)


def test_nothing_is_written_through_a_link(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    out = tmp_path / "tasks"
    out.mkdir()
    (out / "work").symlink_to(elsewhere)
    with pytest.raises(StorageError, match="a link"):
        write_task_files(ranking().rows, VGG16, 1, out, minutes=10)
    (out / "work").unlink()
    (out / "try.sh").symlink_to(elsewhere / "planted")
    write_task_files(ranking().rows, VGG16, 1, out, minutes=10)
    assert not any(elsewhere.iterdir())
    assert "mktemp -d" in (out / "try.sh").read_text(), "what is fetched goes into a folder of its own"


# --- what SkyPilot can do ---------------------------------------------------------------------------------


def test_a_cloud_that_cannot_stop_a_machine_by_itself_is_not_asked_to():
    verda = offer(H100, 3.0, provider="verda", instance="1H100.80S.30V")
    assert "autostop" not in task(verda)["resources"]
    assert task(verda)["resources"]["infra"] == "verda"
    assert "Ends by itself" not in task_text(row_of(verda), VGG16, PARCEL, minutes=5)
    assert "autostop" in task(offer(H100, 3.0, provider="aws"))["resources"]


def test_a_spot_price_where_skypilot_rents_none_is_passed_over():
    spot = offer(H100, 1.0, provider="lambda", instance="gpu_1x_h100_sxm5", pricing=Pricing.SPOT)
    rows = rank_of([spot, offer(H100, 3.0, provider="aws")], {H100: 3000}, spot=True).rows
    chosen, passed = task_files_of(rows)
    assert [row.offer.provider for row in chosen] == ["aws"]
    assert "no spot machine" in passed[0]


@pytest.mark.network
def test_skypilot_accepts_the_task(tmp_path):
    """Opt-in: needs SkyPilot (pip install skypilot), which is no dependency of ours."""
    jsonschema = pytest.importorskip("jsonschema")
    schemas = pytest.importorskip("sky.utils.schemas")
    files, _ = write_task_files(ranking().rows, VGG16, 2, tmp_path, minutes=10)
    assert len(files) == 3, "two tasks and the script that runs them"
    for file in files[:-1]:
        task = yaml.safe_load(file.read_text())
        jsonschema.validate(task, schemas.get_task_schema())
        jsonschema.validate(task["resources"], schemas.get_resources_schema())
