from tests.run.conftest import fitted, task  # noqa: F401
