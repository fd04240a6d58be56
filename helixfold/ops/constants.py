"""Constants of the method that operators and their backends use."""

# Added to the variance by every layer norm (AlphaFold 2; DeepMind's program).
EPS = 1e-5
# Subtracted from the logits of masked keys. If all keys of a row are masked, the result is their mean, because logits
# are lost beside it. AlphaFold 2.0 has 1e9, beside which float32 still tells apart logits that differ by more than 32,
# as those of trained networks do; DeepMind's later program clips the logits, to the same effect.
MASKED = 1e30
# Subtracted from the logits of padding residues in invariant point attention (DeepMind's program).
MASKED_POINT = 1e5
# Added to the number of sequences in the outer product mean (DeepMind's program).
COUNT_FLOOR = 1e-3
# Consecutive elements of the optimizer's buffers that have one gradient scale. Buffers consist of whole lines: 64 bytes
# in bfloat16, 128 in float32.
LINE = 32
# Added to squared errors (Angstrom^2) of points in frames (DeepMind's program).
ERROR_FLOOR = 1e-4
