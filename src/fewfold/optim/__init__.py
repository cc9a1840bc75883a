"""Optimisers that touch only the rows that were used: one visit per row, and no row twice."""

from fewfold.optim.adagrad import Adagrad
from fewfold.optim.adam import Adam, Yogi
from fewfold.optim.l1_penalty import Penalty
from fewfold.optim.sgd import SGD

__all__ = ["SGD", "Adagrad", "Adam", "Penalty", "Yogi"]
