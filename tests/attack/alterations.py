"""Ways to alter a file at random: its bytes, a place in its tree, a line of TOML, a head's arrays."""

import json
import random
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

# Written for a value, and replaced in the text: what no program that writes JSON would write.
_DIGITS, _DEEP = '"@digits@"', '"@deep@"'
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3.5, -0.0, 1e-320, 1e-99, 1e99, 1e308, -1.7e308, 2**31),
    *(2**53, 2**63, 2**80, -(2**63), -(2**80), 10**400, float("nan"), float("inf"), float("-inf")),
    *("", " ", "x", "x" * 5000, "9" * 5000, "fake:" + "9" * 5000 + "-0", "fake:8-" + "9" * 5000),
    *(
        "\x1b[31m",
        "\ud800",
        "\u202e",
        "a\nb",
        "\0",
        "all",
        "samme",
        "samme.r",
        "test",
        "1",
        "ember",
    ),
    *("fake:16-1", "conse:none", "os:system?command=touch ATTACKED", "../../x", "{}", "sea"),
    *(
        [],
        {},
        [[]],
        [None],
        {"": None},
        {"x": {}},
        [1, "x"],
        {"ember": 1},
        [{}],
        "@digits@",
        "@deep@",
    ),
)
_TOML = (
    *("", "nan", "inf", "-inf", "1e400", "1e308", "1e-320", "-1", "0", "1", "2.5", "true", '"all"'),
    *(
        "9" * 5000,
        str(2**63),
        str(2**80),
        "0x" + "f" * 99,
        '"x"',
        '""',
        '" "',
        "[]",
        "{}",
        "[1, 'x']",
    ),
    *('"\\u0000"', '"\\u001b[31m"', "1979-05-27T07:32:00Z", "07:32:00", '"fake:16-1"', '"greedy"'),
    *(
        "[" * 3000,
        "{a = " * 200,
        '"""',
        "'",
        '"' + "9" * 5000 + '"',
        '"os:system?command=touch ATTACKED"',
    ),
    *("{x = {y = 1}}", '"samme"', '"test"', "['/']", '"none"', '"../.."'),
)


def altered_bytes(data: bytes, draw: random.Random) -> tuple[str, bytes]:
    """Alter some bytes, wherever they are."""
    at, size = draw.randrange(len(data) + 1), draw.choice((1, 2, 8, 100))
    bits = bytearray(data)
    match draw.randrange(7):
        case 0:
            return f"cut off at {at}", data[:at]
        case 1 if data:
            for _ in range(size):
                bits[draw.randrange(len(bits))] ^= 1 << draw.randrange(8)
            return f"{size} bits flipped", bytes(bits)
        case 2:
            return f"{size} bytes lost at {at}", data[:at] + data[at + size :]
        case 3:
            return f"{size} bytes twice at {at}", data[: at + size] + data[at:]
        case 4:
            return f"{size} bytes more at {at}", data[:at] + draw.randbytes(size) + data[at:]
        case 5:
            return "the file twice", data + data
        case _:
            return "other bytes", draw.choice((b"", b"\xff\xfe", b"null", b"[]", b"{}", b"\0" * 99))


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """List where something is in a tree."""
    if path:
        yield path
    entries: Any = ()
    if isinstance(value, dict):
        entries = value.items()
    elif isinstance(value, list):
        entries = enumerate(value)
    for key, part in entries:
        yield from _places(part, (*path, key))


def _tree(value: Any, draw: random.Random) -> tuple[str, str]:
    """Alter one place, or a few, in a tree; return it as JSON of a kind."""
    said = []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        if not (places := list(_places(value))):
            break
        # There are few places at the top and many deep down: each depth is as likely.
        depth = draw.choice(sorted({len(place) for place in places}))
        path = draw.choice([place for place in places if len(place) == depth])
        *above, key = path
        holder = value
        for step in above:
            holder = holder[step]
        said.append(f"{'.'.join(map(str, path)):.80} {_altered(holder, key, draw)}")
    text = json.dumps(value, indent=draw.choice((None, 1)), ensure_ascii=draw.random() < 0.5)
    if draw.random() < 0.05 and '": ' in text:  # a key twice
        name = draw.choice(re.findall(r'"(?:[^"\\]|\\.)*": ', text))
        text = text.replace(name, f"{name}0, {name}", 1)
        said.append(f"{name} twice")
    text = text.replace(_DIGITS, "9" * 5000)
    depth = draw.choice((70, 500, 5000, 100_000))
    text = text.replace(_DEEP, "[" * depth + "]" * depth)
    return ", ".join(said), text


