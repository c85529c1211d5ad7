"""Data sets, one file each, found by the file's name (``data.dataset``).

A file's ``plugin`` is a ``base.Source``.
"""
