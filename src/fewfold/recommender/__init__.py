"""The recommender: from logs of users and items to recommendations, and their evaluation.

`__init__.pyi` is the table of public names. A name is imported when it is first used, so that the
command line reads the options of the models without loading torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
