"""Every module equals DeepMind's on its own, however it is carried out."""

from dataclasses import replace
from typing import TypeVar

import numpy as np
import pytest
import torch
from einops import einsum
from torch import Tensor, nn

from data_pipeline.sampling.templates import pseudo_beta
from helixfold.execution.slabs import Slabs
from helixfold.execution.whole import Whole
from helixfold.model.batch import Batch
from helixfold.model.config import ModelConfig, StackConfig, StructureConfig, TemplateConfig
from helixfold.model.evoformer import EvoformerBlock
from helixfold.model.geometry.atoms import atom14_from_rigid_groups, rigid_groups_from_torsions
from helixfold.model.geometry.rigid import Rigid
from helixfold.model.layers import LayerNorm, Transition
from helixfold.model.msa import MSAColumnAttention, MSAGlobalColumnAttention, MSARowAttention
from helixfold.model.multimer import MultimerTemplateEmbedder
from helixfold.model.outer_product_mean import OuterProductMean
from helixfold.model.point_attention import InvariantPointAttention, PairInput
from helixfold.model.structure_module import Angles, StructureModule
from helixfold.model.templates import TemplateEmbedder, TemplatePairEmbedder
from helixfold.model.triangle import TriangleAttention, TriangleMultiplication
from helixfold.model.update import Executor
from helixfold.ops.attention import attention
from helixfold.ops.dispatch import forced
from helixfold.ops.structure.quaternions import quaternion_to_rotation
from helixfold.weights.conversion import ParameterMapping, to_ours
from helixfold.weights.table import table
from tests.parity.cases import DATA, deviation, structure_as_deepmind
from tests.parity.parameters import read_module
from tests.support.networks import random_batch, random_complex, tiny_multimer_config

pytestmark = pytest.mark.parity

TOLERANCE = 1e-5
C_M, C_E, C_Z, C_S = 24, 16, 20, 48
STACK = StackConfig(blocks=1, c_m=C_M, msa_heads=8, pair_heads=4, c_outer=8, c_triangle=16)
CONFIG = ModelConfig(
    c_z=C_Z,
    c_s=C_S,
    evoformer=STACK,
    extra_msa=replace(STACK, c_m=C_E),
    template=TemplateConfig(c_t=16, c_triangle=12, attention_channels=16),
    structure=StructureConfig(c=40, c_angles=24),
)
ROOT, EVOFORMER, EXTRA = "evoformer/", "evoformer/evoformer_iteration/", "evoformer/extra_msa_stack/"
TEMPLATE, FOLD = "evoformer/template_embedding/", "structure_module/fold_iteration/"

executors = pytest.mark.parametrize("run", [Whole(), Slabs(rows=3)], ids=["whole", "slabs"])
AnyModule = TypeVar("AnyModule", bound=nn.Module)


class Reference:
    """One module of DeepMind's program: its parameters, what it was given and what it returned (batched)."""

    def __init__(self, name: str, folder: str = "modules") -> None:
        stored = read_module(DATA / folder / f"{name}.npz")
        arrays = {each: _tensor(value) for each, value in stored.items() if each != "note"}
        self.given = {each: value[None] for each, value in _below("in:", arrays).items()}
        self.returned = {each: value[None] for each, value in _below("out:", arrays).items()}
        self.parameters = _below("param:", arrays)

    def load(self, module: AnyModule, ours: str, theirs: str, config: ModelConfig = CONFIG) -> AnyModule:
        """The module with DeepMind's parameters; each of them must have its place, as each of ours.

        `ours` is where the module stands in our network, `theirs` the scope that the file's names lack.
        """
        rows = []
        for parameter in table(config):
            if parameter.ours[0].startswith(f"{ours}."):
                parts = [name.removeprefix(f"{ours}.") for name in parameter.ours]
                stacked = "*" in parts[0]
                blocks = range(parameter.blocks or 1 if stacked else 1)
                rows.append(
                    ParameterMapping(
                        ours=tuple(name.replace("*", str(block)) for block in blocks for name in parts),
                        theirs=parameter.alphafold,
                        axes=parameter.axes,
                        stacked=stacked,
                        parts=len(parts),
                    )
                )
        module.load_state_dict(to_ours(rows, {f"{theirs}{name}": value for name, value in self.parameters.items()}))
        return module.eval()


def _below(prefix: str, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array.astype(np.int64 if array.dtype.kind == "i" else np.float32))


