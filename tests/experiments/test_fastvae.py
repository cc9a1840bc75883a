"""The FastVAE experiment end to end, on small generated data."""

from pathlib import Path

import pytest
import torch

import fewfold as ff
from experiments import readme
from experiments.fastvae import baselines, published, run, table
from experiments.record import Record
from tests.pictures import has_colour

matplotlib = pytest.importorskip("matplotlib")
from experiments.fastvae import figures, paper_figures  # noqa: E402

GROUPS, SIZE = 4, 25  # as many items as two lists of fifty


def split(seed: int = 0) -> ff.recommender.Split:
    """Users who like items of one group each."""
    generator = torch.Generator().manual_seed(seed)
    who = torch.arange(80).repeat_interleave(10)
    what = (who % GROUPS) * SIZE + torch.randint(SIZE, who.shape, generator=generator)
    log = ff.recommender.Interactions.from_pairs(who, what, shape=(80, GROUPS * SIZE))
    return ff.recommender.random_split(log, seed=seed)


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """Keep what is measured out of the folder of the experiment."""
    kept = Record(tmp_path / "figures.json")
    monkeypatch.setattr(figures, "RECORD", kept)
    monkeypatch.setattr(figures, "WEIGHTS", tmp_path / "build" / "weights.npz")
    monkeypatch.setattr(figures.datasets, "ml10m", split)
    return kept


def test_results_grow_and_are_not_measured_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "RECORD", Record(tmp_path / "results.json"))
    monkeypatch.setitem(
        run.DATA, "tiny", run.Data(split, 1, 10, 4, 1.0, None, (0.3, 0.35), None, ease=True)
    )
    names = ["most popular", "full softmax", "multi-index, popularity", f"uniform{run.SHORT}"]
    run.run("tiny", names, seeds=1)
    first = run.RECORD.path.read_text()
    run.run("tiny", names, seeds=1)
    assert run.RECORD.path.read_text() == first
    rows = run.RECORD.rows(data="tiny", seed=0)
    assert len(rows) == 1 + 2 * 3  # an autoencoder gives two: alone, and with its shortcut
    assert all(0 <= row[name] <= 1 for row in rows for name in ("NDCG@50", "Recall@50"))


def test_a_record_makes_a_row_once(tmp_path: Path) -> None:
    made = []
    kept = Record(tmp_path / "rows.json")
    for _ in range(2):
        row = kept.once(lambda: made.append(1) or {"value": [1, 2]}, name="a", seed=0)
    assert (row["value"], len(made)) == ([1, 2], 1)
    assert kept.rows(name="a") == kept.rows() == [row]
    assert kept.rows(name="b") == []


@pytest.mark.parametrize("sampler", [figures.FULL, *figures.INDEXED, *figures.STATIC])
def test_divergence(sampler: str) -> None:
    data = split()
    model = ff.recommender.FastVAE(data.train.items, hidden=8, latent=3)
    row = figures.divergence(model, data, sampler, codewords=8)
    assert row["kl"] == 0 if sampler == figures.FULL else row["kl"] > 0
    assert row["rank"][-1] == data.train.items
    assert row["cumulative"][-1] == pytest.approx(1, abs=1e-4)
    assert row["cumulative"] == sorted(row["cumulative"])


