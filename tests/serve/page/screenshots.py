"""Pictures of the page for the documentation.

fewfold fit --out model
python -m tests.serve.page.screenshots model docs/images
"""

import argparse
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.serve.page.serving import FLAGS, browser_path
from tests.serve.page.window import settled
from tests.serve.running import serving

__all__: list[str] = []

_HISTORY = "#try?item=libssl-dev&item=zlib1g-dev&item=libpcre2-dev"
SHOTS = {  # by name: the view, the theme, the height
    "page_try": (_HISTORY, "light", 790),
    "page_try_dark": (_HISTORY, "dark", 790),
}
WIDTH = 1120


def main() -> None:
    """Serve a model and write a picture of each view of `SHOTS`."""
    parser = argparse.ArgumentParser(description="Pictures of the page for the documentation.")
    parser.add_argument("model", type=Path, help="folder of a model of the bundled data")
    parser.add_argument("out", type=Path, help="folder of the pictures")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as place,
        serving(given.model, "--no-feedback", folder=Path(place)) as running,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=browser_path(), args=list(FLAGS))
        for name, (view, theme, height) in SHOTS.items():
            window = browser.new_context(
                viewport={"width": WIDTH, "height": height},
                color_scheme="dark" if theme == "dark" else "light",
                reduced_motion="reduce",
            )
            page = window.new_page()
            page.goto(running.url + view)
            page.wait_for_selector("main h2")
            settled(page)
            page.screenshot(path=given.out / f"{name}.png")
            print(given.out / f"{name}.png")
            window.close()
        browser.close()


if __name__ == "__main__":
    main()
