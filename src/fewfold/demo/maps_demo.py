"""Demonstration of the maps: bars of probabilities, the regularisation path, running times."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fewfold import maps
from fewfold._native import show_config
from fewfold._progress import line
from fewfold._timing import Timing, race

WORDS = ("mat", "sofa", "chair", "floor", "bed", "roof", "moon", "idea")
SCORES = (2.0, 1.6, 1.35, 0.9, 0.3, -0.2, -1.0, -2.2)

MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": maps.softmax,
    "1.5-entmax": maps.entmax,
    "sparsemax": maps.sparsemax,
    "normmax(2)": maps.normmax,
    "ksubset(3)": lambda scores: maps.ksubset(scores, 3),
}
SHAPES = ((4096, 32), (1024, 512), (512, 4096), (128, 32768), (4, 2_000_000))


def run(out: Path) -> None:
    """Print the bars, save the regularisation path below ``out``, print the speed table."""
    print('\nFive maps of the same scores, of words that complete "the cat sat on the ...":\n')
    print(bars(WORDS, torch.tensor(SCORES)))
    print("\n · is an exact zero: such words need no computation downstream, forward or backward.")
    picture = out / "regularisation_path.png"
    if draw_path(picture):
        print(f"\nPlot of entmax of the same scores for alpha from 1 to 3: {picture}")
    else:
        print("\nFor a plot of the regularisation path: pip install 'fewfold[demo]'")
    print("\nTime relative to torch.softmax, one thread, float32, N(0, 1) scores")
    print("(below 1 is faster than softmax; measured now, medians of interleaved calls)\n")
    print(speed_table(SHAPES, seconds=1.0))
    print()
    show_config()


def bars(labels: Sequence[str], scores: Tensor, width: int = 9) -> str:
    """Return a table of the probabilities of every map, with one row per label.

    >>> print(bars(["yes", "no", "maybe"], torch.tensor([2.0, 0.0, 1.0]), width=4))
              score  softmax     1.5-entmax  sparsemax   normmax(2)  ksubset(3)
     yes       2.00  0.665 ██▋   0.831 ███▍  1.000 ████  1.000 ████  1.000 ████
     no        0.00  0.090 ▍     ·           ·           ·           1.000 ████
     maybe     1.00  0.245 █     0.169 ▋     ·           ·           1.000 ████
     nonzero         3 of 3      2 of 3      1 of 3      1 of 3      3 of 3
    """
    columns = [fun(scores).tolist() for fun in MAPS.values()]
    wide = max(map(len, (*labels, "nonzero")))
    cell = width + 6
    heading = "".join(f"  {name:<{cell}}" for name in MAPS)
    lines = [f" {'':{wide}} {'score':>6}{heading}".rstrip()]
    for i, label in enumerate(labels):
        cells = "".join(f"  {_cell(column[i], width):<{cell}}" for column in columns)
        lines.append(f" {label:{wide}} {scores[i].item():6.2f}{cells}".rstrip())
    counts = (f"{sum(p > 0 for p in column)} of {len(column)}" for column in columns)
    nonzero = "".join(f"  {count:<{cell}}" for count in counts)
    lines.append(f" {'nonzero':{wide}} {'':>6}{nonzero}".rstrip())
    return "\n".join(lines)


def _cell(prob: float, width: int) -> str:
    if prob == 0:
        return "·"
    eighths = max(1, round(prob * width * 8))
    bar = "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    return f"{prob:.3f} {bar}"


def draw_path(file: Path) -> bool:
    """Plot p(alpha) for alpha in [1, 3]; return False if matplotlib is not installed."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    alphas = torch.linspace(1, 3, 401, dtype=torch.float64)
    scores = torch.tensor(SCORES, dtype=torch.float64).expand(len(alphas), -1)
    probs = maps.entmax(scores, alphas[:, None])
    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=150, layout="constrained")
    colours = pyplot.get_cmap("viridis")(torch.linspace(0, 0.86, len(WORDS)).numpy())
    labels_at = _spread(probs[0].tolist(), gap=0.04)
    for i, word in enumerate(WORDS):
        last = int(probs[:, i].nonzero().max())
        axes.plot(alphas[: last + 1], probs[: last + 1, i], color=colours[i], linewidth=2.2)
        if last + 1 < len(alphas):
            axes.plot(alphas[last], 0, "o", color=colours[i], markersize=6, clip_on=False, zorder=3)
        axes.text(0.98, labels_at[i], word, ha="right", va="center", color=colours[i])
    for alpha, name in ((1, "softmax"), (1.5, "1.5-entmax"), (2, "sparsemax")):
        axes.axvline(alpha, color="0.8", linewidth=0.8, zorder=0)
        axes.text(alpha + 0.015, 1.0, name, color="0.45", fontsize=9, va="top")
    axes.set(xlim=(1, 3), ylim=(0, 1.02), xlabel="alpha", ylabel="probability")
    axes.yaxis.set_label_position("right")
    axes.tick_params(axis="y", left=False, labelleft=False, right=True, labelright=True)
    axes.spines[["top", "left"]].set_visible(False)
    axes.set_title(
        "entmax: sparser for larger alpha (• where a probability becomes zero)", fontsize=11
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
    pyplot.close(figure)
    return True


def _spread(heights: Sequence[float], gap: float) -> list[float]:
    """Move descending label heights apart by at least ``gap``, from the lowest upwards."""
    placed: list[float] = []
    for height in reversed(heights):
        placed.append(max(height, placed[-1] + gap) if placed else max(height, gap / 2))
    return placed[::-1]


def speed_table(shapes: Sequence[tuple[int, int]], seconds: float) -> str:
    """Compare the times of the maps with torch.softmax, forward and backward."""
    forward_only = ("sparsemax", "1.5-entmax", "normmax(2)", "ksubset(3)")
    with_backward = ("sparsemax", "1.5-entmax")
    names = "".join(f"{name:>12}" for name in (*forward_only, *with_backward))
    lines = [
        f" {'':>13}{'softmax':>10}  {' forward ':─^46}  {' forward+backward ':─^22}",
        f" {'rows x K':>13}{'forward':>10}{names}",
    ]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for number, (rows, size) in enumerate(shapes, 1):
            line(f"measuring {rows} x {size} ({number} of {len(shapes)})")
            forward = _forward(rows, size, forward_only, seconds / 2)
            gradient = _gradient(rows, size, with_backward, seconds / 2)
            base = forward.pop("torch.softmax").median
            cells = [timing.median / base for timing in forward.values()]
            base_gradient = gradient.pop("torch.softmax").median
            cells += [timing.median / base_gradient for timing in gradient.values()]
            ratios = "".join(f"{ratio:12.2f}" for ratio in cells)
            lines.append(f" {f'{rows} x {size}':>13}{_duration(base):>10}{ratios}")
    finally:
        torch.set_num_threads(threads)
        line("")
    return "\n".join(lines)


def _forward(rows: int, size: int, names: Sequence[str], seconds: float) -> dict[str, Timing]:
    scores = torch.randn(rows, size, generator=torch.Generator().manual_seed(0))
    calls = {"torch.softmax": partial(torch.softmax, scores, -1)}
    calls.update({name: partial(MAPS[name], scores) for name in names})
    return race(calls, seconds=seconds)


def _gradient(rows: int, size: int, names: Sequence[str], seconds: float) -> dict[str, Timing]:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(rows, size, generator=generator).requires_grad_()
    upstream = torch.randn(rows, size, generator=generator)

    def both(fun: Callable[[Tensor], Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(fun(scores), scores, upstream)

    calls = {"torch.softmax": both(lambda x: torch.softmax(x, -1))}
    calls.update({name: both(MAPS[name]) for name in names})
    return race(calls, seconds=seconds)


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"
