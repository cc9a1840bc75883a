"""Tables of items as values: what a FastVAE is composed of, and the names of its state."""

import pytest
import torch
from torch import nn

import fewfold as ff
from fewfold.recommender import AnchoredTables, Anchors, AnchorVAE, DenseTables, FastVAE, Jagged
from fewfold.recommender.models.fastvae import anchor_options as anchors_module
from fewfold.recommender.models.fastvae.tables import Tables

SIZES = {"hidden": 8, "latent": 3}
OTHERS = {
    "shift", "posterior.weight", "posterior.bias",
    "layers.norms.0.weight", "layers.norms.0.bias",
}  # fmt: skip
KINDS = {
    "dense": ({"inputs", "items"}, lambda: DenseTables(20, **SIZES)),
    "anchored": ({"table.transform", "table.anchors"}, lambda: AnchoredTables(20, 4, **SIZES)),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def model(kind: str, seed: int = 1) -> FastVAE:
    return FastVAE(KINDS[kind][1](), layers=0, seed=seed)


def test_state_has_no_name_of_the_composition(kind: str) -> None:
    """Saved models and checkpoints name tensors so; also within another module."""
    names = KINDS[kind][0]
    one, other = model(kind), model(kind, seed=2)
    assert names | OTHERS <= set(one.state_dict())
    assert not [name for name in one.state_dict() if name.startswith("tables.")]
    assert set(one.encoder_state()) == OTHERS
    outer, into = nn.ModuleDict({"vae": one}), nn.ModuleDict({"vae": other})
    assert {f"vae.{name}" for name in names | OTHERS} <= set(outer.state_dict())
    assert not torch.equal(one.outputs(), other.outputs())
    into.load_state_dict(outer.state_dict())
    assert torch.equal(one.outputs(), other.outputs())
    assert torch.equal(one.entries(), other.entries())


def test_the_encoder_is_loaded_without_the_tables(kind: str) -> None:
    one, other = model(kind), model(kind, seed=2)
    before = other.outputs().clone()
    other.load_encoder_state(one.encoder_state())
    assert torch.equal(other.posterior.weight, one.posterior.weight)
    assert torch.equal(other.outputs(), before)


def test_new_tables_are_drawn_from_the_seed_and_others_stay(kind: str) -> None:
    short = (
        FastVAE(20, **SIZES, layers=0, seed=1)
        if kind == "dense"
        else AnchorVAE(20, 4, **SIZES, layers=0, seed=1)
    )
    one = model(kind)
    for name, value in short.state_dict().items():
        assert torch.equal(one.state_dict()[name], value), name
    again = FastVAE(one.tables, seed=7)
    assert again.tables is one.tables
    assert torch.equal(again.outputs(), short.outputs())


@pytest.mark.parametrize("most", [1 << 25, 0])
def test_some_vectors_are_those_of_all(kind: str, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anchors_module, "_FULL", most)
        tables: Tables = model(kind).tables
    ids = torch.tensor([3, 0, 19, 3])
    torch.testing.assert_close(tables.output_vectors(ids), tables.output_vectors()[ids])
    bag = tables.bag(Jagged(ids, torch.tensor([0, 3, 3, 4])), torch.tensor([1.0, 1.0, 2.0]))
    inputs = tables.input_vectors()[ids]
    expected = torch.stack([inputs[:3].sum(0), torch.zeros(8), 2 * inputs[3]])
    torch.testing.assert_close(bag.detach(), expected)


def test_sizes_are_those_of_the_tables() -> None:
    with pytest.raises(TypeError, match=r"own latent; write FastVAE\(tables\) without"):
        FastVAE(DenseTables(20), latent=3)
    with pytest.raises(TypeError, match="'items'"):
        FastVAE(hidden=8)  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="nothing"):
        _ = model("dense").nothing


def test_how_anchors_are_found_is_not_saved(tmp_path) -> None:
    """A model folder describes what a model is; how it was fitted is in `learned from`."""
    log = {"user": ["u", "u", "v", "v", "w"], "item": ["a", "b", "b", "c", "a"]}
    anchors = Anchors(2, from_scratch=True)
    training = ff.recommender.Training(epochs=1)
    rec = ff.Recommender(ff.VAE(**SIZES), anchors=anchors, training=training)
    folder = rec.fit(log, progress=False).save(tmp_path / "model")
    assert "from_scratch" not in (folder / "config.json").read_text()
    assert "as anchors from the start" in (folder / "config.json").read_text()
    assert ff.Recommender.load(folder).model == rec.model
