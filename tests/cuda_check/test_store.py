"""The file of a check: its name, what it must never contain, and files from others."""

from __future__ import annotations

import getpass
import json
import platform
import re
import traceback
from unittest import mock

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cuda_check.builders import H200, check, faults, read_check, row, with_part
from gpubench.cuda_check.judge import (
    FOREIGN,
    encode,
    file_name,
    judge,
    nameless,
    nameless_calls,
    write_check,
)
from gpubench.errors import MisuseError, StorageError
from gpubench.measure.environment import environment
from gpubench.measure.privacy import scrub, scrub_traceback
from gpubench.models import DeviceProfile, PartState, Status

HOST, USER = "sluice-7.lab.example", "ann-lee"
UUIDS = (
    "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",
    "MIG-6f1b1f5a-2f0a-5d1c-9c11-3a4b5c6d7e8f",
    "8932F937-D72C-4106-C12F-20BD9FAED9F6",
)
SERIAL = "1651823005712"
BUS = "00000000:C1:00.0"
PATH = f"/home/{USER}/secret-project/train.py"
SECRETS = (HOST, USER, SERIAL, "C1:00", "secret-project", "hunter2", "/home/", *UUIDS)


@pytest.fixture
def somebody(monkeypatch):
    """A machine and a user with names, and secrets in its environment."""
    monkeypatch.setattr(platform, "node", lambda: HOST)
    monkeypatch.setattr(getpass, "getuser", lambda: USER)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("LD_PRELOAD", f"/home/{USER}/lib/hook.so")


def assert_no_secret(text: str) -> None:
    for secret in SECRETS:
        assert secret.lower() not in text.lower(), secret


def test_the_name_says_card_and_torch_and_is_safe_everywhere():
    assert file_name(H200, "2.11.0+cu130") == "cuda-check-nvidia-h200-sxm-141gb-2.11.0-cu130.json"
    unknown = DeviceProfile(backend="cuda", name="NVIDIA  Weird/../Card (TM)")
    assert file_name(unknown, None) == "cuda-check-nvidia-weird-card-tm-unknown.json"
    for device in (unknown, DeviceProfile(backend="cuda"), DeviceProfile(backend="cuda", name="../../etc")):
        name = file_name(device, "2.13.0a0+git/../x")
        assert re.fullmatch(r"cuda-check-[a-z0-9.-]+\.json", name)
        assert ".." not in name


def test_no_secret_of_any_source_reaches_the_file(tmp_path, somebody):
    """Texts from the driver, the environment, an exception, a dying process and a finding."""
    profile = msgspec.structs.replace(
        H200,
        uuid=UUIDS[0],
        pci_bus_id=BUS,
        index=3,
        device_id="0123456789abcdef",
        unavailable={"power_limit_w": f"refused on {HOST}"},
    )
    calls = [
        {"function": "nvmlDeviceGetUUID", "device": "0", "arguments": [], "code": 0, "value": UUIDS[0]},
        {"function": "nvmlDeviceGetSerial", "device": "0", "arguments": [], "code": 0, "value": SERIAL},
        {"function": "nvmlDeviceGetBoardId", "device": "0", "arguments": [], "code": 0, "value": SERIAL},
        {
            "function": "nvmlDeviceGetPciInfo",
            "device": "0",
            "arguments": [],
            "code": 0,
            "value": {"busId": BUS},
        },
        {
            "function": "nvmlDeviceGetComputeRunningProcesses",
            "device": "0",
            "arguments": [],
            "code": 0,
            "value": [{"pid": 4711, "name": PATH}],
        },
        {
            "function": "nvmlDeviceGetName",
            "device": "0",
            "arguments": [],
            "code": 0,
            "value": f"H200 of {USER}",
        },
    ]
    trace = "".join(traceback.format_exception(RuntimeError(f"{PATH}: {UUIDS[1]} on {HOST}")))
    reason = f"File {PATH}, line 3: {USER}@{HOST} {UUIDS[2]}"
    made = check(
        device=nameless(profile),
        environment=environment(profile),
        nvml=nameless_calls(calls),
        cases=(row(Status.FAILED, reason, traceback=scrub_traceback(trace)),),
        faults=faults(after_waiting=row(Status.FAILED, reason)),
        left_out={"cnn": reason},
    )
    made = with_part(made, "load", state=PartState.FAILED, reason=reason, traceback=(reason,))
    path = tmp_path / "check.json"
    write_check(path, made)
    text = path.read_text()
    assert_no_secret(text)
    stored = read_check(path)
    assert stored.device.name == "NVIDIA H200"
    assert stored.device.index is None
    functions = [call["function"] for call in stored.nvml]
    assert functions == ["nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetName"]
    assert stored.nvml[0]["value"] == 1
    assert stored.environment.variables["LD_PRELOAD"] == "hook.so"
    assert "RuntimeError" in stored.cases[0].traceback[-1]


def test_a_traceback_keeps_library_frames_only_by_file_name(somebody):
    text = f"""Traceback (most recent call last):
  File "{PATH}", line 12, in train
    loss = secret(model)
  File "/home/{USER}/env/lib/python3.12/site-packages/torch/nn/modules/conv.py", line 553, in _conv_forward
    return F.conv2d(
  File "C:\\Users\\{USER}\\gpubench\\measure\\step.py", line 60, in step
    return train()
RuntimeError: CUDA error: out of memory on {HOST}
"""
    kept = scrub_traceback(text)
    assert kept[:2] == ("conv.py line 553 in _conv_forward", "step.py line 60 in step")
    assert kept[2].startswith("RuntimeError: CUDA error:")
    assert_no_secret("\n".join(kept))
    assert "secret(model)" not in "\n".join(kept)


