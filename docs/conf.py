"""The site: `make docs` builds it into docs/_build/html, and a warning is an error."""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "extensions"), str(HERE.parent / "src")]

project = "promptboost"
author = "The promptboost authors"
copyright = "2026, The promptboost authors"
package = (HERE.parent / "src/promptboost/__init__.py").read_text(encoding="utf-8")
version = release = re.findall(r'__version__ = "(.+)"', package)[0]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "facts",
]
exclude_patterns = ["_build", "extensions", "figures/data"]
source_suffix = {".md": "markdown"}

# Markdown: sections can be linked as on GitHub, and a link to a section that is not there is a warning.
myst_enable_extensions = ["attrs_block", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
# "ref.python": words of a type that are also names of several attributes, such as n_classes.
suppress_warnings = ["myst.header", "ref.python"]

# The reference: what is public, in the order in which it is exported.
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_preprocess_types = False

toc_object_entries_show_parents = "hide"

# A name of ours that is nowhere is a warning; those of others are not known here, as nothing is fetched.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!promptboost\.).*"), ("py:mod", r"promptboost\..*")]

html_theme = "pydata_sphinx_theme"
html_title = "promptboost"
html_static_path = ["style"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_theme_options = {
    "show_nav_level": 2,
    "navigation_depth": 3,
    "show_toc_level": 2,
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_context = {"default_mode": "auto"}
html_sidebars = {"index": []}
copybutton_prompt_text = "$ "
