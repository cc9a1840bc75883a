"""Row-wise optimisers: SGD, Adagrad, Adam and Yogi that update only rows with a gradient."""

from fewfold.optim.adagrad import Adagrad
from fewfold.optim.adam import Adam, Yogi
from fewfold.optim.l1_penalty import Penalty
from fewfold.optim.sgd import SGD

__all__ = ["SGD", "Adagrad", "Adam", "Penalty", "Yogi"]
