from gpubench.callable_package import make_callable

make_callable(__name__, "gpubench.probe.probe")