def require_equal(found: Tensor, expected: Tensor) -> None:
    error = deviation(found.detach().numpy(), expected.numpy())
    assert error < TOLERANCE, f"deviates by {error:.1e} of the largest value"


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
def test_attention_with_keys_of_its_own(gated: bool, gradients: bool) -> None:
    """Ours has no module for it; the operator between the projections is what is compared."""
    reference = Reference(f"attention_gating{int(gated)}")
    weights = _below("attention//", reference.parameters)
    query_data, key_data = reference.given["q_data"], reference.given["m_data"]
    with torch.set_grad_enabled(gradients):
        gathered = attention(
            einsum(query_data, weights["query_w"], "b n q c, c h d -> b n h q d"),
            einsum(key_data, weights["key_w"], "b n k c, c h d -> b n h k d"),
            einsum(key_data, weights["value_w"], "b n k c, c h d -> b n h k d"),
            (reference.given["bias"][:, :, 0, 0] == 0).float(),
            reference.given["nonbatched_bias"],
        )
    if gated:
        gate = einsum(query_data, weights["gating_w"], "b n q c, c h d -> b n q h d") + weights["gating_b"]
        gathered = gathered * gate.sigmoid().transpose(2, 3)
    found = einsum(gathered, weights["output_w"], "b n h q d, h d c -> b n q c") + weights["output_b"]
    require_equal(found, reference.returned["result"])


@executors
@pytest.mark.parametrize("name", ["msa_row_attention_with_pair_bias", "msa_row_attention_fully_masked_row"])
def test_msa_row_attention(name: str, run: Executor) -> None:
    reference = Reference(name)
    module = MSARowAttention(C_M, C_Z, STACK.msa_heads, 0.15)
    reference.load(module, "evoformer.blocks.*.row_attention", EVOFORMER)
    msa, mask, pair = (reference.given[each] for each in ("msa_act", "msa_mask", "pair_act"))
    found = run(module, msa.clone(), mask, context_from=(pair, torch.ones(pair.shape[:3]))) - msa
    assert torch.isfinite(found).all()
    counted = mask[0].sum(-1) > 0
    assert counted.all() == (name == "msa_row_attention_with_pair_bias")
    require_equal(found[:, counted], reference.returned["result"][:, counted])


@executors
def test_msa_column_attention(run: Executor) -> None:
    reference = Reference("msa_column_attention")
    module = MSAColumnAttention(C_M, STACK.msa_heads)
    reference.load(module, "evoformer.blocks.*.column_attention", EVOFORMER)
    msa = reference.given["msa_act"]
    require_equal(run(module, msa.clone(), reference.given["msa_mask"]) - msa, reference.returned["result"])


@executors
def test_msa_column_global_attention(run: Executor) -> None:
    reference = Reference("msa_column_global_attention")
    module = MSAGlobalColumnAttention(C_E, STACK.msa_heads)
    reference.load(module, "extra_msa_stack.blocks.*.column_attention", EXTRA)
    msa = reference.given["msa_act"]
    require_equal(run(module, msa.clone(), reference.given["msa_mask"]) - msa, reference.returned["result"])


@executors
def test_transition(run: Executor) -> None:
    reference = Reference("transition")
    module = reference.load(Transition(C_M, 4), "evoformer.blocks.*.msa_transition", EVOFORMER)
    msa = reference.given["act"]
    require_equal(run(module, msa.clone(), reference.given["mask"]) - msa, reference.returned["result"])


@executors
def test_outer_product_mean(run: Executor) -> None:
    reference = Reference("outer_product_mean")
    module = OuterProductMean(C_M, C_Z, STACK.c_outer)
    reference.load(module, "evoformer.blocks.*.outer_product_mean", EVOFORMER)
    expected = reference.returned["result"]
    stream = torch.zeros_like(expected)
    found = run(
        module, stream, torch.ones(stream.shape[:3]), context_from=(reference.given["act"], reference.given["mask"])
    )
    require_equal(found, expected)


@executors
@pytest.mark.parametrize(("direction", "axis"), [("outgoing", "rows"), ("incoming", "columns")])
def test_triangle_multiplication(direction: str, axis: str, run: Executor) -> None:
    reference = Reference(f"triangle_multiplication_{direction}")
    module = TriangleMultiplication(C_Z, STACK.c_triangle, axis, 0.25)
    reference.load(module, f"evoformer.blocks.*.triangle_{direction}", EVOFORMER)
    pair = reference.given["act"]
    require_equal(run(module, pair.clone(), reference.given["mask"]) - pair, reference.returned["result"])


