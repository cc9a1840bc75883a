"""Estimators with the interface of scikit-learn: anchor embeddings of categories, a recommender.

`__init__.pyi` is the table of public names; scikit-learn is imported when one is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
