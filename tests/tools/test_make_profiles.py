"""tools/make.py traces the named workloads again and keeps every other profile."""

from __future__ import annotations

import msgspec
import pytest

from gpubench.profile import load_profiles, trace
from tools.make import traced_again


def test_the_torch_versions_of_a_profile_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of its step takes most of a trace, and is not needed here."""
    monkeypatch.setattr(trace, "profile_workload", lambda workload: trace.trace_operators(workload).profile)
    kept = load_profiles()["rnn_cell"].source
    assert "torch" in kept
    (made,) = (profile for profile in traced_again(["rnn_cell"]) if profile.name == "rnn_cell")
    assert made.source == kept


def test_only_the_named_workload_is_traced_again():
    """Memory is compared elsewhere: if two moments have the same peak, each process may record another moment."""
    shipped = load_profiles()
    made = {profile.name: profile for profile in traced_again(["cnn"])}
    assert list(made) == sorted(shipped)
    assert made["cnn"] is not shipped["cnn"]
    assert msgspec.structs.replace(made["cnn"], memory=()) == msgspec.structs.replace(
        shipped["cnn"], memory=()
    )
    assert all(made[name] is shipped[name] for name in shipped if name != "cnn")
