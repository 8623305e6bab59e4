"""A page taken apart by the standard library's parser."""

from html.parser import HTMLParser

VOID = {"meta", "link", "img", "br"}


class Page(HTMLParser):
    """Tags, ids and text of a page; fails on an element that is not closed in its place."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags = []
        self.words = []
        self.section_words = {}
        self._open = []
        self._section = None
        self.feed(text)
        self.close()
        assert not self._open, f"left open: {self._open}"

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "section":
            self._section = dict(attrs)["id"]

    def handle_endtag(self, tag):
        assert self._open, f"</{tag}> closes nothing"
        assert self._open[-1] == tag, f"</{tag}> inside <{self._open[-1]}>"
        self._open.pop()

    def handle_data(self, data):
        if "style" in self._open:
            return
        self.words.append(data)
        self.section_words.setdefault(self._section, []).append(data)

    @property
    def ids(self):
        return [attributes["id"] for _, attributes in self.tags if "id" in attributes]

    def named(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    def text(self, section=None):
        found = self.words if section is None else self.section_words[section]
        # Narrow spaces keep numbers together on the page; tests are easier to read without.
        return " ".join(" ".join(found).replace("\u202f", " ").split())
