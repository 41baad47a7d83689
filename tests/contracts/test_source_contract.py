"""The contract of every price source.

A class for each source inherits it, and one test finds sources without a class.
"""

from __future__ import annotations

import os
import shutil
from datetime import datetime
from pathlib import Path
from typing import ClassVar

import pytest

from gpubench.models import Pricing
from gpubench.offers.quotes import KINDS, read_quotes
from gpubench.offers.sources import Quote, Source, SourceError, all_sources, kind_of
from gpubench.offers.table import offer_key

ANSWERS = Path(__file__).parent.parent / "offers" / "answers"
NOW = "2026-11-20T12:00:00Z"

pytest.importorskip("boto3")


class SourceContract:
    """Subclass this, and name the source and its recorded answers, in order."""

    name: str
    answers: ClassVar[tuple[str, ...]] = ()
    variables: ClassVar[dict[str, str]] = {}
    of_several_clouds: ClassVar[bool] = False

    @property
    def source(self) -> Source:
        return next(source for source in all_sources(pytest.fail) if source.name == self.name)

    @pytest.fixture(autouse=True)
    def _variables(self, monkeypatch, tmp_path):
        shutil.copy2(ANSWERS / "gcp.csv", tmp_path / "gcp.csv")
        os.utime(tmp_path / "gcp.csv", times=(0, datetime.fromisoformat(NOW).timestamp()))  # dates its prices
        for name, value in self.variables.items():
            monkeypatch.setenv(name, value.format(folder=tmp_path))

    def quotes(self) -> list[Quote]:
        waiting = [(ANSWERS / answer).read_bytes() for answer in self.answers]

        def transport(url, *, params=None, body=None, headers=None):
            assert url.startswith("https://")
            return waiting.pop(0) if len(waiting) > 1 else waiting[0]

        return self.only_quotes(self.source.fetch(transport))

    @staticmethod
    def only_quotes(said) -> list[Quote]:
        return [each for each in said if isinstance(each, Quote)]

    def test_source_and_provider_names_are_easy_to_type(self):
        for name in (self.source.name, self.source.provider):
            assert name == name.lower().strip()
            assert name.replace("-", "").isalnum()

    def test_quotes_name_provider_instance_and_source(self):
        quotes = self.quotes()
        assert quotes
        for quote in quotes:
            assert (quote.provider == self.source.provider) != self.of_several_clouds
            assert quote.instance
            assert quote.source
            assert quote.kind in KINDS
            assert quote.kind != "marketplace" or kind_of(quote.provider) == quote.kind, (
                "add this marketplace to those of gpubench/offers/sources/__init__.py"
            )
            assert (quote.term_years is not None) == (quote.pricing is Pricing.RESERVED)

    def test_most_quotes_become_offers_and_no_two_are_the_same(self):
        table = read_quotes(self.quotes(), NOW).table
        assert len(table.offers) > len(table.set_aside)
        assert len({offer_key(offer) for offer in table.offers}) == len(table.offers)

    def test_fetching_twice_gives_the_same(self):
        assert self.quotes() == self.quotes()

    def test_a_failing_transport_is_a_source_error_and_nothing_else(self):
        def broken(url, **_kwargs):
            raise SourceError("host is not reachable")

        if self.answers and not self.answers[0].endswith(".csv"):
            with pytest.raises(SourceError, match="not reachable"):
                list(self.source.fetch(broken))


class TestAzure(SourceContract):
    name = "azure"
    answers = ("azure_1.json", "azure_2.json", "azure_reserved.json")


class TestVast(SourceContract):
    name = "vast"
    answers = ("vast.json",)

    def quotes(self):
        from gpubench.offers.sources.vast import fetch_model

        body = (ANSWERS / "vast.json").read_bytes()
        return self.only_quotes(fetch_model("RTX 4090", lambda url, **_kwargs: body))


class TestRunpod(SourceContract):
    name = "runpod"
    answers = ("runpod.json",)


class TestLambda(SourceContract):
    name = "lambda"
    answers = ("lambda.json",)
    variables: ClassVar[dict[str, str]] = {"LAMBDA_API_KEY": "k"}


class TestGpuhunt(SourceContract):
    name = "gpuhunt-gcp"
    answers = ("gcp.csv",)
    variables: ClassVar[dict[str, str]] = {"GPUHUNT_CATALOG_DIR": "{folder}"}


class TestGpuRentalPrices(SourceContract):
    name = "gpurentalprices"
    answers = ("gpurentalprices.json",)
    of_several_clouds = True


SIGNS_BY_ITSELF = {"aws"}
"""Sources whose requests boto3 sends; tests/offers/test_price_sources.py checks them with botocore's stubber."""


def test_every_source_keeps_the_contract():
    covered = {contract.name for contract in SourceContract.__subclasses__()} | SIGNS_BY_ITSELF
    shipped = {source.name for source in all_sources(pytest.fail)}
    collected = {name for name in shipped if name.startswith("gpuhunt-")}
    assert shipped - collected <= covered
    assert collected & covered


def test_no_two_sources_share_a_name_and_collected_catalogs_come_first():
    names = [source.name for source in all_sources(pytest.fail)]
    assert len(set(names)) == len(names)
    collected = [name.startswith("gpuhunt-") for name in names]
    assert collected == sorted(collected, reverse=True)
