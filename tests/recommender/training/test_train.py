"""Training goes on where it was, to the last bit, whatever stopped it; and it keeps to its time."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

import fewfold as ff
from fewfold._progress import phase
from fewfold.recommender.training import checkpoint as checkpoints
from fewfold.recommender.training.checkpoint import Checkpoint, Interrupted

ITEMS, USERS, BATCH, EPOCHS = 40, 75, 10, 3  # eight steps per epoch, the last a short one
STEPS = 24

OBJECTIVES = {
    "default": lambda: None,
    "full": ff.recommender.FullSoftmax,
    "shared": lambda: ff.recommender.SampledSoftmax(ff.MultiIndex(4), samples=20, shared=True),
    "residual": lambda: ff.recommender.SampledSoftmax(ff.MultiIndex(4, residual=True), samples=5),
    "exact": lambda: ff.recommender.SampledSoftmax(ff.MultiIndex(4, within="exact"), samples=5),
    "popularity": lambda: ff.recommender.SampledSoftmax(ff.Popularity(0.5), samples=5),
    "uniform": lambda: ff.recommender.SampledSoftmax(ff.Uniform(), samples=5),
    "quadratic": lambda: ff.recommender.SampledSoftmax(ff.sampling.QuadraticKernel(), samples=5),
    "dynamic": lambda: ff.recommender.SampledSoftmax(ff.sampling.Dynamic(3), samples=5),
}
every_objective = pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)


def log() -> ff.recommender.Interactions:
    generator = torch.Generator().manual_seed(1)
    who = torch.arange(USERS).repeat_interleave(6)
    what = torch.randint(10, who.shape, generator=generator) + who % 4 * 10
    return ff.recommender.Interactions.from_pairs(who, what, shape=(USERS + 2, ITEMS))


class Model(ff.recommender.FastVAE):
    """One that does something when it has made so many steps."""

    def __init__(self, at=-1, action=None):
        super().__init__(ITEMS, hidden=8, latent=3)
        self.at, self.action, self.calls = at, action, 0

    def loss(self, *arguments, **options):
        self.calls += 1
        if self.calls == self.at:
            self.action()
        return super().loss(*arguments, **options)


def trained(model, **options):
    options = {"epochs": EPOCHS, "batch": BATCH, "lr": 2e-2, "progress": False, **options}
    return ff.recommender.train(model, options.pop("data", log()), **options)


def interrupt(number=signal.SIGINT):
    return lambda: signal.raise_signal(number)


def assert_same(model, epochs, other, others):
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    assert [(e.loss, e.ndcg) for e in epochs] == [(e.loss, e.ndcg) for e in others]


@every_objective
def test_an_interrupted_training_ends_as_one_that_was_not(objective, tmp_path):
    check_interrupted(objective, tmp_path, (1, 8, 20))


@pytest.mark.usefixtures("path")
def test_at_whichever_step_it_is_interrupted(tmp_path):
    check_interrupted(OBJECTIVES["default"], tmp_path, (2, 7, 9, 13, 16, STEPS))


def check_interrupted(objective, tmp_path, places):
    straight = Model()
    wanted = trained(straight, objective=objective())
    for at in places:
        keep = Checkpoint(tmp_path / f"{at}", resume=True)
        with pytest.raises(Interrupted, match=f"at step {at} of {STEPS}.*resume from"):
            trained(Model(at, interrupt()), objective=objective(), checkpoint=keep)
        resumed = Model()
        epochs = trained(resumed, objective=objective(), checkpoint=keep)
        assert resumed.calls == STEPS - at
        assert_same(straight, wanted, resumed, epochs)


@pytest.mark.parametrize("between", [1, 2, 3, 5])
def test_a_crash_every_few_steps(between, tmp_path, monkeypatch):
    """Not one of them has a last word: each resume starts from a checkpoint of the interval."""
    monkeypatch.setattr(checkpoints, "_REST", 0)
    straight = Model()
    wanted = trained(straight)
    keep = Checkpoint(tmp_path / "run", every=0.0, resume=True)

    def crash():
        raise RuntimeError("power is gone")

    for _ in range((STEPS - 1) // between):
        with pytest.raises(RuntimeError, match="power"):
            trained(Model(between + 1, crash), checkpoint=keep)
    resumed = Model(between + 1, crash)
    epochs = trained(resumed, checkpoint=keep)
    assert_same(straight, wanted, resumed, epochs)


_KILLED = """
import json, os, random, signal, sys, time
import torch, fewfold as ff
from fewfold.recommender.training import checkpoint, checkpoint_file
torch.set_num_threads(1)  # so that no thread is lost by fork
checkpoint._REST = 1
folder = sys.argv[1]
generator = torch.Generator().manual_seed(0)
who = torch.arange(1000).repeat_interleave(8)
what = torch.randint(2000, who.shape, generator=generator)
log = ff.recommender.Interactions.from_pairs(who, what, shape=(1000, 2000))
split = ff.recommender.random_split(log)

