"""Sample the model's input arrays from raw features; all randomness comes from a generator argument."""
