"""The standard workloads; an installed gpubench has them as ``gpubench_workloads``."""
