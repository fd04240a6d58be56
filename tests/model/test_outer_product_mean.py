"""The outer product is a mean over the sequences that both residues have."""

import torch

from helixfold.execution.whole import Whole
from helixfold.model.outer_product_mean import OuterProductMean

C_M, C_Z, C, S, R = 6, 5, 3, 4, 7


def random_update() -> OuterProductMean:
    update = OuterProductMean(C_M, C_Z, C)
    for parameter in update.parameters():
        torch.nn.init.normal_(parameter)
    return update.eval()


def test_it_is_the_mean_of_outer_products_of_two_columns() -> None:
    update, msa, mask = random_update(), torch.randn(1, S, R, C_M), (torch.rand(1, S, R) > 0.3).float()
    mask[0, :, 2] = 0
    found = Whole()(update, torch.zeros(1, R, R, C_Z), torch.ones(1, R, R), context_from=(msa, mask))
    left, right = (each(update.norm(msa))[0] for each in (update.left, update.right))
    for i in range(R):
        for j in range(R):
            both = (mask[0, :, i] * mask[0, :, j]).nonzero().flatten().tolist()
            outer = sum((torch.outer(left[s, i], right[s, j]) for s in both), torch.zeros(C, C))
            # DeepMind's program divides after the linear map, whose bias is divided too.
            expected = update.out(outer.flatten()) / (len(both) + 1e-3)
            torch.testing.assert_close(found[0, i, j], expected, rtol=1e-3, atol=1e-4)


def test_the_order_of_sequences_does_not_matter() -> None:
    update, msa, mask = random_update(), torch.randn(1, S, R, C_M), (torch.rand(1, S, R) > 0.3).float()
    order = torch.tensor([2, 0, 3, 1])
    found = [
        Whole()(update, torch.zeros(1, R, R, C_Z), torch.ones(1, R, R), context_from=source)
        for source in ((msa, mask), (msa[:, order], mask[:, order]))
    ]
    torch.testing.assert_close(found[0], found[1])
