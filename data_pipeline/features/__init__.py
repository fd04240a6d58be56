"""Raw features of a target: what is known about it before anything is sampled."""
