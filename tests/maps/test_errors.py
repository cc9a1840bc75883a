"""Error messages: what was expected, what was given, and what to write."""

import pytest
import torch

import fewfold as ff

from .cases import every_map, random_scores

SCORES = random_scores(2, 5)
PLAIN = [ff.softmax, ff.sparsemax, ff.entmax, ff.normmax, ff.fusedmax, ff.oscarmax]


def says(*words: str) -> str:
    """A pattern that wants every word, in this order."""
    return "(?s)" + ".*".join(words)


@every_map
def test_scores_that_are_not_floating_point(case):
    upper = (torch.ones(5),) if case.bounded else ()
    for dtype in (torch.int64, torch.int32, torch.bool, torch.uint8):
        scores = torch.ones(2, 5).to(dtype)
        pattern = says("scores", "float", str(dtype), r"scores\.float\(\)")
        with pytest.raises(TypeError, match=pattern):
            case.function(scores, *upper, **dict(case.parameters))


@every_map
def test_scores_that_are_complex(case):
    upper = (torch.ones(5),) if case.bounded else ()
    with pytest.raises(TypeError, match=says("scores", "real", "complex64")):
        case.function(torch.ones(2, 5, dtype=torch.complex64), *upper, **dict(case.parameters))


@every_map
def test_scores_that_are_sparse_tensors(case):
    upper = (torch.ones(5),) if case.bounded else ()
    with pytest.raises(TypeError, match=says("dense", "sparse_coo", r"scores\.to_dense\(\)")):
        case.function(torch.ones(2, 5).to_sparse(), *upper, **dict(case.parameters))


@every_map
def test_scores_that_are_no_tensor(case):
    upper = (torch.ones(3),) if case.bounded else ()
    for scores, came in (
        ([0.1, 0.2, 0.3], "list"),
        (SCORES.numpy(), "ndarray"),
        (None, "NoneType"),
    ):
        with pytest.raises(TypeError, match=says("scores", "torch.Tensor", came)):
            case.function(scores, *upper, **dict(case.parameters))


@every_map
def test_scores_without_a_dimension(case):
    upper = (torch.ones(1),) if case.bounded else ()
    with pytest.raises(ValueError, match=says("scores", "at least one dimension")):
        case.function(torch.tensor(1.0), *upper, **dict(case.parameters))


@every_map
def test_a_dim_that_is_not_there(case):
    upper = (torch.ones(5).double(),) if case.bounded else ()
    for dim in (2, -3, 100):
        with pytest.raises((ValueError, IndexError), match=says("dim", "-2", "1", f"got {dim}")):
            case(SCORES, *upper, dim=dim)


@every_map
def test_a_mask_that_is_not_boolean(case):
    with pytest.raises(TypeError, match=says("mask", "bool", "float32", r"mask\.bool\(\)")):
        case(SCORES, mask=torch.ones(2, 5))
    with pytest.raises(TypeError, match=says("mask", "bool")):
        case(SCORES, mask=[[True] * 5] * 2)


@every_map
def test_a_mask_that_does_not_fit(case):
    for shape in ((3,), (3, 5), (2, 2, 5), (5, 2)):
        with pytest.raises(ValueError, match=says("mask", r"\(2, 5\)", str(shape)[1:-1])):
            case(SCORES, mask=torch.ones(shape, dtype=torch.bool))


@pytest.mark.parametrize("alpha", [0, -1, -0.5, float("nan"), float("inf"), -float("inf")])
def test_alpha_of_entmax(alpha):
    with pytest.raises(ValueError, match=says("alpha", "greater than 0", f"got {alpha}")):
        ff.entmax(SCORES, alpha)
    with pytest.raises(ValueError, match=says("alpha", "greater than 0")):
        ff.entmax(SCORES, torch.tensor([[1.5], [alpha]]))
    with pytest.raises(ValueError, match=says("alpha", "greater than 0", f"got {alpha}")):
        ff.Tsallis(alpha)


@pytest.mark.parametrize("alpha", [1, 1.0, 0.5, 0, -1, float("nan"), float("inf")])
def test_alpha_of_normmax(alpha):
    with pytest.raises(ValueError, match=says("alpha", "greater than 1", f"got {alpha}")):
        ff.normmax(SCORES, alpha)
    with pytest.raises(ValueError, match=says("alpha", "greater than 1")):
        ff.normmax(SCORES, torch.tensor([[1.5], [alpha]]))
    with pytest.raises(ValueError, match=says("alpha", "greater than 1", f"got {alpha}")):
        ff.Norm(alpha)


