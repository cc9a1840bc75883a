"""Checkpoints: complete or not there, refused when they do not fit, and never in the way."""

import errno
import json
import os
import random
import resource
import shutil
import signal

import pytest
import safetensors.torch
import torch

import fewfold as ff
from fewfold.recommender.errors import ArtifactError
from fewfold.recommender.training import checkpoint as checkpoints
from fewfold.recommender.training import checkpoint_file
from fewfold.recommender.training.checkpoint import Checkpoint, Interrupted
from fewfold.recommender.training.checkpoint_file import Saved, read, write

TENSORS = {
    "table": torch.arange(12.0).view(3, 4),
    "turned": torch.arange(6, dtype=torch.float64).view(2, 3).T,
    "count": torch.tensor(7, dtype=torch.int32),
    "none": torch.empty(0, 3),
    "bytes": torch.arange(5, dtype=torch.uint8),
    "flags": torch.tensor([True, False]),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "ids": torch.arange(3),
}
FACTS = {"total": 0.1 + 0.2, "best": -torch.inf, "log": [[1, None]], "name": "naïve"}


def log(seed=0):
    generator = torch.Generator().manual_seed(seed)
    who = torch.arange(20).repeat_interleave(3)
    what = torch.randint(12, who.shape, generator=generator)
    return ff.recommender.Interactions.from_pairs(who, what, shape=(20, 12))


def trained(checkpoint, *, model=None, data=None, **options):
    model = ff.recommender.FastVAE(12, hidden=8, latent=3) if model is None else model
    options = {"epochs": 2, "batch": 5, "progress": False, **options}
    ff.recommender.train(model, log() if data is None else data, checkpoint=checkpoint, **options)
    return model


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "one"
    write(path, Saved(TENSORS, FACTS))
    saved = read(path)
    assert {name: saved.facts[name] for name in FACTS} == FACTS
    for tensors in (saved.tensors, safetensors.torch.load_file(path)):
        assert set(tensors) == set(TENSORS)
        for name, value in TENSORS.items():
            assert tensors[name].dtype == value.dtype
            assert tensors[name].shape == value.shape
            assert torch.equal(tensors[name], value)
    write(tmp_path / "two", Saved(dict(reversed(TENSORS.items())), dict(reversed(FACTS.items()))))
    assert (tmp_path / "two").read_bytes() == path.read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["one", "two"]


