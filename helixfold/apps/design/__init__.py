"""Design of proteins by gradients of a network's outputs with respect to the sequence that it reads."""
