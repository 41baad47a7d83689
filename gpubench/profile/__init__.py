"""The arithmetic and traffic of one step of a workload, traced on the meta device: no GPU, no weights.

These functions work without torch in this process; ``trace.profile_workload`` requires it.
"""

from __future__ import annotations

from gpubench.profile.cache import (
    classic_names,
    known_profile,
    load_profiles,
    profile_of,
    profiles_of,
    run_names,
    traced_once,
)

__all__ = [
    "classic_names",
    "known_profile",
    "load_profiles",
    "profile_of",
    "profiles_of",
    "run_names",
    "traced_once",
]