def test_damage_is_found(tmp_path):
    path = tmp_path / "run"
    write(path, Saved(TENSORS, FACTS))
    whole = path.read_bytes()
    draw = random.Random(0)
    for size in [0, 1, 8, 100, *draw.sample(range(len(whole)), 20), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(ArtifactError, match="damaged"):
            read(path)
    for place in draw.sample(range(len(whole)), 150):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(ArtifactError, match=r"damaged|not a checkpoint|format"):
            read(path)
            raise AssertionError(f"a flipped bit in byte {place} was not noticed")
    path.write_bytes(whole + b"more")
    with pytest.raises(ArtifactError, match="damaged"):
        read(path)


def test_files_that_are_something_else(tmp_path):
    path = tmp_path / "run"
    path.write_text("user,item\n1,2\n")
    with pytest.raises(ArtifactError, match=r"damaged .*; delete it, or name another path"):
        trained(Checkpoint(path, resume=True))
    safetensors.torch.save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(ArtifactError, match="is not a checkpoint of fewfold"):
        trained(Checkpoint(path, resume=True))


def test_a_newer_format_is_refused(tmp_path, monkeypatch):
    keep = Checkpoint(tmp_path / "run", resume=True)
    with monkeypatch.context() as newer:
        newer.setattr(checkpoint_file, "_FORMAT", 2)
        trained(keep)
    with pytest.raises(ArtifactError, match="of format 2, this fewfold reads 1; update fewfold"):
        trained(keep)


REFUSED = {
    "option": ({"lr": 0.5}, "lr was 0.008, is 0.5"),
    "two options": ({"batch": 4, "epochs": 3}, r"batch was 5, is 4; epochs was 2, is 3"),
    "patience": ({"patience": 2}, "patience was None, is 2"),
    "budget": ({"time_budget": 60.0}, "time_budget was None, is 60.0"),
    "seed": ({"seed": 1}, "seed was 0, is 1"),
    "data": ({"data": log(1)}, "interactions was .* pairs of 12 items, .* is"),
    "validation": ({"validation": ff.recommender.random_split(log())}, "validation was None, is"),
    "objective": (
        {"objective": ff.recommender.FullSoftmax()},
        r"was SampledSoftmax.*is FullSoftmax\(\)",
    ),
    "proposal": (
        {"objective": ff.recommender.SampledSoftmax(ff.MultiIndex(5, within="popularity"))},
        "codewords=12.*codewords=5",
    ),
    "width": (
        {"model": ff.recommender.FastVAE(12, hidden=9, latent=3)},
        r"model.inputs was \(12, 8\)",
    ),
    "depth": (
        {"model": ff.recommender.FastVAE(12, hidden=8, latent=3, layers=2)},
        "layers.layers.1.* was None",
    ),
    "dropout": (
        {"model": ff.recommender.FastVAE(12, hidden=8, latent=3, dropout=0.1)},
        "dropout was 0.5",
    ),
    "less depth": (
        {"model": ff.recommender.FastVAE(12, hidden=8, latent=3, layers=0)},
        "layers.layers.0.bias was .*float32, is None",
    ),
    "beta": ({"beta": 0.5}, "beta was 0.4, is 0.5"),
    "beta by length": ({"beta_by_length": True}, "beta_by_length was False, is True"),
    "annealing": ({"annealing": 0.3}, "annealing was 0.2, is 0.3"),
    "refresh": ({"refresh_every": 2}, "refresh_every was 1, is 2"),
}


@pytest.mark.parametrize(("options", "words"), REFUSED.values(), ids=REFUSED)
def test_another_training_is_refused_and_told_why(options, words, tmp_path):
    keep = Checkpoint(tmp_path / "run", resume=True)
    trained(keep)
    before = (tmp_path / "run").read_bytes()
    with pytest.raises(ArtifactError, match=f"of another training: .*{words}") as caught:
        trained(keep, **options)
    assert "Train with its settings, or delete it" in str(caught.value)
    assert (tmp_path / "run").read_bytes() == before


def test_a_file_is_not_replaced_unasked(tmp_path):
    trained(Checkpoint(tmp_path / "run"))
    with pytest.raises(FileExistsError, match=r"resume=True\), or delete it"):
        trained(Checkpoint(tmp_path / "run"))
    trained(Checkpoint(tmp_path / "run", resume=True))


def test_where_nothing_can_be_written_training_does_not_begin(tmp_path):
    model = ff.recommender.FastVAE(12, hidden=8, latent=3)
    before = model.items.detach().clone()
    (tmp_path / "file").write_text("")
    with pytest.raises(FileNotFoundError, match="no checkpoint can be written here"):
        trained(Checkpoint(tmp_path / "nowhere" / "run"), model=model)
    with pytest.raises(NotADirectoryError, match="name a folder that exists"):
        trained(Checkpoint(tmp_path / "file" / "run"), model=model)
    with pytest.raises(IsADirectoryError, match="name a file in it"):
        trained(Checkpoint(tmp_path), model=model)
    with pytest.raises(ValueError, match="every must be finite and at least 0"):
        Checkpoint(tmp_path, every=-1)
    tmp_path.chmod(0o500)
    try:
        if not os.access(tmp_path, os.W_OK):  # some may write everywhere
            with pytest.raises(PermissionError, match="may be written to"):
                trained(Checkpoint(tmp_path / "run"), model=model)
    finally:
        tmp_path.chmod(0o700)
    assert torch.equal(model.items, before)


def refuse(number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    return fail


@pytest.fixture
def often(monkeypatch):
    """A checkpoint after every step: eight, and one at the end."""
    monkeypatch.setattr(checkpoints, "_REST", 0)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_does_not_stop_training(number, call, tmp_path, monkeypatch, capsys):
    path, straight = tmp_path / "run", trained(None)
    trained(Checkpoint(path), epochs=2)
    before = path.read_bytes()
    with monkeypatch.context() as full:
        full.setattr(os, call, refuse(number))
        model = trained(Checkpoint(tmp_path / "other", every=0.0))
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 9
    for words in said:
        assert words.startswith("warning: no checkpoint could be written")
        assert os.strerror(number) in words
    assert torch.equal(model.items, straight.items)
    assert os.listdir(tmp_path) == ["run"]
    assert path.read_bytes() == before


class Watched(ff.recommender.FastVAE):
    """A model that calls something before each step."""

    def __init__(self, action):
        super().__init__(12, hidden=8, latent=3)
        self.action, self.calls = action, 0

    def loss(self, *arguments, **options):
        self.calls += 1
        self.action(self.calls)
        return super().loss(*arguments, **options)


def test_a_signal_while_the_disk_is_full_says_that_an_earlier_one_stays(tmp_path, monkeypatch):
    path = tmp_path / "run"

    def stopped():
        model = Watched(lambda _: signal.raise_signal(signal.SIGINT))
        with pytest.raises(Interrupted) as caught:
            trained(Checkpoint(path, resume=True), model=model)
        return caught.value

    assert stopped().path == path
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", refuse(errno.ENOSPC))
    told = stopped()
    assert str(told).endswith(f"could not be written to {path}; an earlier one stays")
    assert told.path is None
    assert path.read_bytes() == before


@pytest.mark.usefixtures("often")
def test_files_that_may_not_grow(tmp_path, capsys):
    """The kernel itself refuses to write beyond some bytes; then there is room again."""
    path = tmp_path / "run"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    kept = []

    def room(step):
        if step in (3, 6):
            kept.append(path.read_bytes())
        small = 2000 if step in (3, 4, 5) else limits[0]
        resource.setrlimit(resource.RLIMIT_FSIZE, (small, limits[1]))

    try:
        model = trained(Checkpoint(path, every=0.0), model=Watched(room))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert capsys.readouterr().err.count("File too large; training goes on") == 3
    assert kept[0] == kept[1]
    assert read(path).facts["finished"]
    assert os.listdir(tmp_path) == ["run"]
    assert torch.equal(model.items, trained(None).items)


@pytest.mark.usefixtures("often")
def test_a_folder_that_vanishes_and_comes_back(tmp_path, capsys):
    folder = tmp_path / "folder"
    folder.mkdir()

    def vanish(step):
        if step == 3:
            shutil.rmtree(folder)
        if step == 5:
            folder.mkdir()

    trained(Checkpoint(folder / "run", every=0.0), model=Watched(vanish))
    said = capsys.readouterr().err
    assert said.count("\n") == said.count("No such file or directory; training goes on") == 2
    assert read(folder / "run").facts["finished"]


def test_slow_writing_makes_them_rare(tmp_path, monkeypatch):
    """A checkpoint that takes a step's time comes every twenty steps."""
    clock, written = [0.0], []

    def slow(path, saved):
        clock[0] += 1.0
        written.append(saved.facts["step"])

    monkeypatch.setattr(checkpoints.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(checkpoints, "write", slow)
    model = Watched(lambda _: clock.append(clock.pop() + 1.0))
    trained(Checkpoint(tmp_path / "run", every=7.0), model=model, epochs=12)
    assert written == [7, 27, 47, 48]


def test_the_folder_one_is_in_may_change(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    trained(Checkpoint("run"), model=Watched(lambda _: os.chdir(tmp_path / "other")))
    assert (tmp_path / "run").exists()


def test_a_killed_process_leaves_nothing_that_stays(tmp_path):
    (tmp_path / "run.partial").write_bytes(b"half of it")
    trained(Checkpoint(tmp_path / "run", resume=True))
    assert os.listdir(tmp_path) == ["run"]


class Own(ff.sampling.Proposal):
    """A proposal of somebody else's, which cannot be kept."""

    def fit(self, item_vectors, counts=None):
        self.uniform = ff.Uniform().fit(item_vectors)
        return self

    def given(self, queries, *, shared=False):
        return self.uniform.given(queries, shared=shared)


def test_a_proposal_without_state_is_refused_before_training(tmp_path):
    objective = ff.recommender.SampledSoftmax(Own(), samples=3)
    trained(None, objective=objective)
    with pytest.raises(TypeError, match=r"Own cannot be saved; give it state_dict\(\)"):
        trained(Checkpoint(tmp_path / "run"), objective=objective)
    assert os.listdir(tmp_path) == []


def test_an_objective_may_be_a_function(tmp_path):
    def flat(queries, items, history, generator):
        return -(queries @ items.T).log_softmax(1).mean()

    trained(Checkpoint(tmp_path / "run"), objective=flat)
    made = read(tmp_path / "run").facts["made"]
    assert made["objective"].endswith("flat")
    json.dumps(made, allow_nan=False)


def test_stages_lie_beside_and_go_together(tmp_path):
    keep = Checkpoint(tmp_path / "run", every=5.0, resume=True)
    trained(keep.stage("fit"))
    trained(keep.stage("refit"), data=log(1))
    (tmp_path / "run.mine").write_text("stays")
    assert sorted(os.listdir(tmp_path)) == ["run.fit", "run.mine", "run.refit"]
    assert keep.stage("fit").every == 5.0
    assert keep.stage("fit") == keep.stage("fit")
    keep.discard()
    assert os.listdir(tmp_path) == ["run.mine"]
