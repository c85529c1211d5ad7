"""Partition schemes, one file each, found by the file's name (``partition.scheme``): its ``plugin`` is a
``base.Scheme``, a section of the experiment file that knows how to draw what it describes."""
