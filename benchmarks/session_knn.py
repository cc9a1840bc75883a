"""Fit and answers of session-KNN by the size of the log.

``python -m benchmarks.session_knn ITEMS SESSIONS`` prints the seconds of a fit, the answers of a
second and the peak memory of the whole process in MiB; ten items a session, drawn at random.
"""

import sys
import time

import torch

from fewfold._resources import peak_memory
from fewfold.recommender import Jagged, SessionKNN

LENGTH, ASKED = 10, 2000


def measure(items: int, sessions: int) -> tuple[float, float, float]:
    """Seconds of a fit, rankings a second and peak MiB."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(items, (sessions * LENGTH,), generator=generator)
    rows = Jagged(values, torch.arange(sessions + 1) * LENGTH)
    began = time.perf_counter()
    fitted = SessionKNN().fit_sequences(rows, items)
    fit = time.perf_counter() - began
    fitted.rank(rows.rows(slice(0, 16)), 10)
    began = time.perf_counter()
    fitted.rank(rows.rows(slice(0, ASKED)), 10)
    return fit, ASKED / (time.perf_counter() - began), peak_memory() / 2**20


if __name__ == "__main__":
    seconds, speed, peak = measure(int(sys.argv[1]), int(sys.argv[2]))
    print(f"{seconds:.2f} s, {speed:,.0f} rankings a second, {peak:,.0f} MiB")
