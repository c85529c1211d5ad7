"""Data sets (``datasets``, one file each in ``sources/``) and how clients share them
(``partition``).
"""
