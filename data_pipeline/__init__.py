"""Sequences and alignments in, NumPy arrays out: everything the model reads, made without torch."""
