"""Workloads and tasks, and how plug-ins are found."""
