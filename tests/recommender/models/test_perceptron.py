"""The published network of FastVAE: its encoder, latent draws, optimiser and popularity."""

from pathlib import Path

import pytest
import torch

import fewfold as ff
from fewfold.recommender.training.checkpoint import Checkpoint
from tests.recommender.conftest import grouped

ITEMS = 12
HISTORY = ff.recommender.Jagged(torch.tensor([0, 5, 6, 11]), torch.tensor([0, 2, 2, 4]))
FULL = ff.recommender.FullSoftmax()


def network(dropout: float = 0.0, bottleneck: int | None = 3) -> ff.recommender.FastVAE:
    encoder = ff.recommender.Perceptron(dropout, bottleneck)
    return ff.recommender.FastVAE(
        ITEMS, hidden=6, latent=4, layers=1, dropout=0.0, encoder=encoder, seed=1
    )


def log() -> ff.recommender.Interactions:
    generator = torch.Generator().manual_seed(0)
    who = torch.arange(40).repeat_interleave(3)
    what = (who % 2) * 6 + torch.randint(6, who.shape, generator=generator)
    return ff.recommender.Interactions.from_pairs(who, what, shape=(40, ITEMS))


@pytest.mark.parametrize("bottleneck", [3, None])
def test_the_loss_is_that_of_the_formula(bottleneck: int | None) -> None:
    """Two draws of the latent share one posterior and one divergence."""
    model = network(bottleneck=bottleneck).double()
    loss = model.loss(HISTORY, FULL, beta=0.7, draws=2, generator=torch.Generator().manual_seed(3))
    rows = HISTORY.values.tensor_split(HISTORY.offsets[1:-1])
    bag = torch.stack([model.inputs[ids].sum(0) / max(len(ids), 1) ** 0.5 for ids in rows])
    hidden = model.layers.layers[0]((bag + model.shift).relu()).relu()
    mean, log_var = model.posterior(hidden).chunk(2, 1)
    total = 3 * 0.7 * ((mean**2 + log_var.exp() - 1 - log_var).sum(1) / 2).mean()
    generator = torch.Generator().manual_seed(3)
    for _ in range(2):
        latent = mean + torch.empty_like(mean).normal_(generator=generator) * (log_var / 2).exp()
        query = latent if bottleneck is None else model.expand(latent)
        scores = query @ model.items[:, :-1].T + model.items[:, -1]
        total = total - scores.log_softmax(1)[HISTORY.row, HISTORY.values].sum() / 2
    torch.testing.assert_close(loss, total / 3)
    parameters = list(model.parameters())
    ours, theirs = (torch.autograd.grad(each, parameters) for each in (loss, total / 3))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.to_dense(), other.to_dense())


def test_units_are_dropped_in_the_loss_only() -> None:
    model = network(dropout=0.9).train()
    assert torch.equal(model.queries(HISTORY), model.queries(HISTORY))
    losses = {
        float(each.loss(HISTORY, FULL, generator=torch.Generator().manual_seed(seed)).detach())
        for each in (model, network(dropout=0.0))
        for seed in range(2)
    }
    assert len(losses) == 4
    dropped = model.encoder.drop(torch.ones(500, 6), torch.Generator().manual_seed(0))
    assert dropped.unique().tolist() == pytest.approx([0, 10])
    assert float(dropped.mean()) == pytest.approx(1, abs=0.2)  # 3,000 draws: 3.6 deviations


def test_a_saved_model_has_its_encoder(tmp_path: Path) -> None:
    encoder = ff.recommender.Perceptron(0.5, 3)
    recipe = ff.VAE(hidden=8, latent=5, layers=1, shortcut=4, encoder=encoder)
    rec = ff.Recommender(recipe, training=ff.recommender.Training(epochs=1)).fit(grouped())
    rec.save(tmp_path / "model")
    again = ff.Recommender.load(tmp_path / "model")
    assert again.model.encoder == encoder
    history = ff.recommender.Jagged(torch.tensor([0, 3]), torch.tensor([0, 2]))
    found = [each.fitted.queries(history) for each in (again, rec)]
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)


def test_dense_adam_is_that_of_torch() -> None:
    """Sampled rows have sparse gradients, and all rows decay."""
    objective = ff.recommender.SampledSoftmax(ff.Uniform(), samples=3)
    model, other = network(), network()
    options = ff.recommender.TrainOptions(
        epochs=2, batch=10, lr=0.1, beta=1.0, annealing=0.0,
        optimizer=ff.recommender.DenseAdam(0.01, factor=0.5, every=1),
    )  # fmt: skip
    ff.recommender.train(model, log(), options, objective=objective, progress=False)
    adam = torch.optim.Adam(other.parameters(), lr=0.1, weight_decay=0.01)
    generator, users = torch.Generator().manual_seed(0), log()
    for epoch in range(2):
        adam.param_groups[0]["lr"] = 0.1 * 0.5**epoch
        objective.proposal.fit(other.outputs())
        for rows in torch.randperm(40, generator=generator).split(10):
            loss = other.loss(users.rows(rows), objective, beta=1.0, generator=generator)
            loss.backward()
            for each in other.tables.parameters():
                each.grad = each.grad.to_dense()
            adam.step()
            adam.zero_grad()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, other.state_dict()[name], msg=name)


def test_a_checkpoint_of_the_published_training_is_resumed(tmp_path: Path) -> None:
    path = tmp_path / "run"

    def train(model: ff.recommender.FastVAE, **changes: object) -> None:
        proposal = ff.MultiIndex(2, within="popularity")
        objective = ff.recommender.SampledSoftmax(proposal, 5, popularity=torch.log1p)
        options = {"optimizer": ff.recommender.DenseAdam(0.01), "draws": 2, **changes}
        ff.recommender.train(
            model, log(), objective=objective, epochs=3, batch=16, lr=0.01, progress=False,
            checkpoint=Checkpoint(path, every=0, resume=True), **options,
        )  # fmt: skip
        assert torch.equal(proposal.state_dict()["mass"], log().counts().log1p().double())

    class Stops(ff.recommender.FastVAE):
        left = 4

        def loss(self, *args, **options):
            self.left -= 1
            if self.left < 0:
                raise RuntimeError
            return super().loss(*args, **options)

    encoder = ff.recommender.Perceptron(0.5, 3)
    sizes = {"hidden": 6, "latent": 4, "layers": 0, "encoder": encoder, "seed": 1}
    with pytest.raises(RuntimeError):
        train(Stops(ITEMS, **sizes))
    resumed, whole = (ff.recommender.FastVAE(ITEMS, **sizes) for _ in range(2))
    train(resumed)
    path.unlink()
    train(whole)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    with pytest.raises(ff.recommender.ArtifactError, match="draws was 2, is None"):
        train(whole, draws=1)


@pytest.mark.parametrize("power", [1.0, 0.75])
def test_the_proposal_is_fitted_to_the_popularity_given(power: float) -> None:
    proposal = ff.MultiIndex(2, within="popularity")
    objective = ff.recommender.SampledSoftmax(proposal, 5, popularity=lambda counts: counts**power)
    ff.recommender.train(network(), log(), objective=objective, epochs=1, progress=False)
    assert torch.equal(proposal.state_dict()["mass"], (log().counts() ** power).double())


def test_a_popularity_that_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match=r"a function of the counts, got float; write popularity="):
        ff.recommender.SampledSoftmax(ff.Popularity(), popularity=0.75)  # type: ignore[arg-type]
