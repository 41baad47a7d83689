"""Update the goldens: ``python tests/golden/make.py values`` or ``words``, never both in one commit.

Figures on the page and in Markdown have labels, which are words: updating words updates them if no figure changes.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from golden.produce import EXPECTED, LAYERS, VALUES, frozen_tables


def only_figures(text: str) -> list[str]:
    """Return the lines of a file of figures without their labels."""
    return [re.sub(r"^.*: ", "", line) for line in text.splitlines()]


def renew(layer: str) -> None:
    """Write every golden of a layer that differs, and print its name."""
    for name, produce in LAYERS[layer].items():
        write(EXPECTED / layer / name, produce())
    known = {EXPECTED / layer / name for name in LAYERS[layer]}
    for path in set((EXPECTED / layer).iterdir()) - known:
        path.unlink()
        print(f"removed {path.name}")
    if layer == "words":
        for name in (name for name in VALUES if name.startswith("figures-")):
            path, text = EXPECTED / "values" / name, VALUES[name]()
            if only_figures(path.read_text(encoding="utf-8")) != only_figures(text):
                sys.exit(f"{name}: figures changed, not only words; update the values in a separate commit")
            write(path, text)


def write(path: Path, text: str) -> None:
    """Write a golden if it differs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.parent.name}/{path.name}")


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in LAYERS:
        sys.exit(f"name one layer: {' or '.join(LAYERS)}")
    with frozen_tables():
        renew(sys.argv[1])
    # Some pages are made from the same answers and keys.
    subprocess.run([sys.executable, str(EXPECTED.parent / "pages.py")], check=True)
