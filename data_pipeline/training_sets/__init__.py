"""Training sets: select, cluster and store chains, and sample the examples of training steps."""