def work(name):
    model = ff.recommender.FastVAE(2000, hidden=64, latent=31)
    keep = checkpoint.Checkpoint(f"{folder}/{name}", every=0.0, resume=True)
    keep = None if name == "straight" else keep
    epochs = ff.recommender.train(
        model, split.train, epochs=6, batch=32, checkpoint=keep, progress=False,
                      validation=split, patience=5)
    result = [e.loss for e in epochs] + [checkpoint_file.digest(*model.state_dict().values())]
    with open(f"{folder}/{name}.json", "w") as file:
        json.dump(result, file)
    os._exit(0)

def start(name):
    pid = os.fork()
    return pid if pid else work(name)

def kept():
    try:
        return os.stat(f"{folder}/killed").st_ino
    except FileNotFoundError:
        return None

random, kills, files = random.Random(5), 0, set()
model = ff.recommender.FastVAE(2000)
ff.recommender.train(model, log.select([0]), epochs=1, progress=False)  # torch imports late
os.waitpid(start("straight"), 0)
for number in range(12):
    before, pid = kept(), start("killed")
    while number % 4 and kept() == before and not os.waitid(
        os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT
    ):
        time.sleep(0.002)  # most of them get somewhere first
    time.sleep(random.uniform(0.0, 0.1))
    os.kill(pid, signal.SIGKILL)
    kills += os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    files |= set(os.listdir(folder))
