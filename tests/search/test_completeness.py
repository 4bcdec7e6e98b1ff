"""A registered technique has unit tests, property tests, an end-to-end test and a page in the docs."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from search.registry import TECHNIQUES

ROOT = Path(__file__).parents[2]
HEADINGS = ["What it does", "Parameters", "Source", "Known limits", "When to use it"]
PROPERTIES = ("test_properties", "test_step_properties", "test_composite_properties")


@pytest.mark.parametrize("name", TECHNIQUES)
def test_a_technique_has_unit_tests(name: str) -> None:
    tests = (ROOT / "tests" / "search" / f"test_{name}.py").read_text()
    assert len(re.findall(r"^(?:async )?def test_", tests, re.MULTILINE)) >= 3


def test_every_technique_has_property_tests_and_an_end_to_end_test() -> None:
    tested = {
        name
        for module in PROPERTIES
        for name in importlib.import_module(f"tests.search.{module}").NAMES.values()
    }
    assert set(TECHNIQUES) <= tested
    e2e = importlib.import_module("tests.e2e.test_techniques")
    assert set(TECHNIQUES) <= set(e2e.REQUESTS)


@pytest.mark.parametrize("name", TECHNIQUES)
def test_a_technique_has_a_page_that_names_every_parameter(name: str) -> None:
    page = (ROOT / "infra" / "docs" / "techniques" / f"{name}.md").read_text()
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == HEADINGS
    table = page.split("## Parameters")[1].split("## Source")[0]
    for parameter in TECHNIQUES[name].params_type.__dataclass_fields__:
        assert f"| `{parameter}` |" in table, parameter


@pytest.mark.parametrize("name", TECHNIQUES)
def test_a_techniques_module_tells_its_algorithm_source_and_limits(name: str) -> None:
    module = importlib.import_module(TECHNIQUES[name].params_type.__module__)
    assert module.__doc__ is not None
    for word in ("Algorithm:", "Known limits:"):
        assert word in module.__doc__, word
    assert re.search(r"^(?:Papers?|Sources?):", module.__doc__, re.MULTILINE) or name == "single"
