"""The verbs, a file each, named as the verb with ``_`` for ``-``; what each does stands in the table."""
