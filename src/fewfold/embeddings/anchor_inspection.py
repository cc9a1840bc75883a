"""Inspection of anchors: their main objects, label purity and nearest neighbours."""

import os
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from fewfold._check import whole_number
from fewfold.embeddings.anchor_picture import draw_anchors
from fewfold.embeddings.table.embedding import AnchorEmbedding

__all__ = ["AnchorGroup", "AnchorInspection", "Member", "inspect_anchors"]

_COLUMNS, _SHOWN = 100, 40
_BLOCK = 8192
_DRAWS = 50  # random groups per group size, for the chance level


@dataclass(frozen=True)
class Member:
    """An object that uses an anchor."""

    id: int
    name: str
    weight: float
    """T[object, anchor]"""
    share: float
    """share of the anchor in the row, |T[object, anchor]| / sum of |T[object]|"""


@dataclass(frozen=True)
class AnchorGroup:
    """An anchor and the objects with the largest share of it."""

    anchor: int
    objects: int
    """number of objects that use it"""
    weight: float
    """its share of the sum of all |T|"""
    members: tuple[Member, ...]
    """by share, then weight"""
    labels: dict[str, float]
    """share of the members that have a label, the most common first"""

    @property
    def purity(self) -> float | None:
        """Share of the members that have the most common label."""
        return next(iter(self.labels.values()), None)


