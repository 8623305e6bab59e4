"""The most memory a program took, measured in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Not what getrusage tells: that begins with what the process had that started this one.
_PEAK = """
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0])
"""


def run_measured(code, *arguments, timeout=120):
    """Run Python code; return what it printed and the most megabytes it had."""
    if not Path("/proc/self/status").exists():
        pytest.skip("the system does not tell how much memory a process had")
    done = subprocess.run(
        [sys.executable, "-c", code + _PEAK, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "NO_PROXY": "127.0.0.1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *lines, kilobytes = done.stdout.splitlines()
    return lines, int(kilobytes) / 1024
