"""Trackers that forward a run's metrics to other tools, one module each.

``runtime.track`` selects trackers by module name. A module's ``plugin`` is a
``base.Tracker``, which ``base.Tracking`` runs in a thread of its own.
"""
