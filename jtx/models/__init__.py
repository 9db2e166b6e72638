"""Model families, one a file. A config's `model.name` is a key of `MODELS`."""

from jtx.models.coatnet import CoAtNet
from jtx.models.decoder import Decoder
from jtx.models.electra import Electra
from jtx.models.encdec import EncDec
from jtx.models.encoder import Encoder
from jtx.models.two_towers import TwoTowers
from jtx.models.vit import Vit
from jtx.models.xlnet import Xlnet

MODELS = {
    "coatnet": CoAtNet,
    "decoder": Decoder,
    "electra": Electra,
    "encdec": EncDec,
    "encoder": Encoder,
    "two_towers": TwoTowers,
    "vit": Vit,
    "xlnet": Xlnet,
}
