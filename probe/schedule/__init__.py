"""Rounding schedules: the one language in which the house talks about the order of a sum (DESIGN section 3)."""

from probe.schedule.exactform import exact_form
from probe.schedule.jsonform import term_from_json, term_to_json
from probe.schedule.terms import (
    ZERO,
    Add,
    Call,
    Cast,
    Fma,
    Fold,
    Mma,
    Mul,
    Row,
    Run,
    Term,
    Zero,
    add,
    cast,
    contiguous_runs,
    dtype_of,
    first_k,
    fma,
    fold,
    mma,
    run_of,
    shift,
)
from probe.schedule.text import render_text
from probe.schedule.tree import inside, joined, leaf_count, prefix_terms, single_run, span, steps
from probe.schedule.zeros import ChainStart, Products, bits_key, plain_of, rewrite

__all__ = [
    "ZERO", "Add", "Call", "Cast", "ChainStart", "Fma", "Fold", "Mma", "Mul", "Products", "Row", "Run", "Term", "Zero",
    "add", "bits_key", "cast", "contiguous_runs", "dtype_of", "exact_form", "first_k", "fma", "fold", "inside",
    "joined", "leaf_count", "mma", "plain_of", "prefix_terms", "render_text", "rewrite", "run_of", "shift",
    "single_run", "span", "steps", "term_from_json", "term_to_json",
]
