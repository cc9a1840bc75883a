"""Mixed load on `fewfold serve` for some minutes, and its memory over time.

``python -m benchmarks.http_soak MINUTES``: eight connections send recommendations with and without
explanations, diversity and lists, similar items, searches, feedback and statistics,
to a model of 50,000 items. Prints a line every tenth of the time, and how far memory rose after the
first tenth.
"""

import random
import sys
import tempfile
from pathlib import Path

from benchmarks.http_load import Request, measure, write_requests
from benchmarks.http_models import folder_of, histories
from benchmarks.http_servers import fewfold_server

ITEMS, CONNECTIONS, PARTS = 50_000, 8, 10


def mixed(count: int = 2000) -> list[Request]:
    """Return requests of all kinds that the server answers, most of them plain."""
    draw, found = random.Random(0), []
    for row in histories(ITEMS)[:count]:
        history = [f"item-{one}" for one in row]
        user, item = f"user-{draw.randrange(4000)}", draw.choice(history)
        ask = "/v1/recommendations"
        found.append(
            draw.choices(
                [
                    ("POST", ask, {"history": history}),
                    ("POST", ask, {"user": user, "k": 20, "explain": True}),
                    ("POST", ask, {"history": history, "diversity": 0.3}),
                    ("POST", ask, [{"history": history}, {"user": user, "exclude": history}]),
                    ("GET", f"/v1/users/{user}/recommendations", None),
                    ("GET", f"/v1/items/{item}/similar", None),
                    ("GET", f"/v1/items?search={item[:7]}", None),
                    ("POST", "/v1/feedback", {"user": user, "item": item}),
                    ("GET", "/v1/stats", None),
                ],
                weights=[8, 1, 1, 1, 4, 1, 1, 2, 1],
            )[0]
        )
    return found


def main() -> None:
    """Put the load on a server and print what its memory does."""
    minutes = float(sys.argv[1])
    with tempfile.TemporaryDirectory() as place:
        file = write_requests(Path(place) / "requests", mixed())
        journal = ("--journal", f"{place}/journal.jsonl")
        with fewfold_server(folder_of(ITEMS), *journal) as server:
            sizes = []
            for part in range(1, PARTS + 1):
                load = measure(server.url, CONNECTIONS, 60 * minutes / PARTS, file)
                sizes.append(server.memory() / 1e6)
                print(
                    f"{part * minutes / PARTS:6.1f} min  {len(load.latencies):7,} answers  "
                    f"{load.failed} failed  p99 {1e3 * load.percentile(0.99):6.1f} ms  "
                    f"{sizes[-1]:6.0f} MB",
                    flush=True,
                )
            print(f"memory rose by {sizes[-1] / sizes[0] - 1:.1%} after the first tenth")


if __name__ == "__main__":
    main()
