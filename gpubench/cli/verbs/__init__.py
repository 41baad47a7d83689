"""The verbs, one file each, whose name has ``_`` for ``-``; the table of verbs describes them."""
