"""The placement of work by options."""

from tests.cli.cli_tools import call


def test_workers_that_are_typed_still_need_ray(fitted, capsys):
    answer = call(capsys, "embed", fitted / "images", "--encoder", "fake:32-0", "--workers", 2)
    assert (answer.code, "are for --on ray" in answer.err) == (2, True)


def test_a_comparison_in_parts(fitted, capsys):
    compare = ["compare", fitted / "images", "-o", fitted / "cells", "--methods", "zero-shot"]
    compare += ["--encoder", "fake:32-0", "--shots", 1, "--seeds", 1]
    assert call(capsys, *compare, "--shard", "0/1").code == 0
    assert call(capsys, *compare, "--merge").code == 0
    assert (fitted / "cells" / "results.csv").is_file()
