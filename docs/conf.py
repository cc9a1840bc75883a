"""Sphinx configuration. Building the site also runs every script of the gallery."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx

import fewfold

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import programs  # noqa: E402

RUNS = HERE / "_generated" / "tutorials"

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
    "source_links",
]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
default_role = "code"  # `x` in a docstring is code
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
autodoc_type_aliases = {"Tensor": "torch.Tensor"}
napoleon_google_docstring = True
napoleon_numpy_docstring = False

# Included by a page.
exclude_patterns = [
    *("transforms_table.md", "transforms_attention.md", "transforms_distributions.md"),
    "devices_table.md",
]
# Of the programs only the tutorials are pages.
exclude_patterns += ["*.py", "gallery/*.py", "pictures/*.py", "recipes/*.py", "_generated/*"]

html_theme = "furo"
html_title = f"fewfold {release}"
html_theme_options = {"navigation_with_keys": True}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_favicon = "../src/fewfold/serve/page/icon.svg"


def run_gallery(app: Sphinx) -> None:
    """Run each gallery script and each tutorial, and store outputs and figures for the pages."""
    if not app.config.gallery:  # sphinx-build -D gallery=0 keeps those of an earlier build
        return
    out = HERE / "_generated"
    out.mkdir(exist_ok=True)
    for script in sorted((HERE / "gallery").glob("*.py")):
        output = run_script(script, out / f"{script.stem}.png")
        (out / f"{script.stem}.txt").write_text(output)
    run_script(HERE / "pictures" / "one_idea.py", out)
    for program in sorted((HERE / "tutorials").glob("*.py")):
        run_script(HERE / "programs.py", program, RUNS)


def run_script(*command: Path) -> str:
    """Run a script in a process of its own, and return what it prints.

    What it leaves behind when it fails, as a server, is ended with it.
    """
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(
            [sys.executable, *command],
            stdout=printed,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},  # many small steps: threads only wait
        )
        try:
            if process.wait():
                raise subprocess.CalledProcessError(process.returncode, process.args)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        printed.seek(0)
        return printed.read()


class ProgramParser(MystParser):
    """Read a program as the page that it is: its text, its code, and what a run gave."""

    supported = ("program",)

    def parse(self, inputstring: str, document: Any) -> None:
        name = Path(document.current_source or document["source"]).stem
        found = programs.read(RUNS / f"{name}.json")
        text = programs.page(found, name, "../_generated/tutorials")
        super().parse(in_both_themes(text), document)


def in_both_themes(text: str) -> str:
    """Add to each picture of the server's page the one in dark colours, for dark pages."""
    both = "\n\n".join(
        f"```{{image}} \\2{end}.png\n:alt: \\1\n:class: only-{theme}\n```"
        for end, theme in (("", "light"), ("_dark", "dark"))
    )
    return re.sub(r"^!\[([^]]+)\]\((\S*/page_\w+)\.png\)$", both, text, flags=re.MULTILINE)


def show_both_themes(app: Sphinx, page: str, source: list[str]) -> None:
    """Do so on the other pages."""
    source[0] = in_both_themes(source[0])


def split_reference(app: Sphinx) -> None:
    """Write a page for each section of the reference, which are too long for one page."""
    (HERE / "reference").mkdir(exist_ok=True)
    for name, text in reference_sections():
        file = HERE / "reference" / f"{name}.md"
        if not file.exists() or file.read_text() != text:  # what has not changed is not read again
            file.write_text(text)


def reference_sections() -> list[tuple[str, str]]:
    """Return the name and the text of the page of each module."""
    sections = re.split("^## ", (HERE / "api.md").read_text(), flags=re.MULTILINE)[1:]
    titles = [section.partition("\n")[0] for section in sections]
    names = [title.rpartition(".")[2] for title in titles]
    return [(name, f"# {section}") for name, section in zip(names, sections, strict=True)]


def list_reference(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace the sections of the reference by links to their pages."""
    if page == "api":
        pages = "\n".join(f"reference/{name}" for name, _ in reference_sections())
        source[0] = (
            source[0].partition("\n## ")[0] + f"\n```{{toctree}}\n:maxdepth: 2\n\n{pages}\n```\n"
        )


def without_type(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: Any) -> None:
    """Drop the docstring of the type of a value such as a dict."""
    if what == "data":
        lines.clear()


def without_aliases(
    app: Sphinx, what: str, name: str, value: Any, skip: bool, options: Any
) -> bool | None:
    """Skip fields of named tuples, which the docstring of the class describes, and `extra_repr`."""
    alias = str(getattr(value, "__doc__", "")).startswith("Alias for field number")
    return True if alias or name == "extra_repr" else None


def trim_examples(app: Sphinx, page: str, source: list[str]) -> None:
    """Drop the empty line that ends an example, which doctest needs and readers do not."""
    source[0] = re.sub(r"\n\n```$", "\n```", source[0], flags=re.MULTILINE)


def without_layout_marks(app: Sphinx, document: Any) -> None:
    """Drop comments to the formatter from the code that is shown."""
    for block in document.findall(nodes.literal_block):
        text, found = re.subn(r" *# fmt: (?:skip|off|on)$", "", block.astext(), flags=re.MULTILINE)
        if found:
            block.rawsource = text
            block[:] = [nodes.Text(text)]


def link_experiments(app: Sphinx, page: str, source: list[str]) -> None:
    """Turn links to files of experiments, which are not pages of the site, into downloads."""
    link = r"\[([^]]+)\]\((\.\./experiments/\w+/\w+\.(?:md|py))\)"
    source[0] = re.sub(link, r"{download}`\1 <\2>`", source[0])


def setup(app: Sphinx) -> None:
    """Run the gallery before pages are read."""
    app.add_config_value("gallery", True, "env", bool)
    app.add_source_suffix(".py", "program")
    app.add_source_parser(ProgramParser)
    app.connect("builder-inited", run_gallery)
    app.connect("builder-inited", split_reference)
    app.connect("source-read", list_reference)
    app.connect("source-read", link_experiments)
    app.connect("source-read", trim_examples)
    app.connect("source-read", show_both_themes)
    app.connect("doctree-read", without_layout_marks)
    app.connect("autodoc-process-docstring", without_type)
    app.connect("autodoc-skip-member", without_aliases)
