"""What ``gpubench.predict`` returns: a dict of answers that shows itself briefly."""

from __future__ import annotations

from gpubench.models import Estimate
from gpubench.models.record import headed, html_table, shown
from gpubench.predict.question import Refusal
from gpubench.units import count

_IN_REPR = 6
_IN_TABLE = 20


class Predictions(dict[str, Estimate | Refusal]):
    """By GPU key, an estimate, or a refusal with its reason."""

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        """The estimates, the fastest first."""
        found = (answer for answer in self.values() if isinstance(answer, Estimate))
        return tuple(sorted(found, key=lambda each: -each.samples_per_s))

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """The GPUs for which there is no figure, and why."""
        return tuple(answer for answer in self.values() if isinstance(answer, Refusal))

    def __repr__(self) -> str:
        """Return how many there are, and the fastest; the dict has them all."""
        lines = [
            f"  {shown(each.gpu_key, 60)}: {each.interval.rate(each.case.sample_unit)}, {each.basis}"
            for each in self.estimates[:_IN_REPR]
        ]
        return headed(f"<{self._head()}", lines, len(self.estimates))

    def _repr_html_(self) -> str:
        rows = [
            (each.gpu_key, each.interval.rate(each.case.sample_unit), each.basis, each.case.label)
            for each in self.estimates[:_IN_TABLE]
        ]
        return html_table(self._head(), ("GPU", "throughput", "basis", "case"), rows, len(self.estimates))

    def _head(self) -> str:
        refusals = count(len(self.refusals), "refusal")
        return f"Predictions: {count(len(self.estimates), 'estimate')}, {refusals}"
