"""Converts a dump of the older layout (getter -> value, errors as "!class:text") to the layout of ``script``.

Run it as a script from the folder ``tests``: ``python -m nvml.convert OLD.json NEW.json``.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pynvml

# Identifiers of an individual card or board are left out.
LEFT_OUT = ("nvmlDeviceGetSerial", "nvmlDeviceGetBoardId", "nvmlDeviceGetBoardPartNumber", "nvmlDeviceGetPdi")
_SELECTORS = {"graphics": 0, "sm": 1, "mem": 2}
_SHORT = {"temp": ("nvmlDeviceGetTemperature", [0]), "nvlink0": ("nvmlDeviceGetNvLinkState", [0])}


def convert(old: dict[str, Any]) -> dict[str, Any]:
    """The same answers as a list of calls, without a device's identifiers."""
    calls = [
        _call("nvmlSystemGetDriverVersion", None, [], old["driver"]),
        _call("nvmlSystemGetNVMLVersion", None, [], old["nvml"]),
        _call("nvmlSystemGetCudaDriverVersion", None, [], old["cuda_driver"]),
        _call("nvmlSystemGetCudaDriverVersion_v2", None, [], old["cuda_driver"]),
        _call("nvmlDeviceGetCount", None, [], old["count"]),
    ]
    for n, device in enumerate(old["devices"]):
        calls.append(_call("nvmlDeviceGetHandleByIndex", None, [n], str(n)))
        for key, value in device.items():
            name, _, selector = key.partition(":")
            function, arguments = _SHORT.get(name, (name, [_SELECTORS[selector]] if selector else []))
            if function not in LEFT_OUT:
                calls.append(_call(function, str(n), arguments, value))
    return {"layout": 2, "origin": "recorded", "calls": calls}


def _call(function: str, device: str | None, arguments: list[int], value: Any) -> dict[str, Any]:
    code = 0
    if isinstance(value, str) and value.startswith("!"):
        code, value = _code(value[1:]), None
    return {"function": function, "device": device, "arguments": arguments, "code": code, "value": value}


def _code(text: str) -> int:
    name = text.partition(":")[0].removeprefix("NVMLError_").replace(" ", "")
    constant = "NVML_ERROR" + re.sub(r"(?=[A-Z])", "_", name).upper()
    return int(getattr(pynvml, constant))


if __name__ == "__main__":
    document = convert(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    body = ",\n".join(json.dumps(call) for call in document.pop("calls"))
    head = json.dumps(document)[:-1]
    Path(sys.argv[2]).write_text(f'{head}, "calls": [\n{body}\n]}}\n', encoding="utf-8")
