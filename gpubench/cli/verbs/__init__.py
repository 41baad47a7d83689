"""The verbs: a file each, whose name is the verb's, with ``_`` for ``-``."""
