"""The next-item transformer: causality, batching, losses, learning, saving, resuming, errors."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fewfold as ff
from fewfold.recommender import (
    Checkpoint,
    FullSoftmax,
    Interactions,
    Jagged,
    NextItemNetwork,
    SampledSoftmax,
    Training,
    TrainOptions,
    Transformer,
)
from fewfold.recommender.export_model import padded
from fewfold.recommender.models.model import FitOptions
from fewfold.recommender.models.next_item import next_item_network, transformer
from fewfold.recommender.models.next_item.next_item_run import (
    HeldOut,
    NextItemRun,
    default_objective,
)
from fewfold.recommender.models.next_item.windows import Windows
from fewfold.sampling.proposal import Given, Proposal

RUN = "fewfold.recommender.models.next_item.next_item_run"
SMALL = Transformer(width=16, length=8, dropout=0.0)


def sequences(rows: int = 40, items: int = 12, seed: int = 0) -> Jagged:
    """Random sequences of 1 to 11 items, with repetitions."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 12, (rows,), generator=generator)
    values = torch.randint(items, (int(lengths.sum()),), generator=generator)
    return Jagged(values, F.pad(lengths.cumsum(0), (1, 0)))


def cycles(rows: int = 200, items: int = 9, length: int = 6) -> Jagged:
    """Sequences that count on from a random item, modulo the number of items."""
    first = torch.randint(items, (rows, 1), generator=torch.Generator().manual_seed(3))
    return Jagged(
        ((first + torch.arange(length)) % items).flatten(), torch.arange(rows + 1) * length
    )


def network(**settings: Any) -> NextItemNetwork:
    """A network whose weights are all random, so that every part takes part."""
    made = NextItemNetwork(12, **{"width": 8, "heads": 2, "layers": 2, "length": 8} | settings)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.dense_parameters:
            parameter.normal_(0, 0.5, generator=generator)
    return made.eval()


def quiet(**training: Any) -> FitOptions:
    return FitOptions(Training(**training), progress=False)


@pytest.mark.parametrize("settings", [{}, {"alpha": 1.5}, {"correction": False}])
def test_later_items_do_not_change_earlier_queries(settings: dict[str, Any]) -> None:
    model, ids = network(**settings), torch.randint(12, (3, 8))
    queries, changed = model(ids), ids.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 12
    other = model(changed)
    torch.testing.assert_close(other[:, :5], queries[:, :5])
    assert not torch.isclose(other[:, 5:], queries[:, 5:]).all(-1).any()


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_the_query_of_a_prefix_is_the_same_alone_in_a_batch_and_in_a_sequence(alpha: float) -> None:
    model, rows = network(alpha=alpha), sequences()
    together = model.queries(rows)
    for row in range(len(rows.lengths)):
        items = rows.values[rows.offsets[row] : rows.offsets[row + 1]][-8:]
        alone = model(items.unsqueeze(0))[0]
        torch.testing.assert_close(together[row], alone[-1], rtol=1e-4, atol=1e-4)
        for end in range(1, len(items)):
            prefix = model(items[:end].unsqueeze(0))[0, -1]
            torch.testing.assert_close(alone[end - 1], prefix, rtol=1e-4, atol=1e-4)


def test_queries_read_the_last_items_and_start_without_any() -> None:
    model = network()
    model.start.fill_(0.25)
    long = torch.arange(11)
    rows = Jagged(torch.cat([long, long[3:]]), torch.tensor([0, 11, 11, 19]))
    queries = model.queries(rows)
    torch.testing.assert_close(queries[0], queries[2])
    assert (queries[1] == 0.25).all()
    assert len(model.queries(rows.rows(slice(0, 0)))) == 0


