"""Draw the figure of README.md from the report of a demo, light and dark.

promptboost demo
python docs/figures/front.py promptboost-demo/run
"""

import argparse
import shutil
from pathlib import Path

HERE = Path(__file__).parent
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
#: Accuracy on the left, the sentences of one class on the right.
LAYOUT = """(name) => {
  const column = (title, ...nodes) => {
    const made = document.createElement("div");
    const heading = document.createElement("h2");
    heading.textContent = title;
    heading.style.cssText = "margin: 0 0 18px; font-size: 21px";
    made.append(heading, ...nodes);
    return made;
  };
  const bank = [...document.querySelectorAll("#banks > details")].find(
    (details) => details.querySelector(".name").textContent === name
  );
  const sentences = bank.querySelector("table");
  const comparison = document.querySelector("#comparison table");
  comparison.querySelectorAll("td:nth-child(n + 4), th:nth-child(n + 4)").forEach((cell) => cell.remove());
  const front = document.createElement("div");
  front.id = "front";
  front.append(
    column("Emoji of 20 classes, 4 images per class", document.querySelector("#headline"), comparison),
    column(`Learned sentences: ${name}`, sentences)
  );
  document.body.replaceChildren(front);
  document.body.style.cssText = "max-width: none; margin: 0; padding: 0";
  front.style.cssText =
    "display: grid; grid-template-columns: 1fr 1.1fr; gap: 56px; " +
    "padding: 28px 40px 36px; width: 1240px; box-sizing: border-box";
  front.querySelectorAll("table").forEach((table) => (table.style.width = "100%"));
}"""


def main() -> None:
    """Draw both."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--class", dest="name", default="dog or cat")
    given = parser.parse_args()
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for manner in ("light", "dark"):
            page = browser.new_page(
                color_scheme=manner,
                viewport={"width": 1240, "height": 900},
                device_scale_factor=1.5,
            )
            page.goto((given.run / "report.html").resolve().as_uri())
            page.evaluate(LAYOUT, given.name)
            file = HERE / f"front-{manner}.png"
            page.locator("#front").screenshot(path=file)
            # Few colors are enough, and a third of the bytes.
            Image.open(file).convert("RGB").quantize(96).save(file, optimize=True)
        browser.close()


if __name__ == "__main__":
    main()
