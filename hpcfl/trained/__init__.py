"""The models of a run, taken out of its folder again: as plain modules of torch, and as
files.
"""
