"""Constants of the method shared by operators and their backends."""

# Added to the variance by every layer norm (AlphaFold 2, DeepMind's code).
EPS = 1e-5
# Subtracted from the logits of masked keys. If all keys of a row are masked, the result is the mean of their values,
# because adding this constant rounds the logits away. AlphaFold 2.0 uses 1e9, which in float32 still preserves
# differences of more than 32 between logits, and trained networks have such differences. DeepMind's later code clips
# the logits, to the same effect.
MASKED = 1e30
# Subtracted from the logits of padding residues in invariant point attention (DeepMind's code).
MASKED_POINT = 1e5
# Added to the number of sequences in the outer product mean (DeepMind's code).
COUNT_FLOOR = 1e-3
# Number of consecutive elements (a line) of the optimizer's buffers that share a gradient scale. Buffers consist of
# whole lines: 64 bytes in bfloat16, 128 in float32.
LINE = 32
# Added to squared errors (Å^2) of points in frames (DeepMind's code).
ERROR_FLOOR = 1e-4
