import pytest

from promptboost import __version__
from promptboost.compare import method_code
from promptboost.compare.method_code import bare_code, code_of
from promptboost.methods import make_method
from promptboost.methods.linear_probes import Logistic


@pytest.mark.parametrize(
    ("file", "methods"),
    [
        ("methods/proapo/template_search.py", {"proapo"}),
        ("methods/learned_tokens.py", {"coop", "pez", "promptsrc"}),
        ("methods/eft.py", {"coop", "promptsrc"}),
        ("training/learner.py", {"tpb"}),
        ("boosting/greedy/insertion.py", {"tpb"}),
        ("boosting/residual.py", {"tpb"}),
        ("boosting/penalized_loss.py", {"tpb"}),
        ("model/notebook.py", set()),
        ("methods/base.py", set()),  # shared by all: it is the version's
    ],
)
def test_the_code_of_a_method_is_all_that_it_imports(file, methods, monkeypatch):
    names = ("zero-shot", "coop", "promptsrc", "pez", "proapo", "tpb")
    kinds = {name: type(make_method(name)) for name in names}
    before = {name: code_of(kind) for name, kind in kinds.items()}
    own = method_code._file_code

    def edited(path):
        code, imported = own(path)
        return code + "\nMORE = 1" * path.match(file), imported

    monkeypatch.setattr(method_code, "_file_code", edited)
    after = {name: code_of.__wrapped__(kind) for name, kind in kinds.items()}
    assert {name for name in names if after[name] != before[name]} == methods


def test_words_about_the_code_are_no_change_of_it():
    code = '"""A file."""\n\nNAME = "# kept"\n\n\ndef twice(x):\n    """Return 2 x."""\n    return 2 * x\n'
    other = (
        '"""A file, in\ntwo lines."""\nNAME = "# kept"\n# Why.\ndef twice(x):\n    return 2 * x\n'
    )
    assert bare_code(code) == bare_code(other) == 'NAME = "# kept"\ndef twice(x):\n    return 2 * x'
    assert bare_code(code.replace("2 * x", "3 * x")) != bare_code(code)
    assert bare_code(code.replace("# kept", "# other")) != bare_code(code)


def test_a_method_without_a_file_goes_by_the_version():
    typed = type("Typed", (Logistic,), {"__module__": "typed into a session"})
    assert code_of(typed).startswith(f"{__version__}+")
