from generator.techniques.checkpointing.offloaded import Offloaded
from generator.techniques.checkpointing.tiled import Tiled


class TiledOffloaded(Offloaded, Tiled):
    """Tiles of the sequence within a layer, and the layers' inputs in host memory.

    What it does: both: what is left of a sequence on the device is one layer's attention, and the loss.
    When it loses: where one of the two is enough.
    Known problems: those of both.
    """

    name = "tiled-offloaded"
