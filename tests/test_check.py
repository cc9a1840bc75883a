"""Validation helpers: accepted shapes, and error messages."""

import pytest
import torch

from fewfold._check import check_mask, check_scores, normal_dim, per_row, positive_number

SCORES = torch.zeros(2, 3, 4)


def test_scores_of_any_float_dtype_pass():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        check_scores(torch.zeros(1, dtype=dtype))


def test_the_name_of_the_argument_is_in_the_message():
    with pytest.raises(TypeError, match=r"logits must be a torch\.Tensor, got list"):
        check_scores([1.0], "logits")
    with pytest.raises(TypeError, match=r"logits .*int64.*logits\.float\(\)"):
        check_scores(torch.zeros(2, dtype=torch.int64), "logits")
    with pytest.raises(ValueError, match=r"logits .*scalar.*logits\.unsqueeze"):
        check_scores(torch.tensor(0.0), "logits")


def test_dims_are_counted_from_the_front():
    assert [normal_dim(dim, 3) for dim in range(-3, 3)] == [0, 1, 2, 0, 1, 2]
    for dim in (3, -4):
        with pytest.raises(ValueError, match=f"between -3 and 2 .*got {dim}"):
            normal_dim(dim, 3)
    for dim in (1.0, "1", None, True):
        with pytest.raises(TypeError, match="dim must be an int"):
            normal_dim(dim, 3)


def test_masks_that_broadcast_pass():
    for shape in ((2, 3, 4), (3, 4), (4,), (1,), (), (2, 1, 1), (3, 1)):
        check_mask(torch.ones(shape, dtype=torch.bool), SCORES)
    for shape in ((3,), (2, 4), (1, 2, 3, 4), (2, 3, 5)):
        with pytest.raises(ValueError, match="mask must broadcast"):
            check_mask(torch.ones(shape, dtype=torch.bool), SCORES)


def test_numbers():
    assert positive_number(2, "alpha") == 2.0
    assert positive_number(1.5, "alpha", above=1.0) == 1.5
    for value in (1, 0.5, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"alpha .*greater than 1, got {value}"):
            positive_number(value, "alpha", above=1.0)
    for value in ("2", None, True, [2.0]):
        with pytest.raises(TypeError, match="alpha must be a number"):
            positive_number(value, "alpha")


def test_one_parameter_per_row_is_moved_with_the_dim():
    assert per_row(torch.tensor(1.5), SCORES, 2, "alpha").dim() == 0
    for shape, dim, want in (
        ((3, 1), 2, (1, 3, 1)),
        ((2, 3, 1), 2, (2, 3, 1)),
        ((2, 1, 4), 1, (2, 4, 1)),
        ((1, 4), 1, (1, 4, 1)),
        ((1,), 2, (1, 1, 1)),
        ((3, 4), 0, (3, 4, 1)),
    ):
        assert per_row(torch.ones(shape), SCORES, dim, "alpha").shape == want
    for shape, dim in (((4,), 2), ((3, 4), 2), ((2,), 2), ((1, 1, 3, 1), 2), ((2, 1, 1), 0)):
        with pytest.raises(ValueError, match=r"alpha .*size 1 along dim"):
            per_row(torch.ones(shape), SCORES, dim, "alpha")
