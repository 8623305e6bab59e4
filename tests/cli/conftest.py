from tests.runs.conftest import _own_store, fitted, task  # noqa: F401