def _altered(holder: Any, key: Any, draw: random.Random) -> str:
    match draw.randrange(8):
        case 0:
            del holder[key]
            return "deleted"
        case 1 if isinstance(holder, dict):
            holder[draw.choice(("", "x", "class", "x" * 3000, "\ud800"))] = holder.pop(key)
            return "renamed"
        case 1 if isinstance(holder, list):
            holder.extend([holder[key]] * draw.choice((1, 50)))
            return "repeated"
        case 2:
            holder[key] = draw.choice(([holder[key]], {"x": holder[key]}, str(holder[key])))
            return "wrapped"
        case 3 if isinstance(holder, dict):
            holder[key] = holder[draw.choice(list(holder))]
            return "swapped"
        case 4 if isinstance(holder[key], int | float):
            factor = draw.choice((-1, 10, 1e30, 1e200, 10**30))
            with suppress(OverflowError):
                holder[key] = holder[key] * factor
            return "multiplied"
    new = draw.choice(_VALUES)
    holder[key] = json.loads(json.dumps(new))  # a value of its own
    return f"= {new!r:.40}"


def altered_json(data: bytes, draw: random.Random) -> tuple[str, bytes]:
    change, text = _tree(json.loads(data), draw)
    return change, text.encode("utf-8", draw.choice(("surrogatepass", "replace")))


def altered_json_lines(data: bytes, draw: random.Random) -> tuple[str, bytes]:
    lines = data.split(b"\n")
    at = draw.choice([i for i, line in enumerate(lines) if line.strip()])
    change, lines[at] = altered_json(lines[at], draw)
    return f"line {at}: {change}", b"\n".join(line.replace(b"\n", b" ") for line in lines)


def altered_toml(data: bytes, draw: random.Random) -> tuple[str, bytes]:
    lines = data.decode().split("\n")
    at = draw.randrange(len(lines))
    name = lines[at].partition(" = ")[0]
    match draw.randrange(6):
        case 0:
            change = f"line {at} deleted"
            lines.pop(at)
        case 1:
            change = f"line {at} twice"
            lines.insert(at, lines[at])
        case 2:
            lines[at] = draw.choice(
                ("fit = 1", "[fit]", "[[fit]]", "data = 'x'", "[data]", "x.y = 1")
            )
            change = f"line {at} {lines[at]}"
        case _:
            lines[at] = f"{name} = {draw.choice(_TOML)}"
            change = f"{lines[at]:.70}"
    return change, "\n".join(lines).encode()


def altered_head(data: bytes, draw: random.Random) -> tuple[str, bytes]:
    """Alter a head: what it says of itself, the kind and shape of its arrays, or its numbers."""
    import numpy as np

    (size,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + size]), bytearray(data[8 + size :])
    weights = np.frombuffer(data, "<f4", offset=8 + size + header["weights"]["data_offsets"][0])
    weights = weights[: int(np.prod(header["weights"]["shape"]))]
    match draw.randrange(6):
        case 0:
            change, header["__metadata__"]["promptboost"] = _tree(
                json.loads(header["__metadata__"]["promptboost"]), draw
            )
        case 1:
            change, text = _tree(header, draw)
            header = text
        case 2:
            kind = draw.choice(("BF16", "F16", "F64", "I64", "BOOL", "F8_E4M3", "U8", "F32"))
            width = {"BF16": 2, "F16": 2, "F64": 8, "I64": 8, "F32": 4}.get(kind, 1)
            *rest, last = header["weights"]["shape"]
            honest = [*rest, last * 4 // width]
            shapes = (
                honest,
                honest,
                [len(weights)],
                [4, -1],
                [0, 32],
                [4, 16],
                [1, 4, 32],
                [2**40] * 2,
            )
            header["weights"] |= {"dtype": kind, "shape": draw.choice(shapes)}
            change = f"weights {kind} {header['weights']['shape']}"
        case _:
            start = header["weights"]["data_offsets"][0]
            forged = {
                "reversed": weights[::-1],
                "negated": -weights,
                "zero": weights * 0,
                "NaN": weights * np.nan,
                "infinite": weights * np.inf,
                "huge": weights * 1e30,
                "random": np.random.default_rng(draw.randrange(99)).normal(size=len(weights)),
                "nearly": weights * 1.01,
            }
            change = draw.choice(list(forged))
            part = np.asarray(forged[change], "<f4").tobytes()
            body[start : start + len(part)] = part
    text = header if isinstance(header, str) else json.dumps(header)
    encoded = text.encode("utf-8", "surrogatepass")
    return f"head {change}", struct.pack("<Q", len(encoded)) + encoded + bytes(body)
