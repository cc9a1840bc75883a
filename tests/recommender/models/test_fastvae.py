"""FastVAE: it learns, touches only what it must, and gives the same numbers for the same seed."""

import pytest
import torch

import fewfold as ff
from experiments import datasets

pytestmark = pytest.mark.usefixtures("path")
GROUPS, SIZE = 4, 6


def log(users: int = 120) -> ff.recommender.Interactions:
    """Users who like items of one group each."""
    generator = torch.Generator().manual_seed(0)
    who = torch.arange(users).repeat_interleave(4)
    what = (who % GROUPS) * SIZE + torch.randint(SIZE, who.shape, generator=generator)
    return ff.recommender.Interactions.from_pairs(who, what, shape=(users, GROUPS * SIZE))


OBJECTIVES = {
    "full": ff.recommender.FullSoftmax,
    "entmax": ff.recommender.Entmax,
    "index": lambda: ff.recommender.SampledSoftmax(
        ff.MultiIndex(4, within="popularity"), samples=10
    ),
    "shared": lambda: ff.recommender.SampledSoftmax(ff.MultiIndex(4), samples=20, shared=True),
    "uniform": lambda: ff.recommender.SampledSoftmax(ff.Uniform(), samples=10),
    "default": lambda: None,
}
every_objective = pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)


def trained(objective, **options):
    model = ff.recommender.FastVAE(GROUPS * SIZE, hidden=16, latent=7)
    options = {"epochs": 25, "batch": 16, "lr": 2e-2, "beta": 0.2, "progress": False, **options}
    return model, ff.recommender.train(model, log(), objective=objective, **options)


@every_objective
def test_it_finds_the_group_of_a_user(objective):
    model, epochs = trained(objective())
    assert epochs[-1].loss < epochs[0].loss
    history = ff.recommender.Jagged(torch.tensor([0, 1, 13, 14]), torch.tensor([0, 2, 4]))
    top = model.recommend(history, 4)
    assert (top[0] < SIZE).all()
    assert (top[1] // SIZE == 2).all()
    assert not set(top[0].tolist()) & {0, 1}


@every_objective
def test_one_seed_one_model(objective):
    one, two = (trained(objective(), epochs=2)[0] for _ in range(2))
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name]), name
    other = trained(objective(), epochs=2, seed=1)[0]
    assert not torch.equal(one.items, other.items)


def test_gradients_touch_only_the_rows_in_use():
    model = ff.recommender.FastVAE(1000, hidden=8, latent=3, dropout=0.0)
    proposal = ff.Uniform().fit(model.items)
    history = ff.recommender.Jagged(torch.tensor([5, 6, 7]), torch.tensor([0, 2, 3]))
    model.loss(history, ff.recommender.SampledSoftmax(proposal, samples=4)).backward()
    assert set(model.inputs.grad.coalesce().indices()[0].tolist()) == {5, 6, 7}
    assert len(model.items.grad.coalesce().indices()[0]) <= 3 + 8


def test_the_divergence_is_live():
    """Its gradient reaches the encoder, and a larger weight brings the posterior to the prior."""
    spread = []
    for beta in (0.0, 5.0):
        model, _ = trained(ff.recommender.FullSoftmax(), beta=beta)
        mean, log_var = model.encode(log().jagged)
        spread.append((mean.square() + log_var.exp() - 1 - log_var).mean().item())
    assert spread[1] < 0.2 * spread[0]


def test_the_bound_and_its_gradient_are_those_of_the_formula():
    model = ff.recommender.FastVAE(12, hidden=6, latent=4, layers=2, dropout=0.0).double()
    history = ff.recommender.Jagged(torch.tensor([0, 5, 6, 11]), torch.tensor([0, 2, 2, 4]))
    beta = torch.tensor([0.1, 2.0, 0.7])
    with torch.no_grad():
        model.posterior.bias[4] = 9.0  # beyond what the log variance may be
    loss = model.loss(
        history, ff.recommender.FullSoftmax(), beta=beta, generator=torch.Generator().manual_seed(3)
    )
    mean, log_var = model.encode(history)
    noise = torch.empty_like(mean).normal_(generator=torch.Generator().manual_seed(3))
    latent = mean + noise * (log_var / 2).exp()
    scores = latent @ model.items[:, :-1].T + model.items[:, -1]
    fit = -scores.log_softmax(1)[history.row, history.values].sum()
    divergence = (mean**2 + log_var.exp() - 1 - log_var).sum(1) / 2
    expected = (fit + (beta * divergence).sum()) / 3
    torch.testing.assert_close(loss, expected)
    parameters = list(model.parameters())
    ours = torch.autograd.grad(loss, parameters)
    theirs = torch.autograd.grad(expected, parameters)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.to_dense(), other.to_dense())


def test_the_weight_of_the_divergence_may_follow_the_length():
    users = ff.recommender.Interactions.from_pairs(
        [0, 0, 0, 1], [0, 1, 2, 3], shape=(2, GROUPS * SIZE)
    )
    seen = []
    model = ff.recommender.FastVAE(GROUPS * SIZE, hidden=4, latent=3)
    model.loss = lambda history, *_, beta, **__: seen.append(beta) or model.items.sum()
    options = {"batch": 2, "epochs": 2, "progress": False, "beta": 0.5}
    ff.recommender.train(model, users, beta_by_length=True, annealing=0, **options)
    assert [sorted(weights.tolist()) for weights in seen] == 2 * [[0.25, 0.75]]
    seen.clear()
    ff.recommender.train(model, users, annealing=1, **options)
    assert seen == [0.0, 0.25]


