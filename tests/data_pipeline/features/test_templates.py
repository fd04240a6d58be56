"""A target without templates."""

from data_pipeline.features.templates import no_templates


def test_no_templates_have_every_axis_but_the_first() -> None:
    features = no_templates(7)
    assert features["template_all_atom_positions"].shape == (0, 7, 37, 3)
    assert features["template_aatype"].shape == (0, 7)
    assert features["template_domain_names"] == ()
