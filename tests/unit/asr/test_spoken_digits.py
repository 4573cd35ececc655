"""Figures and addresses in Spanish and French."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.asr.itn import inverse_normalizer

WORDS = "cero uno dos cinco punto arroba guion bajo juan com , . 7".split()


@pytest.mark.parametrize(
    ("language", "said", "written"),
    [
        ("es", "Mi tel\u00e9fono es seis uno dos, tres cuatro cinco.", "Mi tel\u00e9fono es 612345."),
        ("es", "Es el cero 3 cinco", "Es el 035"),
        ("es", "juan punto garc\u00eda arroba ejemplo punto com", "juan.garc\u00eda@ejemplo.com"),
        (
            "es",
            "Escribe a ana guion bajo luz arroba mail punto es, gracias",
            "Escribe a ana_luz@mail.es, gracias",
        ),
        ("es", "a arroba b punto c arroba d punto e", "a@b.c arroba d punto e"),
        ("fr", "z\u00e9ro six un deux", "0612"),
        ("fr", "C'est jean tiret paul arobase exemple point fr.", "C'est jean-paul@exemple.fr."),
    ],
)
def test_spelled_digits_are_written_as_figures(language, said, written):
    assert inverse_normalizer(language)(said) == written


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("es", "uno o dos"),
        ("es", "dos tres"),
        ("es", "uno. Hola. Dos, tres"),
        ("es", "arroba punto com"),
        ("es", "juan arroba ejemplo"),
        ("es", "La arroba cuesta un punto"),
        ("es", "e punto d punto c punto b punto a arroba x punto com"),
        ("es", "ana arroba juan@ejemplo.com"),
        ("fr", "un deux"),
        ("fr", "un point c'est tout"),
    ],
)
def test_all_else_stays_as_it_is(language, text):
    assert inverse_normalizer(language)(text) == text


@given(st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join))
def test_written_figures_are_left_alone(text):
    write = inverse_normalizer("es")
    assert write(write(text)) == write(text)
