"""The table of precisions is complete, and has everything that a new row needs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import forked_child
import pytest
import torch

from gpubench.models import GpuSpec
from gpubench.precisions import FORMATS, Precision, forcing_tf32
from gpubench.predict.chips import Mode

PACKAGE = Path(__file__).parents[1] / "gpubench"

MEMBER = """
    AMP_FP8 = "amp-fp8"
"""
ROW = """
    Precision.AMP_FP8: PrecisionFacts(
        format=FP8,
        words="amp-fp8",
        autocast="bfloat16",
        product_error=1e-1,
        loss_error=1e-1,
        least_capability=(8, 9),
        hardware="FP8 tensor cores",
        needs="tomorrow",
    ),
"""
USES = """

from click.testing import CliRunner
import msgspec
import pandas as pd

from gpubench.cli.app import app
from gpubench.measure import capability, micro, plan, step
from gpubench.measure.capability import GEMM_SIZES, peak_flops_per_s
from gpubench.measure.step import switches_for
from gpubench.measure.request import RunRequest
from gpubench.measure.plan import check_request
from gpubench.models import Case, DeviceProfile, Execution, MemoryFormat, Precision, TaskKind
from gpubench.predict.estimate import estimate
from gpubench.probe.nvml import tensor_core_precisions
from gpubench.predict.question import Question, question_of
from gpubench.profile import load_profiles
from gpubench.profile.memory import planned_peak_bytes
from gpubench.recommend.rank import check
from gpubench.recommend.request import RankRequest
from gpubench.sections.data import case_words
from gpubench.specs import load_specs
from tools import published

fp8 = Precision("amp-fp8")
cnn, specs = load_profiles()["cnn"], load_specs()
gpus = {
    name: DeviceProfile(
        backend="cuda", gpu_key=key, compute_capability=capability, memory_bytes=80 << 30,
        memory_bandwidth_bytes_per_s=3.35e12,
    )
    for name, key, capability in (("H100", "nvidia-h100-sxm-80gb", (9, 0)), ("A100", "nvidia-a100-sxm-80gb", (8, 0)))
}
# What a user may request, and what reads it.
request = check_request(RunRequest(workloads=("cnn",), precisions=("amp-fp8",)), list(load_profiles()))
check(RankRequest(precision="amp-fp8"))
assert question_of(load_profiles()["cnn"], "amp-fp8").precision is fp8
for verb in ("run", "rank"):
    shown = CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "200"}).output
    assert "amp-fp8" in shown, shown
# What a device has.
assert capability.why_no_precision(fp8, gpus["H100"]) is None
assert "8.9" in capability.why_no_precision(fp8, gpus["A100"])
assert capability.best_amp(gpus["H100"]) is Precision.AMP_BF16
assert peak_flops_per_s(gpus["H100"], fp8) == specs["nvidia-h100-sxm-80gb"].fp8_tensor_flops_per_s > 0
# What is measured, and how it is judged.
made = plan.plan(request, gpus["H100"], load_profiles())
case = made.cases[0].case
assert case.precision is fp8 and case.memory_format in {None, MemoryFormat.CHANNELS_LAST}
assert step.AUTOCAST_TYPES[fp8].itemsize == 2
with switches_for(fp8) as switches:
    assert switches.unexpected(fp8) is None and switches.unexpected(Precision.FP32)
assert case.precision.facts.loss_error > 0
# What is stored, predicted and printed.
assert msgspec.json.decode(msgspec.json.encode(case), type=Case) == case
assert planned_peak_bytes(cnn, case) > 0
answers = estimate(Question(profile=cnn, precision=fp8), [specs[g.gpu_key] for g in gpus.values()])
assert "amp-fp8 is measured, never predicted" in answers["nvidia-h100-sxm-80gb"].reason
assert "no FP8 tensor cores" in answers["nvidia-a100-sxm-80gb"].reason
assert "amp-fp8" in case_words(case)
# Only its row says which hardware a precision needs: in this copy, Ampere begins at 8.1.
assert tensor_core_precisions((8, 0), None, "A100") == ("fp16", "int8")
assert tensor_core_precisions((8, 1), None, "A100") == ("fp16", "bf16", "tf32", "int8")
row = pd.DataFrame([{"source": "", "precision": "tf32", "gpu_key": "nvidia-a100-sxm-80gb"}])
assert list(published.usual_math_mode(row)) == ["fp32"]
"""


@pytest.mark.parametrize("precision", Precision)
def test_every_precision_has_its_row(precision: Precision) -> None:
    facts = precision.facts
    assert facts.format in FORMATS
    assert facts.loss_error >= facts.product_error > 0
    assert isinstance(getattr(torch, facts.autocast or "float32"), torch.dtype)
    assert facts.predicted_as is None or facts.predicted_as.upper() in Mode.__members__
    assert facts.predicted_as is None or precision.in_half == (facts.predicted_as == "half")


def test_every_format_has_a_column_of_peaks() -> None:
    assert {form.peak for form in FORMATS} <= set(GpuSpec.__struct_fields__)


def test_only_strict_fp32_has_tf32_off_and_only_fp16_scales_gradients() -> None:
    assert [p for p in Precision if not p.facts.tf32] == [Precision.FP32]
    assert [p for p in Precision if p.facts.scales_gradients] == [Precision.AMP_FP16]


@pytest.mark.parametrize(("value", "forced"), [("1", True), ("2", True), ("0", False), ("", False)])
def test_a_variable_forces_tf32_by_any_value_but_zero(value: str, forced: bool) -> None:
    assert bool(forcing_tf32({"NVIDIA_TF32_OVERRIDE": value})) is forced


def test_new_precision_needs_edits_in_one_file_only(tmp_path: Path) -> None:
    """Every module reads the table: in a copy of the package, two edits of one file make amp-fp8 known everywhere."""
    copies = [
        shutil.copytree(folder, tmp_path / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
        for folder in (PACKAGE, PACKAGE.with_name("tools"))
    ]
    copy = copies[0]
    table = copy / "precisions.py"
    text = table.read_text(encoding="utf-8")
    for before, added in (('    AMP_BF16 = "amp-bf16"\n', MEMBER), ("_FACTS = {\n", ROW)):
        assert text.count(before) == 1
        text = text.replace(before, before + added.lstrip("\n"))
    assert text.count("_AMPERE = (8, 0)\n") == 1
    table.write_text(text.replace("_AMPERE = (8, 0)", "_AMPERE = (8, 1)"), encoding="utf-8")
    ended = forked_child.run(
        [sys.executable, "-c", USES],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
