"""Heads read the representations in float32 and give logits of the right shape."""

from dataclasses import replace

import torch

from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.model.heads import DistogramHead, LDDTHead
from tests.support.networks import random_batch, tiny_config, tiny_model


def test_distances_are_symmetric() -> None:
    head = DistogramHead(8, 5)
    torch.nn.init.normal_(head.linear.weight)
    pair = torch.randn(1, 6, 6, 8)
    logits = head(pair, pair.transpose(1, 2))
    torch.testing.assert_close(logits, logits.transpose(1, 2))
    torch.testing.assert_close(logits[0, 1, 2], head.linear(pair[0, 1, 2]) + head.linear(pair[0, 2, 1]))


def test_bfloat16_representations_are_read_in_float32() -> None:
    head = DistogramHead(8, 5)
    torch.nn.init.normal_(head.linear.weight)
    pair = torch.randn(1, 6, 6, 8).bfloat16()
    turned = pair.transpose(1, 2)
    assert head(pair, turned).dtype == torch.float32
    assert (head(pair, turned) == head(pair.float(), turned.float())).all()


def test_the_lddt_head_is_a_norm_and_three_maps_with_relus() -> None:
    head, x = LDDTHead(8, 6, 50), torch.randn(1, 4, 8)
    torch.nn.init.normal_(head.out.weight)
    hidden = head.linear_2(head.linear_1(head.norm(x)).clamp(min=0)).clamp(min=0)
    torch.testing.assert_close(head(x), head.out(hidden))


def test_shapes_of_all_logits() -> None:
    with torch.no_grad():
        logits = tiny_model()(Whole(), [random_batch(residues=13, rows=5)]).logits
    assert logits.distogram.shape == (1, 13, 13, 64)
    assert logits.masked_msa.shape == (1, 5, 13, 23)
    assert logits.lddt.shape == (1, 13, 50)
    assert logits.experimentally_resolved.shape == (1, 13, 37)
    assert logits.aligned_error.shape == (1, 13, 13, 64)


def test_each_head_maps_its_own_representation() -> None:
    """Row by row; an edge's distances are read from it and from its reverse, its errors from it alone."""
    model = tiny_model()
    heads = model.heads
    for head in (heads.distogram.linear, heads.masked_msa.linear, heads.experimentally_resolved.linear):
        torch.nn.init.normal_(head.weight)
        torch.nn.init.normal_(head.bias)
    torch.nn.init.normal_(heads.aligned_error.linear.weight)
    with torch.no_grad():
        folded = model.fold(Whole(), [random_batch(residues=7, rows=5)], None)
        logits = heads(Whole(), folded)
    pair, msa, single = (getattr(folded.representations, name) for name in ("pair", "msa", "single"))
    assert (pair - pair.transpose(1, 2)).abs().max() > 0.1

    def mapped(head: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        return head.weight.detach() @ x + head.bias.detach()

    for i in range(7):
        resolved = mapped(heads.experimentally_resolved.linear, single[0, i])
        torch.testing.assert_close(logits.experimentally_resolved[0, i], resolved)
        for j in range(7):
            there, back = (mapped(heads.distogram.linear, edge) for edge in (pair[0, i, j], pair[0, j, i]))
            torch.testing.assert_close(logits.distogram[0, i, j], there + back, rtol=1e-4, atol=1e-4)
            error = mapped(heads.aligned_error.linear, pair[0, i, j])
            torch.testing.assert_close(logits.aligned_error[0, i, j], error, rtol=1e-4, atol=1e-4)
        for row in range(5):
            letters = mapped(heads.masked_msa.linear, msa[0, row, i])
            torch.testing.assert_close(logits.masked_msa[0, row, i], letters, rtol=1e-4, atol=1e-4)


def test_models_without_aligned_error_have_no_such_head() -> None:
    config = tiny_config()
    model = AlphaFold(replace(config, heads=replace(config.heads, aligned_error=False))).eval()
    assert not any("aligned_error" in name for name in model.state_dict())
    with torch.no_grad():
        assert model(Whole(), [random_batch()]).logits.aligned_error is None
