"""The clients' own time: their speed, their availability, and their participation.

All times are computed from counts in whole numbers. Nothing is measured, so the times
are the same on any machine and on any number of ranks.
"""