def test_figures(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SAMPLES", (4, 8)), ("CODEWORDS", (1, 4)), ("ITEMS", (100, 1000))):
        monkeypatch.setattr(figures, name, value)
    for name, value in (("SMALL_SAMPLE", 4), ("PUBLISHED_SAMPLE", 8), ("USERS", 40)):
        monkeypatch.setattr(figures, name, value)
    monkeypatch.setattr(figures.steps, "USERS", 8)
    for function, changed in (("trained", {"epochs": 1}), ("curve", {"epochs": 2})):
        monkeypatch.setattr(figures, function, _with(getattr(figures, function), **changed))
    monkeypatch.setattr(figures, "step_time", _with(figures.step_time, seconds=0.0))
    monkeypatch.setattr(figures, "divergence", _with(figures.divergence, codewords=8))
    monkeypatch.setattr(figures, "HERE", record.path.parent)
    monkeypatch.setitem(matplotlib.rcParams, "savefig.dpi", 50)
    figures.draw_all([*figures.FIGURES], seeds=1)
    pictures = [record.path.parent / f"figure{number}.png" for number in figures.FIGURES]
    assert all(has_colour(picture) for picture in pictures)
    assert len(record.rows(figure="time")) == len(figures.ITEMS) * len(figures.MODES)


def _with(function, **changed):
    return lambda *args: function(*args, **changed)


def test_table_leaves_out_what_is_missing() -> None:
    rows = [
        {"data": "ml10m", "seed": seed, "model": "ours", "NDCG@50": ndcg, "Recall@50": 0.5,
         "train seconds": 12.3}
        for seed, ndcg in enumerate((0.30, 0.32))
    ]  # fmt: skip
    lines = table.table(rows).splitlines()
    assert lines[0] == "| NDCG@50 / Recall@50 | ML10M | Gowalla | ML10M, seconds |"
    assert lines[-1] == "| ours | 0.3100 / 0.5000 (2 seeds) |  | 12 |"
    assert len(lines) == 2 + len(table.PUBLISHED) + 1


def test_table_goes_between_its_markers() -> None:
    text = "before\n<!-- table: begin -->\nold\n<!-- table: end -->\nafter\n"
    once = readme.insert(text, "new")
    assert once == text.replace("old", "new")
    assert readme.insert(once, "new") == once
    two = f"{text}<!-- auto: begin -->\nother\n<!-- auto: end -->\n"
    assert readme.insert(two, "new", "auto") == two.replace("other", "new")
    with pytest.raises(ValueError, match="must hold"):
        readme.insert("no markers", "new")


def test_readme_has_the_markers_and_the_figures() -> None:
    text = table.README.read_text()
    assert readme.insert(text, table.table([])) != ""
    assert all(f"figure{number}.png" in text for number in figures.FIGURES)


def test_the_peer_is_measured_the_same_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("implicit")
    settings = {"factors": 4, "alpha": 10.0, "regularization": 1.0}
    data = run.Data(split, 1, 10, 4, 1.0, None, (0.3, 0.35), settings, ease=False)
    monkeypatch.setattr(run, "RECORD", Record(tmp_path / "results.json"))
    monkeypatch.setitem(run.DATA, "tiny", data)
    run.run("tiny", [run.ALS, "most popular"], seeds=1)
    peer, popular = run.RECORD.rows(data="tiny")
    assert peer["NDCG@50"] > popular["NDCG@50"]
    assert peer["factors"] == 4


def test_published_rows_are_made_once_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "RECORD", Record(tmp_path / "results.json"))
    monkeypatch.setattr(published, "CHECKPOINTS", tmp_path)
    data = run.Data(split, 1, 10, 4, 1.0, None, (0.3, 0.35), None, ease=True)
    monkeypatch.setitem(run.DATA, "ml10m", data)
    names = ";".join((published.FULL, published.INDEX))
    arguments = ["published", "ml10m", "--models", names, "--seeds", "0", "--epochs", "10"]
    monkeypatch.setattr("sys.argv", [*arguments, "--beta", "0"])
    published.main()
    published.main()
    full, index = run.RECORD.rows(protocol="published", data="ml10m", epochs=10)
    assert index["model"] == "published network, multi-index, popularity, KL weight 0"
    assert len(full["NDCG@50 by ten epochs"]) == 1
    lines = table.published_table([full, index]).splitlines()
    assert len(lines) == 2 + len(table.PUBLISHED)  # two of the published rows are beside ours


