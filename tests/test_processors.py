"""Number of processors: the affinity of the process and the quota of its control group."""

import os

import pytest

from fewfold._resources import available_processors

COUNT = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@pytest.mark.parametrize(
    ("quota", "limit"),
    [
        ("max 100000", COUNT),
        ("100000 100000", 1),
        ("10000 100000", 1),  # a tenth of a processor is still one thread
        ("150000 100000", 2),
        ("99900000 100000", COUNT),
        ("nonsense", COUNT),
    ],
)
def test_quota_of_version_2(tmp_path, quota, limit):
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert available_processors(tmp_path) == min(limit, COUNT)


@pytest.mark.parametrize(("quota", "limit"), [("-1", COUNT), ("50000", 1), ("200000", 2)])
def test_quota_of_version_1(tmp_path, quota, limit):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert available_processors(tmp_path) == min(limit, COUNT)


def test_no_control_groups(tmp_path):
    assert available_processors(tmp_path / "missing") == COUNT


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_affinity(tmp_path):
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert available_processors(tmp_path) == 1
    finally:
        os.sched_setaffinity(0, before)
