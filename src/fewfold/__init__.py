"""Learn over very large discrete sets while touching only a few of their members at a time.

`__init__.pyi` is the table of public names. A name is imported when it is first used, so that
``import fewfold`` costs nothing and the command line answers before torch is loaded.
"""

import lazy_loader

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
