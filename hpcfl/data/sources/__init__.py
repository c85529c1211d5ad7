"""Data sets, one file each, found by the file's name (``data.dataset``): its ``plugin`` is
a ``base.Source``."""
