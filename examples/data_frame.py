"""Fit a data frame, and records with integer labels as in Hugging Face data sets.

python examples/data_frame.py FOLDER      (FOLDER/<class>/<image>)
"""

import sys
from pathlib import Path

import pandas as pd
from PIL import Image

from promptboost import PromptBoostClassifier
from promptboost.data import load_data

paths = sorted(path for path in Path(sys.argv[1]).glob("*/*") if path.is_file())

# A data frame with the columns path and label, and optionally split, as in a CSV file.
frame = pd.DataFrame({"path": paths, "label": [path.parent.name for path in paths]})
data = load_data(frame)
print(f"{len(data)} images of {', '.join(data.class_names)}")

by_name = PromptBoostClassifier("auto", random_state=0).fit(frame["path"], frame["label"])
print("by name   ", by_name.predict(frame["path"][:2]))

# Records of images and integers: class_names has the names of the integers.
names = sorted(set(frame["label"]))
records = [{"image": Image.open(path), "label": names.index(path.parent.name)} for path in paths]
by_number = PromptBoostClassifier("auto", class_names=names, random_state=0).fit(
    [record["image"] for record in records], [record["label"] for record in records]
)
print("by number ", by_number.predict([records[0]["image"], records[-1]["image"]]))
print("in prompts", by_number.ensemble_.class_names)
