"""Who is chosen to take part, one file each."""
