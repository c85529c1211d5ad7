"""Data sets, their partition over clients, and distribution shift.

``datasets`` loads a data set by name, from one file each in ``sources/``. ``partition``
draws each client's samples, by a scheme in ``partitions/``. ``shifted`` changes them,
by the shifts in ``shifts/``.
"""