@pytest.mark.parametrize("length", [1, 3, 20])
def test_windows_contain_every_neighbouring_pair_once(length: int) -> None:
    rows = sequences()
    wanted = [
        (int(rows.values[at]), int(rows.values[at + 1]))
        for start, end in zip(rows.offsets[:-1].tolist(), rows.offsets[1:].tolist(), strict=True)
        for at in range(start, end - 1)
    ]
    windows = Windows.every(rows, length)
    assert int(windows.lengths.max()) <= length + 1
    found: list[tuple[int, int]] = []
    counts: list[int] = []
    for _ in range(2):
        batches = windows.batches(30, torch.Generator().manual_seed(len(counts)))
        counts.append(len(batches))
        assert sorted(torch.cat(batches).tolist()) == list(range(len(windows.lengths)))
    assert counts[0] == counts[1]
    for batch in batches:
        ids, there = windows.padded(batch)
        assert ids.numel() <= 30 or len(batch) == 1
        both = there[:, 1:]
        found += list(zip(ids[:, :-1][both].tolist(), ids[:, 1:][both].tolist(), strict=True))
    assert sorted(found) == sorted(wanted)


def test_held_out_items_are_last_and_not_trained_on() -> None:
    rows = sequences(rows=400)
    held = HeldOut.draw(rows, seed=0)
    assert len(held.targets.values) == int((rows.lengths > 2).sum()) // 20
    assert len(held.rest.values) + len(held.targets.values) == len(rows.values)
    whole = {tuple(part.tolist()) for part in rows.values.split(rows.lengths.tolist())}
    for row, target in enumerate(held.targets.values.tolist()):
        before = held.history.values[held.history.offsets[row] : held.history.offsets[row + 1]]
        assert (*before.tolist(), target) in whole
    assert held.repeated
    assert not HeldOut.draw(cycles(), seed=0).repeated


class _EveryItem(Proposal):
    """Each item once, in the place of a sample: the estimate is then the softmax itself."""

    def __init__(self, items: int) -> None:
        self.items = items

    def fit(self, item_vectors: Tensor, counts: Tensor | None = None) -> "_EveryItem":
        return self

    def given(self, queries: Tensor, *, shared: bool = False) -> Given:
        return _GivenEveryItem(self.items)


class _GivenEveryItem(Given):
    shared = True

    def __init__(self, items: int) -> None:
        self.items = items

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        assert n == self.items
        return torch.arange(n), torch.zeros(n)

    def log_prob(self, ids: Tensor, row: Tensor | None = None) -> Tensor:
        return torch.zeros(ids.shape)


def test_the_sampled_loss_of_all_items_is_the_full_softmax() -> None:
    """The positive counts once more in the estimate, which is corrected here."""
    made, options = SMALL.network(12), TrainOptions(batch=64, lr=1e-2)
    held = HeldOut.draw(sequences(), seed=0)
    runs = [
        NextItemRun(made, held, objective, options, False)
        for objective in (FullSoftmax(), SampledSoftmax(_EveryItem(12), 12, shared=True))
    ]
    rows = torch.arange(10)
    (full, terms), (sampled, same) = (run.loss(rows) for run in runs)
    assert terms == same
    ids, there = runs[0].windows.padded(rows)
    known = there[:, 1:]
    scores = made(ids[:, :-1])[known] @ F.normalize(made.table, dim=1).T
    targets = ids[:, 1:][known]
    torch.testing.assert_close(full, F.cross_entropy(scores, targets))
    chosen = scores.gather(1, targets.unsqueeze(1))
    twice = torch.cat([scores, chosen], 1).logsumexp(1) - chosen.squeeze(1)
    torch.testing.assert_close(sampled, (twice - torch.tensor(12.0).log()).mean())


