"""The verbs, one file each; a file's name has ``_`` where the verb has ``-``.

The table of verbs describes them.
"""
