"""The first pass equals DeepMind's program module by module, so that a difference is found where it arises."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from helixfold.execution.whole import Whole
from helixfold.model.alphafold import AlphaFold
from helixfold.model.outputs import Outputs
from helixfold.model.update import Update, transposed
from tests.parity.cases import deviation, outputs_as_deepmind, read_case

pytestmark = pytest.mark.parity

# Angstrom, the unit of translations inside the structure module.
POSITION_SCALE = 10.0

# DeepMind's module, below alphafold/alphafold_iteration, and ours.
MODULES = {
    "evoformer/preprocess_1d": "input_embedder.target",
    "evoformer/preprocess_msa": "input_embedder.msa",
    "evoformer/left_single": "input_embedder.left",
    "evoformer/right_single": "input_embedder.right",
    "evoformer/prev_pos_linear": "recycling_embedder.distances",
    "evoformer/prev_msa_first_row_norm": "recycling_embedder.norm_msa",
    "evoformer/prev_pair_norm": "recycling_embedder.norm_pair",
    "evoformer/template_embedding": "template_embedder.attention.out",
    "evoformer/extra_msa_activations": "extra_msa_embedder.linear",
    "evoformer/template_single_embedding": "template_embedder.angles.linear_1",
    "evoformer/template_projection": "template_embedder.angles.linear_2",
    "evoformer/single_activations": "single",
    "structure_module/single_layer_norm": "structure_module.norm_single",
    "structure_module/initial_projection": "structure_module.initial",
    "distogram_head/half_logits": "heads.distogram.linear",
    "experimentally_resolved_head/logits": "heads.experimentally_resolved.linear",
    "masked_msa_head/logits": "heads.masked_msa.linear",
    "predicted_lddt_head/input_layer_norm": "heads.lddt.norm",
    "predicted_lddt_head/act_0": "heads.lddt.linear_1",
    "predicted_lddt_head/act_1": "heads.lddt.linear_2",
    "predicted_lddt_head/logits": "heads.lddt.out",
    "predicted_aligned_error_head/logits": "heads.aligned_error.linear",
}
UPDATES = {
    "msa_row_attention_with_pair_bias": "row_attention",
    "msa_column_attention": "column_attention",
    "msa_column_global_attention": "column_attention",
    "msa_transition": "msa_transition",
    "outer_product_mean": "outer_product_mean",
    "triangle_multiplication_outgoing": "triangle_outgoing",
    "triangle_multiplication_incoming": "triangle_incoming",
    "triangle_attention_starting_node": "triangle_starting",
    "triangle_attention_ending_node": "triangle_ending",
    "pair_transition": "pair_transition",
}
STACKS = {"extra_msa_stack": "extra_msa_stack", "evoformer_iteration": "evoformer"}


class Recorder:
    """What every module of a model returned, call by call; of updates the change, transposed back to their stream."""

    def __init__(self, model: AlphaFold) -> None:
        self.calls: dict[str, list[tuple[Tensor, ...]]] = {}
        for name, module in model.named_modules():
            module.register_forward_hook(self._hook(name), with_kwargs=True)

    def _hook(self, name: str) -> Callable[[nn.Module, object, dict[str, Any], object], None]:
        def record(module: nn.Module, _: object, named: dict[str, Any], output: object) -> None:
            if isinstance(module, Update):
                residual = named.get("residual")
                output = transposed(output if residual is None else output - residual.stream, module.axis)
            parts = output if isinstance(output, tuple) else (output,)
            self.calls.setdefault(name, []).append(parts)

        return record


def expected_by_name(path: Path) -> dict[str, np.ndarray]:
    """DeepMind's trace in the order of execution, without the numbers and the common scope."""
    arrays = np.load(path)
    scope = "alphafold/alphafold_iteration/"
    names = {key: key.split("|")[1] for key in sorted(arrays.files)}
    return {name.removeprefix(scope): arrays[key] for key, name in names.items() if name.startswith(scope)}


