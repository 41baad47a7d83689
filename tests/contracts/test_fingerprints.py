"""The fingerprint detects changes of a workload's computation: each edit below must alter it."""

from __future__ import annotations

import json
import sys
import types

import pytest
import torch
from fingerprints import FINGERPRINTS, OLDEST_TORCH, facts, fingerprint

from gpubench.discovery import load_workload
from gpubench.workload import Workload

EDITS = (
    ("cnn", "nn.ReLU(inplace=True),\n        nn.MaxPool2d(2),\n        nn.Conv2d(first", "nn.Tanh(),\n        nn.MaxPool2d(2),\n        nn.Conv2d(first"),
    ("cnn", "nn.MaxPool2d(2)", "nn.AvgPool2d(2)"),
    ("cnn", "lr=1e-4", "lr=1e-3"),
    ("cnn", "torch.optim.Adam,", "torch.optim.AdamW,"),
    ("cnn", "loss=nn.functional.cross_entropy", "loss=partial(nn.functional.cross_entropy, label_smoothing=0.1)"),
    ("cnn", "(1, 28, 28))", "(1, 28, 28), (0, 1))"),
    ("simple_cnn", "nn.ReLU(inplace=True),\n        nn.Linear(hidden", "nn.Linear(hidden"),
    ("vgg16", "nn.ReLU(inplace=True)]", "nn.Tanh()]"),
    ("vgg16", "nn.MaxPool2d(2)", "nn.AvgPool2d(2)"),
    ("vgg16", "nn.Dropout(0.5)", "nn.Dropout(0.4)"),
    ("vgg16", "nn.Dropout(0.5)", "nn.Identity()"),
    ("vgg16", "momentum=0.9", "momentum=0.9, nesterov=True"),
    ("vgg16_transfer", "with torch.no_grad():", "with torch.enable_grad():"),
    ("vgg16_transfer", ".requires_grad_(requires_grad=False)", ""),
    ("resnet50", "        x += shortcut\n", ""),
    ("resnet50", "out: Tensor = self.relu(x)", "out: Tensor = x"),
    ("resnet50", "self.avgpool = nn.AdaptiveAvgPool2d(1)", "self.avgpool = nn.AdaptiveMaxPool2d(1)"),
    ("resnet50", "self.bn1 = nn.BatchNorm2d(width)", "self.bn1 = nn.BatchNorm2d(width, momentum=0.2)"),
    ("lstm", "hidden[:, -1]", "hidden[:, 0]"),
    ("lstm_large", "layers, batch_first=True", "layers, batch_first=True, dropout=0.2"),
    ("rnn_cell", "state = torch.tanh(", "state = torch.relu("),
    ("rnn_cell", "x[:, -1]", "x[:, 0]"),
    ("rnn_cell of stacked_lstm", "self.dropout(x)", "x"),
    ("stacked_lstm", "dropout=0.5", "dropout=0.4"),
    ("lstm_cell of stacked_lstm", "torch.sigmoid(forget) * memory", "torch.sigmoid(enter) * memory"),
    ("lstm_cell", "torch.sigmoid(forget) * memory", "torch.sigmoid(enter) * memory"),
    ("resnet50_transfer", "self.features.eval()", "self.features.train(mode)"),
    ("bert_transfer", "self.encoder.eval()", "self.encoder.train(mode)"),
    ("bert_transfer", "torch.tanh(", "torch.relu("),
    ("bert_base", "nn.functional.gelu(", "nn.functional.relu("),
    ("bert_base", "self.attention_norm(x + self.dropout(self._attend(x)))", "self.attention_norm(self.dropout(self._attend(x)))"),
    ("bert_base", "self.dropout(self.leave(wide))", "self.leave(wide)"),
    ("bert_base", "self.dropout_share if", "0.0 if"),
    ("bert_base", "dropout = 0.1", "dropout = 0.2"),
    ("bert_base", "heads: int = 12", "heads: int = 8"),
    ("bert_base", "self.apply(initialize_narrow)", ""),
    ("transformer", "self.positions(places)", "0 * self.positions(places)"),
    ("transformer", "is_causal=True", "is_causal=False"),
    ("transformer", ', approximate="tanh"', ""),
    ("transformer", "x = x + self._attend(self.attention_norm(x))", "x = self.attention_norm(x + self._attend(x))"),
    ("augment", "RandomRotation(15.0)", "RandomRotation(30.0)"),
    ("augment", "RandomHorizontalFlip(p=0.5)", "RandomHorizontalFlip(p=0.1)"),
    ("augment", "CROP = 224", "CROP = 192"),
    ("augment", "rgb_to_ycbcr", "rgb_to_hsv"),
    ("augment_video", "same_on_frame=True", "same_on_frame=False"),
)  # fmt: skip


@pytest.mark.parametrize(("module", "before", "after"), EDITS)
def test_an_edit_of_the_computation_changes_the_fingerprint(module: str, before: str, after: str) -> None:
    if module.startswith("augment"):
        pytest.importorskip("kornia")
    edited = _edited(module, before, after)
    stored = json.loads(FINGERPRINTS.read_text(encoding="utf-8"))[edited.name]
    assert edited.version == stored["version"]
    assert any(stored["fingerprint"][name] != digest for name, digest in facts(edited))


@pytest.mark.skipif(torch.__version__ < OLDEST_TORCH, reason="the fingerprints are of a newer torch")
@pytest.mark.parametrize("module", ["cnn", "bert_base", "rnn_cell"])
def test_change_of_a_docstring_keeps_the_fingerprint(module: str) -> None:
    edited = _edited(module, '"""Build', '"""Make')
    stored = json.loads(FINGERPRINTS.read_text(encoding="utf-8"))[edited.name]
    assert fingerprint(edited) == stored["fingerprint"]


def _edited(reference: str, before: str, after: str) -> Workload:
    """Return the workload of a file in which one text replaces another, wherever it occurs.

    ``vgg16 of vgg16_transfer`` edits ``vgg16``, which the file of ``vgg16_transfer`` imports.
    """
    name, _, of = reference.partition(" of ")
    load_workload("cnn")  # makes the package known
    package = sys.modules["gpubench_workloads"]
    edited = _run(package, name, {before: after})
    if not of:
        return _workload(edited)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, edited.__name__, edited)
        return _workload(_run(package, of, {}))


def _run(package: types.ModuleType, name: str, edits: dict[str, str]) -> types.ModuleType:
    source = f"{package.__path__[0]}/{name}.py"
    with open(source, encoding="utf-8") as file:  # noqa: PTH123 - a text, read once
        text = file.read()
    for before, after in edits.items():
        assert before in text, "the edit is out of date"
        text = text.replace(before, after)
    module = types.ModuleType(f"{package.__name__}.{name}")
    exec(compile(text, source, "exec"), module.__dict__)
    return module


def _workload(module: types.ModuleType) -> Workload:
    assert isinstance(module.WORKLOAD, Workload)
    return module.WORKLOAD
