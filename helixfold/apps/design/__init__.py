"""Design of protein sequences by the gradients of losses of a network's outputs with respect to its input sequence."""
