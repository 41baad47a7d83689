"""What one step of a workload computes and moves, read on the meta device: no GPU, no weights.

``load_profiles`` and ``profile_of`` need no torch in this process; ``profile_workload`` does.
"""

from __future__ import annotations

from gpubench.profile.cache import classic_names, load_profiles, profile_of, profiles_of, run_names
from gpubench.profile.trace import profile_workload

__all__ = ["classic_names", "load_profiles", "profile_of", "profile_workload", "profiles_of", "run_names"]
