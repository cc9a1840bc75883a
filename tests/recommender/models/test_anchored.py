"""A recommender whose tables are made of few anchors."""

import copy
import pickle
import shutil
from pathlib import Path

import pytest
import torch

import fewfold as ff
from fewfold.recommender import AnchoredTables
from fewfold.recommender.models.fastvae import anchor_options as anchors_module
from tests.fuzz.artifact import resign
from tests.recommender.conftest import grouped

SMALL = ff.VAE(hidden=16, latent=7, layers=0)
TRAINING = ff.recommender.Training(epochs=30, batch=32)
FEW = ff.recommender.Anchors(count=8, width=3)


def log() -> ff.recommender.Interactions:
    return ff.read_log(grouped()).interactions


def model(anchors: ff.recommender.Anchors = FEW) -> ff.recommender.AnchorVAE:
    return ff.recommender.AnchorVAE(40, anchors, hidden=16, latent=7, layers=0, seed=1)


@pytest.fixture(
    scope="module",
    params=[
        FEW,
        ff.recommender.Anchors(8, 3, from_scratch=True),
        ff.recommender.Anchors(8, 4, bits=5),
    ],
    ids=["cut", "trained", "cut to 5 bits"],
)
def fitted(request: pytest.FixtureRequest) -> ff.Recommender:
    rec = ff.Recommender(SMALL, anchors=request.param, training=TRAINING)
    return rec.fit(grouped(), test=0.2, progress=False)


def taste(items: list[str]) -> set[str]:
    return {item[0] for item in items}


def test_learns_what_the_dense_one_learns(fitted: ff.Recommender) -> None:
    assert taste(fitted.recommend_from_history(["a1", "a2", "a3"], k=5).items) == {"a"}
    assert taste(fitted.similar_items("b3", k=3).items) == {"b"}


def test_the_report_has_the_comparison_with_dense_tables(fitted: ff.Recommender) -> None:
    assert fitted.report is not None
    comparison, shown = fitted.report.dense_comparison, str(fitted.report)
    assert fitted.report.as_dict()["tables"] in shown
    if "from the start" in shown:
        assert comparison is None
        assert "times smaller" not in shown
        return
    assert "trained dense, then cut to anchors" in shown
    assert comparison is not None
    assert comparison.own_bytes < comparison.dense_bytes
    own, dense = (
        e.overall[ff.recommender.NDCG(10)].mean for e in (comparison.own, comparison.dense)
    )
    assert own > 0.9 * dense
    assert "times smaller" in shown
    assert "(both without the shortcut)" in shown
    tables = 4 * 40 * (16 + 7 + 1)
    assert comparison.dense_tables == tables < comparison.dense_bytes
    assert comparison.own_tables < tables
    assert fitted.report.as_dict()["anchors"]["bytes"] == comparison.own_bytes


def test_scores_are_those_of_the_dense_tables(path: str) -> None:
    """Bags, losses and item vectors agree with a FastVAE that has the tables written out."""
    generator = torch.Generator().manual_seed(0)
    for most in (1 << 26, 0):  # held in full, and at a fixed width
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(anchors_module, "_FULL", most)
            few = model().double()
        few.table.transform.data.normal_(generator=generator)
        dense = ff.recommender.FastVAE(40, hidden=16, latent=7, layers=0).double()
        whole = few.table.weight.detach()
        dense.inputs.data.copy_(whole[:, :16])
        dense.items.data.copy_(whole[:, 16:])
        dense.load_state_dict({**dense.tables.state_dict(), **few.encoder_state()})
        history = log().rows(slice(0, 20))
        torch.testing.assert_close(few.queries(history), dense.queries(history))
        torch.testing.assert_close(few.outputs(), dense.outputs())
        torch.testing.assert_close(few.entries(), dense.entries())
        proposal = ff.Uniform().fit(few.outputs())
        for objective in (
            ff.recommender.FullSoftmax(),
            ff.recommender.SampledSoftmax(proposal, 30),
            ff.recommender.Entmax(),
        ):
            losses = [
                one.loss(history, objective, generator=torch.Generator().manual_seed(3))
                for one in (few, dense)
            ]
            torch.testing.assert_close(*losses)
            losses[0].backward()
        assert few.table.transform.grad is not None
        assert few.table.anchors.grad is not None
        assert few.table.anchors.grad[0].abs().sum() == 0  # the bias's


