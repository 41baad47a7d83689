"""The small stored run of the store's own tests."""

from record.conftest import make_run  # noqa: F401 - a fixture