def leaves(value, field=""):
    """Yield each text of a document with the name of its field."""
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, key)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from leaves(part, field)


SOUND = check(nvml=({"function": "nvmlDeviceGetName", "device": "0", "value": "NVIDIA H200"},))
FIXED = [leaf for leaf in leaves(msgspec.to_builtins(SOUND)) if leaf[0] not in FOREIGN]
WORDS = sorted({word for _, text in FIXED for word in (text, *re.findall(r"\w+", text)) if text})


@given(user=st.sampled_from(WORDS), host=st.sampled_from(WORDS))
def test_scrubbing_keeps_the_words_of_gpubench_for_any_user_name(user, host):
    """The file of a user called ``nvidia`` on a host called ``h200`` can still be read and judged."""
    with (
        mock.patch.object(platform, "node", return_value=host),
        mock.patch.object(getpass, "getuser", return_value=user),
    ):
        written = json.loads(encode(SOUND))
    assert [leaf for leaf in leaves(written) if leaf[0] not in FOREIGN] == FIXED


NAMES = st.from_regex(r"[a-z][a-z0-9_-]{2,15}", fullmatch=True).filter(lambda n: n not in {"user", "host"})


@given(user=NAMES, short=NAMES, domain=st.sampled_from(["", ".lan", ".lab.example"]), upper=st.booleans())
def test_neither_user_nor_host_in_any_form_stays_in_a_message(user, short, domain, upper):
    host = short + domain
    shown = (host.upper(), short.upper()) if upper else (host, short)
    text = f"{user}@{shown[0]}: no answer of ({shown[1]}) for {user}; {domain.strip('.')}"
    with (
        mock.patch.object(platform, "node", return_value=host),
        mock.patch.object(getpass, "getuser", return_value=user),
    ):
        clean = scrub(text)
    kept = set(re.findall(r"[\w-]+", clean.lower())) - {"user", "host", "no", "answer", "of", "for", "lan"}
    assert kept.isdisjoint({user, short, host})
    assert "lab.example" not in clean


@given(st.ip_addresses())
def test_network_address_is_removed_by_scrubbing(address):
    assume(any(digit not in "0:" for digit in str(address)))
    for text in (f"connect to {address} failed", f"tcp://[{address}]:29500", f"peer={address}."):
        assert str(address) not in scrub(text), text


@pytest.mark.parametrize(
    "text",
    [
        "driver 580.65.06, NVML 12.535.129.03, VBIOS 96.00.89.00.01",
        "at 10:00:00 on 2026-11-22T10:00:00Z",
        "bus id 00000000:C1:00.0 or 0000:00:06.0",
        "torch::cuda and c10::Error",
    ],
)
def test_versions_times_and_bus_ids_are_no_addresses(text):
    assert scrub(text) == text


def test_a_file_comes_back_as_it_was_written(tmp_path):
    made = check()
    write_check(tmp_path / "check.json", made)
    assert read_check(tmp_path / "check.json") == made
    assert [p.name for p in tmp_path.iterdir()] == ["check.json"]


def test_an_unwritable_folder_is_reported_before_anything_is_lost(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="-o"):
        write_check(tmp_path / "file" / "check.json", check())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not a check"),
        ("[" * 100_000, "not a check"),
        ("{}", "not a check"),
        (json.dumps({"kind": "cuda-check", "schema_version": 99}), "not a check"),
    ],
)
def test_an_invalid_check_is_refused(tmp_path, content, words):
    path = tmp_path / "check.json"
    path.write_text(content)
    with pytest.raises(MisuseError, match=words):
        read_check(path)


def test_a_check_of_a_later_gpubench_or_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "check.json"
    for changes in ({"schema_version": 99}, {"kind": "cuda-czech"}, {"schema_version": 0}):
        write_check(path, msgspec.structs.replace(check(), **changes))
        with pytest.raises(MisuseError, match="cuda-check up to"):
            read_check(path)
    with pytest.raises(MisuseError, match="cannot read"):
        read_check(tmp_path / "absent.json")


def test_a_huge_file_is_not_read_completely(tmp_path):
    path = tmp_path / "check.json"
    with path.open("wb") as file:
        file.truncate(17 * 1024**2)
    with pytest.raises(MisuseError, match="16"):
        read_check(path)


# --- older files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_file_with_textual_causes_and_more_parts_is_judged_alike(tmp_path, version):
    """The quick run and the multi-GPU job in an older file are ignored, because every run checks those itself."""
    document = json.loads(encode(check()))
    document["schema_version"] = version
    del document["faults"]["waiting"]["cause"]
    document["parts"] += [{"name": name, "state": "done", "phases_s": {}} for name in ("quick", "scaling")]
    document |= {"quick": {"took_s": 40.0, "measurements": []}, "scaling": [{"status": "failed"}]}
    path = tmp_path / "old.json"
    path.write_text(json.dumps(document))
    assert judge(read_check(path)) == judge(check())
