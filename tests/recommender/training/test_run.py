"""The schedule of a training: rates, weights, proposals and what an epoch came to."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.training.train import train
from fewfold.sampling.multi_index import MultiIndex

USERS, BATCH, EPOCHS = 10, 4, 4
STEPS = EPOCHS * math.ceil(USERS / BATCH)


class Recorded(ff.recommender.FastVAE):
    """A model whose loss is the number of users in the step, and which keeps what it was given."""

    def __init__(self) -> None:
        super().__init__(6, hidden=4, latent=3, layers=0)
        self.betas: list[Any] = []
        self.users: list[int] = []

    def loss(self, history: Any, objective: Any, *, beta: Any, generator: Any) -> Tensor:
        self.betas.append(beta)
        self.users.append(len(history.lengths))
        return len(history.lengths) + 0 * sum(p.sum() for p in self.parameters())


class Followed(MultiIndex):
    """A proposal that keeps what it was fitted to."""

    def __init__(self) -> None:
        super().__init__(2, within="popularity")
        self.calls: list[Tensor | None] = []

    def fit(self, item_vectors: Tensor, counts: Tensor | None = None) -> Any:
        self.calls.append(counts)
        return super().fit(item_vectors, counts)

    def refresh(self, item_vectors: Tensor) -> Any:
        if len(self.calls) > 1 or self._books is not None:  # fit calls it, too
            self.calls.append(None)
        return super().refresh(item_vectors)


@pytest.fixture
def log() -> Interactions:
    """Ten users, of whom user u has items 0 to u % 5; item 5 is nobody's."""
    pairs = [(user, item) for user in range(USERS) for item in range(user % 5 + 1)]
    users, items = zip(*pairs, strict=True)
    return Interactions.from_pairs(users, items, shape=(USERS, 6))


def _train(log: Interactions, proposal: Followed | None = None, **options: Any) -> Any:
    model = Recorded()
    objective = ff.recommender.SampledSoftmax(proposal or Followed())
    epochs = train(
        model, log, objective=objective, epochs=EPOCHS, batch=BATCH, progress=False, **options
    )
    return model, epochs


def test_the_weight_of_the_divergence_rises_over_a_share_of_all_steps(log: Interactions) -> None:
    model, _ = _train(log, beta=0.4, annealing=0.5)
    assert model.betas == pytest.approx([0.4 * min(1, s / (0.5 * STEPS)) for s in range(STEPS)])
    model, _ = _train(log, beta=0.4, annealing=0.0)
    assert model.betas == [0.4] * STEPS
    model, _ = _train(log, beta=0.4, annealing=0.0, beta_by_length=True)
    mean = log.pairs / USERS
    assert sum(float(beta.sum()) for beta in model.betas) == pytest.approx(
        EPOCHS * 0.4 * log.pairs / mean
    )


def test_the_learning_rate_rises_and_falls_along_a_cosine(
    log: Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = []
    step = torch.optim.Adam.step

    def kept(self: Any, *arguments: Any) -> Any:
        rates.append(self.param_groups[0]["lr"])
        return step(self, *arguments)

    monkeypatch.setattr(torch.optim.Adam, "step", kept)
    _train(log, lr=0.5)
    expected = [
        0.5 * (s + 1) / 100 * (0.98 * (1 + math.cos(math.pi * s / STEPS)) / 2 + 0.02)
        for s in range(STEPS)
    ]
    assert rates == pytest.approx(expected)


def test_an_epoch_is_a_mean_over_users(log: Interactions) -> None:
    model, epochs = _train(log)
    assert sorted(model.users[:3]) == [2, 4, 4]
    assert [epoch.loss for epoch in epochs] == pytest.approx([(4 * 4 + 4 * 4 + 2 * 2) / 10] * 4)
    assert not model.training


@pytest.mark.parametrize(("every", "calls"), [(1, 4), (2, 2), (3, 2), (5, 1)])
def test_the_proposal_follows_now_and_then(log: Interactions, every: int, calls: int) -> None:
    proposal = Followed()
    _train(log, proposal, refresh_every=every)
    assert len(proposal.calls) == calls
    first = proposal.calls[0]
    assert first is not None  # also what nobody has may be drawn
    torch.testing.assert_close(first, (log.counts() + 1).log1p())
    assert proposal.calls[1:] == [None] * (calls - 1)


def test_options_are_one_value_or_keywords(log: Interactions) -> None:
    options = ff.recommender.TrainOptions(epochs=2, batch=BATCH, beta=0.1, annealing=0.0)
    objective = ff.recommender.FullSoftmax()
    model, other = Recorded(), Recorded()
    assert len(train(model, log, options, objective=objective, progress=False)) == 2
    assert model.betas == [0.1] * 6
    epochs = train(other, log, options, objective=objective, progress=False, beta=0.3, epochs=1)
    assert (len(epochs), other.betas) == (1, [0.3] * 3)
    with pytest.raises(TypeError, match="no option 'epoch'; its options are epochs, batch, lr"):
        train(model, log, epoch=3)
