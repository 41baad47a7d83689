"""Task files: SkyPilot's own shape, capped in time and money, and nothing of a name reaches a shell."""

from __future__ import annotations

import json
import subprocess

import pytest

from gpubench.errors import MisuseError, StorageError
from gpubench.models import Pricing
from gpubench.recommend.trial import (
    ACCELERATORS,
    ACCELERATORS_AT,
    CLOUDS,
    check_trial,
    task_of,
    task_text,
    write_trials,
)
from gpubench.specs import load_specs

from .builders import H100, L4, RTX5090, T4, estimate, offer, rank_of

yaml = pytest.importorskip("yaml")


def ranking():
    offers = [
        offer(L4, 0.4, provider="gcp", instance="g2-standard-4", region="us-central1"),
        offer(H100, 3.0, provider="aws", instance="p5.4xlarge", region="us-east-1"),
        offer(H100, 3.1, provider="aws", instance="p5.4xlarge", region="us-west-2"),
        offer(RTX5090, 0.5, provider="verda", instance="1RTX5090"),
        offer(T4, 0.5, provider="aws", instance="g4dn.xlarge"),
    ]
    return rank_of(offers, {L4: 500, H100: 3000, RTX5090: 900, T4: estimate(T4, 200, basis="measured")})


def test_the_best_offer_of_each_gpu_that_can_be_rented_is_written(tmp_path):
    files, passed = write_trials(ranking().rows, 3, tmp_path / "tasks", minutes=10, workloads=("vgg16",))
    assert [file.name for file in files] == ["try-1-gcp-1x-l4.yaml", "try-2-aws-1x-h100.yaml", "try.sh"]
    assert passed == ["verda 1RTX5090: SkyPilot does not rent from it"]
    task = yaml.safe_load(files[1].read_text())
    assert task["resources"]["infra"] == "aws/us-east-1"
    assert task["resources"]["instance_type"] == "p5.4xlarge"
    assert "accelerators" not in task["resources"]
    assert yaml.safe_load(files[0].read_text())["resources"]["accelerators"] == "L4:1"
    assert task["resources"]["autostop"] == {"idle_minutes": 5, "down": True}
    assert task["resources"]["max_hourly_cost"] == pytest.approx(3.75)
    assert task["workdir"] == "."
    assert "gpubench run --quick --time-limit 600" in task["run"]
    assert (
        task["setup"].rstrip().endswith("uv pip install --quiet --python ~/gpubench-venv/bin/python '.[run]'")
    )
    for command in (task["setup"], task["run"]):
        assert subprocess.run(["sh", "-n"], input=command, text=True, check=False).returncode == 0


def test_the_head_states_what_it_can_cost():
    """10 minutes of measuring, 15 of set-up, 5 idle at 3.00 USD/h: 30 / 60 x 3 = 1.50 USD."""
    text = task_text(offer(H100, 3.0, provider="aws"), minutes=10, workloads=("vgg16",))
    assert "about 30 minutes, at most about $1.50" in text


def test_the_yaml_says_what_the_data_says():
    spot = offer(
        T4, 0.15, provider="azure", instance="Standard_NC4as_T4_v3", region="eastus", pricing=Pricing.SPOT
    )
    task = task_of(spot, minutes=5, workloads=("cnn", "./my model.py"))
    assert yaml.safe_load(task_text(spot, minutes=5, workloads=("cnn", "./my model.py"))) == task
    assert json.loads(json.dumps(task)) == task
    assert task["resources"]["use_spot"] is True


def test_the_script_is_a_shell_script_that_takes_every_machine_down(tmp_path):
    files, _ = write_trials(ranking().rows, 2, tmp_path, minutes=10, workloads=("vgg16",))
    script = files[-1]
    assert subprocess.run(["sh", "-n", str(script)], check=False).returncode == 0
    text = script.read_text()
    assert text.count("sky launch") == text.count("sky down") == 2
    assert "gpubench results add" in text


def test_hostile_names_stay_data(tmp_path):
    hostile = offer(H100, 3.0, provider="aws", instance="x'; rm -rf /\n#", region="$(reboot)")
    rows = rank_of([hostile], {H100: 3000}).rows
    files, _ = write_trials(rows, 1, tmp_path, minutes=10, workloads=("a'; reboot #",))
    task = yaml.safe_load(files[0].read_text())
    assert task["resources"]["infra"] == "aws"
    assert task["resources"]["accelerators"] == "H100:1"
    assert "instance_type" not in task["resources"]
    for command in (task["run"], files[-1].read_text()):
        checked = subprocess.run(["sh", "-n"], input=command, text=True, check=False)
        assert checked.returncode == 0
    assert "'a'\\''; reboot #'" in task["run"]
    assert "\n#'" not in files[-1].read_text()


def test_a_cloud_may_name_a_gpu_in_its_own_way_or_not_have_it():
    sxm = offer(H100, 3.0, provider="runpod", instance="H100 SXM")
    assert task_of(sxm, minutes=5, workloads=())["resources"]["accelerators"] == "H100-SXM:1"
    pcie = "nvidia-tesla-v100-pcie-16gb"
    rows = rank_of([offer(pcie, 0.2, provider="runpod"), sxm], {pcie: 400, H100: 3000}).rows
    chosen, passed = write_trials_of(rows)
    assert [row.offer for row in chosen] == [sxm]
    assert "SkyPilot has no name for this GPU there" in passed[0]


def write_trials_of(rows):
    from gpubench.recommend.trial import _choose

    return _choose(rows, 2)


def test_our_names_are_known_gpus():
    assert set(ACCELERATORS) <= set(load_specs())
    for names in ACCELERATORS_AT.values():
        assert set(names) <= set(load_specs())
    assert len(CLOUDS) == len(set(CLOUDS.values()))


def test_misuse(tmp_path):
    with pytest.raises(MisuseError, match="go together"):
        check_trial(3, None, 10)
    with pytest.raises(MisuseError, match="above 0"):
        check_trial(0, tmp_path, 10)
    rows = rank_of([offer(H100)], {H100: 3000}).rows
    with pytest.raises(MisuseError, match="none of the ranked offers"):
        write_trials(rows, 1, tmp_path, minutes=10, workloads=("vgg16",))
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        write_trials(ranking().rows, 1, tmp_path / "file", minutes=10, workloads=("vgg16",))


@pytest.mark.network
def test_skypilot_accepts_the_task(tmp_path):
    """Opt-in: needs SkyPilot (pip install skypilot), which is no dependency of ours."""
    jsonschema = pytest.importorskip("jsonschema")
    schemas = pytest.importorskip("sky.utils.schemas")
    files, _ = write_trials(ranking().rows, 2, tmp_path, minutes=10, workloads=("vgg16",))
    assert len(files) == 3, "two tasks and the script that runs them"
    for file in files[:-1]:
        task = yaml.safe_load(file.read_text())
        jsonschema.validate(task, schemas.get_task_schema())
        jsonschema.validate(task["resources"], schemas.get_resources_schema())
