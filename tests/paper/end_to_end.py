"""All tables and figures of the paper, end to end, on small data sets and random checkpoints.

``python -m tests.paper.end_to_end`` (``make paper``): a local server has small archives in the real layout;
``data prepare`` downloads them, ``paper pools`` builds the pools from released files, ``paper run`` is
killed and resumed, and every entry must have all its numbers. Each command is a process of its own.
"""

import argparse
import functools
import io
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from promptboost.data.benchmarks import BENCHMARKS
from promptboost.paper.published import entries
from tests.data.benchmarks.benchmark_tools import PATHS, tiny
from tests.data.benchmarks.mirror_tools import AIRCRAFT, IMAGENET, write_mirror
from tests.encoders.openclip.prompted_models import DEEP, SUITABLE
from tests.llm.llm_server import Act, Server

_WHO = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
#: Names in the released files of CuPL.
_RELEASED = {
    "imagenet": "imagenet",
    "caltech101": "cal",
    "oxford_pets": "pets",
    "flowers102": "flower",
    "stanford_cars": "cars",
    "food101": "food",
    "fgvc_aircraft": "airplane",
    "sun397": "sun",
    "dtd": "texture",
    "eurosat": "EuroSAT",
    "ucf101": "ucf",
}
_DESCRIBED = {"cal": "caltech", "sun": "sun397"}  # and of DCLIP
_METHODS = (
    "zero-shot,dclip,cupl,coop?epochs=2&context_tokens=4,promptsrc?epochs=1,pez?steps=3&tokens=2&epochs=none,"
    "proapo?epochs=2&group_epochs=1,tpb?rounds=3,llmbo?model=m&iterations=1&base_url={}"
)


def class_names(name):
    if name == "imagenet":
        return list(IMAGENET.values())
    return list(AIRCRAFT) if name == "fgvc_aircraft" else list(PATHS[name])


def pixels(path, label):
    """A JPEG whose color depends on the class, and somewhat on the image."""
    from PIL import Image

    shade = sum(path.encode()) % 60
    color = (180 + shade, 40, shade) if label else (shade, 60, 180 + shade)
    content = io.BytesIO()
    Image.new("RGB", (40, 36), color).save(content, "JPEG")
    return content.getvalue()


def small_benchmarks():
    return {
        name: tiny(name, {"train": 6, "test": 4} if name == "imagenet" else None)
        for name in BENCHMARKS
    }


def child(arguments, folder):
    """Run a command with the sizes of the small benchmarks and the configuration of the checkpoints."""
    from promptboost.cli import main

    BENCHMARKS.update(small_benchmarks())
    if arguments[:2] == ["paper", "run"]:
        import open_clip

        open_clip.add_model_config(folder / f"{DEEP}.json")
    main(arguments)


class Setting:
    """The server, the checkpoints and the folders of a run."""

    def __init__(self, folder, datasets):
        self.folder, self.datasets = folder, datasets
        for name in datasets:
            write_mirror(folder / "mirror" / name, name, pixels)
        released = folder / "released"
        released.mkdir()
        for name, word in _RELEASED.items():
            sentences = {
                n: [f"{n} of color {i}.", f"A {n}."] for i, n in enumerate(class_names(name))
            }
            fragments = {n: ["a color", f"shade {i}"] for i, n in enumerate(class_names(name))}
            (released / f"{word}_prompts_full.json").write_text(json.dumps(sentences))
            (released / f"descriptors_{_DESCRIBED.get(word, word)}.json").write_text(
                json.dumps(fragments)
            )
        self._write_checkpoints()

    def _write_checkpoints(self):
        import open_clip
        import torch
        from safetensors.torch import save_file

        config = self.folder / f"{DEEP}.json"
        config.write_text(json.dumps(SUITABLE[DEEP]))
        open_clip.add_model_config(config)
        self.encoders = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            model = open_clip.create_model(DEEP)
            file = self.folder / f"random-{seed}.safetensors"
            save_file(model.state_dict(), file)
            self.encoders.append(f"{DEEP}@{file}")

    def start(self, *arguments):
        command = [sys.executable, "-m", "tests.paper.end_to_end", "--child", str(self.folder)]
        environment = {**os.environ, "PROMPTBOOST_CACHE": str(self.folder / "cache")}
        output = subprocess.PIPE
        return subprocess.Popen(
            [*command, "--", *map(str, arguments)],
            env=environment, stdout=output, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def call(self, *arguments):
        process = self.start(*arguments)
        said, _ = process.communicate()
        assert process.returncode == 0, f"{arguments}\n{said}"
        return said


def serve(folder):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def run(folder, plans, datasets, say=lambda _: None, call=None, shots="1,2"):
    """Prepare, build pools, run, kill, resume; return the records of the entries.

    With `call`, commands run in this process, and nothing is killed.
    """
    setting = Setting(folder, datasets)
    in_process = call is not None
    call = call or setting.call
    data, pools, out = folder / "data", folder / "pools", folder / "out"
    with (
        serve(folder / "mirror") as server,
        Server(lambda *_: Act("- a picture of a {}.")) as model,
    ):
        url = f"http://127.0.0.1:{server.server_port}"
        for name in datasets:
            call("data", "prepare", name, data, "--mirror", f"{url}/{name}")
            say(f"prepared {name}")
        server.shutdown()
        chosen = ",".join(datasets)
        said = call(
            "paper", "pools", folder / "released", "--data", data, "-o", pools, "--datasets", chosen
        )
        assert said.count("80 of them CLIP's as published") == len(datasets), said
        say("built the pools")
        source, target = setting.encoders
        asked = ["--data", data, "--pools", pools, "--datasets", chosen, "--shots", shots]
        asked += ["--seeds", "1", "--views", "4", "--encoder", source, "--transfer", target]
        asked += ["--methods", _METHODS.format(model.url), "-o", out, "--json"]
        killed = {} if in_process else _killed(setting, out, ["paper", "run", plans[0], *asked])
        say(f"killed after {len(killed)} cells")
        records = []
        for plan in plans:
            said = call("paper", "run", plan, *asked)
            records += json.loads(said[said.index('{"entries"') :])["entries"]
        for record in records:
            say(f"{record['name']}: {record['measured_now']} new cells")
    for record in records:
        assert record["missing"] == [], (record["name"], record["missing"])
        assert all(number["ours"] is not None for number in record["numbers"]), record["name"]
        assert (out / record["name"] / "table.md").is_file()
    # What was measured before the kill was not measured again.
    assert killed or in_process
    assert killed.items() <= _cells(out).items()
    return records


def _killed(setting, out, arguments):
    """Kill a run once some cells are there; return them."""
    process = setting.start(*arguments)
    while process.poll() is None and len(_cells(out)) < 5:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return _cells(out)


def _cells(out):
    """Return when each cell was measured, by its file."""
    return {path.name: path.stat().st_mtime_ns for path in (out / "cells").glob("*.json")}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--child")
    parser.add_argument("arguments", nargs="*")
    options = parser.parse_args()
    if options.child:
        child(options.arguments, Path(options.child))
        return
    start = time.perf_counter()

    def say(line):
        print(f"{time.perf_counter() - start:6.0f} s  {line}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        records = run(Path(folder), ["all"], list(BENCHMARKS), say)
    assert [record["name"] for record in records] == [entry.name for entry in entries()]
    used = sum(resource.getrusage(who)[i] for who in _WHO for i in (0, 1)) / 60
    passed = (time.perf_counter() - start) / 60
    print(f"all {len(records)} entries in {passed:.1f} minutes, {used:.1f} of the processor")


if __name__ == "__main__":
    main()
