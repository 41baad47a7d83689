"""The child that opens a GPU with torch, as ``torch_view`` starts it, and tells what it sees step by step.

It says what it sees before it computes: a build without kernels for the GPU fails only there.
"""

from __future__ import annotations

from msgspec.structs import replace

from gpubench.children import ParentChannel
from gpubench.probe.identity import told_by_torch
from gpubench.probe.torch_view import View


def main() -> None:
    """Open the first GPU that torch sees, and compute on it."""
    parent, view = ParentChannel(), View()
    try:
        import torch

        parent.send(view := replace(view, architectures=tuple(torch.cuda.get_arch_list())))
        torch.cuda.init()
        properties = torch.cuda.get_device_properties(0)
        uuid, bus_id = told_by_torch(properties)
        view = replace(
            view,
            name=properties.name,
            uuid=uuid,
            sm_count=properties.multi_processor_count,
            pci_bus_id=bus_id,
        )
        parent.send(view)
        torch.ones(64, device="cuda").sum().item()
        parent.send(replace(view, computed=True))
    except Exception as error:  # noqa: BLE001 - a broken torch raises anything; its words are explained above
        parent.send(replace(view, error=str(error) or type(error).__name__))


if __name__ == "__main__":
    main()
