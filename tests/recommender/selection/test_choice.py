"""Choice of a model: the best on a validation part, the smaller of equals, blends, resuming."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self

import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold._tensors import Found, Spec
from fewfold.recommender import VAE, Auto, Baseline, Blend, Checkpoint, Interactions, Jagged
from fewfold.recommender.models import registry
from fewfold.recommender.models.fastvae.shortcut import Directions
from fewfold.recommender.models.model import FitOptions, Learned, Model
from fewfold.recommender.selection.choose import _expected_work, _validated, choose
from fewfold.recommender.selection.trials import Trials, Validation, per_user
from fewfold.recommender.training.train_options import Deadline

FITTED: list[str] = []  # names of the models as they are fitted


@dataclass(eq=False)
class Oracle(Baseline):
    """Ranks items of the user's group first; in a share of the groups it knows nothing."""

    name: ClassVar[str] = "oracle"
    blind: ClassVar[frozenset[int]] = frozenset()
    padding: ClassVar[int] = 1
    tensor: Tensor = field(init=False, repr=False)
    counts: Tensor = field(init=False, repr=False)

    def fit(self, train: Interactions) -> Self:
        FITTED.append(self.name)
        self.tensor = torch.zeros(train.items, self.padding)
        self.counts, self.items = train.counts().float(), train.items
        return self

    def scores(self, history: Jagged, items: slice) -> Tensor:
        rows = len(history.offsets) - 1
        groups = torch.zeros(rows, 4).index_put(
            (history.row, history.values % 4), torch.ones(len(history.values)), accumulate=True
        )
        own = groups.argmax(1)
        every = torch.arange(self.items)[items]
        right = (every % 4 == own.unsqueeze(1)).float()
        noise = ((every * 7919) % 101).float() / 1000
        seeing = torch.tensor([float(group not in self.blind) for group in range(4)])
        return right * seeing[own].unsqueeze(1) + noise

    def layout(self, found: Found, items: int) -> Iterator[tuple[str, Spec]]:
        yield from super().layout(found, items)
        yield "tensor", Spec((items, self.padding))


def kind(name: str, **attributes: object) -> type[Oracle]:
    made = type(name, (Oracle,), {"name": name, **attributes})
    return dataclass(eq=False)(made)


@pytest.fixture(autouse=True)
def _toys() -> Iterator[None]:
    FITTED.clear()
    before = dict(registry.models().items())  # imports them all
    for each in (
        kind("good", blind=frozenset({3})),
        kind("bad", blind=frozenset({0, 1, 2})),
        kind("large", blind=frozenset({3}), padding=50),
        kind("left", blind=frozenset({0, 1})),
        kind("right", blind=frozenset({2, 3})),
    ):
        registry.register(each)
    yield
    registry._registered.clear()
    registry._registered.update(before)


def log(users: int = 400) -> Interactions:
    """Users of four groups, each with eight items of its own of 80."""
    generator = torch.Generator().manual_seed(1)
    items = torch.stack([torch.randperm(20, generator=generator)[:8] for _ in range(users)]) * 4
    items += (torch.arange(users) % 4).unsqueeze(1)
    return Interactions.from_pairs(torch.arange(users).repeat_interleave(8), items.view(-1))


def test_the_best_is_chosen_and_what_was_tried_is_told() -> None:
    model, choice = choose(log(), FitOptions(progress=False), ["bad", "good"])
    assert model.name == choice.chosen == "good"
    rows = {one.model: one for one in choice.tried}
    assert [one.model for one in choice.tried] == ["good", "bad"]
    assert rows["bad"].high < 0
    assert rows["bad"].ndcg < rows["good"].ndcg
    text = str(choice)
    assert "good was chosen" in text
    assert "fewfold fit --model bad" in text
    assert json.loads(json.dumps(choice.as_dict()))["chosen"] == "good"


