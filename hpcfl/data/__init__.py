"""Data sets (``datasets``, one file each in ``sources/``) and how they are spread over
clients (``partition``)."""
