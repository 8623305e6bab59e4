import json
import subprocess
import sys
import time

import pytest

import promptboost
from promptboost.cli import _COMMANDS, output
from tests.cli.cli_tools import call


def test_nothing_heavy_is_imported_for_help():
    script = (
        "import sys; from promptboost.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'numpy', 'torch', 'sklearn', 'PIL', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_is_quick():
    # 0.1 s where the machine is idle; the best of some, as tests run beside each other.
    def once():
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "promptboost", "--help"], capture_output=True)
        return time.perf_counter() - start

    assert min(once() for _ in range(5)) < 1.0


def test_help_names_every_command_and_the_exit_codes(capsys):
    answer = call(capsys, "--help")
    assert answer.code == 0
    assert all(name in answer.out for name in _COMMANDS)
    assert "130  interrupted" in answer.out


@pytest.mark.parametrize("name", _COMMANDS)
def test_every_command_has_help_and_the_options_of_all(capsys, name):
    answer = call(capsys, name, "--help-all" if name == "fit" else "--help")
    assert answer.code == 0
    assert "--json" in answer.out
    assert "--quiet" in answer.out


def test_fit_lists_its_essential_options_and_all_on_request(capsys):
    short, full = call(capsys, "fit", "--help"), call(capsys, "fit", "--help-all")
    assert short.code == full.code == 0
    assert "--shots" in short.out
    assert "--help-all" in short.out
    assert short.out.count("\n  -") < 20
    assert not {"--spread", "--tolerance", "--quiet", "--debug"} & set(short.out.split())
    assert {"--spread", "--tolerance", "--shots", "--quiet"} <= set(full.out.split())


def test_importing_a_command_is_cheap():
    script = (
        "import sys\n"
        "from promptboost.cli import _COMMANDS, promptboost\n"
        "for name in _COMMANDS: assert promptboost.get_command(None, name).name == name\n"
        "print(sorted({'numpy', 'torch', 'sklearn', 'PIL', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_no_command_is_help(capsys):
    assert call(capsys).out == call(capsys, "--help").out


def test_version(capsys):
    assert call(capsys, "--version").out == f"promptboost {promptboost.__version__}\n"


def test_a_mistyped_command_gets_a_suggestion(capsys):
    answer = call(capsys, "evalute")
    assert answer.code == 2
    assert answer.err.startswith("error: there is no command 'evalute'; did you mean evaluate?")


def test_a_mistyped_option_is_one_line(capsys):
    answer = call(capsys, "fit", "x", "-o", "y", "--shot", "3")
    assert answer.code == 2
    assert answer.err.startswith("error: ")
    assert len(answer.err.splitlines()) == 1
    assert "--shots" in answer.err
    assert "promptboost fit --help" in answer.err


def test_errors_are_json_when_asked(capsys):
    answer = call(capsys, "show", "nowhere", "--json")
    assert answer.code == 2
    assert answer.out == ""
    said = json.loads(answer.err)
    assert said["exit_code"] == 2
    assert "promptboost fit DATA -o nowhere" in said["error"]
    usage = call(capsys, "show", "--json")
    assert "Missing argument" in json.loads(usage.err)["error"]


@pytest.mark.parametrize("how", ["--debug", "environment"])
def test_debug_shows_the_place(capsys, monkeypatch, how):
    from promptboost.cli import main
    from promptboost.errors import RunError

    if how == "environment":
        monkeypatch.setenv("PROMPTBOOST_DEBUG", "1")
    with pytest.raises(RunError):
        main(["show", "nowhere", *(["--debug"] if how == "--debug" else [])])


def fail_with(error):
    def work():
        raise error

    return work


def stopped_import():
    """Return what a compiled module raises if Ctrl-C comes while it is imported."""
    error = ImportError("initialization failed")
    error.__cause__ = KeyboardInterrupt()
    return error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (output.Interrupted("promptboost fit x"), 130, "to resume, type: promptboost fit x\n"),
        (OSError(28, "No space left on device", "run/x"), 2, "run/x: No space left on device\n"),
        (stopped_import(), 130, "error: interrupted\n"),
        (RuntimeError("odd"), 1, "RuntimeError: odd (a bug in promptboost"),
    ],
)
def test_exit_codes(capsys, error, code, said):
    assert output.guarded(fail_with(error), []) == code
    assert said in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_is_no_error(fitted):
    script = f"{sys.executable} -m promptboost show run --all | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], cwd=fitted, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "0"


def test_own_warnings_become_notes_and_others_are_left_out(capsys):
    from promptboost.encoders.base import TruncatedPromptWarning

    output._show_warning(TruncatedPromptWarning("too long\x1b"), TruncatedPromptWarning, "", 0)
    output._show_warning(DeprecationWarning("old"), DeprecationWarning, "", 0)
    assert capsys.readouterr().err == "note: too long�\n"
