"""The rounds of a run: the loop, what each round leaves behind, and how the loop is
stopped.
"""