def test_among_equals_the_smaller_is_chosen() -> None:
    model, choice = choose(log(), FitOptions(progress=False), ["large", "good"])
    assert model.name == "good"
    assert {one.model for one in choice.tried} == {"good", "large"}
    sizes = {one.model: one.bytes for one in choice.tried}
    assert sizes["large"] > sizes["good"]


def test_two_models_that_complement_each_other_are_blended(tmp_path) -> None:
    rec = ff.Recommender(Auto())
    model, choice = choose(log(), FitOptions(progress=False), ["left", "right"])
    assert isinstance(model, Blend)
    assert {model.first.name, model.second.name} == {"left", "right"}
    assert choice.tried[0].model == "blend"
    assert all(one.high < 0 for one in choice.tried[1:])
    assert rec.model == Auto()


def test_a_model_that_does_not_suit_is_skipped_and_named() -> None:
    class Picky(kind("picky")):  # type: ignore[misc]
        @classmethod
        def unsuitable(cls, log: Interactions) -> str:
            return "it is picky"

    registry.register(Picky)
    _, choice = choose(log(), FitOptions(progress=False), ["picky", "bad"])
    assert choice.skipped == {"picky": "it is picky"}
    assert "picky was not tried: it is picky." in str(choice)


def test_the_test_part_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Interactions] = []
    plain = choose

    def spy(part: Interactions, options: FitOptions, names: None = None):
        seen.append(part)
        return plain(part, options, ["good", "bad"])

    monkeypatch.setattr("fewfold.recommender.models.auto.choose", spy)
    whole = log()
    rec = ff.Recommender().fit(whole, test=0.25, progress=False)
    (part,) = seen
    assert part.pairs == 400 * 6
    assert rec.fitted.recipe.name == "good"
    assert rec.report is not None
    assert rec.report.choice is not None


def test_refit_reuses_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    plain = choose

    def spy(part: Interactions, options: FitOptions, names: None = None):
        calls.append(part.pairs)
        return plain(part, options, ["good", "bad"])

    monkeypatch.setattr("fewfold.recommender.models.auto.choose", spy)
    rec = ff.Recommender().fit(log(), test=0.25, refit=True, progress=False)
    assert len(calls) == 1
    assert FITTED[-2:] == ["good", "good"]
    assert rec.fitted.counts.sum() == 400 * 8  # type: ignore[attr-defined]


def test_the_choice_is_saved_and_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    plain = choose
    monkeypatch.setattr(
        "fewfold.recommender.models.auto.choose",
        lambda part, options, names=None: plain(part, options, ["good", "bad"]),
    )
    rec = ff.Recommender().fit(log(), progress=False)
    again = ff.Recommender.load(rec.save(tmp_path / "model"))
    assert again.fitted.recipe.name == "good"
    assert again._state.choice == rec._state.choice
    assert "good was chosen" in str(ff.recommender.inspect(tmp_path / "model"))
    card = (tmp_path / "model" / "README.md").read_text()
    assert "## Why this model" in card
    assert "| bad |" in card


def test_an_interrupted_choice_repeats_only_the_trial_it_was_in(tmp_path) -> None:
    names = ["good", "bad", "left"]
    straight = choose(log(), FitOptions(progress=False), names)[1]
    FITTED.clear()
    keep = Checkpoint(tmp_path / "run", every=0.0, resume=True)

    class Interrupting(kind("left", blind=frozenset({0, 1}))):  # type: ignore[misc]
        def fit(self, train: Interactions) -> Self:
            raise KeyboardInterrupt

    registry._registered["left"] = Interrupting
    with pytest.raises(KeyboardInterrupt):
        choose(log(), FitOptions(progress=False, checkpoint=keep), names)
    done = list(FITTED)
    registry._registered["left"] = kind("left", blind=frozenset({0, 1}))
    FITTED.clear()
    again = choose(log(), FitOptions(progress=False, checkpoint=keep), names)[1]
    assert sorted(done + FITTED) == sorted(names)
    assert [(one.model, one.ndcg) for one in again.tried] == [
        (one.model, one.ndcg) for one in straight.tried
    ]


