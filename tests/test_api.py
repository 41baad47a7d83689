"""The public Python API: what the package says it exports can be called, however it was imported before."""

from __future__ import annotations

import subprocess
import sys

import gpubench
from gpubench.errors import MisuseError


def test_every_public_name_is_callable_twice_and_after_its_room_was_imported() -> None:
    import gpubench.predict.estimate
    import gpubench.probe.select
    import gpubench.report.page

    for name in set(gpubench.__all__) - {"__version__"}:
        assert callable(getattr(gpubench, name)), name
        assert callable(getattr(gpubench, name)), name


def test_probe_may_be_called_again() -> None:
    assert gpubench.probe().devices
    assert gpubench.probe().devices[-1].backend == "cpu"


def test_a_room_that_is_a_function_passes_its_options() -> None:
    assert "no_such_option" in str(_error(lambda: gpubench.report(no_such_option=1)))
    assert "no_such_option" in str(_error(lambda: gpubench.predict(no_such_option=1)))


def test_importing_gpubench_stays_light() -> None:
    code = "import sys, gpubench, gpubench.probe, gpubench.report, gpubench.predict; print(len([m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy', 'pandas', 'plotly', 'msgspec')]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


def _error(call) -> Exception:
    try:
        call()
    except (TypeError, MisuseError) as error:
        return error
    raise AssertionError("took an option that does not exist")
