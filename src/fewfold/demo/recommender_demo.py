"""Recommendations from the bundled data, the build dependencies of Debian packages."""

from pathlib import Path

from fewfold.demo.report import draw_report
from fewfold.recommender import Recommender, Training, compare, read_log
from fewfold.recommender.datasets.bundled import bundled, bundled_items

__all__ = ["HISTORIES", "run"]

HISTORIES = {
    "a web server in C": ("libssl-dev", "zlib1g-dev", "libpcre2-dev"),
    "a Python library with tests": ("dh-python", "python3-all", "python3-pytest"),
    "a game": ("libsdl2-dev", "libogg-dev", "libgl1-mesa-dev"),
}


def run(out: Path) -> None:
    """Compare models, fit one, recommend; save the model and a plot of the report in ``out``."""
    print("\nThe bundled log: the build dependencies of source packages in Debian 12.\n")
    log = read_log(bundled())
    print(log.summary)
    print("\nFour models on the same split:\n")
    comparison = compare(log, training=Training())
    print(comparison)
    best = comparison.contenders[0]
    print(f"\n{best.kind}, the best of them, fitted to all data:\n")
    rec = Recommender(best.recipe).fit(log).attach(bundled_items())
    assert rec.report is not None
    rec.comparison = comparison
    folder = rec.save(out / "model", overwrite=True)
    print(f"{rec.report}\nwritten to {folder}, {_size(folder) / 1e6:.1f} MB including its users")
    rec = Recommender.load(folder)
    for name, history in HISTORIES.items():
        print(f"\nRecommendations for {name} that builds against {', '.join(history)}:\n")
        print(rec.recommend_from_history(history, 6))
    picture = out / "report.png"
    if draw_report(comparison, picture):
        print(f"\nplot of the report: {picture}")
    else:
        print("\nfor a plot of the report: pip install 'fewfold[demo]'")
    print(f"more recommendations: fewfold recommend {folder} --history libpq-dev,libxml2-dev")
    print(f"to look at the model in a browser: fewfold serve {folder}")


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())
