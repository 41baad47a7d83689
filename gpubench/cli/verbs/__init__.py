"""The verbs, one file each, with ``_`` for ``-`` in its name; the table describes each verb."""
