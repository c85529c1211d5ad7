"""Kinds of figures: one module for each, found by its name."""
