"""Fit your own folder, FOLDER/<class>/<image>, save the result, and load it.

python examples/own_folder.py FOLDER RUN
"""

import sys
from pathlib import Path

from sklearn.metrics import classification_report
from sklearn.model_selection import train_test_split

import promptboost

folder, run = Path(sys.argv[1]), Path(sys.argv[2])
paths = sorted(path for path in folder.glob("*/*") if path.is_file())
labels = [path.parent.name for path in paths]
learn, held_out, y, truth = train_test_split(
    paths, labels, train_size=0.5, stratify=labels, random_state=0
)

# "auto" is a CLIP model if its weights are available, else an encoder without a hub.
classifier = promptboost.PromptBoostClassifier("auto", random_state=0).fit(learn, y)
print(classification_report(truth, classifier.predict(held_out), zero_division=0))
classifier.save(run)

later = promptboost.load(run)
print(later)
for name, probability in later.top_k(held_out[0], k=2)[0]:
    print(f"{held_out[0].name}: {name} {probability:.0%}")
