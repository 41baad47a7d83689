"""``python -m gpubench.profile``: trace the standard workloads again and write the shipped file."""

from __future__ import annotations

from gpubench.discovery import load_workload, workload_names
from gpubench.profile.cache import PROFILES_FILE, write_profiles
from gpubench.profile.trace import profile_workload
from gpubench.shipped import data_path

if __name__ == "__main__":
    write_profiles(profile_workload(load_workload(name)) for name in workload_names())
    print(f"wrote {data_path(PROFILES_FILE)}")
