from tests.runs.conftest import fitted, task  # noqa: F401
