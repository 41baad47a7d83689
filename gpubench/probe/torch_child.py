"""The child that opens a GPU with torch, as ``torch_view`` starts it, and tells what it sees step by step.

It says what it sees before it computes: a build without kernels for the GPU fails only there.
"""

from __future__ import annotations

from msgspec.structs import replace

from gpubench.children import ParentChannel
from gpubench.probe.torch_view import View


def main() -> None:
    """Open the first GPU that torch sees, and compute on it."""
    parent, view = ParentChannel(), View()
    try:
        import torch

        parent.send(view := replace(view, architectures=tuple(torch.cuda.get_arch_list())))
        torch.cuda.init()
        properties = torch.cuda.get_device_properties(0)
        bus_id = None
        if hasattr(properties, "pci_bus_id"):
            domain, device = (getattr(properties, f"pci_{name}_id", 0) for name in ("domain", "device"))
            bus_id = f"{domain:04x}:{properties.pci_bus_id:02x}:{device:02x}.0"
        view = replace(
            view,
            name=properties.name,
            uuid=str(properties.uuid) if hasattr(properties, "uuid") else None,
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
