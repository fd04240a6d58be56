"""Raw features of a target: its sequence, its whole MSA and its templates, before anything is sampled."""
