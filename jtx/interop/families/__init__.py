"""The model families of Hugging Face, one a file, and the table of them."""

from jtx.interop.families import albert, bert, distilbert, modernbert, roberta, vit
from jtx.interop.family import Family

# By `model_type`. A model is saved as the first that can express it.
FAMILIES: dict[str, Family] = {
    "bert": bert.FAMILY,
    "roberta": roberta.FAMILY,
    "albert": albert.FAMILY,
    "distilbert": distilbert.FAMILY,
    "modernbert": modernbert.FAMILY,
    "vit": vit.VIT,
    "deit": vit.DEIT,
    "vit_mae": vit.MAE,
}
