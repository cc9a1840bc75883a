"""Plot of a comparison: metrics with confidence intervals, overall and by history length."""

from pathlib import Path
from typing import Any

from fewfold.recommender import Comparison

__all__ = ["draw_report"]


def draw_report(comparison: Comparison, file: Path) -> bool:
    """Save the plot; return False if matplotlib is not installed."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(11, 4.2), dpi=150, layout="constrained", width_ratios=(3, 4)
    )
    _overall(comparison, left)
    _slices(comparison, right)
    figure.suptitle(f"Held out: {comparison.split}", fontsize=11)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
    pyplot.close(figure)
    return True


def _overall(comparison: Comparison, axes: Any) -> None:
    """Draw one bar per model with its interval, fitting time and size."""
    for place, one in enumerate(reversed(comparison.contenders)):
        score = one.evaluation.overall[comparison.metric]
        axes.barh(place, score.mean, color=one.recipe.colour, height=0.62)
        axes.plot([score.low, score.high], [place, place], color="black", linewidth=1.2)
        label = f" {score.mean:.3f}   {one.seconds:.0f} s, {one.size / 1e6:.1f} MB"
        axes.text(score.high, place, label, va="center", fontsize=9)
    axes.set_yticks(range(len(comparison.contenders)))
    axes.set_yticklabels([one.kind for one in reversed(comparison.contenders)])
    best = comparison.contenders[0].evaluation.overall[comparison.metric].high
    axes.set(xlim=(0, best * 1.75), xlabel=f"{comparison.metric} with 95 % interval, time, size")
    axes.spines[["top", "right"]].set_visible(False)


def _slices(comparison: Comparison, axes: Any) -> None:
    """Draw the metric of each model for users with short and long histories."""
    evaluation = comparison.contenders[0].evaluation
    least = evaluation.overall.users / 100  # a bar of a handful of users says nothing
    names = [name for name, one in evaluation.slices.items() if one.users >= least]
    wide = 0.8 / len(comparison.contenders)
    for number, one in enumerate(comparison.contenders):
        places = [
            at + wide * (number - (len(comparison.contenders) - 1) / 2) for at in range(len(names))
        ]
        scores = [one.evaluation.slices[name][comparison.metric] for name in names]
        heights = [score.mean for score in scores]
        errors = [[s.mean - s.low for s in scores], [s.high - s.mean for s in scores]]
        axes.bar(
            places, heights, wide * 0.92, yerr=errors, color=one.recipe.colour, label=one.kind,
            error_kw={"linewidth": 0.9},
        )  # fmt: skip
    users = [comparison.contenders[0].evaluation.slices[name].users for name in names]
    labels = [
        f"{_wrapped(name)}\n{count:,} users" for name, count in zip(names, users, strict=True)
    ]
    axes.set_xticks(range(len(names)))
    axes.set_xticklabels(labels, fontsize=8)
    axes.set_ylabel(str(comparison.metric))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, ncols=2)


def _wrapped(name: str) -> str:
    """Break a long name into two lines."""
    if len(name) <= 20:
        return name
    middle = min((i for i, c in enumerate(name) if c == " "), key=lambda i: abs(i - len(name) / 2))
    return f"{name[:middle]}\n{name[middle + 1 :]}"
