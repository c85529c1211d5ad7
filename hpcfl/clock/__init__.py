"""Virtual time: clients' speed, availability and participation.

All times are computed from counts in whole numbers. Nothing is measured, so times are
the same on any machine and on any number of ranks.
"""