def test_a_checkpoint_of_another_log_is_refused(tmp_path) -> None:
    keep = Checkpoint(tmp_path / "run", every=0.0, resume=True)
    choose(log(), FitOptions(progress=False, checkpoint=keep), ["bad"])
    with pytest.raises(ff.recommender.ArtifactError, match="of another training"):
        choose(log(300), FitOptions(progress=False, checkpoint=keep), ["bad"])


def test_a_deadline_that_has_passed_still_gives_a_model() -> None:
    options = FitOptions(progress=False, deadline=Deadline.after(0.0))
    model, choice = choose(log(), options, ["bad", "good", "large"])
    assert model.name in ("bad", "good", "large")
    assert len(choice.tried) == 1
    assert len(choice.skipped) == 2


def test_a_log_too_small_to_validate() -> None:
    model, choice = choose(log(20), FitOptions(progress=False))
    assert model.name == "ease"
    assert "too few users" in choice.why


def test_a_model_is_not_tried_where_its_cheap_version_is_far_behind() -> None:
    asked: list[str] = []

    class Costly(kind("costly", cheap_version="bad")):  # type: ignore[misc]
        def work(self, log: Interactions) -> float:
            return 1e12

        @classmethod
        def grid_after(cls, items: int, cheap: Model) -> list[Model]:
            asked.append(cheap.name)
            return [cls()]

    registry.register(Costly)
    model, choice = choose(log(), FitOptions(progress=False), ["good", "bad", "costly"])
    assert model.name == "good"
    assert "costly" not in FITTED
    assert "bad, which approximates it, is" in choice.skipped["costly"]
    assert not asked

    Costly.cheap_version = "good"  # as good as any so far: its settings are those of grid_after
    choose(log(), FitOptions(progress=False), ["good", "bad", "costly"])
    assert "costly" in FITTED
    assert asked == ["good"]


def test_lists_are_kept_for_the_best_settings_of_a_model_alone() -> None:
    @dataclass(eq=False)
    class Graded(Oracle):
        name: ClassVar[str] = "graded"
        seen: int = 0

        def scores(self, history: Jagged, items: slice) -> Tensor:
            found = super().scores(history, items)
            return found * (torch.arange(len(found)) % 4 < self.seen).unsqueeze(1)

    part = Validation.of(log(), split="random", users=200, seed=0)
    assert part is not None
    trials = Trials(log(), part, FitOptions(progress=False))
    means = [trials.run(Graded(seen=seen)).mean for seen in (1, 3, 2)]
    assert means[0] < means[2] < means[1]
    again = {seen: trials.run(Graded(seen=seen)) for seen in (1, 3, 2)}
    assert FITTED == ["graded"] * 3
    assert [one.mean for one in again.values()] == means
    assert again[1].ranking is None
    assert again[2].ranking is None
    assert again[3].ranking is not None
    torch.testing.assert_close(per_user(again[3].ranking, part.hidden), again[3].per_user)


def test_a_model_that_takes_far_longer_than_a_training_is_not_tried() -> None:
    def work(self: Oracle, log: Interactions) -> float:
        return 4e12 if self.name == "slow" else 2e12

    registry.register(kind("slow", work=work))
    registry.register(kind("slower than most", work=work))
    trained = kind("trained", resumable=True, work=work)
    registry.register(trained)
    names = ["bad", "slow", "slower than most", "trained"]
    _, choice = choose(log(), FitOptions(progress=False), names)
    assert choice.skipped == {"slow": "its trials would take about 4 minutes of two processors"}
    assert set(FITTED) == {"bad", "slower than most", "trained"}


@pytest.mark.parametrize(
    ("items", "users"), [(10, 10_000), (200_000, 10_000), (500_000, 4_000), (10**7, 2_000)]
)
def test_fewer_users_are_validated_in_a_large_catalogue(items: int, users: int) -> None:
    assert _validated(items) == users


