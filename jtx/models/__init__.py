"""Model families, one a file. A config's `model.name` is a key of `MODELS`."""

from jtx.models.coatnet import CoAtNet
from jtx.models.decoder import Decoder
from jtx.models.detr import Detr
from jtx.models.electra import Electra
from jtx.models.elmo import Elmo
from jtx.models.encdec import EncDec
from jtx.models.encoder import Encoder
from jtx.models.packed_vit import PackedVit
from jtx.models.rnn import Rnn
from jtx.models.rnn_encdec import RnnEncDec
from jtx.models.two_towers import TwoTowers
from jtx.models.vit import Vit
from jtx.models.xlnet import Xlnet

MODELS = {
    "coatnet": CoAtNet,
    "decoder": Decoder,
    "detr": Detr,
    "electra": Electra,
    "elmo": Elmo,
    "encdec": EncDec,
    "encoder": Encoder,
    "packed_vit": PackedVit,
    "rnn": Rnn,
    "rnn_encdec": RnnEncDec,
    "two_towers": TwoTowers,
    "vit": Vit,
    "xlnet": Xlnet,
}
