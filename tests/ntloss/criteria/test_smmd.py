"""SMMD: the smoothed maximum mean discrepancy."""

from __future__ import annotations

from ntloss import SMMD, NumberTokenLoss, NumberVocabulary


def test_smmd_without_squashing_accepts_equally_spaced_values() -> None:
    NumberTokenLoss(NumberVocabulary.from_mapping({0: 0, 1: 5}, vocab_size=3), SMMD(squash_factor=None))
