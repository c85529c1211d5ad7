"""Everything that a rank needs before round 1, made from the configuration."""
