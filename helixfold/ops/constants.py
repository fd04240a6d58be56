"""Constants of the method that operators and their backends share."""

# Added to the variance by every layer norm (AlphaFold 2; DeepMind's program).
EPS = 1e-5
# Subtracted from the logits of masked keys (AlphaFold 2.0). A row whose keys are all masked attends evenly: it stays
# finite.
MASKED = 1e9
# The same for padding residues in invariant point attention (DeepMind's program; not the 1e9 of the Evoformer).
MASKED_POINT = 1e5
# Added to the number of sequences that both residues have (DeepMind's program).
COUNT_FLOOR = 1e-3
# Elements of the optimizer's buffers that share a gradient scale. Buffers are made of whole lines: 64 bytes in
# bfloat16, 128 in float32.
LINE = 32
