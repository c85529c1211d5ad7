"""Trackers that forward a run's metrics to other tools, one module each.

``runtime.track`` selects trackers by module name. A module's ``plugin`` is a
``base.Tracker``; ``_writing.py`` runs trackers in threads of their own.
"""
