"""Training sets: which chains there are, what is stored of each, and which one a training step draws."""
