"""The shape of the code base; its layers are checked by import-linter (see pyproject.toml)."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import promptboost

HOUSE = Path(promptboost.__file__).parent
# Names of roles: a file of each may stand in every room.
ROLES = {"__init__", "__main__", "base", "io", "registry"}


def files():
    return sorted(HOUSE.rglob("*.py"))


def imported_rooms(path):
    """Each room that a file imports anywhere in it, with the line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            parts = node.module.split(".")
            if parts[0] == "promptboost":
                names = [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]
                yield from ((name, node.lineno) for name in names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                if parts[0] == "promptboost" and len(parts) > 1:
                    yield parts[1], node.lineno


def test_the_algorithm_stands_on_arrays_alone():
    allowed = {"numpy", "numba", "scipy", "promptboost", *sys.stdlib_module_names}
    for path in (HOUSE / "boosting").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert {name.split(".")[0] for name in names} <= allowed, (path, node.lineno)
        rooms = {room for room, _ in imported_rooms(path)}
        assert rooms <= {"boosting", "errors", "lazy", "progress", "threads"}, path


def test_one_name_for_one_thing():
    stems, classes = defaultdict(list), defaultdict(list)
    for path in files():
        place = path.relative_to(HOUSE)
        # A command bears the name of what it calls, a reader that of its source.
        if place.stem not in ROLES and place.parts[0] != "cli" and "readers" not in place.parts:
            stems[place.stem].append(str(place))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(str(place))
    assert {name: places for name, places in stems.items() if len(places) > 1} == {}
    assert {name: places for name, places in classes.items() if len(places) > 1} == {}


def test_files_are_named_after_things():
    doing = [
        path.name
        for path in files()
        if path.stem.endswith("ing") and path.stem not in {"testing", "mapping", "ranking"}
    ]
    assert doing == []


def test_docstrings_open_as_the_fields_do():
    odd = []
    for path in files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                text = ast.get_docstring(node) or ""
                if re.match(r"(Give|Say|Refuse)\b", text):
                    odd.append(f"{path.relative_to(HOUSE)}:{node.lineno} {text.splitlines()[0]}")
    assert odd == []


def test_whoever_hands_out_shards_does_not_load_the_compiler():
    """It would be a third of the memory of a command that only sends names to workers."""
    code = (
        "import sys\n"
        "import promptboost.distributed.answer_shards, promptboost.distributed.embed\n"
        "import promptboost.distributed.cluster\n"
        "print(sorted({'numba', 'scipy', 'sklearn', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_is_instant_and_imports_nothing_heavy():
    code = (
        "import sys; from promptboost.cli import promptboost\n"
        "try: promptboost(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'PIL', 'torch', 'sklearn', 'numba', 'msgspec'} & set(sys.modules)\n"
        "print(sorted(heavy), file=sys.stderr)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stderr.strip() == "[]"
