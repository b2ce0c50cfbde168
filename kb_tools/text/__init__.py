"""Text as the indexes see it: folded, cut into words, counted in tokens."""
