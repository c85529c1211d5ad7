"""A run read from its folder: results, and models as torch modules and as files."""
