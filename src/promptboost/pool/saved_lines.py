"""The JSON Lines of a saved pool: one line about the pool, then a line for each prompt."""

import json
from typing import IO, Any

from promptboost.errors import FileFormatError, PoolError
from promptboost.pool.build import check_class_names
from promptboost.pool.loading import load_json, unique
from promptboost.pool.packing import Packer
from promptboost.pool.pool import PromptPool
from promptboost.pool.products import Prompt
from promptboost.pool.templates import check_templates
from promptboost.pool.text import control_character

__all__ = ["FIELDS", "SCHEMA", "PoolReader"]

#: The version of the lines; a change that older versions cannot read makes it larger.
SCHEMA = 1
#: What a line says of a prompt beside its class and text; the first is always there.
FIELDS = ("source", "template", "sentence", "origin")

# Made once: json.loads with options makes it anew for each line.
_decode = json.JSONDecoder(object_pairs_hook=unique).decode


class PoolReader:
    """Reads the JSON Lines of one file, and knows where it is.

    Parameters
    ----------
    file : str
        Its name, for messages.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._number = 1

    def first_line(
        self, lines: IO[bytes]
    ) -> tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]:
        """Read what is said about the pool: all of it, the class names and the templates."""
        header = self._header(self._parse(lines.readline()))
        names = self._checked(check_class_names, header["class_names"])
        return header, names, self._checked(check_templates, header["templates"])

    def read(self, lines: IO[bytes]) -> PromptPool:
        """Read everything."""
        header, names, templates = self.first_line(lines)
        packers = {name: Packer(name) for name in names}
        found = 0
        for self._number, line in enumerate(lines, start=2):
            if line.strip():
                name, prompt = self._prompt(self._parse(line), packers)
                packers[name].add(prompt)
                found += 1
        if found != header["prompts"]:
            raise FileFormatError(
                f"{self._file} ends after {found} prompts, and its first line says "
                f"{header['prompts']}: copy or save it again, or, if you edited it, write "
                f'"prompts": {found} in its first line'
            )
        prompts = tuple(packer.packed() for packer in packers.values())
        for name, own in zip(names, prompts, strict=True):
            if not own:
                raise FileFormatError(
                    f"{self._file} has no prompts for the class {name!r}: add one"
                )
        return PromptPool(
            names, templates, prompts, tuple(header["missing"]), tuple(header["unused"])
        )

    def _header(self, line: Any) -> dict[str, Any]:
        header: dict[str, Any] = line if isinstance(line, dict) else {}
        schema = header.get("promptboost_pool")
        if type(schema) is not int or schema < 1:
            raise self._bad(
                'is not that of a saved pool, {"promptboost_pool": 1, …}; sentences of your own '
                "become a pool with promptboost pool build, or with "
                "build_pool(class_names, descriptions=read_descriptions(path))"
            )
        if schema > SCHEMA:
            raise self._bad(
                f"says version {schema}, and this promptboost reads up to {SCHEMA}: "
                "pip install --upgrade promptboost"
            )
        for key in ("class_names", "templates", "missing", "unused"):
            value = header.get(key)
            if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                raise self._bad(f'needs "{key}": a list of texts')
        if type(header.get("prompts")) is not int:
            raise self._bad('needs "prompts": the number of lines that follow')
        return header

    def _prompt(self, line: Any, packers: dict[str, Packer]) -> tuple[str, Prompt]:
        if not isinstance(line, dict):
            raise self._bad('should be {"class": "…", "text": "…", "source": "…"}')
        if unknown := line.keys() - {"class", "text", *FIELDS}:
            raise self._bad(f"has the unknown field {sorted(unknown)[0]!r}; remove it")
        for field in dict.fromkeys(("class", "text", "source", *line)):
            value = line.get(field)
            if not isinstance(value, str) or not value.strip():
                raise self._bad(f'needs "{field}": a text that is not empty')
            if control := control_character(value):
                raise self._bad(f'has the control character {control} in "{field}"; remove it')
        if line["class"] not in packers:
            raise self._bad(f"is about {line['class']!r}, no class of the first line; add it there")
        values = {field: line.get(field) for field in FIELDS[1:]}
        return line["class"], Prompt(line["text"], line["source"], **values)

    def _parse(self, line: bytes) -> Any:
        try:
            text = line.decode("utf-8-sig" if self._number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise self._bad(f"is not UTF-8 (byte {error.start}); save the file as UTF-8") from error
        try:
            return _decode(text)
        except (ValueError, RecursionError):  # said again, with the place
            return load_json(text, f"{self._file}, line {self._number},")

    def _checked(self, check: Any, values: list[str]) -> tuple[str, ...]:
        try:
            result: tuple[str, ...] = check(values)
        except PoolError as error:
            raise self._bad(f"cannot be used: {error}") from error
        return result

    def _bad(self, problem: str) -> FileFormatError:
        return FileFormatError(f"{self._file}, line {self._number}, {problem}")
