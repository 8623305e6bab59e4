"""Edit the sentences of a run, and serve the result over HTTP.

    python examples/edit_and_serve.py RUN IMAGE      (RUN as examples/own_folder.py leaves it)

Needs the extra serve: pip install 'promptboost[serve]'.
"""

import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import promptboost


def ready(address):
    try:
        return urllib.request.urlopen(f"{address}/readyz").status == 200
    except urllib.error.HTTPError:
        return False


run, image = sys.argv[1], Path(sys.argv[2])
classifier = promptboost.load(run)
name = classifier.class_names[0]

edited = classifier.ensemble.add(name, f"a drawing of a {name} on white paper", copies=2)
edited = edited.add_class("cloud", ["a white cloud in the sky", "a photo of a cloud."])
print("\n".join(edited.history))

with tempfile.TemporaryDirectory() as folder:
    # The text alone: the residual was fitted to the text before the edits.
    promptboost.PromptClassifier(edited, classifier.encoder).save(folder)
    command = [sys.executable, "-u", "-m", "promptboost", "serve", folder, "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        address = next(line for line in server.stdout if "http://" in line)
        address = address[address.index("http://") :].split()[0]
        while not ready(address):  # the encoder is loaded after the port is open
            time.sleep(0.2)
        request = urllib.request.Request(
            f"{address}/predict", image.read_bytes(), {"Content-Type": "image/png"}
        )
        with urllib.request.urlopen(request) as answer:
            print(json.dumps(json.load(answer), indent=1))
    finally:
        server.terminate()
        server.wait()
