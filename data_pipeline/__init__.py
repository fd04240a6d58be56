"""Turn sequences, alignments and structures into the NumPy arrays that the model reads, without torch."""
