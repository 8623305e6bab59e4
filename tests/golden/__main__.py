"""Write golden.json anew: ``python -m tests.golden [CASE ...]``. Only for an intended change of results."""

import json
import os
import re
import sys
import tempfile
from pathlib import Path

from tests.golden.golden_cases import CASES, GOLDEN_FILE, Task


def write(names: list[str]) -> None:
    """Run cases, all by default, and replace their results in the file."""
    golden = json.loads(GOLDEN_FILE.read_text(encoding="utf-8")) if names else {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PROMPTBOOST_CACHE"] = str(Path(folder) / "cache")
        for name in names or CASES:
            golden[name] = CASES[name](Task.write(Path(folder) / name))
    text = json.dumps(golden, indent=1, ensure_ascii=False)
    # A list of numbers on one line.
    text = re.sub(r"\[\s+([^\[\]{}\"]*?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text)
    GOLDEN_FILE.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(sys.argv[1:])
