"""Data sets, one file each; ``data.dataset`` is the file's name.

Each file assigns a ``base.Source`` to ``plugin``.
"""
