"""Trace standard workloads again: ``python -m tools.make_profiles [NAME ...]``; without a name, all of them.

Writes gpubench/data/workload_profiles.json, where each workload that is not named keeps its profile. The
versions of torch that end the source of a profile are kept; tests/packaging/torch_versions.py finds where
they differ.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec

from gpubench.discovery import load_workload, workload_names
from gpubench.files import table_json, write_file
from gpubench.folders import data_path
from gpubench.models import WorkloadProfile
from gpubench.profile import load_profiles
from gpubench.profile.cache import PROFILES_FILE
from gpubench.profile.trace import profile_workload


def traced_again(names: Sequence[str]) -> list[WorkloadProfile]:
    """Return the profile of every workload, by name: those that are named are traced, all where none is."""
    known = workload_names()
    kept = {name: profile for name, profile in load_profiles().items() if name in known}
    traced = {name: profile_workload(load_workload(name)) for name in names or known}
    for name, profile in traced.items():
        if name in kept and kept[name].source.startswith(f"{profile.source}; "):
            traced[name] = msgspec.structs.replace(profile, source=kept[name].source)
    return sorted((kept | traced).values(), key=lambda profile: profile.name)


if __name__ == "__main__":
    write_file(data_path(PROFILES_FILE), table_json(traced_again(sys.argv[1:])))
    print(f"wrote {data_path(PROFILES_FILE)}")
