"""Trackers that show a run elsewhere while it goes, one file each, found by the file's
name.

``runtime.track`` names them. A file's ``plugin`` is a ``base.Tracker``; ``_writing.py``
keeps them off the run's way.
"""