@dataclass(frozen=True)
class AnchorInspection:
    """Result of `inspect_anchors`; `print` shows a summary.

    Attributes:
        rows, dim, anchors: of the table; anchors in use or not.
        nonzeros: of the transform.
        widths: how many rows have 0, 1, 2, ... non-zeros.
        groups: anchors in use, the one with most objects first.
        alike: pairs of names and their cosine, the most alike first, from a sample of objects.
        purity: mean over the groups, weighted by their members; None without labels.
        chance: the same for groups of these sizes drawn at random.
        other_parameters: number of further parameters, such as a bias.
    """

    rows: int
    dim: int
    anchors: int
    nonzeros: int
    widths: tuple[int, ...]
    groups: tuple[AnchorGroup, ...]
    alike: tuple[tuple[str, str, float], ...]
    purity: float | None
    chance: float | None
    other_parameters: int = 0

    @property
    def size(self) -> int:
        """Number of parameters: anchors in use, non-zeros and `other_parameters`."""
        return len(self.groups) * self.dim + self.nonzeros + self.other_parameters

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        return asdict(self) | {"size": self.size}

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the sizes of groups and rows, and the labels of groups if there are any."""
        draw_anchors(
            path,
            [group.objects for group in self.groups],
            self.widths,
            {group.anchor: group.labels for group in self.groups if group.labels},
        )

    def __str__(self) -> str:
        rows, used = self.rows, len(self.groups)
        lines = [
            f"{rows:,} objects mix {self.nonzeros / rows:.2f} of {used:,} anchors on average "
            f"(at most {len(self.widths) - 1}); {self.widths[0]:,} are zero and "
            f"{self.anchors - used:,} anchors idle",
            f"{self.size:,} numbers for {rows * self.dim:,}: "
            f"{rows * self.dim / max(self.size, 1):.1f} times fewer",
        ]
        if self.purity is not None:
            lines.append(f"purity {self.purity:.1%}, by chance {self.chance:.1%}")
        lines += ["", *self._table()]
        if self.alike:
            lines += ["", "most alike"]
            lines += [f"  {cosine:.3f}  {one}  {other}" for one, other, cosine in self.alike]
        return "\n".join(lines)

    def _table(self) -> list[str]:
        wide = max((len(_label(group)) for group in self.groups), default=0)
        head = f"{'anchor':>6} {'objects':>9} {'weight':>7}  {'label':{wide}}{'  ' if wide else ''}"
        lines = [(head if wide else head.replace("label", "").rstrip() + "  ") + "tied most to"]
        for group in self.groups[:_SHOWN]:
            line = f"{group.anchor:>6} {group.objects:>9,} {group.weight:>7.1%}  "
            line += f"{_label(group):{wide}}  " if wide else ""
            lines.append(line + _fitting(group.members, _COLUMNS - len(line)))
        if len(self.groups) > _SHOWN:
            lines.append(f"       and {len(self.groups) - _SHOWN:,} more in .groups")
        return lines


@torch.no_grad()
def inspect_anchors(
    embedding: AnchorEmbedding,
    *,
    labels: Sequence[Any] | None = None,
    names: Sequence[Any] | None = None,
    top: int = 10,
    sample: int = 1000,
    seed: int = 0,
) -> AnchorInspection:
    """Return the main objects of each anchor, the purity of their labels, and similar objects.

    An object belongs to an anchor by the share it has in the object's mix. A group is pure if its
    `top` members have a label in common: the mean of that share is the genre purity of Anchor &
    Transform when objects are movies and labels genres.

    Args:
        embedding: of either storage.
        labels: (V,) a label of each object, or several in a list, tuple or set; None: no label.
        names: (V,) names of the objects; their ids if None.
        top: number of members per group and of most similar pairs.
        sample: number of random objects that are compared with all others by cosine.
        seed: seed of the random samples.

    Returns:
        An `AnchorInspection`: `print` it, `plot` it.

    Example:
        >>> import torch, fewfold as ff
        >>> table = ff.AnchorEmbedding(4, 2, anchors=2)
        >>> with torch.no_grad():
        ...     _ = table.transform.copy_(torch.tensor([[1.0, 0], [2, 1], [0, 3], [0, 0]]))
        >>> found = inspect_anchors(table, names=["bread", "cake", "nail", "tape"], sample=1)
        >>> print(found)
        4 objects mix 1.00 of 2 anchors on average (at most 2); 1 are zero and 0 anchors idle
        8 numbers for 8: 1.0 times fewer
        <BLANKLINE>
        anchor   objects  weight  tied most to
             0         2   42.9%  bread 1.00, cake 0.67
             1         2   57.1%  nail 1.00, cake 0.33
        <BLANKLINE>
        most alike
          ...

    Reference: Liang, Zaheer, Wang and Ahmed, Anchor & Transform (2021), section 4.
    """
    top = whole_number(top, "top")
    rows = embedding.num_embeddings
    for name, given in (("labels", labels), ("names", names)):
        if given is not None and len(given) != rows:
            raise ValueError(f"{name} must have one entry per row, {rows}, got {len(given)}")
    offsets, slots, values = (part.cpu() for part in embedding.rows())
    lengths = offsets.diff()
    groups = _groups(lengths, slots, values, top, names, labels)
    generator = torch.Generator().manual_seed(seed)
    purity = chance = None
    if labels is not None:
        purity = _weighted([(group.purity or 0.0, len(group.members)) for group in groups])
        chance = _by_chance(groups, labels, rows, generator)
    alike = _alike(embedding, lengths > 0, whole_number(sample, "sample", 0), generator)
    return AnchorInspection(
        rows, embedding.embedding_dim, len(embedding.anchors), len(values),
        tuple(torch.bincount(lengths).tolist()), groups,
        tuple((_name(names, u), _name(names, v), cosine) for u, v, cosine in alike[:top]),
        purity, chance,
    )  # fmt: skip


def _groups(
    lengths: Tensor,
    slots: Tensor,
    values: Tensor,
    top: int,
    names: Sequence[Any] | None,
    labels: Sequence[Any] | None,
) -> tuple[AnchorGroup, ...]:
    row = torch.arange(len(lengths)).repeat_interleave(lengths)
    size = values.abs().double()
    total = torch.zeros(len(lengths), dtype=torch.float64).index_add_(0, row, size)
    share = size / total[row]
    order = size.argsort(descending=True, stable=True)
    order = order[share[order].argsort(descending=True, stable=True)]
    order = order[slots[order].argsort(stable=True)]
    counts = torch.bincount(slots)
    found = []
    for anchor, part in enumerate(order.split(counts.tolist())):
        if not len(part):
            continue
        members = tuple(
            Member(i, _name(names, i), weight, of)
            for i, weight, of in zip(
                row[part[:top]].tolist(), values[part[:top]].tolist(), share[part[:top]].tolist(),
                strict=True,
            )
        )  # fmt: skip
        common = _common([member.id for member in members], labels)
        weight = float(size[part].sum() / size.sum())
        found.append(AnchorGroup(anchor, len(part), weight, members, common))
    return tuple(sorted(found, key=lambda group: (-group.objects, group.anchor)))


def _common(ids: Sequence[int], labels: Sequence[Any] | None) -> dict[str, float]:
    """Return labels and the share of these objects with each, by descending share and name."""
    if labels is None:
        return {}
    counts = Counter(label for i in ids for label in _labels(labels[i]))
    ordered = sorted(counts.items(), key=lambda found: (-found[1], found[0]))
    return {label: count / len(ids) for label, count in ordered}


def _labels(given: Any) -> set[str]:
    if given is None:
        return set()
    several = isinstance(given, Collection) and not isinstance(given, (str, bytes))
    return {str(label) for label in (given if several else [given])}


def _by_chance(
    groups: Sequence[AnchorGroup],
    labels: Sequence[Any],
    rows: int,
    generator: torch.Generator,
) -> float:
    """Return the purity of random groups of the same sizes."""
    found = []
    for count, times in Counter(len(group.members) for group in groups).items():
        for _ in range(_DRAWS):
            ids = torch.randint(rows, (count,), generator=generator).tolist()
            best = next(iter(_common(ids, labels).values()), 0.0)
            found.append((best, count * times))
    return _weighted(found)


def _weighted(pairs: Sequence[tuple[float, int]]) -> float:
    return sum(value * weight for value, weight in pairs) / max(sum(w for _, w in pairs), 1)


def _alike(
    embedding: AnchorEmbedding, present: Tensor, sample: int, generator: torch.Generator
) -> list[tuple[int, int, float]]:
    """Return the nearest neighbours of a sample by cosine, each pair once, the best first."""
    among = present.nonzero()[:, 0]
    chosen = among[torch.randperm(len(among), generator=generator)[:sample]].sort().values
    if len(among) < 2 or not len(chosen):
        return []
    device = embedding.anchors.device
    queries = _unit(embedding.unscaled(chosen.to(device)))
    best, nearest = torch.full((len(chosen),), -torch.inf), torch.zeros_like(chosen)
    for part in among.split(_BLOCK):
        cosine = (queries @ _unit(embedding.unscaled(part.to(device))).T).float().cpu()
        cosine.masked_fill_(chosen[:, None] == part, -torch.inf)
        value, place = cosine.max(1)
        nearest = torch.where(value > best, part[place], nearest)
        best = torch.maximum(best, value)
    pairs = {
        (min(u, v), max(u, v)): cosine
        for u, v, cosine in zip(chosen.tolist(), nearest.tolist(), best.tolist(), strict=True)
    }
    return sorted(((*pair, cosine) for pair, cosine in pairs.items()), key=lambda it: -it[2])


def _unit(vectors: Tensor) -> Tensor:
    return torch.nn.functional.normalize(vectors, dim=1)


def _name(names: Sequence[Any] | None, row: int) -> str:
    return str(row) if names is None else str(names[row])


def _label(group: AnchorGroup) -> str:
    return "".join(f"{label} {share:.0%}" for label, share in [*group.labels.items()][:1])


def _fitting(members: Sequence[Member], columns: int) -> str:
    """Return as many members as fit into the line."""
    text = ""
    for member in members:
        more = f"{', ' if text else ''}{member.name} {member.share:.2f}"
        if text and len(text) + len(more) > columns:
            break
        text += more
    return text
