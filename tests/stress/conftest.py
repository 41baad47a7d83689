"""The small stored run from the tests of the store."""

from record.conftest import make_run  # noqa: F401 - a fixture
