"""Check that the processes of a group were given the same log and the same options."""

import hashlib
from collections.abc import Mapping

import numpy as np

from fewfold.distributed.group import Group
from fewfold.recommender.errors import DataError
from fewfold.recommender.ids import Ids, Texts
from fewfold.recommender.reading.log import Log
from fewfold.recommender.training.checkpoint_file import describe_log, digest

__all__ = ["check_same", "log_facts"]


def check_same(group: Group, facts: Mapping[str, str], hint: str) -> None:
    """Raise DataError on a process with a fact that is another one on rank 0.

    All processes of the group call this; those that have the same raise `PeerError`.

    Args:
        group: the processes.
        facts: name and text of each, the same names on all of them.
        hint: what to do, the end of the message.
    """
    if group.world == 1:
        return
    mine = [_number(text) for text in facts.values()]
    first = group.agree(*mine)
    with group.together():
        for (name, text), own, leading in zip(facts.items(), mine, first, strict=True):
            if own != leading:
                raise DataError(f"rank {group.rank} has another {name} than rank 0: {text}; {hint}")


def log_facts(log: Log) -> dict[str, str]:
    """Return descriptions of a log and of its ids, with digests."""
    pairs = log.interactions
    more = [] if pairs.times is None else [pairs.times]
    more += [] if pairs.disliked is None else [*pairs.disliked]
    return {
        "log": f"{pairs.users} users, {describe_log(pairs)}, {digest(*more)}",
        "set of items": _describe_ids(log.items),
        "set of users": _describe_ids(log.users),
    }


def _describe_ids(ids: Ids) -> str:
    values, total = ids.values, hashlib.sha256()
    for array in [values.data, values.offsets] if isinstance(values, Texts) else [values]:
        total.update(np.ascontiguousarray(array).data)
    return f"{len(ids)} ids, {total.hexdigest()[:16]}"


def _number(text: str) -> float:
    """Return a digest that a float64 holds exactly."""
    return float(int(hashlib.sha256(text.encode()).hexdigest()[:12], 16))
