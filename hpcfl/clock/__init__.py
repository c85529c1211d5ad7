"""The clients' own time: how fast they are, when they are on, and who takes part when.

All of it is computed from counts, in whole numbers, and nothing is measured, so it is
the same on any machine and on any number of ranks.
"""
