"""Sphinx configuration. Building the site also runs every script of the gallery."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import fewfold

HERE = Path(__file__).parent

project = "fewfold"
author = "the fewfold authors"
copyright = author
version = release = fewfold.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # formulas, and so the whole site, without a network
    "sphinx.ext.viewcode",
]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
default_role = "code"  # `x` in a docstring is code
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_type_aliases = {"Tensor": "torch.Tensor"}
napoleon_google_docstring = True
napoleon_numpy_docstring = False

# Included by a page.
exclude_patterns = [
    *("transforms_table.md", "transforms_attention.md", "transforms_distributions.md"),
    "devices_table.md",
]

html_theme = "furo"
html_title = f"fewfold {release}"
html_theme_options = {"navigation_with_keys": True}
html_static_path = ["_static"]
html_css_files = ["site.css"]


def run_gallery(app: Sphinx) -> None:
    """Run each gallery script and store its output and figures for the pages."""
    if not app.config.gallery:  # sphinx-build -D gallery=0 keeps those of an earlier build
        return
    out = HERE / "_generated"
    out.mkdir(exist_ok=True)
    for script in sorted((HERE / "gallery").glob("*.py")):
        done = subprocess.run(
            [sys.executable, script, out / f"{script.stem}.png"],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},  # many small steps: threads only wait
        )
        (out / f"{script.stem}.txt").write_text(done.stdout)


def without_type(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: Any) -> None:
    """Drop the docstring of the type of a value such as a dict."""
    if what == "data":
        lines.clear()


def without_aliases(
    app: Sphinx, what: str, name: str, value: Any, skip: bool, options: Any
) -> bool | None:
    """Skip the fields of named tuples, which the docstring of the class describes."""
    alias = str(getattr(value, "__doc__", "")).startswith("Alias for field number")
    return True if alias else None


def link_readmes(app: Sphinx, page: str, source: list[str]) -> None:
    """Turn links to READMEs of experiments, which are not pages of the site, into downloads."""
    link = r"\[([^]]+)\]\((\.\./experiments/\w+/README\.md)\)"
    source[0] = re.sub(link, r"{download}`\1 <\2>`", source[0])


def setup(app: Sphinx) -> None:
    """Run the gallery before pages are read."""
    app.add_config_value("gallery", True, "env", bool)
    app.connect("builder-inited", run_gallery)
    app.connect("source-read", link_readmes)
    app.connect("autodoc-process-docstring", without_type)
    app.connect("autodoc-skip-member", without_aliases)
