"""Turn a dump of driver answers and a list of faults into the script that the fake library replays.

A dump is JSON: ``{"layout": 2, "origin": "recorded" | "synthetic", "calls": [...]}``. Each call has
``function`` (its name in pynvml), ``device`` ("0", "0/1" for a MIG slice, null for the system),
``arguments``, ``code`` and ``value``. ``gpubench probe --dump`` writes this format.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvml.signatures import HANDLE, SIGNATURES, Items, Output, Text, symbol_of

DATA = Path(__file__).parents[1] / "data" / "nvml"
_SLICES = 100


@dataclass(frozen=True)
class Fault:
    """What a driver function does instead of giving its recorded answer.

    Attributes:
        function: The name in pynvml or in the library; "*" is every function of a device.
        code: NVML return code, 0 for success.
        device: Only this device ("0"); None for all.
        after: Number of calls that still get the recorded answer; the fault then stays.
        sleep_s: Duration of each call.
        values: Successive answers, one per call, in the format of the dump; the last one stays.
        selector: Only calls with these arguments; None for all.
    """

    function: str
    code: int = 0
    device: str | None = None
    after: int = 0
    sleep_s: float = 0.0
    values: Sequence[Any] = ()
    selector: tuple[int | str, ...] | None = None


@dataclass
class Scene:
    """The calls of one machine: those of the system and those of its devices."""

    calls: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self,
        function: str,
        value: Any,
        *,
        device: str | None = None,
        arguments: Sequence[Any] = (),
        code: int = 0,
    ) -> None:
        self.calls.append(
            {
                "function": function,
                "device": device,
                "arguments": list(arguments),
                "code": code,
                "value": value,
            }
        )


def load_dump(name: str | Path) -> list[dict[str, Any]]:
    """Return the calls of a dump, given by its path or by its name in tests/data/nvml."""
    path = DATA / f"{name}.json" if isinstance(name, str) else name
    calls: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["calls"]
    return calls


def several(dumps: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Make one machine with device 0 of each dump, in order; the system answers as in the first dump."""
    scene = Scene()
    dumps = list(dumps)
    scene.calls = [
        c
        for c in dumps[0]
        if c["device"] is None and "Handle" not in c["function"] and "Count" not in c["function"]
    ]
    scene.add("nvmlDeviceGetCount", len(dumps))
    for n, calls in enumerate(dumps):
        scene.add("nvmlDeviceGetHandleByIndex", str(n), arguments=[n])
        for call in calls:
            if call["device"] is not None and call["device"].split("/")[0] == "0":
                scene.calls.append(_renumber(call, n))
    return scene.calls


def _renumber(call: dict[str, Any], index: int) -> dict[str, Any]:
    moved = dict(call, device=str(index) + call["device"][1:])
    if call["function"] == "nvmlDeviceGetMigDeviceHandleByIndex" and call["code"] == 0:
        moved["value"] = str(index) + call["value"][1:]
    return moved


def change(
    calls: list[dict[str, Any]],
    function: str,
    value: Any,
    *,
    device: str = "0",
    code: int = 0,
    arguments: Sequence[Any] = (),
) -> list[dict[str, Any]]:
    """Return the calls with one answer replaced."""
    new = {"function": function, "device": device, "arguments": list(arguments), "code": code, "value": value}
    kept = [
        c
        for c in calls
        if (c["function"], c["device"], c["arguments"]) != (function, device, list(arguments))
    ]
    return [*kept, new]


def script(calls: Iterable[Mapping[str, Any]], faults: Iterable[Fault] = ()) -> str:
    """Return the text that the fake library reads: every known call of the dump, then the faults."""
    lines: dict[tuple[str, int, str], str] = {
        ("nvmlInitWithFlags", -1, "-"): _line(("nvmlInitWithFlags", -1, "-"), 0, 0, 0, ())
    }
    lines["nvmlShutdown", -1, "-"] = _line(("nvmlShutdown", -1, "-"), 0, 0, 0, ())
    for call in calls:
        symbol = symbol_of(call["function"], tuple(call["arguments"]))
        if symbol not in SIGNATURES:
            continue
        key = (symbol, _device_number(call["device"]), _selector(symbol, call["arguments"]))
        outputs = () if call["code"] else _encode(SIGNATURES[symbol].outputs, call["value"])
        lines[key] = _line(key, 0, call["code"], 0, outputs)
    extra = [line for fault in faults for line in _fault_lines(fault, lines)]
    return "\n".join([*lines.values(), *extra]) + "\n"


def _fault_lines(fault: Fault, known: Mapping[tuple[str, int, str], str]) -> Iterable[str]:
    symbol = fault.function if fault.function in SIGNATURES else symbol_of(fault.function, ())
    device = None if fault.device is None else _device_number(fault.device)
    matched = [
        key
        for key in known
        if (key[0] == symbol or (fault.function == "*" and key[1] >= 0))
        and (device is None or key[1] == device)
        and (fault.selector is None or key[2] == _selector(key[0], fault.selector))
    ]
    if not matched:
        raise KeyError(f"the dump holds no call of {fault.function}")
    for key in matched:
        outputs = SIGNATURES[key[0]].outputs
        for n, value in enumerate(fault.values or (None,)):
            given = () if fault.code or not fault.values else _encode(outputs, value)
            line = _line(key, fault.after + n, fault.code, int(fault.sleep_s * 1000), given)
            # A sleeping call that succeeds still gives its recorded answer.
            keep = fault.code == 0 and not fault.values
            yield line if not keep else _with_recorded(line, known[key])


def _with_recorded(line: str, recorded: str) -> str:
    return " ".join(line.split()[:6] + recorded.split()[6:])


def _line(key: tuple[str, int, str], after: int, code: int, sleep_ms: int, outputs: Sequence[bytes]) -> str:
    words = [key[0], str(key[1]), key[2], str(after), str(code), str(sleep_ms), str(len(outputs))]
    return " ".join([*words, *(data.hex() or "-" for data in outputs)])


def _device_number(label: str | None) -> int:
    if label is None:
        return -1
    index, _, piece = label.partition("/")
    return int(index) + (_SLICES * (int(piece) + 1) if piece else 0)


def _selector(symbol: str, arguments: Sequence[int | str]) -> str:
    if symbol == "nvmlDeviceGetMemoryInfo_v2":
        return "-"
    return ",".join(str(a) for a in arguments) or "-"


def _encode(outputs: Sequence[Output], value: Any) -> list[bytes]:
    values = [value] if len(outputs) == 1 else list(value or ())
    return [_bytes(output, v) for output, v in zip(outputs, values, strict=True)]


def _bytes(output: Output, value: Any) -> bytes:
    if isinstance(output, Text):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(output, Items):
        return b"".join(_bytes(output.of, item) for item in value)
    if output is HANDLE:
        return bytes(ctypes.c_void_p(_device_number(value) + 1))
    if issubclass(output, ctypes.Structure):
        structure = output()
        for name, kind in structure._fields_:
            if name in value:
                given = value[name]
                if given is None:  # how pynvml shows "not available"
                    given = 2**64 - 1
                setattr(structure, name, given.encode() if isinstance(given, str) else kind(given))
        return bytes(structure)
    return bytes(output(value))
