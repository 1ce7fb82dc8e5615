"""What a model is, from its ``config.json`` alone: no weights, no torch (``meta_device`` counts what the tables do not know).

``describe(config, name)`` turns the parsed config into a ``ModelSpec``. Reading files is ``generator.sources``' work.
"""

from generator.model.anatomy import describe
from generator.model.spec import Attended, ModelSpec, NeedsMetaDevice

__all__ = ["Attended", "ModelSpec", "NeedsMetaDevice", "describe"]
