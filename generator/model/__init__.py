"""What a model is, from its ``config.json`` alone: no weights, no torch.

``describe(config, name)`` turns the parsed config into a ``ModelSpec``. Reading files is ``generator.sources``' work;
``meta_device`` lets Transformers count the types that no table has.

To add an architecture, add one row to ``FAMILIES`` of the module of its kind and run ``python tests/model/defaults.py``,
which records its config class's defaults. The tests take it up from the table and count it against Transformers.

    spec.py                  ModelSpec, the result
    description.py           config → components → ModelSpec
    decoders.py              FAMILIES: decoders without experts
    moe.py                   FAMILIES: decoders with experts
    hybrids.py               FAMILIES: decoders with recurrent layers, alone or beside attention
    encoders.py              FAMILIES: encoders of text
    seq2seq.py               FAMILIES: encoder-decoders
    vision.py                FAMILIES: image models of one width
    hierarchical_vision.py   FAMILIES: image models in stages (Swin, ConvNeXT, ResNet)
    speech.py                FAMILIES: encoders of sound
    multimodal.py            FAMILIES: a text model, an encoder and a projector; NESTED: text models only inside others
    vision_encoders.py       ENCODERS: encoders that stand only inside multimodal models
    builders.py              what rows are written with: decoder(), layer kinds, embeddings, output layer
    blocks.py, recurrent.py  one layer: attention, feed-forward, experts; mixers with a state
    components.py            what is counted: Weights, Scores, State, Mixer
    families.py              finds a type's row
    settings.py              a config with its class's defaults (defaults.json)
    catalog.py, published/   sizes of known models by hub id, for planning without network
    guard.py                 refuses a config that a row does not understand

In tables a noun declares a block, as ``torch.nn`` does (``attention(bias="attention_bias")``), and a string is the
config's key that decides. ``c`` is always the ``Settings`` of the model at hand.
"""

from generator.model.components import Mixer
from generator.model.description import describe
from generator.model.spec import Attended, ModelSpec, NeedsMetaDevice

__all__ = ["Attended", "Mixer", "ModelSpec", "NeedsMetaDevice", "describe"]
