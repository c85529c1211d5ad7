"""The engine of a run: preparation, preflight, rounds with their results, and stops."""
