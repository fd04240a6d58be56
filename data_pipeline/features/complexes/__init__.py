"""Complexes to predict: their chains, their input files, and the joint features of all chains."""
