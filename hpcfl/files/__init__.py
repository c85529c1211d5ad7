"""Reading and writing files: written whole or not at all, read without trust, larger
than memory.
"""
