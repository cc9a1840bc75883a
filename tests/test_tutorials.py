"""The tutorials of the documentation run, print and draw; and become pages and notebooks."""

import importlib.util
import os
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.pictures import has_colour

DOCS = Path(__file__).parents[1] / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.py"))
PROGRAM = """# %% [markdown]
# # Sums
#
# Of two numbers.

# %%
a = 1 + 1
print("a =", a)

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(num="A red square")
axes.imshow([[a]], cmap="Reds", vmin=0)
"""


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that renders tutorials, which is a part of the documentation."""
    pytest.importorskip("matplotlib")
    spec = importlib.util.spec_from_file_location("programs", DOCS / "programs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "programs", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("default")
def test_a_program_becomes_a_page_and_a_notebook(programs: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(PROGRAM)
    programs.main(tmp_path / "sums.py", tmp_path)
    found = programs.read(tmp_path / "sums.json")
    page = programs.page(found, "sums", "out")
    assert page.startswith("# Sums\n\nOf two numbers.\n\n```python\na = 1 + 1\n")
    assert "```text\na = 2\n```" in page
    assert "![A red square](out/sums_0.png)" in page
    assert has_colour(tmp_path / "sums_0.png")
    kinds = [cell["cell_type"] for cell in programs.notebook(found)["cells"]]
    assert kinds == ["markdown", "code", "code"]


def test_an_error_has_the_line_of_the_program(programs: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("# %%\na = 1\n\n# %%\na / 0\n")
    with pytest.raises(ZeroDivisionError) as error:
        programs.run(tmp_path / "wrong.py", tmp_path)
    assert error.traceback[-1].lineno + 1 == 5


@pytest.mark.slow
@pytest.mark.parametrize("program", TUTORIALS, ids=lambda program: program.stem)
@pytest.mark.filterwarnings("default")
def test_tutorial_runs(program: Path, programs: ModuleType, tmp_path: Path) -> None:
    with torch.random.fork_rng():
        found = programs.run(program, tmp_path)
    assert found[0].text
    assert found[0].source.startswith("# ")
    assert any(cell.printed for cell in found)
    assert any(cell.figures or "](../images/" in cell.source for cell in found)
    for file in tmp_path.glob("*.png"):
        assert has_colour(file)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_pictures_of_the_idea(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw = runpy.run_path(str(DOCS / "pictures" / "one_idea.py"))["main"]
    with torch.random.fork_rng():
        draw(tmp_path)
    drawn = list(tmp_path.glob("*.png"))
    page = (DOCS / "one_idea.md").read_text()
    assert len(drawn) == page.count("```{image}")
    for file in drawn:
        assert f"_generated/{file.name}" in page
        assert has_colour(file)


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "index.md").read_text().split()
    parts = {"transforms_attention", "transforms_distributions", "transforms_table"}
    pages = {page.stem for page in DOCS.glob("*.md")} - parts - {"devices_table", "index"}
    pages |= {f"tutorials{os.sep}{program.stem}" for program in TUTORIALS}
    assert not pages - set(index)
