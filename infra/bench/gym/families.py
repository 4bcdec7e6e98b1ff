"""Families of reasoning-gym tasks that a model of 135 million parameters may partly do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CANDIDATES: Mapping[str, Mapping[str, Any]] = {
    "basic_arithmetic": {
        "min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1,
        "operators": ["+", "-"], "allow_parentheses": False, "allow_negation": False,
    },
    "chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2},
    "products": {"min_digits": 1, "max_digits": 1},
    "gcd": {"max_value": 20},
    "lcm": {"max_value": 10},
    "simple_equations": {
        "min_terms": 2, "max_terms": 2, "max_value": 10, "operators": ["+", "-"],
        "operators_weights": [0.5, 0.5],
    },
    "fraction_simplification": {"max_value": 10, "max_factor": 5},
    "letter_counting": {"min_words": 3, "max_words": 5},
    "spell_backward": {"min_word_len": 3, "max_word_len": 3},
    "number_sorting": {
        "min_numbers": 3, "max_numbers": 3, "min_value": 0, "max_value": 20, "max_decimals": 0,
    },
    "word_sorting": {"min_words": 3, "max_words": 3},
    "number_format": {"max_num_candidates": 2, "max_n": 10_000},
    "leg_counting": {"min_animals": 1, "max_animals": 1, "max_instances": 5},
    "number_sequence": {"max_complexity": 1, "min_value": 0, "max_value": 20},
    "count_primes": {"max_n": 10},
    "prime_factorization": {"min_value": 2, "max_value": 20},
}  # fmt: skip
"""Each at about its easiest, by the name and the parameters that the package gives it."""

FAMILIES: tuple[str, ...] = tuple(CANDIDATES)
"""Those that the benchmark asks."""

LEAST, MOST = 0.05, 0.95
"""A family is partly done where this share of greedy answers, or of the majority's, is right."""
