"""Complexes to predict: their chains, the files that describe them, and the features of all chains together."""
