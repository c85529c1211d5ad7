"""Slurm: what to ask it for (``profile``, ``batch``), sending it (``submission``), living in a
job (``supervisor``)."""
