"""Output heads, which compute logits from the final representations in float32 (AlphaFold 2, Suppl. Sec. 1.9)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from helixfold.model.config import ModelConfig
from helixfold.model.layers import LayerNorm, Linear
from helixfold.model.outputs import Folded, Logits, PredictedStructure
from helixfold.model.update import Executor, Stream, transposed
from helixfold.ops.precision import to_float32

# Angstrom, the upper edge of the first distance bin and the lower edge of the last (AlphaFold 2, Suppl. Sec. 1.9.8).
FIRST_DISTANCE, LAST_DISTANCE = 2.3125, 21.6875


class LinearHead(nn.Module):
    """A linear map from a representation to logits, in float32."""

    def __init__(self, c: int, bins: int) -> None:
        super().__init__()
        self.linear = Linear(c, bins, init="zeros")

    def forward(self, x: Float[Tensor, "*batch c"]) -> Float[Tensor, "*batch v"]:
        return self.linear(to_float32(x))


class DistogramHead(nn.Module):
    """Logits of distances between pseudo-beta atoms, symmetric in i and j (AlphaFold 2, Suppl. Sec. 1.9.8)."""

    def __init__(self, c: int, bins: int) -> None:
        super().__init__()
        self.linear = Linear(c, bins, init="zeros")

    def forward(
        self, rows: Float[Tensor, "b i j c_z"], columns: Float[Tensor, "b i j c_z"]
    ) -> Float[Tensor, "b i j v"]:
        """Return the logits of edges ij, from the edges ij (`rows`) and ji (`columns`)."""
        return self.linear(to_float32(rows)) + self.linear(to_float32(columns))


class LDDTHead(nn.Module):
    """Logits of each residue's lDDT-CA, from which pLDDT is computed (AlphaFold 2, Suppl. Alg. 29)."""

    def __init__(self, c: int, c_hidden: int, bins: int) -> None:
        super().__init__()
        self.norm = LayerNorm(c)
        self.linear_1 = Linear(c, c_hidden, init="relu")
        self.linear_2 = Linear(c_hidden, c_hidden, init="relu")
        self.out = Linear(c_hidden, bins, init="zeros")

    def forward(self, single: Float[Tensor, "b r c"]) -> Float[Tensor, "b r v"]:
        return self.out(self.linear_2(self.linear_1(self.norm(single)).relu()).relu())


def lddt_centers(bins: int, device: torch.device) -> Float[Tensor, "v"]:
    """Return the lDDT-CA in the middle of each bin, 0 to 100; all bins have equal width."""
    return (torch.arange(bins, device=device, dtype=torch.float32) + 0.5) * (100 / bins)


class Heads(nn.Module):
    """All output heads; `aligned_error` is None except in models such as `_ptm` and `_multimer`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        heads = config.heads
        self.distogram = DistogramHead(config.c_z, heads.distogram_bins)
        self.masked_msa = LinearHead(config.evoformer.c_m, heads.masked_msa_letters)
        self.lddt = LDDTHead(config.structure.c, heads.c_lddt, heads.lddt_bins)
        self.experimentally_resolved = LinearHead(config.c_s, 37)
        self.aligned_error = LinearHead(config.c_z, heads.aligned_error_bins) if heads.aligned_error else None
        self.plddt_slope = 0.0 if config.template is None else config.template.plddt_slope

    def lddt_logits(self, structure: PredictedStructure) -> Float[Tensor, "b r v"]:
        """Return the logits of each residue's lDDT-CA, calibrated separately for residues placed by a template.

        In these residues, `plddt_slope` times the lDDT (0 to 1) in the middle of a bin is added to the bin's logit.
        """
        logits = self.lddt(structure.single)
        if self.plddt_slope == 0:
            return logits
        centers = lddt_centers(logits.shape[-1], logits.device) / 100
        return logits + self.plddt_slope * structure.from_template[..., None] * centers

    def forward(self, run: Executor, folded: Folded) -> Logits:
        """Return the logits of all heads at all positions, each as large as its stream.

        Prediction does not need them: `model.confidence` computes scores row by row.
        """
        pair, msa = folded.representations.pair, folded.representations.msa

        def logits(head: LinearHead, stream: Stream) -> Tensor:
            """Return the logits of a head at all positions of a stream."""
            return run.gather(run.map_rows(lambda _, rows: head(rows), stream))

        distances = run.map_rows(lambda _, *edges: self.distogram(*edges), pair, transposed(pair, "columns"))
        return Logits(
            distogram=run.gather(distances),
            masked_msa=logits(self.masked_msa, msa),
            lddt=self.lddt_logits(folded.structure),
            experimentally_resolved=self.experimentally_resolved(folded.representations.single),
            aligned_error=None if self.aligned_error is None else logits(self.aligned_error, pair),
        )