def test_progress_counts_the_trials_that_the_time_allows() -> None:
    def work(self: Oracle, log: Interactions) -> float:
        return 1e12

    grid = {name: [kind(name, work=work)()] for name in ("one", "two", "three")}
    assert _expected_work(grid, log(), None) == 3e12
    assert _expected_work(grid, log(), Deadline.after(130.0)) == 2e12
    assert _expected_work(grid, log(), Deadline.after(0.0)) == 1e12  # the first is always tried


def test_a_tenth_of_the_items_of_a_user_is_hidden_and_at_least_one() -> None:
    lengths = torch.tensor([2, 8, 14, 16, 60] * 40)
    users = torch.repeat_interleave(torch.arange(200), lengths)
    items = torch.cat([torch.randperm(80)[:length] for length in lengths.tolist()])
    whole = Interactions.from_pairs(users, items)
    part = Validation.of(whole, split="random", users=100, seed=3)
    assert part is not None
    assert part.histories.users == 100
    both = part.histories.jagged.lengths + part.hidden.lengths
    expected = {2: 1, 8: 1, 14: 1, 16: 2, 60: 6}
    assert [expected[n] for n in both.tolist()] == part.hidden.lengths.tolist()
    assert part.train.pairs + len(part.hidden.values) == whole.pairs
    seen = part.histories.row * 80 + part.histories.ids
    assert not torch.isin(part.hidden.row * 80 + part.hidden.values, seen).any()
    again = Validation.of(whole, split="random", users=100, seed=4)
    assert again is not None
    assert again.hidden.values.tolist() != part.hidden.values.tolist()


def test_what_a_trial_chose_on_held_out_pairs_is_reused(tmp_path) -> None:
    @dataclass(frozen=True, eq=False)
    class Weighed(Learned):
        def reusable(self) -> dict[str, float]:
            return {"weight": 0.25}

    class Weighing(kind("weighing")):  # type: ignore[misc]
        found: Mapping[str, float] | None = None

        def learn(self, log: Interactions, options: FitOptions) -> Learned:
            return Weighed(self.fit(log), log, [])

        def reusing(self, found: Mapping[str, float]) -> Model:
            other = type(self)()
            other.found = found
            return other

    registry.register(Weighing)
    keep = Checkpoint(tmp_path / "run", every=0.0, resume=True)
    for _ in range(2):  # from the trial, and from the file
        model, _ = choose(log(), FitOptions(progress=False, checkpoint=keep), ["weighing", "bad"])
        assert model.found == {"weight": 0.25}  # type: ignore[attr-defined]
    assert FITTED.count("weighing") == 1


def test_a_blend_that_wins_by_chance_is_not_taken() -> None:
    def noise(self: Oracle, history: Jagged, items: slice) -> Tensor:
        number = len(self.name)
        every = torch.arange(self.items)[items]
        rows = history.values[history.offsets[:-1]].unsqueeze(1)
        return ((every * 7919 + rows * 104729 * number) % 1009).float()

    for name in ("a", "bb", "ccc"):
        registry.register(kind(name, scores=noise))
    model, choice = choose(log(), FitOptions(progress=False), ["a", "bb", "ccc"])
    assert not isinstance(model, Blend)
    assert len(choice.tried) == 3


def test_trials_of_one_model_share_what_does_not_depend_on_the_effort(monkeypatch) -> None:
    """The directions of the shortcut are found once for the quarter and the whole training."""
    found, find = [], Directions.find
    monkeypatch.setattr(
        Directions, "find", lambda *args, **more: found.append(args) or find(*args, **more)
    )
    whole_log = log()
    validation = Validation.of(whole_log, split="random", users=200, seed=0)
    trials = Trials(whole_log, validation, FitOptions(progress=False))
    first, whole = (trials.run(VAE(hidden=8, latent=3), effort) for effort in (0.25, 1.0))
    assert len(found) == 1
    alone = Trials(whole_log, validation, FitOptions(progress=False))
    assert torch.equal(alone.run(VAE(hidden=8, latent=3)).per_user, whole.per_user)
    assert not torch.equal(first.per_user, whole.per_user)
