"""The choice of a model: what was tried, what won, by how much, and how to force another."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fewfold._resources import format_bytes
from fewfold.recommender.artifact.schema import key

__all__ = ["Choice", "Tried"]


@dataclass(frozen=True)
class Tried:
    """One candidate of a choice.

    Attributes:
        model: name of the model in `fewfold fit --model`.
        settings: as one cell of a table.
        flags: of `fewfold fit`, for these settings.
        ndcg: mean NDCG@10 of the validated users.
        gain: NDCG@10 above the chosen model; negative if below.
        low, high: 95 % interval of the gain, by user.
        effort: share of a whole training.
        bytes: size of its tensors.
        seconds: time to fit and rank it.
        outcome: why it was or was not chosen.
    """

    model: str
    settings: str
    flags: str
    ndcg: float
    gain: float
    low: float
    high: float
    effort: float
    bytes: int
    seconds: float
    outcome: str


@dataclass(frozen=True)
class Choice:
    """Result of choosing a model for a log; printing it gives a table.

    Attributes:
        chosen: name of the model.
        settings: of the model, as text.
        why: the reason, as a sentence.
        split: how items were held out of the training part to validate candidates.
        users: number of validated users.
        tried: candidates, best first.
        skipped: models that were not tried, and why.
    """

    chosen: str
    settings: str
    why: str
    split: str
    users: int
    tried: tuple[Tried, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict, metadata=key("not tried"))

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        found = asdict(self)
        found["tried"] = [asdict(one) for one in self.tried]
        found["not tried"] = dict(found.pop("skipped"))
        return found

    def __str__(self) -> str:
        lines = []
        if self.tried:
            lines += [
                f"Models tried on {self.users:,} users of the training part ({self.split}):",
                "",
                f"{'model':<13}{'NDCG@10':>9}{'difference':>12}{'95 % interval':>20}"
                f"{'size':>9}{'time':>9}   settings",
            ]
        for one in self.tried:
            spread = f"{one.low:+.4f} to {one.high:+.4f}"
            if one.outcome == "chosen":
                gain, spread = "chosen", ""
            else:
                gain = f"{one.gain:+.4f}"
            short = "" if one.effort == 1 else f" ({one.effort:.0%} of the training)"
            lines.append(
                f"{one.model:<13}{one.ndcg:9.4f}{gain:>12}{spread:>20}"
                f"{format_bytes(one.bytes):>9}{one.seconds:7.1f} s   {one.settings}{short}"
            )
        lines += [f"{name} was not tried: {why}." for name, why in self.skipped.items()]
        if lines:
            lines.append("")
        lines.append(self.why)
        other = next((one for one in self.tried if one.outcome != "chosen"), None)
        if other is not None:
            lines.append(f"To force another: fewfold fit --model {other.model}{other.flags}")
        return "\n".join(lines)
