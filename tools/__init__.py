"""What maintainers alone run: the fits, their evaluation, and the makers of shipped tables and pages.

It stands in a checkout and is never installed. ``data/`` holds the published measurements and readings.
"""
