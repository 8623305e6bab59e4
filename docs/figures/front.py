"""Draw the figure of README.md: parts of the report of a real run, in both manners.

    promptboost fit emoji -o run --shots 4
    python docs/figures/front.py run

Chromium shows the report; what is not needed at the front door is left out.
"""

import argparse
import shutil
from pathlib import Path

HERE = Path(__file__).parent
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
#: In the report: headline and comparison to the left, the bank of one class to the right.
LAYOUT = """(name) => {
  const part = (selector) => document.querySelector(selector);
  const column = (...parts) => {
    const made = document.createElement("div");
    made.append(...parts);
    return made;
  };
  const title = (text) => {
    const made = document.createElement("h2");
    made.textContent = text;
    return made;
  };
  const bank = [...document.querySelectorAll("#banks details")].find(
    (one) => one.querySelector(".name").textContent === name
  );
  const table = bank.querySelector("table");
  table.querySelectorAll("tbody tr:nth-child(n + 9)").forEach((row) => row.remove());
  part("#comparison").querySelectorAll("p").forEach((note) => note.remove());
  const hidden = "td:nth-child(n + 4), th:nth-child(n + 4)";
  part("#comparison").querySelectorAll(hidden).forEach((cell) => cell.remove());
  const left = column(
    title("20 classes of emoji, 4 images of each (conse:lite0)"),
    part("#headline"),
    part("#comparison table")
  );
  const right = column(title(`What it learned: “${name}”`), table);
  const both = column(left, right);
  both.id = "front";
  document.body.replaceChildren(both);
  document.body.style.cssText = "max-width: none; margin: 0; padding: 0";
  both.style.cssText =
    "display: grid; grid-template-columns: 1fr 1fr; gap: 56px; " +
    "padding: 28px 40px 36px; width: 1240px; box-sizing: border-box";
  for (const one of both.querySelectorAll("h2")) one.style.cssText = "margin: 0 0 18px; font-size: 21px";
  both.querySelectorAll("table").forEach((one) => (one.style.width = "100%"));
}"""


def main() -> None:
    """Draw it, once light and once dark."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--class", dest="name", default="bird")
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
