"""Atomic writing of files, safe reading of untrusted files, and arrays larger than
memory.
"""
