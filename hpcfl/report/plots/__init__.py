"""Kinds of figures, one file each: from runs to a picture, found by the file's name."""
