"""Top-k in blocks equals a sort of the whole matrix, ties and exclusions included."""

from dataclasses import dataclass

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from fewfold.recommender import DotProduct, Interactions, Jagged, top_k
from tests.recommender.cases import logs


@dataclass
class Given:
    """A scorer with its matrix."""

    scores: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return tuple(self.scores.shape)

    def __call__(self, users: slice, items: slice) -> torch.Tensor:
        return self.scores[users, items].clone()


@hypothesis.given(logs(), st.integers(1, 13), st.integers(1, 9), st.integers(1, 11), st.data())
def test_equals_a_stable_sort(log, k, users_at_once, items_at_once, data):
    """Scores from four values and -inf: nearly everything ties."""
    size = log.users * log.items
    value = st.sampled_from([-torch.inf, -1.0, 0.0, 2.0, 3.0])
    scores = torch.tensor(data.draw(st.lists(value, min_size=size, max_size=size)))
    scores = scores.view(log.users, log.items).double()
    before = scores.clone()
    blocks = {"users_at_once": users_at_once, "items_at_once": items_at_once}
    found = top_k(Given(scores), k, exclude=log, **blocks)
    assert torch.equal(scores, before)
    for user in range(log.users):
        seen = log.rows([user]).values.tolist()
        left = [i for i in range(log.items) if i not in seen and scores[user, i] > -torch.inf]
        best = sorted(left, key=lambda item: (-float(scores[user, item]), item))[:k]
        padding = [-1] * (k - len(best))
        assert found.ids[user].tolist() == best + padding
        expected = [float(scores[user, item]) for item in best] + [-torch.inf] * len(padding)
        assert found.scores[user].tolist() == expected


def test_blocks_do_not_matter_for_vectors():
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(37, 5, generator=generator, dtype=torch.float64)
    vectors = torch.randn(101, 5, generator=generator, dtype=torch.float64)
    whole = (queries @ vectors.t()).sort(dim=1, descending=True, stable=True).indices[:, :9]
    for users, items in ((1, 7), (10, 200), (256, 50)):
        scorer = DotProduct(queries, vectors)
        assert torch.equal(top_k(scorer, 9, users_at_once=users, items_at_once=items).ids, whole)


def test_nobody_and_nothing():
    assert top_k(DotProduct(torch.zeros(0, 2), torch.zeros(3, 2)), 2).ids.shape == (0, 2)
    assert top_k(DotProduct(torch.zeros(2, 2), torch.zeros(0, 2)), 2).ids.tolist() == [[-1] * 2] * 2


def test_errors():
    scorer = DotProduct(torch.zeros(2, 3), torch.zeros(4, 3))
    with pytest.raises(ValueError, match=r"shapes \(users, d\) and \(items, d\), got \(2, 3\) and"):
        DotProduct(torch.zeros(2, 3), torch.zeros(4, 2))
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        top_k(scorer, 0)
    with pytest.raises(ValueError, match="one row for each of 2 users, got 1"):
        top_k(scorer, 1, exclude=Interactions.from_pairs([0], [0]))
    with pytest.raises(ValueError, match="item ids between 0 and 3, got 9 to 9"):
        top_k(scorer, 1, exclude=Jagged(torch.tensor([9]), torch.tensor([0, 1, 1])))
    with pytest.raises(ValueError, match="scores must be numbers, got nan"):
        top_k(DotProduct(torch.full((2, 3), torch.nan), torch.zeros(4, 3)), 1)
