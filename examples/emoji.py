"""Fit four emoji per class, and read the sentences.

    python examples/emoji.py

Needs no model hub: pip install 'promptboost[offline]'.
"""

from promptboost import PromptBoostClassifier
from promptboost.data import Dataset, few_shot, load_data

CLASSES = ["fruit", "musical instrument", "shoe", "sports ball"]

emoji = load_data("emoji", check=False)
emoji = Dataset.of([image for image in emoji.images if image.label in CLASSES])
learn, held_out = few_shot(emoji, shots=4, seed=1)

X = [image.open() for image in learn.images]
y = [image.label for image in learn.images]
classifier = PromptBoostClassifier("conse:lite0", random_state=1).fit(X, y)

new = held_out.images[::4]  # a quarter, to save time
images, labels = [image.open() for image in new], [image.label for image in new]
print(f"{classifier.score(images, labels):.0%} of {len(new)} unseen emoji are right")

for name in CLASSES:
    heaviest = list(classifier.ensemble_.prompts(name).items())[:2]
    print(f"{name}: " + "; ".join(f"{part:.0%} {text!r}" for text, part in heaviest))

print(classifier.classifier_.explain(images[0])[0])