def test_entries_go_to_items_in_use() -> None:
    pairs = log()
    few = model()
    ff.recommender.train(few, pairs, epochs=20, batch=16, progress=False)
    counts = (few.table.transform != 0).sum(1)
    assert counts.double().mean() == pytest.approx(3, abs=0.2)
    popular = pairs.counts().argsort()
    assert counts[popular[-10:]].sum() > counts[popular[:10]].sum()
    before = few.outputs().clone()
    few.finalize()
    assert few.table.anchors.dtype == torch.float32
    assert sum(part.nbytes for part in few.tables.packed.values()) < 40 * 24 * 4 / 2
    torch.testing.assert_close(few.outputs(), before, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("anchors", [FEW, ff.recommender.Anchors(None, 3)], ids=["8", "auto"])
def test_resumes_exactly(anchors: ff.recommender.Anchors, tmp_path: Path) -> None:
    options = {"epochs": 6, "batch": 16, "progress": False}
    whole = model(anchors)
    ff.recommender.train(whole, log(), **options)  # type: ignore[arg-type]
    for stop in (5, 30, 41):  # before, between and after the narrowing
        interrupted = model(anchors)
        checkpoint = ff.recommender.Checkpoint(tmp_path / f"{stop}", every=0.0)
        seen = 0

        def count(module: object, inputs: object, stop: int = stop) -> None:
            nonlocal seen
            seen += 1
            if seen > stop:
                raise RuntimeError("pulled the plug")

        interrupted.posterior.register_forward_pre_hook(count)
        with pytest.raises(RuntimeError, match="plug"):
            ff.recommender.train(interrupted, log(), checkpoint=checkpoint, **options)  # type: ignore[arg-type]
        assert checkpoint.path.exists()
        resumed = model(anchors)
        again = ff.recommender.Checkpoint(tmp_path / f"{stop}", resume=True)
        ff.recommender.train(resumed, log(), checkpoint=again, **options)  # type: ignore[arg-type]
        assert torch.equal(resumed.table.transform, whole.table.transform)
        assert torch.equal(resumed.table.anchors, whole.table.anchors)
        assert resumed.table.active == whole.table.active


def test_finds_a_number_of_anchors() -> None:
    few = model(ff.recommender.Anchors(None, 3))
    assert few.table.active == 257
    ff.recommender.train(few, log(), epochs=8, batch=16, progress=False)
    assert 17 < few.table.active < 257
    assert few.table.nonzeros() <= 3.2 * 40


def test_round_trip(fitted: ff.Recommender, tmp_path: Path) -> None:
    folder = fitted.save(tmp_path / "model")
    again = ff.Recommender.load(folder)
    assert again.model == fitted.model
    told = fitted.report.as_dict()["tables"] if fitted.report else ""
    assert told in (folder / "README.md").read_text()
    assert told in str(ff.recommender.inspect(folder))
    histories = [["a1", "b2"], ["c3"], []]
    own, theirs = (rec.recommend_from_history(histories, k=10) for rec in (fitted, again))
    assert own.items == theirs.items
    assert own.scores == theirs.scores
    assert (
        again.save(tmp_path / "again").joinpath("model.safetensors").read_bytes()
        == (folder / "model.safetensors").read_bytes()
    )


def test_new_items_take_their_place(fitted: ff.Recommender) -> None:
    new = {"user": ["n1"] * 4 + ["n2"] * 4, "item": ["c1", "c2", "c3", "c_new"] * 2}
    more = fitted.add_items(new)
    assert "c_new" in more.recommend_from_history(["c4", "c5"], k=12).items
    before = fitted.recommend_from_history(["a1", "a2"], k=5)
    after = more.recommend_from_history(["a1", "a2"], k=5, filter_items=["c_new"])
    assert before.items == after.items


def test_anchors_are_explained(fitted: ff.Recommender, tmp_path: Path) -> None:
    named = {"item": fitted.items.tolist(), "taste": [item[0] for item in fitted.items.tolist()]}
    fitted.attach(named)
    found = ff.recommender.inspect(fitted.save(tmp_path / "model"))
    fitted.attributes = None
    assert found.anchors is not None
    assert found.anchors.purity is not None
    assert "tied most to" in str(found)
    assert found.as_dict()["anchors"]["purity"] == found.anchors.purity


@pytest.fixture(scope="module")
def dense() -> ff.recommender.FastVAE:
    trained = ff.recommender.FastVAE(40, hidden=16, latent=7, layers=0, seed=1)
    ff.recommender.train(trained, log(), epochs=20, batch=16, progress=False)
    return trained


def test_a_dense_model_becomes_one_of_anchors(dense: ff.recommender.FastVAE) -> None:
    """With as many anchors as the tables have columns little is lost; with fewer, not much."""
    whole = ff.recommender.AnchorVAE.from_dense(dense, ff.recommender.Anchors(23, 23), log())
    torch.testing.assert_close(whole.outputs(), dense.outputs(), rtol=0, atol=0.01)
    torch.testing.assert_close(whole.entries(), dense.entries(), rtol=0, atol=0.02)
    few = ff.recommender.AnchorVAE.from_dense(dense, ff.recommender.Anchors(8, 8), log())
    off = (few.outputs() - dense.outputs()).norm() / dense.outputs().norm()
    assert 0 < off < 0.5
    with pytest.raises(ValueError, match="not held in full"):
        ff.recommender.AnchorVAE.from_dense(dense, ff.recommender.Anchors(None), log())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anchors_module, "_FULL", 40 * 9 - 1)
        with pytest.raises(ValueError, match="not held in full"):
            ff.recommender.AnchorVAE.from_dense(dense, ff.recommender.Anchors(8, 8), log())


