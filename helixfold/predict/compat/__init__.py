"""Options of other programs that `helixfold predict` understands."""