@pytest.mark.parametrize("function", [ff.entmax, ff.normmax])
def test_alpha_that_does_not_fit(function):
    for shape in ((2,), (5,), (2, 5), (3, 1), (1, 2, 1)):
        with pytest.raises(
            ValueError, match=says("alpha", r"\(2, 5\)", "size 1", str(shape)[1:-1])
        ):
            function(SCORES, torch.full(shape, 1.5))
    for alpha, came in (("1.5", "str"), (None, "NoneType"), ([1.5], "list")):
        with pytest.raises(TypeError, match=says("alpha", came)):
            function(SCORES, alpha)
    with pytest.raises(TypeError, match=says("alpha", "int64")):
        function(SCORES, torch.tensor(2))


@pytest.mark.parametrize("k", [-1, -0.5, 5.5, 7, float("nan"), float("inf")])
def test_k_of_ksubset(k):
    for at_most in (False, True):
        with pytest.raises(ValueError, match=says("k must be between 0 and n=5", f"got {k}")):
            ff.ksubset(SCORES, k, at_most=at_most)
    with pytest.raises(ValueError, match=says("k must be between 0 and n=5")):
        ff.ksubset(SCORES, torch.tensor([[1.0], [k]]))


def test_k_that_does_not_fit():
    for shape in ((2,), (5,), (3, 1)):
        with pytest.raises(ValueError, match=says("k must", r"\(2, 5\)", str(shape)[1:-1])):
            ff.ksubset(SCORES, torch.ones(shape))
    for k, came in (("2", "str"), (None, "NoneType"), ([2], "list")):
        with pytest.raises(TypeError, match=says("k must", came)):
            ff.ksubset(SCORES, k)


@pytest.mark.parametrize("function", [ff.topk_sparsemax, ff.maps.topk_sparsemax_certified])
def test_k_of_topk(function):
    for k in (0, -1):
        with pytest.raises(ValueError, match=says("k must be at least 1", f"got {k}", "sparsemax")):
            function(SCORES, k)
    for k, came in ((2.5, "float"), ("2", "str"), (None, "NoneType"), (True, "bool")):
        with pytest.raises(TypeError, match=says("k must be an int", came)):
            function(SCORES, k)


@pytest.mark.parametrize("function", [ff.constrained_sparsemax, ff.maps.constrained_softmax])
def test_bounds(function):
    with pytest.raises(ValueError, match=says("upper", "1", "0.5")):
        function(SCORES, torch.full((5,), 0.1).double())
    with pytest.raises(ValueError, match=says("upper", "negative|at least 0|>= 0")):
        function(SCORES, torch.tensor([1.0, 1.0, -0.1, 1.0, 1.0]).double())
    for shape in ((4,), (3, 5), (2, 2, 5)):
        with pytest.raises(ValueError, match=says("upper", r"\(2, 5\)", str(shape)[1:-1])):
            function(SCORES, torch.ones(shape).double())
    with pytest.raises(TypeError, match=says("upper", "list")):
        function(SCORES, [1.0] * 5)
    # Dropping entries may make the bounds infeasible; nothing kept at all does not.
    mask = torch.tensor([[True, False, False, False, False], [True] * 5])
    with pytest.raises(ValueError, match=says("upper")):
        function(SCORES, torch.full((5,), 0.5).double(), mask=mask)
    mask[0, 0] = False
    assert (function(SCORES, torch.full((5,), 0.5).double(), mask=mask)[0] == 0).all()


@pytest.mark.parametrize("function", [ff.fusedmax, ff.oscarmax])
def test_strength(function):
    for strength in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=says("strength", "got")):
            function(SCORES, strength)
    for strength, came in (("0.1", "str"), (None, "NoneType")):
        with pytest.raises(TypeError, match=says("strength", came)):
            function(SCORES, strength)


@pytest.mark.parametrize("function", PLAIN)
def test_parameters_after_dim_are_named(function):
    with pytest.raises(TypeError):
        function(SCORES, 1.5, -1, torch.ones(2, 5, dtype=torch.bool))