@pytest.mark.parametrize("bits", [2, 5, 8])
def test_settling_keeps_what_was_cut(dense: ff.recommender.FastVAE, bits: int) -> None:
    """Entries are on their grid already, also where the largest are not at its end."""
    few = ff.recommender.AnchorVAE.from_dense(dense, ff.recommender.Anchors(8, 4, bits), log())
    before = few.table.transform.detach().clone()
    few.finalize()
    own = few.table.weight.detach() @ torch.linalg.pinv(few.table.anchors.detach())
    used = (before != 0).any(0)
    torch.testing.assert_close(own, before[:, used], rtol=1e-3, atol=1e-3)
    once = {name: part.clone() for name, part in few.tables.packed.items()}
    few.finalize()
    assert all(torch.equal(part, once[name]) for name, part in few.tables.packed.items())


def test_what_was_cut_may_be_trained_on(dense: ff.recommender.FastVAE) -> None:
    few = ff.recommender.AnchorVAE.from_dense(dense, FEW, log())
    few.finalize()
    before = few.table.transform.detach().clone()
    ff.recommender.train(few, log(), epochs=1, batch=16, progress=False)
    with pytest.raises(ValueError, match="call finalize"):
        _ = few.tables.packed
    assert not torch.equal(few.table.transform, before)
    few.finalize()
    assert few.tables.packed["values"].numel() < 40 * 9


def test_a_training_that_ends_early_is_still_small() -> None:
    few = model()
    split = ff.recommender.random_split(log(), seed=0)
    ff.recommender.train(
        few, split.train, validation=split, patience=1, epochs=60, batch=16, lr=0.0, progress=False
    )
    assert few.table.nonzeros() > 5 * 40
    few.finalize()
    assert few.table.nonzeros() <= 3.2 * 40


@pytest.mark.parametrize("how", ["taken", "copied", "pickled"])
def test_the_anchor_of_the_bias_stays(dense: ff.recommender.FastVAE, how: str) -> None:
    few = ff.recommender.AnchorVAE.from_dense(dense, ff.recommender.Anchors(8, 4), log())
    if how == "taken":
        few.finalize()
    elif how == "copied":
        few = copy.deepcopy(few)
    else:
        few = pickle.loads(pickle.dumps(few))
    before = few.table.anchors.detach().clone()
    ff.recommender.train(few, log(), epochs=2, batch=16, progress=False)
    assert torch.equal(few.table.anchors[0], before[0])
    assert not torch.equal(few.table.anchors[1:], before[1:])


def test_widths_by_default() -> None:
    """Entries that are cut need not say which anchor they belong to: there are more of them."""
    few = ff.recommender.Anchors(64)
    assert (few.per_item(cut=True), few.per_item(cut=False)) == (24, 8)
    assert ff.recommender.Anchors(4).per_item(cut=True) == 4
    assert (
        ff.recommender.Anchors(64, 5).per_item(cut=True)
        == ff.recommender.Anchors(64, 5).per_item(cut=False)
        == 5
    )


def test_so_many_or_auto() -> None:
    for made in (ff.Recommender(anchors=12).model, ff.VAE(anchors=12)):  # type: ignore[arg-type]
        assert made == ff.VAE(anchors=ff.recommender.Anchors(12))
    assert ff.Recommender(anchors="auto").model == ff.VAE(anchors=ff.recommender.Anchors(None))
    assert ff.recommender.AnchorVAE(40, 12).tables.options == ff.recommender.Anchors(12)
    for wrong in (8.0, True, "many", [8]):
        with pytest.raises(TypeError, match=r'anchors must be how many, "auto" or Anchors'):
            ff.Recommender(anchors=wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r'anchors must be how many, "auto" or Anchors'):
            ff.VAE(anchors=wrong)  # type: ignore[arg-type]


