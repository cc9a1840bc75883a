"""Sums of table rows and lists that are thinned out."""

import pytest
import torch
import torch.nn.functional as F

from fewfold.recommender.interactions import Jagged
from fewfold.recommender.models.fastvae.tables import bags, drop_items

pytestmark = pytest.mark.usefixtures("path")
LISTS = Jagged(torch.tensor([4, 0, 4, 7, 2]), torch.tensor([0, 3, 3, 5]))  # the second is empty


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("width", [1, 5, 16, 40])
def test_value_and_gradient_are_those_of_embedding_bag(dtype, width):
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(8, width, dtype=dtype, generator=generator).requires_grad_()
    by = torch.tensor([0.5, 2.0, -1.0], dtype=dtype)
    out = bags(table, LISTS, by)
    plain = F.embedding_bag(
        LISTS.values, table, LISTS.offsets, mode="sum", include_last_offset=True
    )
    torch.testing.assert_close(out, plain * by[:, None])
    pull = torch.randn(out.shape, dtype=dtype, generator=generator)
    (grad,) = torch.autograd.grad(out, table, pull)
    (dense,) = torch.autograd.grad(plain * by[:, None], table, pull)
    assert grad.is_sparse
    torch.testing.assert_close(grad.to_dense(), dense)


@pytest.mark.parametrize("bad", [-1, 8, 2**62])
def test_ids_out_of_range(bad):
    lists = Jagged(torch.tensor([0, bad]), torch.tensor([0, 2]))
    with pytest.raises((IndexError, RuntimeError)):
        bags(torch.randn(8, 3), lists, torch.ones(1))


def test_thinning_keeps_a_share_in_order():
    generator = torch.Generator().manual_seed(0)
    offsets = torch.tensor([0, 10_000, 10_000, 30_000])
    few = drop_items(Jagged(torch.arange(30_000), offsets), 0.3, generator)
    assert few.offsets[0] == 0
    assert few.offsets[-1] == len(few.values)
    assert (few.values.diff() > 0).all()
    assert few.offsets[1] == few.offsets[2]
    assert (few.values[: few.offsets[1]] < 10_000).all()
    assert (few.values[few.offsets[1] :] >= 10_000).all()
    assert abs(len(few.values) - 21_000) < 5 * (30_000 * 0.3 * 0.7) ** 0.5


def test_thinning_depends_on_the_seed_alone():
    lists = Jagged(torch.arange(100), torch.tensor([0, 40, 100]))
    one, two, other = (
        drop_items(lists, 0.5, torch.Generator().manual_seed(s)).values for s in (1, 1, 2)
    )
    assert torch.equal(one, two)
    assert one.tolist() != other.tolist()


def test_nothing_dropped_nothing_changed():
    assert drop_items(LISTS, 0.0, None) is LISTS


def test_empty_lists_stay_empty():
    empty = Jagged(torch.zeros(0, dtype=torch.int64), torch.zeros(3, dtype=torch.int64))
    few = drop_items(empty, 0.5, None)
    assert len(few.values) == 0
    assert bags(torch.randn(4, 3), few, torch.ones(2)).eq(0).all()


def test_lists_may_lie_anyhow_in_memory():
    table, by = torch.randn(600, 3), torch.ones(1)
    wide = torch.tensor([[1, 100], [3, 300], [5, 500]])
    strided = Jagged(wide[:, 1], torch.tensor([0, 3]))
    torch.testing.assert_close(bags(table, strided, by)[0], table[[100, 300, 500]].sum(0))


@pytest.mark.parametrize("offsets", [[0, 500, 3], [0, 2_000_000], [1, 3], [0, 2]])
def test_offsets_that_do_not_fit_never_reach_memory(offsets, path):
    if path == "torch":
        pytest.skip("torch checks its own")
    lists = Jagged(torch.tensor([1, 3, 5]), torch.tensor(offsets))
    with pytest.raises(ValueError, match="offsets must"):
        drop_items(lists, 0.5, None)
    with pytest.raises(ValueError, match="offsets must"):
        bags(torch.randn(8, 3), lists, torch.ones(len(offsets) - 1))


def test_ids_of_another_kind_are_refused(path):
    if path == "torch":
        pytest.skip("torch takes them")
    lists = Jagged(torch.tensor([1, 3, 5], dtype=torch.int32), torch.tensor([0, 3]))
    with pytest.raises(TypeError, match="int64"):
        bags(torch.randn(8, 3), lists, torch.ones(1))
