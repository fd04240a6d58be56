"""Training sets: choosing, clustering and storing their chains, and drawing the examples of training steps."""
