"""Fit on two encoders, predict with both, and transfer the text to one of them.

python examples/two_encoders.py FOLDER [ENCODER ENCODER]      (FOLDER/<class>/<image>)
"""

import sys
from pathlib import Path

from sklearn.model_selection import train_test_split

from promptboost import PromptBoostClassifier

paths = sorted(path for path in Path(sys.argv[1]).glob("*/*") if path.is_file())
first, second = sys.argv[2:] or ["conse:lite0", "conse:lite0-l3"]
labels = [path.parent.name for path in paths]
learn, held_out, y, truth = train_test_split(
    paths, labels, train_size=0.5, stratify=labels, random_state=0
)

alone = PromptBoostClassifier(first, random_state=0).fit(learn, y)
print(f"fitted on {first}: {alone.score(held_out, truth):.0%} right")
print(f"  its text on {second}: {alone.transfer(second).score(held_out, truth):.0%}")

both = PromptBoostClassifier([first, second], average=True, random_state=0).fit(learn, y)
print(f"fitted on both, predicted by both: {both.score(held_out, truth):.0%}")
print(f"  its text on {second}: {both.transfer(second).score(held_out, truth):.0%}")
