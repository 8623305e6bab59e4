"""Result: that text embedded by one encoder, ready to predict."""

from promptboost.head.linear import LinearHead
from promptboost.head.voting import VotingHead

__all__ = ["LinearHead", "VotingHead"]
