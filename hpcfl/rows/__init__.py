"""Models as rows of one matrix: layout, products, exact sums, constants, keyed
randomness.
"""
