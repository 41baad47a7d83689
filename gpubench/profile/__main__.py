"""``python -m gpubench.profile [NAME ...]``: trace standard workloads again and write the shipped file."""

from __future__ import annotations

import sys

from gpubench.discovery import load_workload, workload_names
from gpubench.folders import data_path
from gpubench.profile.cache import PROFILES_FILE, load_profiles, write_profiles
from gpubench.profile.trace import profile_workload

if __name__ == "__main__":
    names = sys.argv[1:] or workload_names()
    traced = {name: profile_workload(load_workload(name)) for name in names}
    kept = {name: profile for name, profile in load_profiles().items() if name in workload_names()}
    write_profiles((kept | traced).values())
    print(f"wrote {data_path(PROFILES_FILE)}")
