"""From raw features to the arrays of one model pass; all randomness comes from a generator argument."""
