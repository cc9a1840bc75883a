"""Recording of attention supports."""

import pytest
import torch

import fewfold as ff
from fewfold.attention import chunks as pieces
from fewfold.attention import shapes as layout

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")


def _inputs() -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return [2 * torch.randn(2, 3, 7, 4, generator=g, dtype=torch.float64) for _ in range(3)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("omega", [ff.Gini(), ff.Tsallis(1.5), ff.Subset(2)], ids=repr)
def test_pieces_of_a_support_are_the_support(omega, causal, monkeypatch) -> None:
    query, key, _ = _inputs()
    want = ff.attention.attention_support(query, key, omega, is_causal=causal)
    monkeypatch.setattr(layout, "_SMALL", 0)
    monkeypatch.setattr(pieces, "_AT_ONCE", 30)
    found = ff.attention.attention_support(query, key, omega, is_causal=causal)
    assert found.rows == want.rows == 42
    torch.testing.assert_close(found.to_dense(7), want.to_dense(7))


def test_watching_sees_every_call_and_then_no_more() -> None:
    query, key, value = _inputs()
    with ff.attention.watch_attention() as outer:
        ff.sparse_attention(query, key, value, ff.Gini())
        with ff.attention.watch_attention() as inner:
            ff.sparse_attention(query, key[:, :, :5], value[:, :, :5], ff.Gini(), dropout_p=0.5)
    ff.sparse_attention(query, key, value)
    assert [call.shape for call in outer] == [(2, 3, 7, 7), (2, 3, 7, 5)]
    assert [call.shape for call in inner] == [(2, 3, 7, 5)]
    probs = ff.sparsemax(query @ key.mT / 2)
    torch.testing.assert_close(outer[0].head(1, 2).to_dense(7), probs[1, 2])
    torch.testing.assert_close(outer[0].head(-1, -1).to_dense(7), probs[1, 2])
    assert outer[0].density == float((probs > 0).double().mean())
    assert not outer[0].support.weights.requires_grad
    for index in ((1,), (2, 0)):
        with pytest.raises(ValueError, match=r"an index in each of \(2, 3\)"):
            outer[0].head(*index)


def test_modules_are_seen() -> None:
    pool = ff.HopfieldPooling(8, ff.Gini(), heads=2, steps=2)
    with ff.attention.watch_attention() as calls:
        pool(torch.randn(3, 50, 8))
    assert [call.shape for call in calls] == [(3, 2, 1, 50)] * 2


def test_a_transform_is_not_seen_and_not_disturbed() -> None:
    query, key, value = _inputs()

    def attend(query, key, value) -> torch.Tensor:
        return ff.sparse_attention(query, key, value, ff.Gini())

    with ff.attention.watch_attention() as calls:
        found = torch.func.vmap(attend)(query, key, value)
    torch.testing.assert_close(found, attend(query, key, value))
    assert calls == []


def test_a_picture_has_a_cell_for_each_pair() -> None:
    query, key, _ = _inputs()
    support = ff.attention.attention_support(query[0, 0], key[0, 0], ff.Gini())
    words = [f"w{i}" for i in range(7)]
    axes = ff.attention.picture_attention(support, words)
    assert len(axes.patches) == len(support.weights)
    assert axes.get_title() == f"{len(support.weights)} of 49 pairs"
    assert [label.get_text() for label in axes.get_yticklabels()] == words
    again = ff.attention.picture_attention(
        torch.eye(7), words, [str(i) for i in range(7)], axes=axes
    )
    assert again is axes
    with pytest.raises(ValueError, match=r"of one head, \(2, 7\)"):
        ff.attention.picture_attention(torch.eye(7), ["a", "b"], words)
    wide = ff.attention.attention_support(query[0, 0, :2], key[0, 0], ff.Shannon())
    with pytest.raises(ValueError, match="one word per key, got 3 for key 6"):
        ff.attention.picture_attention(wide, ["a", "b"], words[:3])
    matplotlib.pyplot.close("all")