def ours_by_name(calls: dict[str, list[tuple[Tensor, ...]]], outputs: Outputs) -> Iterator[tuple[str, str, Tensor]]:
    """DeepMind's name, ours, and the value that ours has."""
    for theirs, ours in MODULES.items():
        if ours in calls:
            yield f"{theirs}#0", ours, calls[ours][0][0]
    for theirs, ours in STACKS.items():
        blocks = [name for name in calls if name.startswith(f"{ours}.blocks.") and name.count(".") == 2]
        for index, block in enumerate(blocks):
            for their_update, our_update in UPDATES.items():
                update = f"{block}.{our_update}"
                yield f"evoformer/{theirs}/{their_update}#{index}", update, calls[update][0][0]
            for part, stream in zip(("msa", "pair"), calls[block][0], strict=True):
                yield f"evoformer/{theirs}#{index}:{part}", f"{block} ({part})", stream
    representations, structure = outputs.representations, outputs.structure
    for part in ("msa", "msa_first_row", "pair", "single"):
        yield f"evoformer#0:{part}", f"representations.{part}", getattr(representations, part)
    fold = "structure_module/fold_iteration"
    frames = torch.cat([structure.frames[..., :4], structure.frames[..., 4:] / POSITION_SCALE], -1)
    groups = structure.rigid_groups
    side_chains = {
        "angles_sin_cos": structure.torsions,
        "unnormalized_angles_sin_cos": structure.unnormalized_torsions,
        "atom_pos": structure.atom14,
        "frames": torch.cat([groups[..., :3].flatten(-2), groups[..., 3]], -1),
    }
    for index in range(len(structure.frames)):
        here = f"structure_module, iteration {index}"
        attention, state = (calls[f"structure_module.{name}"][index][0] for name in ("attention", "norm_transition"))
        yield f"{fold}/invariant_point_attention#{index}", f"{here}, attention", attention
        yield f"{fold}#{index}:/0/act", f"{here}, state", state
        yield f"{fold}#{index}:/1/affine", f"{here}, frames", frames[index]
        for part, values in side_chains.items():
            yield f"{fold}/rigid_sidechain#{index}:{part}", f"{here}, {part}", values[index]
    for name, value in outputs_as_deepmind(outputs).items():
        head, _, part = name.partition("/")
        if head != "representations":
            module = head if head == "structure_module" else f"{head}_head"
            yield f"{module}#0:{part}", f"outputs {name}", torch.from_numpy(value)[None]


def not_compared(name: str) -> bool:
    """Constants, what is the same numbers under a second name, and a norm that is part of an operator here."""
    parts = (
        "structure_module/pair_layer_norm",
        "breaks",
        "bin_edges",
        "layer_stack",
        "pair_activiations",
        ":/0/affine",
        ":/1/sc/",
    )
    return any(part in name for part in parts)


@pytest.mark.parametrize("name", ["monomer_ptm_tiny", "monomer_notempl_tiny"])
def test_every_module_equals_deepminds_in_the_order_of_execution(name: str, reference: Path, tmp_path: Path) -> None:
    folder = reference / "cases" / name
    case, expected = read_case(folder), expected_by_name(folder / "trace.npz")
    model = case.model(tmp_path)
    recorder = Recorder(model)
    with torch.no_grad():
        outputs = model(Whole(), case.batches)
    ours = {theirs: (ours, value[0].numpy()) for theirs, ours, value in ours_by_name(recorder.calls, outputs)}
    left_out = [theirs for theirs in expected if theirs not in ours and not not_compared(theirs)]
    assert not left_out
    agreeing = 0
    for theirs, value in expected.items():
        if theirs in ours:
            our_name, our_value = ours[theirs]
            error = deviation(our_value, value)
            assert error < 1e-4, (
                f"the first that deviates is {our_name}, by {error:.1e} of the largest value ({theirs} in DeepMind's "
                f"trace); the {agreeing} before it agree"
            )
            agreeing += 1


def test_the_first_streams_are_the_sums_of_deepminds_parts(reference: Path, tmp_path: Path) -> None:
    folder = reference / "cases" / "monomer_ptm_tiny"
    case, expected = read_case(folder), expected_by_name(folder / "trace.npz")
    batch, model = case.batches[0], case.model(tmp_path)
    with torch.no_grad():
        msa = model.input_embedder.msa_rows(batch, slice(None), torch.float32)
        pair = model.input_embedder.pair_rows(batch, slice(None), torch.float32)
    rows, query, left, right, position = (
        expected[f"evoformer/{name}#0"]
        for name in ("preprocess_msa", "preprocess_1d", "left_single", "right_single", "pair_activiations")
    )
    assert deviation(msa[0].numpy(), rows + query) < 1e-5
    assert deviation(pair[0].numpy(), left[:, None] + right + position) < 1e-5