os.waitpid(start("killed"), 0)
print(json.dumps([kills, sorted(files), sorted(os.listdir(folder))]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_any_moment(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _KILLED, str(tmp_path)],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    kills, seen, left = json.loads(ran.stdout)
    assert kills > 5
    assert "killed" in seen
    results = {"straight.json", "killed", "killed.json"}
    assert set(seen) <= results | {"killed.partial"}
    assert set(left) == results
    assert (tmp_path / "killed.json").read_text() == (tmp_path / "straight.json").read_text()


@pytest.mark.usefixtures("path")
def test_two_threads_give_the_same_every_time():
    """Sums of many terms, whose order threads could change."""
    generator = torch.Generator().manual_seed(0)
    who = torch.arange(512).repeat_interleave(20)
    what = torch.randint(800, who.shape, generator=generator)
    data = ff.recommender.Interactions.from_pairs(who, what, shape=(512, 800))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        runs = []
        for _ in range(2):
            objective = ff.recommender.SampledSoftmax(
                ff.MultiIndex(8, within="popularity"), shared=True
            )
            model = ff.recommender.FastVAE(800, hidden=32, latent=15)
            epochs = trained(model, data=data, objective=objective, epochs=2, batch=256)
            runs.append((model, epochs))
    finally:
        torch.set_num_threads(before)
    for model, epochs in runs[1:]:
        assert_same(*runs[0], model, epochs)


def test_patience_and_the_best_weights_survive(tmp_path):
    split = ff.recommender.random_split(log(), test=0.3)
    options = {"data": split.train, "validation": split, "epochs": 30, "lr": 0.1, "patience": 3}
    straight = Model()
    wanted = trained(straight, **options)
    best = max(range(len(wanted)), key=lambda place: wanted[place].ndcg)
    assert len(wanted) < 30
    steps = [8 * best + 4, 8 * best + 8, 8 * best + 12, 8 * len(wanted)]
    for at in steps:  # before and after the best was kept
        keep = Checkpoint(tmp_path / f"{at}", resume=True)
        with pytest.raises(Interrupted):
            trained(Model(at, interrupt()), **options, checkpoint=keep)
        resumed = Model()
        assert_same(straight, wanted, resumed, trained(resumed, **options, checkpoint=keep))


def test_a_training_inside_a_larger_job_writes_no_lines(tmp_path, capsys):
    keep = Checkpoint(tmp_path / "run", resume=True)
    alone = Model()
    wanted = trained(alone, progress=True)
    assert capsys.readouterr().err.count("epoch ") == 3
    with phase("choosing", total=2):
        part = Model()
        epochs = trained(part, checkpoint=keep, progress=True)
    assert capsys.readouterr().err == ""
    assert_same(alone, wanted, part, epochs)


def test_what_is_finished_is_not_done_again(tmp_path, capsys):
    keep = Checkpoint(tmp_path / "run", resume=True)
    first = Model()
    wanted = trained(first, checkpoint=keep, progress=True)
    assert f"no checkpoint at {tmp_path / 'run'} yet" in capsys.readouterr().err
    again = Model()
    epochs = trained(again, checkpoint=keep, progress=True)
    assert again.calls == 0
    assert not again.training
    assert epochs == wanted
    assert_same(first, wanted, again, epochs)
    assert capsys.readouterr().err == "resumed at step 24 of 24, epoch 3 of 3\n"


def test_a_signal_at_the_very_end_is_not_lost(tmp_path, monkeypatch):
    keep = Checkpoint(tmp_path / "run", resume=True)
    wanted = trained(Model(), checkpoint=keep)
    restore = checkpoints.read_part

    def late(path, *rest):
        signal.raise_signal(signal.SIGINT)
        return restore(path, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "read_part", late)
        with pytest.raises(Interrupted, match="when all was done"):
            trained(Model(), checkpoint=keep)
    assert trained(Model(), checkpoint=keep) == wanted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_handled_and_then_as_before(number, tmp_path):
    seen = []
    before = signal.signal(number, lambda *_: seen.append(1))
    try:
        keep = Checkpoint(tmp_path / "run")
        with pytest.raises(KeyboardInterrupt, match=r"stopped by (Ctrl-C|SIGTERM) at") as caught:
            trained(Model(3, interrupt(number)), checkpoint=keep)
        assert caught.value.path == tmp_path / "run"
        assert caught.value.signal == number
        with pytest.raises(Interrupted, match="there is no checkpoint path"):
            trained(Model(3, interrupt(number)))
        assert not seen
        signal.raise_signal(number)
        assert seen == [1]
    finally:
        signal.signal(number, before)


def test_a_second_signal_does_not_wait(tmp_path):
    def twice():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    model = Model(3, twice)
    weights = model.items.detach().clone()
    with pytest.raises(KeyboardInterrupt, match="at once"):
        trained(model, checkpoint=Checkpoint(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    assert not torch.equal(model.items, weights)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ignored_signals_stay_ignored_and_other_threads_do_without():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert len(trained(Model(3, interrupt()))) == EPOCHS
    finally:
        signal.signal(signal.SIGINT, before)
    result = []
    thread = threading.Thread(target=lambda: result.append(trained(Model())))
    thread.start()
    thread.join()
    assert len(result[0]) == EPOCHS


def test_another_number_of_threads_is_said(tmp_path, capsys):
    keep = Checkpoint(tmp_path / "run", resume=True)
    with pytest.raises(Interrupted):
        trained(Model(9, interrupt()), checkpoint=keep)
    capsys.readouterr()
    torch.set_num_threads(2)
    try:
        assert len(trained(Model(), checkpoint=keep)) == EPOCHS
    finally:
        torch.set_num_threads(1)
    said = capsys.readouterr().err
    assert said == (
        "warning: the checkpoint was made with threads 1, this is 2: numbers may differ in their "
        "last digits\n"
    )


class Clock:
    """Time that passes when a step is made."""

    def __init__(self, monkeypatch, each=1.0):
        self.now, self.each = 1000.0, each
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def model(self, at=-1, action=None):
        model = Model(at, action)
        plain = model.loss

        def loss(*arguments, **options):
            self.now += self.each
            return plain(*arguments, **options)

        model.loss = loss
        return model


def test_a_budget_that_does_not_bind_changes_nothing():
    one, two = Model(), Model()
    assert_same(one, trained(one), two, trained(two, time_budget=1e4))


def test_a_budget_fixes_the_steps_and_the_rate_falls_over_them(monkeypatch, capsys):
    clock = Clock(monkeypatch)
    model = clock.model()
    rates = []
    step = torch.optim.Adam.step
    monkeypatch.setattr(
        torch.optim.Adam, "step", lambda s, *a: (rates.append(s.param_groups[0]["lr"]), step(s))
    )
    epochs = trained(model, epochs=50, time_budget=200.0, lr=1.0, progress=True)
    assert model.calls == 190  # nineteen parts of twenty
    assert len(epochs) == 24
    assert epochs[-1].users_per_second == pytest.approx(60 / 6)
    assert epochs[-1].loss == pytest.approx(epochs[-2].loss, rel=0.2)
    assert rates[-1] == pytest.approx(0.02, abs=1e-3)
    said = capsys.readouterr().err
    assert "190 of 400 steps fit into 200 s\n" in said
    assert "epoch 24/24" in said


def test_a_budget_counts_what_validation_takes(monkeypatch):
    clock = Clock(monkeypatch)
    split = ff.recommender.random_split(log(), test=0.3)
    model = clock.model()
    recommend = model.recommend

    def slow(*arguments):
        clock.now += 8.0  # as long as an epoch
        return recommend(*arguments)

    model.recommend = slow
    trained(model, data=split.train, validation=split, epochs=50, time_budget=400.0)
    assert clock.now - 1000.0 == pytest.approx(0.95 * 400, abs=17)


def test_a_resumed_run_keeps_its_budget(monkeypatch, tmp_path):
    clock = Clock(monkeypatch)
    straight = clock.model()
    options = {"epochs": 50, "time_budget": 100.0}
    wanted = trained(straight, **options)
    keep = Checkpoint(tmp_path / "run", resume=True)
    with pytest.raises(Interrupted, match="at step 60 of 95"):
        trained(clock.model(60, interrupt()), **options, checkpoint=keep)
    clock.now += 1e6  # a long time in which nothing ran
    clock.each = 1.1  # and now it is slower
    resumed = clock.model()
    epochs = trained(resumed, **options, checkpoint=keep)
    assert resumed.calls == 35
    assert_same(straight, wanted, resumed, epochs)


def test_time_before_a_resume_counts(monkeypatch, tmp_path):
    clock = Clock(monkeypatch)
    options = {"epochs": 50, "time_budget": 100.0}
    keep = Checkpoint(tmp_path / "run", resume=True)
    with pytest.raises(Interrupted, match="at step 1 of 400"):  # before the speed is known
        trained(clock.model(1, lambda: (setattr(clock, "now", clock.now + 49), interrupt()())),
                **options, checkpoint=keep)  # fmt: skip
    resumed = clock.model()
    trained(resumed, **options, checkpoint=keep)
    assert resumed.calls == 45  # of the fifty seconds that were left, less five


def test_far_beyond_the_budget_it_stops(monkeypatch, capsys):
    clock = Clock(monkeypatch)
    model = clock.model(60, lambda: setattr(clock, "each", 10.0))
    epochs = trained(model, epochs=50, time_budget=100.0)
    assert model.calls == 60 + 7  # 60 s, then 10 s each, up to more than 120 s
    assert len(epochs) == 9
    said = capsys.readouterr().err
    assert said.startswith("warning: 130 s of 100 have passed; stopped at step 67 of 95")
    with pytest.raises(ValueError, match="time_budget must be finite and greater than 0"):
        trained(Model(), time_budget=0)
