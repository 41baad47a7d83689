"""Maintainers' commands: the fits, their evaluation, and the makers of shipped tables and pages.

This package exists only in a checkout and is never installed. ``data/`` holds the published measurements.
"""

import os

# Set before numpy is imported: the matrices of a fit are small, so several threads would mostly wait.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