@pytest.mark.parametrize("layers", [0, 3])
def test_an_encoder_of_any_depth_learns(layers):
    model = ff.recommender.FastVAE(GROUPS * SIZE, hidden=16, latent=7, layers=layers)
    epochs = ff.recommender.train(model, log(), epochs=25, batch=16, lr=2e-2, progress=False)
    assert epochs[-1].loss < 0.8 * epochs[0].loss


def test_no_history_and_empty_rows():
    model, _ = trained(ff.recommender.FullSoftmax())
    nothing = ff.recommender.Jagged(
        torch.empty(0, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    )
    top = model.recommend(nothing, 3)
    assert top.shape == (2, 3)
    assert torch.equal(top[0], top[1])
    users = ff.recommender.Interactions.from_pairs([0, 0, 2], [0, 1, 2], shape=(4, GROUPS * SIZE))
    fresh = ff.recommender.FastVAE(GROUPS * SIZE, hidden=4, latent=3)
    assert len(ff.recommender.train(fresh, users, epochs=2, progress=False)) == 2


def test_early_stopping_keeps_the_best(capsys):
    split = ff.recommender.random_split(log(), test=0.25)
    model = ff.recommender.FastVAE(GROUPS * SIZE, hidden=16, latent=7)
    epochs = ff.recommender.train(
        model, split.train, objective=ff.recommender.FullSoftmax(), validation=split,
        epochs=40, batch=16,
        lr=5e-2, patience=2,
    )  # fmt: skip
    scores = [epoch.ndcg for epoch in epochs]
    assert len(epochs) < 40
    report = ff.recommender.evaluate(
        model.recommend(split.fold_in, 50), split.test, (ff.recommender.NDCG(50),)
    )
    assert report[ff.recommender.NDCG(50)].mean == pytest.approx(max(scores), abs=1e-6)
    said = capsys.readouterr().err
    assert said.count("\n") == len(epochs)
    for word in ("epoch 1/40", "loss", "NDCG@50", "users/s", "s left"):
        assert word in said


def test_the_shortcut_is_ridge_regression_of_items_on_items():
    """With all directions and no powers it is the linear model (X'X + l2)^-1 X'X."""
    interactions = log()
    dense = torch.from_numpy(interactions.to_csr().toarray()).double()
    gram = dense.T @ dense
    expected = torch.linalg.solve(gram + 3 * torch.eye(len(gram)), gram)
    shortcut = ff.recommender.Shortcut.fit(
        interactions, rank=GROUPS * SIZE, l2=3.0, powers=(0, 0), strength=1.0
    )
    history = interactions.jagged
    scores = shortcut.queries(history) @ shortcut.vectors.T
    wanted = dense @ expected / history.lengths.sqrt()[:, None]
    torch.testing.assert_close(scores.double(), wanted, atol=1e-4, rtol=1e-3)


def test_the_shortcut_adds_to_the_scores():
    model, _ = trained(ff.recommender.FullSoftmax())
    history = log().jagged
    alone = model.queries(history) @ model.vectors.T
    model.shortcut = ff.recommender.Shortcut.fit(log(), rank=5, strength=2.0)
    both = model.queries(history) @ model.vectors.T
    more = model.shortcut.queries(history) @ model.shortcut.vectors.T
    torch.testing.assert_close(both, alone + more, atol=1e-4, rtol=1e-4)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"write FastVAE\(items=24\)"):
        ff.recommender.train(ff.recommender.FastVAE(7), log())
    empty = ff.recommender.Interactions.from_pairs([], [], shape=(3, 7))
    with pytest.raises(ValueError, match="nothing to learn from"):
        ff.recommender.train(ff.recommender.FastVAE(7), empty)
    for arguments, words in (
        ({"items": 0}, "items must be at least 1"),
        ({"items": 5, "latent": -1}, "latent must be at least 1"),
        ({"items": 5, "layers": -1}, "layers must be at least 0"),
        ({"items": 5, "dropout": 1.0}, "dropout must be"),
    ):
        with pytest.raises(ValueError, match=words):
            ff.recommender.FastVAE(**arguments)
    model = ff.recommender.FastVAE(24, hidden=4, latent=3)
    for arguments in (
        {"epochs": 0},
        {"batch": 0},
        {"lr": -1.0},
        {"beta": torch.nan},
        {"annealing": -1},
    ):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            ff.recommender.train(model, log(), **arguments)


@pytest.mark.skipif(not datasets.has("ml-100k-fastvae"), reason="FEWFOLD_DATA has no such dataset")
def test_on_real_data_it_beats_popularity(path):
    if path == "torch":
        pytest.skip("slow without kernels")
    split = ff.recommender.random_split(datasets.interactions("ml-100k-fastvae"), seed=0)
    model = ff.recommender.FastVAE(split.train.items, hidden=64, latent=31)
    ff.recommender.train(model, split.train, epochs=8, batch=64, lr=1e-2, progress=False)
    model.shortcut = ff.recommender.Shortcut.fit(split.train, rank=48)
    metrics = (ff.recommender.NDCG(50),)
    ours = ff.recommender.evaluate(model.recommend(split.fold_in, 50), split.test, metrics)
    popular = ff.recommender.MostPopular().fit(split.train).recommend(split.fold_in, 50)
    theirs = ff.recommender.evaluate(popular, split.test, metrics)
    assert ours[metrics[0]].low > theirs[metrics[0]].high
