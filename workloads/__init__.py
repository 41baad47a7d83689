"""The standard workloads; an installed gpubench carries them as ``gpubench_workloads``."""
