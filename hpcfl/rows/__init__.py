"""Models as rows of one matrix: the layout of parameters, products of rows, and keyed
random numbers.
"""
