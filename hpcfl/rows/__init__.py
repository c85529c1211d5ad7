"""Models as rows of one matrix: where each parameter lies, products of rows, and random
numbers by key.
"""
