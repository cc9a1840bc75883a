"""Scheduling of the threads of gloo, so that they do not stop each other on a shared processor.

A thread of gloo that sends holds the lock of its connection. If the thread that receives wakes up
on the same processor meanwhile, Linux lets it take over, and it polls for that lock in a loop
until its time slice ends: 4 ms with the usual clock, where an exchange takes 0.3 ms. With a
processor for each process that happens in every third exchange. Under the batch policy a thread
that wakes up waits until the running one pauses, which a sender does at once.
"""

import os
from pathlib import Path

__all__ = ["wait_for_senders"]

_RECEIVER = "gloo_tcp_loop"  # as gloo names its threads
_TASKS = Path("/proc/self/task")


def wait_for_senders() -> int:
    """Set the batch policy for the receiving threads of gloo; return how many there are.

    Elsewhere than on Linux, or where it is forbidden, nothing is changed.
    """
    if not (hasattr(os, "sched_setscheduler") and _TASKS.is_dir()):
        return 0
    found = 0
    for task in _TASKS.iterdir():
        try:
            if (task / "comm").read_text().strip() == _RECEIVER:
                os.sched_setscheduler(int(task.name), os.SCHED_BATCH, os.sched_param(0))
                found += 1
        except OSError:  # the thread has ended, or a sandbox forbids it
            continue
    return found
