"""Models as rows of one matrix: layout, products, sums, constants, randomness."""
