"""The modules: `Map` for nn.Sequential, and a learned alpha per head."""

import io
import math

import pytest
import torch

import fewfold as ff

from .cases import random_scores

pytestmark = pytest.mark.usefixtures("path")


def test_map_in_a_sequential():
    torch.manual_seed(0)
    linear = torch.nn.Linear(4, 6)
    net = torch.nn.Sequential(linear, ff.Map(ff.Gini()))
    x = torch.randn(3, 4)
    torch.testing.assert_close(net(x), ff.sparsemax(linear(x)))
    net(x)[:, 0].sum().backward()
    assert linear.weight.grad.abs().max() > 0
    assert list(net.state_dict()) == ["0.weight", "0.bias"]


def test_map_with_dim_and_mask():
    scores = random_scores(5, 4)
    mask = scores > -0.5
    mask[:3] = True
    layer = ff.Map(ff.Tsallis(1.5), dim=0)
    torch.testing.assert_close(layer(scores, mask=mask), ff.entmax(scores, dim=0, mask=mask))
    assert "Tsallis" in repr(layer)
    assert "dim=0" in repr(layer)


def test_map_with_a_learnt_alpha_trains_it():
    layer = ff.Map(ff.Tsallis(torch.tensor(1.5, requires_grad=True)))
    probs = layer(random_scores(3, 5, dtype=torch.float32))
    probs[:, 0].sum().backward()
    assert layer.omega.alpha.grad.abs() > 0


def test_adaptive_entmax_starts_in_the_middle_and_stays_between_one_and_two():
    layer = ff.AdaptiveEntmax()
    scores = random_scores(3, 5, dtype=torch.float32)
    torch.testing.assert_close(layer(scores), ff.entmax(scores, 1.5))
    parameters = list(layer.parameters())
    assert len(parameters) == 1
    for raw, alpha in ((-30.0, 1.0), (0.0, 1.5), (30.0, 2.0)):
        with torch.no_grad():
            parameters[0].fill_(raw)
        torch.testing.assert_close(layer(scores), ff.entmax(scores, alpha), atol=1e-5, rtol=0)


def test_adaptive_entmax_has_one_alpha_per_head():
    layer = ff.AdaptiveEntmax(heads=4)
    scores = random_scores(2, 4, 3, 5, dtype=torch.float32)
    (raw,) = layer.parameters()
    assert raw.numel() == 4
    with torch.no_grad():
        raw.copy_(torch.tensor([-2.0, -0.5, 0.5, 2.0]).reshape(raw.shape))
    probs = layer(scores)
    for head, value in enumerate(torch.sigmoid(raw.detach().flatten())):
        expected = ff.entmax(scores[:, head], 1 + float(value))
        torch.testing.assert_close(probs[:, head], expected, atol=2e-6, rtol=0)
    probs[..., 0].sum().backward()
    assert raw.grad.shape == raw.shape
    assert (raw.grad != 0).all()


def test_adaptive_entmax_learns_how_sparse_to_be():
    """A target with exact zeros pulls alpha up, a dense one pulls it down."""
    scores = torch.tensor([[2.0, 1.0, 0.5, 0.0]])
    for alpha in (1.2, 1.9):
        layer = ff.AdaptiveEntmax()
        target = ff.entmax(scores, alpha)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
        for _ in range(150):
            optimizer.zero_grad()
            ((layer(scores) - target) ** 2).sum().backward()
            optimizer.step()
        learnt = 1 + torch.sigmoid(next(layer.parameters())).item()
        assert learnt == pytest.approx(alpha, abs=0.02)


def test_modules_move_and_save():
    layer = ff.AdaptiveEntmax(heads=2)
    with torch.no_grad():
        next(layer.parameters()).normal_()
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    twin = ff.AdaptiveEntmax(heads=2)
    twin.load_state_dict(torch.load(file, weights_only=True))
    scores = random_scores(3, 2, 4, 5)
    assert torch.equal(twin.double()(scores), layer.double()(scores))


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (2, 4, 3, 5)])
def test_one_alpha_serves_scores_of_any_shape(shape):
    scores = random_scores(*shape, dtype=torch.float32)
    layer = ff.AdaptiveEntmax(1)
    torch.testing.assert_close(layer(scores), ff.entmax(scores, 1.5))
    layer(scores)[..., 0].sum().backward()
    assert layer.raw.grad.shape == (1, 1, 1)


def test_adaptive_entmax_names_the_scores_it_needs():
    for scores in (torch.zeros(3, 5), torch.zeros(2, 3, 6, 5), torch.zeros(5)):
        with pytest.raises(ValueError, match=r"AdaptiveEntmax\(4\) maps scores .* 4, m, n\)"):
            ff.AdaptiveEntmax(4)(scores)
    with pytest.raises(ValueError, match=r"alpha of shape \(3,\).*write AdaptiveEntmax\(\)"):
        ff.AdaptiveEntmax((3,))(torch.zeros(2, 3))


@pytest.mark.parametrize("heads", [1.5, "4", True, (2, 1.5)])
def test_heads_of_adaptive_entmax_are_whole_numbers(heads):
    with pytest.raises(TypeError, match=r"heads must be an int or a shape.*ff.entmax"):
        ff.AdaptiveEntmax(heads)


@pytest.mark.parametrize("heads", [0, -1, (2, -1)])
def test_adaptive_entmax_has_a_head(heads):
    with pytest.raises(ValueError, match="heads must be at least 1"):
        ff.AdaptiveEntmax(heads)


def test_range_of_adaptive_entmax():
    for low, high in ((2.0, 1.0), (0.0, 2.0), (1.0, math.inf), (math.nan, 2.0)):
        with pytest.raises(ValueError, match="low and high must"):
            ff.AdaptiveEntmax(low=low, high=high)
    with pytest.raises(TypeError, match="low must be a number"):
        ff.AdaptiveEntmax(low="1")


def test_adaptive_entmax_is_made_where_it_is_wanted():
    layer = ff.AdaptiveEntmax(2, device="meta", dtype=torch.float64)
    assert layer.raw.is_meta
    assert layer.raw.dtype == torch.float64
