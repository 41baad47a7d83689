"""The child process that runs micro-benchmarks through OpenCL; it speaks as ``worker`` does."""

from __future__ import annotations

import time

import msgspec

from gpubench.children import ParentChannel
from gpubench.errors import GpuBenchError, NoDeviceError
from gpubench.measure import messages
from gpubench.measure.privacy import scrub

_decoder: msgspec.json.Decoder[messages.Command] = msgspec.json.Decoder(messages.Command)


def main() -> None:
    """Serve one parent until its end of the pipe closes."""
    line = ParentChannel()
    commands = line.listen(_decoder, messages.Stop)
    setup = commands.get()
    if not isinstance(setup, messages.Setup):
        raise TypeError(f"the first message is {type(setup).__name__}, not Setup")
    line.send(messages.Phase(name="import"))
    began_s = time.perf_counter()
    try:
        from gpubench.measure.opencl import open_queue, run_micro

        imported_s = time.perf_counter()
        line.send(messages.Phase(name="context"))
        opened = open_queue(setup.device)
    except (ImportError, GpuBenchError) as error:
        code = error.exit_code if isinstance(error, GpuBenchError) else NoDeviceError.exit_code
        line.send(messages.Refused(reason=scrub(str(error)), exit_code=code))
        return
    cold_s = {"import": imported_s - began_s, "context": time.perf_counter() - imported_s}
    line.send(messages.Ready(cold_s=cold_s))
    while True:
        order = commands.get()
        if not isinstance(order, messages.MeasureMicro):
            raise TypeError(f"no such command through OpenCL: {type(order).__name__}")
        line.send(messages.Phase(name="micro"))
        for each in run_micro(opened, setup.device, setup.budget, strict=order.strict, time_s=order.time_s):
            line.send(messages.micro_done(each))
            if line.stop.is_set():
                break
        line.send(messages.MicroDone(last=True))


if __name__ == "__main__":
    main()