def test_what_cannot_be_cut_is_told(dense: ff.recommender.FastVAE) -> None:
    few = ff.recommender.AnchorVAE.from_dense(dense, 3, log())
    assert few.tables.options == ff.recommender.Anchors(3, 3)
    with pytest.raises(TypeError, match="has anchors already"):
        ff.recommender.AnchorVAE.from_dense(few, 3, log())
    with pytest.raises(TypeError, match="anchors must be how many"):
        ff.recommender.AnchorVAE.from_dense(dense, 3.5, log())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no interactions"):
        ff.recommender.AnchorVAE.from_dense(
            dense, 3, ff.recommender.Interactions.from_pairs([], [], shape=(0, 40))
        )
    broken = copy.deepcopy(dense)
    with torch.no_grad():
        broken.items[3, 2] = torch.nan
    with pytest.raises(ValueError, match="not finite"):
        ff.recommender.AnchorVAE.from_dense(broken, 3, log())


def test_tables_of_other_items_are_refused(fitted: ff.Recommender, tmp_path: Path) -> None:
    short = ff.Recommender(SMALL, anchors=FEW, training=ff.recommender.Training(epochs=1))
    users, items = ["u", "u", "v", "v"], ["a1", "b2", "b2", "c3"]
    folder = short.fit({"user": users, "item": items}, progress=False).save(tmp_path / "short")
    other = fitted.save(tmp_path / "other", users=False)
    shutil.copy(other / "items.safetensors", folder)
    resign(folder, "items.safetensors")
    with pytest.raises(ff.recommender.ArtifactError, match=r"table\.\w+ must be .*\(40,"):
        ff.Recommender.load(folder)


def test_the_bias_is_counted_and_not_idle(dense: ff.recommender.FastVAE, tmp_path: Path) -> None:
    rec = ff.Recommender(SMALL, anchors=FEW, training=TRAINING).fit(grouped(), progress=False)
    found = ff.recommender.inspect(rec.save(tmp_path / "model")).anchors
    assert found is not None
    assert "0 anchors idle" in str(found)
    table = rec.fitted.model.table  # type: ignore[attr-defined]
    assert found.size == table.size()


def test_refuses() -> None:
    with pytest.raises(ValueError, match="has no tables to make of anchors"):
        ff.Recommender(ff.recommender.EASE(), anchors=8)
    with pytest.raises(ValueError, match="width must be at most count=4, got 5"):
        ff.recommender.Anchors(4, 5)
    for bits in (1, 9):
        with pytest.raises(ValueError, match="bits must be"):
            ff.recommender.Anchors(bits=bits)
    with pytest.raises(ValueError, match="say how many"):
        ff.recommender.AnchorVAE(1_000_000, ff.recommender.Anchors(None))


def test_a_log_that_cannot_be_cut_is_trained_and_compared() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anchors_module, "_FULL", 0)
        rec = ff.Recommender(
            SMALL, anchors=FEW, training=ff.recommender.Training(epochs=3, batch=32)
        )
        rec.fit(grouped(), test=0.2, progress=False)
    assert rec.report is not None
    assert rec.report.tables == "trained as anchors from the start"
    assert rec.report.dense_comparison is not None


def test_a_cut_resumes_where_training_was(tmp_path: Path) -> None:
    """The checkpoint is that of the dense tables: what they are cut to may change."""
    keep = ff.recommender.Checkpoint(tmp_path / "run")
    made = {"training": ff.recommender.Training(epochs=3, batch=32)}
    first = ff.Recommender(SMALL, anchors=FEW, **made).fit(  # type: ignore[arg-type]
        grouped(), checkpoint=keep, progress=False
    )
    again = ff.recommender.Checkpoint(tmp_path / "run", resume=True)
    other = ff.recommender.Anchors(8, 3, bits=4)
    for few, same in ((FEW, True), (other, False)):
        rec = ff.Recommender(SMALL, anchors=few, **made)  # type: ignore[arg-type]
        rec.fit(grouped(), checkpoint=again, progress=False)
        mine, theirs = rec.fitted.state()["table.values"], first.fitted.state()["table.values"]
        assert (mine.shape == theirs.shape and torch.equal(mine, theirs)) == same


def test_damaged_bits_are_refused(dense: ff.recommender.FastVAE) -> None:
    few = ff.recommender.AnchorVAE.from_dense(dense, ff.recommender.Anchors(8, 4, bits=5), log())
    few.finalize()
    short = {**few.tables.packed, "values": few.tables.packed["values"][..., :-1]}
    with pytest.raises(ValueError, match="damaged"):
        AnchoredTables.unpack(short, few.tables.options, 16, 7)