@pytest.mark.parametrize("name", [published.FULL, published.INDEX])
def test_the_published_network_starts_as_in_its_code(name: str) -> None:
    model = published.network(name, 3000, seed=0)
    variance = 1 if name == published.INDEX else 1 / 600
    assert float(model.items.detach()[:, :-1].var()) == pytest.approx(variance, rel=0.02)
    assert float(model.inputs.detach().var()) == pytest.approx(1, rel=0.02)
    history = ff.recommender.Jagged(torch.tensor([5, 6]), torch.tensor([0, 2]))
    model.loss(history, published.objective(published.FULL, 1), beta=1.0).backward()
    assert bool(model.items.grad[:, -1].any()) == (name == published.FULL)


def test_every_baseline_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "TUNING", Record(tmp_path / "tuning.json"))
    monkeypatch.setattr(baselines, "BATCH", 64)
    data = run.Data(split, 1, 10, 4, 1.0, None, (0.3, 0.35), None, ease=True)
    monkeypatch.setitem(run.DATA, "tiny", data)
    grid = {name: [{"lr": 0.03, "l2": 1e-5}] for name in baselines.METHODS}
    monkeypatch.setattr(baselines, "GRID", grid | {baselines.WRMF: baselines.GRID["WRMF"][-1:]})
    for name in baselines.GRID:
        assert baselines.row("tiny", name, 0, epochs=20)["NDCG@50"] > 0.2, name
    assert len(baselines.TUNING.rows()) == len(baselines.GRID)


def test_losses_of_the_baselines_are_those_of_the_formulas() -> None:
    positive, log_q = torch.tensor([1.0, 0.0]), torch.tensor([[-1.0, -2.0], [-1.0, -1.0]])
    negative = torch.tensor([[-0.5, 0.5], [-3.0, -2.0]])
    warp = baselines.first_violation(positive, negative, log_q, 9)  # the second of nine: 8 // 2
    assert warp.tolist() == pytest.approx([0.5 * float(torch.tensor(4.0).log()), 0])
    weights = torch.tensor([0.5, 2.5]).softmax(0)
    each = torch.nn.functional.softplus(negative[0] - 1)
    found = baselines.importance_weighted(positive, negative, log_q, 9)[0]
    assert float(found) == pytest.approx(float(weights @ each))
    assert baselines.hardest(positive, negative, log_q, 9)[0] == each[1]


def test_oversampling_prefers_the_top_of_the_factors() -> None:
    items = torch.arange(50.0)[:, None] * torch.tensor([[1.0, 0.0]])
    given = baselines.Oversampling(depth=3.0).fit(items).given(torch.tensor([[2.0, 9], [-2.0, 9]]))
    ids, _ = given.sample(500, generator=torch.Generator().manual_seed(0))
    assert ids[0].float().mean() > 45
    assert ids[1].float().mean() < 4


def test_figures_with_the_ranges_of_the_paper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("RECORD", Record(tmp_path / "rows.json")), ("MODELS", tmp_path / "models"), ("USERS", 10),
        ("SAMPLES", (4, 8)), ("CODEWORDS", (2, 4)), ("DRAWS", 8), ("HERE", tmp_path),
    ):  # fmt: skip
        monkeypatch.setattr(paper_figures, name, value)
    for name in ("ml10m", "gowalla"):
        monkeypatch.setattr(paper_figures.datasets, name, split)
    monkeypatch.setattr(figures, "divergence", _with(figures.divergence, codewords=8))
    monkeypatch.setitem(matplotlib.rcParams, "savefig.dpi", 50)
    paper_figures.measure_divergence(epochs=1)
    paper_figures.measure_training(("multi-index, uniform", figures.DYNAMIC), 0, epochs=1)
    paper_figures.draw()
    assert all(has_colour(tmp_path / f"{name}.png") for name in paper_figures.DRAWN)
    rows = paper_figures.RECORD.rows(figure="bounds")
    assert len(rows) == 8
    assert all(0 <= row["kl"] <= row["bound"] for row in rows)
    assert len(paper_figures.RECORD.rows(figure="training")) == 7
