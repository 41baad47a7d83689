"""What maintainers alone run: the fits, their evaluation, and the makers of shipped tables and pages.

It stands in a checkout and is never installed. ``data/`` holds the published measurements and readings.
"""

import os

# Before numpy is imported: the matrices of a fit are small, and threads that share one mostly wait.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
