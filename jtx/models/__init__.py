"""Model families, one a file. A config's `model.name` is a key of `MODELS`."""

from jtx.models.encdec import EncDec
from jtx.models.encoder import Encoder

MODELS = {
    "encdec": EncDec,
    "encoder": Encoder,
}
