"""Transform raw features into the model's input arrays; all randomness comes from a generator argument."""