@pytest.mark.parametrize("sampled", [False, True])
def test_it_learns_a_cycle(sampled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if sampled:
        monkeypatch.setattr(f"{RUN}._FULL", 0)
        monkeypatch.setattr(f"{RUN}._SAMPLES", 6)
    assert isinstance(default_objective(9), SampledSoftmax) == sampled
    fitted = SMALL.fit_sequences(cycles(), 9, quiet(epochs=15))
    history = cycles(rows=20, length=4)
    wanted = (history.values.view(-1, 4)[:, -1] + 1) % 9
    assert (fitted.rank(history, 1).ids[:, 0] == wanted).all()
    assert (fitted.rank(history, 3, exclude=history).ids[:, 0] == wanted).all()


def _log(rows: Jagged) -> Interactions:
    """Interactions of sequences without repetitions, with times in their order."""
    return Interactions.from_pairs(rows.row, rows.values, times=torch.arange(len(rows.values)))


def test_a_log_gives_the_same_as_its_sequences_and_a_seed_the_same_weights() -> None:
    rows = cycles(rows=30)
    options = replace(quiet(epochs=2), seed=4)
    by_log = SMALL.learn(_log(rows), options)
    by_rows = SMALL.fit_sequences(rows, 9, options)
    for name, value in by_rows.state().items():
        assert torch.equal(by_log.fitted.state()[name], value), name
    other = SMALL.fit_sequences(rows, 9, replace(options, seed=5))
    assert not torch.equal(other.state()["table"], by_rows.state()["table"])
    assert len(by_log.epochs) == 2
    assert by_log.epochs[0].users == 30
    assert by_log.epochs[1].loss < by_log.epochs[0].loss


class _StopError(Exception):
    pass


@pytest.mark.parametrize("full", [0, 100])
def test_a_resumed_training_gives_the_same_weights(
    full: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{RUN}._FULL", full)
    monkeypatch.setattr(f"{RUN}._SAMPLES", 6)
    rows, dropped = cycles(), replace(SMALL, dropout=0.2)
    whole = dropped.fit_sequences(rows, 9, quiet(epochs=3))
    keep = Checkpoint(tmp_path / "run", every=0, resume=True)
    options = replace(quiet(epochs=3), checkpoint=keep)
    steps, advance = iter(range(20)), NextItemRun.advance

    def stopping(run: NextItemRun, batch: Tensor) -> None:
        advance(run, batch)
        if next(steps) == 19:
            raise _StopError

    with monkeypatch.context() as patch:
        patch.setattr(NextItemRun, "advance", stopping)
        with pytest.raises(_StopError):
            dropped.fit_sequences(rows, 9, options)
    again = dropped.fit_sequences(rows, 9, options)
    for name, value in whole.state().items():
        assert torch.equal(again.state()[name], value), name
    with pytest.raises(ValueError, match="epochs"):
        dropped.fit_sequences(rows, 9, replace(options, training=Training(epochs=4)))


@pytest.mark.parametrize("correction", [False, True])
def test_tensors_are_those_of_the_layout(correction: bool) -> None:
    model, rows = replace(SMALL, correction=correction), cycles(rows=60)
    fitted = model.fit_sequences(rows, 9, quiet(epochs=1))
    assert (fitted.network.beyond is not None) == correction
    again = model.from_state(fitted.state(), 9)
    assert torch.equal(again.queries(rows), fitted.queries(rows))
    found = {name: (it.dtype, tuple(it.shape)) for name, it in fitted.state().items()}
    assert set(dict(model.layout(found, 9))) == set(found)


def test_small_logs_are_read_more_often_and_with_more_dropout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = cycles(rows=60)  # of 360 items
    for wanted, large, passes, dropout in ((900, 361, 5, 0.5), (18_000, 300, 50, 0.25)):
        monkeypatch.setattr(transformer, "_WANTED", wanted)
        monkeypatch.setattr(transformer, "_LARGE", large)
        assert transformer._epochs(rows) == passes
        quick = FitOptions(progress=False, effort=0.1)
        fitted = replace(SMALL, dropout=None).fit_sequences(rows, 9, quick)
        assert fitted.network.dropout == dropout
    assert "dropout" not in Transformer().summary() + Transformer().flags()
    assert Transformer(dropout=0.5).flags().endswith("--dropout 0.5")


def test_a_quarter_of_the_effort_is_half_of_the_epochs() -> None:
    rows = cycles(rows=60)
    log = Interactions.from_pairs(rows.row, rows.values, torch.arange(len(rows.values)))
    for effort, epochs in ((0.25, 4), (1.0, 8), (0.001, 1)):
        options = replace(quiet(epochs=8), effort=effort)
        assert len(SMALL.learn(log, options).epochs) == epochs


def test_dropout_keeps_the_mean_and_drops_entries_alike() -> None:
    ones, generator = torch.ones(501, 403), torch.Generator().manual_seed(0)
    for share in (0.25, 0.5, 0.999):
        kept = next_item_network._drop(ones, share, generator)
        assert kept.mean().item() == pytest.approx(1, abs=0.15 if share > 0.9 else 0.01)
        zero = (kept == 0).double()
        assert zero.mean().item() == pytest.approx(share, abs=0.005)
        for part in (zero.flatten()[at::7] for at in range(7)):
            assert part.mean().item() == pytest.approx(share, abs=0.01)
        assert zero.mean(0).std() < 0.04
    assert next_item_network._drop(ones, 0.001, generator) is ones


def _events(rows: Jagged) -> Iterator[dict[str, Any]]:
    for time, (user, item) in enumerate(zip(rows.row.tolist(), rows.values.tolist(), strict=True)):
        yield {"user": f"u{user}", "item": f"i{item}", "time": time}


def test_a_saved_recommender_answers_the_same(tmp_path: Path) -> None:
    import polars

    log = polars.DataFrame(list(_events(cycles(rows=120))))
    training = Training(epochs=15)
    rec = ff.Recommender(SMALL, training=training).fit(log, time="time", progress=False)
    again = ff.Recommender.load(rec.save(tmp_path / "model"))
    assert again.model == SMALL
    asked = [["i0", "i1", "i2"], ["i2", "i1", "i0"], []]
    one, two = (each.recommend_from_history(asked, k=5) for each in (rec, again))
    assert one.items == two.items
    assert one.items[0][0] == "i3"
    assert one.items[0] != one.items[1]
    assert rec.recommend("u1", k=3).items == again.recommend("u1", k=3).items
    assert rec.similar_items("i1", k=3).items == again.similar_items("i1", k=3).items
    told = ff.recommender.export(rec, onnx=tmp_path / "scorer.onnx")
    assert "scores (rows, items)" in told["onnx"]
    rows = sequences(items=9)  # some are longer than the window, one is empty
    rows = Jagged(rows.values, torch.cat([rows.offsets, rows.offsets[-1:]]))
    given = padded(rows)
    scores = onnxruntime.InferenceSession(tmp_path / "scorer.onnx").run(
        None, {"history": given.numpy()}
    )[0]
    wanted = rec.fitted.queries(rows) @ rec.fitted.vectors.T  # type: ignore[operator]
    torch.testing.assert_close(torch.from_numpy(scores), wanted, rtol=1e-4, atol=1e-4)
    found = rec.index(recall=1.0)
    assert rec.recommend_from_history(asked[0], k=3, search=found).items == one.items[0][:3]


def test_users_without_items_get_popular_ones() -> None:
    counts = torch.tensor([1, 500, 2, 40, 3, 1, 1, 2, 1, 30, 1, 1])
    model = network()
    model.fit_start(counts)
    nobody = Jagged(torch.empty(0, dtype=torch.int64), torch.tensor([0, 0]))
    assert int((model.queries(nobody) @ model.vectors.T).argmax()) == 1


def test_the_bound_of_its_values_holds() -> None:
    model = network()
    ranges = {name: (it.min().item(), it.max().item()) for name, it in model.state_dict().items()}
    recipe = Transformer(width=8, heads=2, layers=2, length=8)
    seen: list[float] = []
    for module in model.modules():
        module.register_forward_hook(lambda *a: seen.append(a[2].detach().abs().max().item()))
    model(torch.randint(12, (50, 8)))
    assert max(seen) <= recipe.largest(ranges, 12)
    ranges["norm.weight"] = (0.0, 3e38)
    assert recipe.largest(ranges, 12) > 1e17


def test_errors_say_what_to_write() -> None:
    with pytest.raises(ValueError, match="multiple of heads=2, got 9; write width=10"):
        Transformer(width=9)
    with pytest.raises(ValueError, match="dropout must be at least 0 and below 1, got 1"):
        Transformer(dropout=1.0)
    with pytest.raises(ValueError, match=r"alpha must be between 1 \(softmax\) and 2"):
        Transformer(alpha=0.5)
    with pytest.raises(ValueError, match="between 0 and 4, got 0 to 8"):
        SMALL.fit_sequences(cycles(), 5)
    with pytest.raises(ValueError, match="no sequence has two items"):
        SMALL.fit_sequences(cycles(length=1), 9)
    untimed = Interactions.from_pairs([0, 0, 1], [0, 1, 1])
    assert "no times" in Transformer.unsuitable(untimed)
    with pytest.raises(ValueError, match="no times"):
        SMALL.learn(untimed, quiet(epochs=1))
    with pytest.raises(ValueError, match="no times"):
        SMALL.fit(untimed)
