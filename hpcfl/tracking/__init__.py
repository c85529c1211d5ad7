"""Trackers that forward a run's metrics to other tools, one module each.

``runtime.track`` selects trackers by module name. Each module assigns a
``base.Tracker`` to ``plugin``, which ``base.Tracking`` runs in a separate thread.
"""
