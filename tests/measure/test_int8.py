"""Linear layers in int8, for real on the CPU: their errors, the refusals, and the stored error."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec

import msgspec
import pytest
import torch
from report import samples
from torch import nn

from gpubench import effects
from gpubench.blocks.parts import Block, as_markdown
from gpubench.discovery import load_workload
from gpubench.measure import guards, quantize
from gpubench.measure.capability import NotHereError, why_no_precision, why_not_for_task
from gpubench.measure.quantize import compute_in_int8
from gpubench.measure.step import move
from gpubench.models import DeviceProfile, Execution, Measurement, Precision, TaskKind, WeightType
from gpubench.profile import load_profiles
from gpubench.sections.data import of_run
from gpubench.sections.measured import outputs
from gpubench.workload import Task

CPU = torch.device("cpu")
FACTS = Precision.INT8.facts
HAS_TORCHAO = pytest.mark.skipif(
    find_spec("torchao") is None or quantize.why_no_products("int8", CPU) is not None, reason="needs torchao"
)


@HAS_TORCHAO
@pytest.mark.parametrize(("rows", "bias"), [(64, True), (5, False)])
def test_int8_layer_has_exactly_the_tabulated_rounding_error(rows, bias):
    torch.manual_seed(0)
    layer = nn.Linear(256, 96, bias=bias).to(torch.bfloat16)
    x = torch.randn(rows, 256, dtype=torch.bfloat16)
    with torch.inference_mode():
        exact = nn.functional.linear(x.double(), layer.weight.double(), layer.bias.double() if bias else None)
        model = nn.Sequential(layer)
        compute_in_int8(model, "mine", CPU)
        error = float((model(x).double() - exact).norm() / exact.norm())
    assert 5e-3 < error < FACTS.product_error, "the rounding to 8 bits is in the result, and no more"


def test_the_outputs_of_low_bit_weights_have_no_reference(make_case):
    """A CPU in bfloat16 rounds like the device; compared with that, an error of zero would prove nothing."""
    for weight_type, is_known in ((WeightType.FLOAT32, True), (WeightType.BFLOAT16, False)):
        case = make_case(
            workload="own",
            task=TaskKind.INFER,
            precision=Precision.FP32,
            batch_size=4,
            weight_type=weight_type,
        )
        dtype = getattr(torch, weight_type.value)
        task = Task(
            model=nn.Linear(8, 4).to(dtype),
            batches=((torch.randn(4, 8, dtype=dtype), torch.zeros(4, dtype=torch.long)),),
            loss=nn.functional.cross_entropy,
            optimizer=torch.optim.SGD,
        )
        expected = guards.expected_of(task, case)
        assert (expected.outputs is not None) == is_known
        assert expected.loss > 0


@HAS_TORCHAO
def test_the_outputs_of_a_model_are_compared_with_float32_and_the_error_is_stated(make_case):
    errors = {}
    for precision in (Precision.FP32, Precision.BF16, Precision.INT8):
        task = load_workload("bert_base").tiny(4, 0)
        case = make_case(
            workload="bert_base",
            task=TaskKind.INFER,
            precision=precision,
            batch_size=4,
            weight_type=WeightType(precision.facts.whole_model or "float32"),
        )
        again = load_workload("bert_base").tiny(4, 0)
        errors[precision] = guards.reference_errors(move(again, case, CPU), task)
    assert errors[Precision.FP32].outputs < 1e-6
    assert errors[Precision.BF16].outputs < errors[Precision.INT8].outputs < 0.1
    assert errors[Precision.INT8].loss < FACTS.loss_error


@HAS_TORCHAO
def test_layers_that_torchao_cannot_quantize_stay_and_a_model_of_only_those_is_refused():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 10)).to(torch.bfloat16)
    compute_in_int8(model, "mine", CPU)
    assert [type(layer.weight.data) is torch.Tensor for layer in model] == [False, True]
    with pytest.raises(NotHereError, match="multiples of 8"):
        compute_in_int8(nn.Sequential(nn.Linear(64, 10)), "mine", CPU)


def test_without_torchao_the_reason_is_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(NotHereError, match=r"int8 products need torchao.*pip install 'torchao>="):
        compute_in_int8(nn.Sequential(nn.Linear(64, 64)), "mine", CPU)


def test_a_torchao_that_needs_a_newer_torch_is_the_reason(monkeypatch, tmp_path):
    """A newer torchao uses names that torch 2.4 lacks."""
    (tmp_path / "torchao").mkdir()
    (tmp_path / "torchao" / "__init__.py").write_text("import torch\ntorch.no_such_type\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchao"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(NotHereError) as caught:
        compute_in_int8(nn.Sequential(nn.Linear(64, 64)), "mine", CPU)
    for words in ("torchao", f"torch {torch.__version__}", "no_such_type"):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("device", "lacks"),
    [
        (DeviceProfile(backend="cpu", tensor_core_precisions=("bf16", "int8")), None),
        (DeviceProfile(backend="cpu", tensor_core_precisions=("bf16",)), "int8 instructions"),
        (DeviceProfile(backend="cpu", tensor_core_precisions=("int8",)), "bf16 instructions"),
        (DeviceProfile(backend="cuda", compute_capability=(8, 0)), None),
        (DeviceProfile(backend="cuda", compute_capability=(7, 5)), "needs compute capability 8.0"),
    ],
)
def test_int8_requires_hardware_instructions(device, lacks):
    reason = why_no_precision(Precision.INT8, device)
    assert reason is None if lacks is None else lacks in reason


def test_int8_is_available_only_for_inference(make_case):
    infer = make_case(task=TaskKind.INFER, precision=Precision.INT8)
    assert why_not_for_task(infer) is None
    assert "inference" in why_not_for_task(msgspec.structs.replace(infer, task=TaskKind.TRAIN))
    assert "--recipe weight-type" in why_not_for_task(msgspec.structs.replace(infer, new_tokens=8))
    assert load_profiles()["cnn"].why_not_at(Precision.INT8) is None


def test_gain_and_error_are_in_one_section_and_in_json():
    def row(precision: Precision, step_s: float, error: float | None) -> Measurement:
        case = msgspec.structs.replace(
            samples.case("vgg16", 64, precision, Execution.EAGER),
            task=TaskKind.INFER,
            weight_type=WeightType(precision.facts.whole_model or "float32"),
        )
        made = samples.measurement(case, step_s, 0.01, telemetry=False)
        launches = tuple(msgspec.structs.replace(launch, output_error=error) for launch in made.launches)
        return msgspec.structs.replace(made, launches=launches)

    rows = (row(Precision.FP32, 0.02, 1e-6), row(Precision.INT8, 0.01, 0.0123))
    run = samples.h200_run(measurements=rows, micro=())
    (said,) = effects.document(run)["inference"]
    assert (said["case"].precision, said["output_error"]) == (Precision.INT8, 0.0123)
    assert said["speedup"].value == pytest.approx(2, rel=0.05)
    shown = as_markdown("run", "", [Block(title="t", parts=tuple(outputs(of_run(run))))])
    assert "1.2 %" in shown
    assert re.search(r"int8.*2\.\d+ *×", shown)
