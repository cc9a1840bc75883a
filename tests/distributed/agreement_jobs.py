"""Fits whose last process was given something else than the others."""

import fewfold as ff
from fewfold.distributed.group import Group, PeerError
from fewfold.recommender.models.fastvae.recipe import VAE
from tests.distributed.jobs import log
from tests.distributed.processes import job, place


@job
def disagreed() -> dict[str, str]:
    """Messages of fits that are refused, by what the last process has of its own."""
    group, found = Group.current(), dict[str, str]()
    if group.world == 1:
        return found
    for name in ("epochs", "seed", "width", "budget", "pairs", "ids", "times", "nothing"):
        try:
            _fit(name if group.rank == group.world - 1 else "nothing")
            found[name] = "fitted"
        except PeerError as error:
            found[name] = f"PeerError: {error}"
        except ff.recommender.DataError as error:
            found[name] = str(error)
    return found


def _fit(odd: str) -> None:
    pairs = log(40, 20)
    users, items = pairs.row.tolist(), pairs.ids.tolist()
    times = list(range(len(users)))
    if odd == "pairs":
        users, items, times = users[:-1], items[:-1], times[:-1]
    if odd == "ids":
        items = [each + 1 for each in items]
    if odd == "times":
        times[0] = 99
    training = ff.recommender.Training(epochs=2 if odd == "epochs" else 1)
    rec = ff.Recommender(
        VAE(12 if odd == "width" else 8, 7), training=training, seed=int(odd == "seed")
    )
    budget = 60.0 if odd == "budget" else None
    rec.fit({"user": users, "item": items, "time": times}, time_budget=budget, progress=False)


@job
def disagreed_streams() -> str:
    """The message where the last process has another prepared log."""
    group = Group.current()
    if group.world == 1:
        return ""
    other = group.rank == group.world - 1
    folder = place() / f"prepared-{group.rank}"
    pairs = log(40, 20)
    frame = {"user": pairs.row.tolist()[other:], "item": pairs.ids.tolist()[other:]}
    ff.recommender.prepare(frame, folder, parts=2, progress=False)
    rec = ff.Recommender(VAE(8, 7), training=ff.recommender.Training(epochs=1))
    try:
        rec.fit(ff.recommender.StreamedLog(folder), progress=False)
    except (PeerError, ff.recommender.DataError) as error:
        return str(error)
    return "fitted"
