"""Print the reference page: every public name, from the stub of the package and each `__all__`."""

import inspect
import types

import fewfold
from fewfold.embeddings.table.storage import AnchorStorage

MODULES = {
    "maps": "scores to sparse probabilities",
    "losses": "scores and a target to a loss",
    "structured": "part scores to a few structures",
    "structured.structures": "what a network can choose a few of; also `fewfold.structures`",
    "expectation": "a cost and scores to an expected cost",
    "attention": "queries and a memory to values",
    "hopfield": "associative memories",
    "continuous": "attention over a line or a plane",
    "distributions": "parameters to a random variable",
    "sampling": "queries to ids and their log-probabilities",
    "embeddings": "ids to vectors made of a few anchors",
    "optim": "row gradients to updated rows",
    "recommender": "logs to recommendations",
    "sklearn": "estimators of scikit-learn",
}

INTERNAL_BASES = (AnchorStorage,)


def entry(path: str, value: object) -> list[str]:
    """Return the directive of one name."""
    if inspect.isclass(value):
        lines = [f".. autoclass:: {path}", "   :members:"]
        if value.__base__ in INTERNAL_BASES:  # its public methods are those of the subclass
            lines.append("   :inherited-members: Module")
        return lines
    if callable(value):
        return [f".. autofunction:: {path}"]
    return [f".. autodata:: {path}", "   :no-value:"]


def section(title: str, text: str, entries: list[str]) -> list[str]:
    """Return a heading and its directives."""
    return [f"## {title}", "", text, "", "```{eval-rst}", *entries, "```", ""]


def page() -> str:
    """Return the whole page."""
    names = [name for name in fewfold.__all__ if name not in ("__version__", "structures")]
    top = {name: getattr(fewfold, name) for name in names}
    top = {name: one for name, one in top.items() if not isinstance(one, types.ModuleType)}
    direct = [line for name, one in sorted(top.items()) for line in entry(f"fewfold.{name}", one)]
    lines = [
        "# Reference",
        "",
        "Written by `docs/generate_api.py` from the table of public names, "
        "`src/fewfold/__init__.pyi`. `import fewfold as ff` gives the names of the first section; "
        "all others are one dot deeper.",
        "",
        *section("fewfold", "Directly on the package.", direct),
    ]
    for module, text in MODULES.items():
        found = fewfold
        for part in module.split("."):
            found = getattr(found, part)
        inside = {name: getattr(found, name) for name in sorted(found.__all__)}
        rest = {name: one for name, one in inside.items() if top.get(name) is not one}
        entries = [
            line
            for name, one in rest.items()
            if not isinstance(one, types.ModuleType)
            for line in entry(f"fewfold.{module}.{name}", one)
        ]
        lines += section(f"fewfold.{module}", text[0].upper() + text[1:] + ".", entries)
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")
