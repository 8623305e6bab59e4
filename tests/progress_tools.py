"""A progress callback that checks how it is called."""


class Recorder:
    """Count the complete stages; fail if a count decreases, or a total changes within a stage."""

    def __init__(self):
        self.complete, self.calls, self._open = [], [], {}

    def __call__(self, stage, done, total):
        self.calls.append((stage, done, total))
        before, expected = self._open.get(stage, (0, total))
        assert before <= done
        if total is not None:
            assert done <= total
            assert expected in (total, None)
        self._open[stage] = done, total
        if done == total:
            self.complete.append(stage)
            del self._open[stage]

    def check(self, *stages):
        """Assert that these stages, and no others, were reported, each to its end."""
        assert not self._open
        assert set(self.complete) == set(stages)
