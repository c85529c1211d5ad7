"""Partition schemes, one file each, found by the file's name (``partition.scheme``).

A file's ``plugin`` is a ``base.Scheme``: a section of the experiment file that can draw
what it describes.
"""
