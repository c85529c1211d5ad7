"""Partition schemes, one file each; ``partition.scheme`` is the file's name.

Each file assigns a ``base.Scheme`` to ``plugin``: a section of the experiment file with
a method that draws the partition.
"""