@executors
@pytest.mark.parametrize(("node", "axis"), [("starting", "rows"), ("ending", "columns")])
def test_triangle_attention(node: str, axis: str, run: Executor) -> None:
    reference = Reference(f"triangle_attention_{node}_node")
    module = TriangleAttention(C_Z, STACK.pair_heads, axis, 0.25)
    reference.load(module, f"evoformer.blocks.*.triangle_{node}", EVOFORMER)
    pair = reference.given["pair_act"]
    require_equal(run(module, pair.clone(), reference.given["pair_mask"]) - pair, reference.returned["result"])


def separate_projections(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """Parameters of AlphaFold-Multimer's triangle multiplication, left and right in one, under the monomer's names."""
    renamed = {"projection": "_projection", "gate": "_gate"}
    separate = {}
    for name, value in parameters.items():
        scope, leaf = name.split("//")
        module, _, last = scope.rpartition("/")
        if "triangle_multiplication" in module and last in renamed:
            for side, half in zip(("left", "right"), value.chunk(2, -1), strict=True):
                separate[f"{module}/{side}{renamed[last]}//{leaf}"] = half
        else:
            last = {"left_norm_input": "layer_norm_input", "center_norm": "center_layer_norm"}.get(last, last)
            separate[f"{module}/{last}//{leaf}"] = value
    return separate


@executors
@pytest.mark.parametrize("outer_product", ["middle", "first"])
@pytest.mark.parametrize("stack", ["main", "extra"])
def test_evoformer_block(stack: str, outer_product: str, run: Executor) -> None:
    reference = Reference(f"evoformer_iteration_{stack}" + ("_opm_first_fused" if outer_product == "first" else ""))
    if outer_product == "first":
        reference.parameters = separate_projections(reference.parameters)
    extra = stack == "extra"
    settings, ours = (CONFIG.extra_msa, "extra_msa_stack") if extra else (CONFIG.evoformer, "evoformer")
    if extra:
        # DeepMind's module has one name; its place in the network has another.
        reference.parameters = {
            name.replace("evoformer_iteration", ours): value for name, value in reference.parameters.items()
        }
    module = EvoformerBlock(replace(settings, outer_product=outer_product), C_Z, global_columns=extra)
    reference.load(module, f"{ours}.blocks.*", ROOT)
    given = (reference.given[name] for name in ("msa", "pair", "msa_mask", "pair_mask"))
    for found, name in zip(module(run, *given), ("msa", "pair"), strict=True):
        require_equal(found, reference.returned[name])


def template_batch(templates: dict[str, Tensor]) -> Batch:
    """A batch with these templates; nothing else of it is read."""
    known = {name: value for name, value in templates.items() if name in Batch.__dataclass_fields__}
    return replace(random_batch(residues=16), **known)


@executors
def test_template_pair_stack(run: Executor) -> None:
    reference = Reference("template_pair_stack_monomer")
    stack = TemplatePairEmbedder(CONFIG.template).blocks
    reference.load(stack, "template_embedder.pair.blocks", f"{TEMPLATE}single_template_embedding/")
    pair = reference.given["pair_act"]
    for block in stack:
        pair = block(run, pair, reference.given["pair_mask"])
    require_equal(pair, reference.returned["result"])


@executors
def test_embedding_of_one_template(run: Executor) -> None:
    reference = Reference("single_template_embedding_monomer")
    module = reference.load(TemplatePairEmbedder(CONFIG.template), "template_embedder.pair", TEMPLATE)
    templates = {name: value[:, None] for name, value in _below("batch/", reference.given).items()}
    batch = template_batch({**templates, "template_mask": torch.ones(1, 1)})
    with torch.no_grad():
        found = module.norm(module(run, batch, slice(0, 1), reference.given["mask_2d"], torch.float32))
    require_equal(found, reference.returned["result"])


@executors
def test_embedding_of_several_templates(run: Executor) -> None:
    reference = Reference("template_embedding_monomer")
    embedder = TemplateEmbedder(CONFIG.template, C_M, C_Z)
    parameters = reference.parameters
    for module, ours, name in (
        (embedder.pair, "template_embedder.pair", "single_template_embedding"),
        (embedder.attention, "template_embedder.attention", "attention"),
    ):
        reference.parameters = {each: value for each, value in parameters.items() if each.split("/")[1] == name}
        reference.load(module, ours, ROOT)
    batch, pair = template_batch(_below("template_batch/", reference.given)), reference.given["query_embedding"]
    with torch.no_grad():
        found = embedder(run, batch, pair.clone(), reference.given["mask_2d"])
    require_equal(found, pair + reference.returned["result"])


@executors
@pytest.mark.parametrize("spans", [False, True], ids=["within_chains", "across_chains"])
def test_embedding_of_templates_of_a_complex(run: Executor, spans: bool) -> None:
    """DeepMind's module gets a mask of the pairs within chains, or of all pairs."""
    reference = Reference("template_embedding", "multimer_modules")
    config = replace(
        tiny_multimer_config(),
        c_z=24,
        template=TemplateConfig(c_t=20, c_triangle=12),
        triangle_projections="fused",
    )
    embedder = MultimerTemplateEmbedder(config.template, C_M, config.c_z)
    parameters = reference.parameters
    for module, ours, name in (
        (embedder.pair, "template_embedder.pair", "single_template_embedding"),
        (embedder.out, "template_embedder.out", "output_linear"),
    ):
        reference.parameters = {
            each: value for each, value in parameters.items() if each.split("//")[0].split("/")[1] == name
        }
        reference.load(module, ours, ROOT, config)
    aatype, positions, masks = (
        reference.given[f"template_{name}"] for name in ("aatype", "all_atom_positions", "all_atom_mask")
    )
    beta, has_beta = pseudo_beta(aatype[0].numpy(), positions[0].numpy(), masks[0].numpy())
    batch = replace(
        random_complex(residues=aatype.shape[2]),
        asym_id=reference.given["asym_id"],
        template_aatype=aatype,
        template_all_atom_positions=positions,
        template_all_atom_masks=masks,
        template_pseudo_beta=torch.from_numpy(beta)[None],
        template_pseudo_beta_mask=torch.from_numpy(has_beta)[None],
        template_spans_chains=torch.ones(1, 2, dtype=torch.bool) if spans else None,
    )
    pair = reference.given["query_embedding"]
    with torch.no_grad():
        found = embedder(run, batch, pair.clone(), torch.ones(pair.shape[:3]))
    require_equal(found, pair + reference.returned["across_chains" if spans else "within_chains"])


def frames(affine: Tensor) -> Rigid:
    quaternion, translation = affine.split([4, 3], -1)
    return Rigid(rotation=quaternion_to_rotation(quaternion), translation=translation)


def test_invariant_point_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = Reference("ipa_monomer")
    module = InvariantPointAttention(CONFIG.structure, C_Z)
    reference.load(module, "structure_module.attention", FOLD)
    single, pair, mask = (reference.given[name] for name in ("inputs_1d", "inputs_2d", "mask"))
    # DeepMind's module is given a pair that has been normalised; ours does that.
    monkeypatch.setattr("helixfold.ops.structure.point_attention.layer_norm", lambda pair, norm: pair)
    with forced("reference"):
        pair_input = PairInput(pair, *module.maps(LayerNorm(C_Z).affine, single.shape[1]))
        found = module(Whole(), single, pair_input, mask[..., 0], frames(reference.given["affine"]))
    require_equal(found, reference.returned["result"])


def test_torsions_and_side_chains() -> None:
    reference = Reference("rigid_sidechain_monomer")
    module = reference.load(Angles(CONFIG.structure, C_S), "structure_module.angles", FOLD)
    aatype = reference.given["aatype"]
    torsions, raw = module(reference.given["act"], reference.given["initial_act"])
    groups = rigid_groups_from_torsions(aatype, frames(reference.given["affine"]), torsions)
    require_equal(torsions, reference.returned["angles_sin_cos"])
    require_equal(raw, reference.returned["unnormalized_angles_sin_cos"])
    require_equal(torch.cat([groups.rotation.flatten(-2), groups.translation], -1), reference.returned["frames"])
    require_equal(atom14_from_rigid_groups(aatype, groups), reference.returned["atom_pos"])


@executors
def test_structure_module(run: Executor) -> None:
    reference = Reference("structure_module_monomer")
    module = reference.load(StructureModule(CONFIG.structure, C_S, C_Z), "structure_module", "")
    given = (reference.given[name] for name in ("single", "pair", "batch/aatype", "batch/seq_mask"))
    with torch.no_grad():
        found = structure_as_deepmind(module(run, *given))
    expected = {name: value[0].numpy() for name, value in reference.returned.items()}
    expected["single"] = expected.pop("representations/structure_module")
    assert found.keys() == expected.keys()
    # Which atoms exist was given to DeepMind's module, padding residues having theirs; ours follow from the mask.
    real = reference.given["batch/seq_mask"][0].bool().numpy()
    assert not real.all()
    for name in ("final_atom14_mask", "final_atom_mask", "final_atom_positions"):
        found[name], expected[name] = found[name][real], expected[name][real]
    for name, value in expected.items():
        error = deviation(found[name], value)
        # Eight iterations with a division by the length of each angle vector: ten times the noise of one module.
        assert error < 10 * TOLERANCE, f"{name} deviates by {error:.1e} of the largest value"
