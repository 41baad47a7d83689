"""The verbs, one file each, with ``_`` for ``-`` in its name; the table says what each does."""
