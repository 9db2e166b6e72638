"""The registry of data ops: the names that a config's `data.ops` has."""

from typing import Callable

from jtx.data import packing
from jtx.data.op import Op
from jtx.data.ops import (
    augment,
    captions,
    decode,
    denoise,
    documents,
    finetune,
    image,
    image_layout,
    labels,
    masking,
    messages,
    multi_label,
    permute,
    preferences,
    pretrain,
    sentences,
    template,
    text,
    text_pairs,
    windows,
    words,
)

OPS: dict[str, Callable[..., Op]] = {
    # Texts and their tokens, once.
    "fields": text.Fields,
    "template": template.Template,
    "clean": text.Clean,
    "lowercase": text.Lowercase,
    "tokenize": text.Tokenize,
    "filter_length": text.FilterLength,
    "label": labels.Label,
    "multi_label": multi_label.MultiLabel,
    "number": labels.Number,
    "encode": finetune.Encode,
    "encode_each": finetune.EncodeEach,
    "encode_words": finetune.EncodeWords,
    "encode_windows": windows.EncodeWindows,
    "word_targets": words.WordTargets,
    "encode_choices": finetune.EncodeChoices,
    "encode_messages": messages.EncodeMessages,
    "encode_preferences": preferences.EncodePreferences,
    "split_sentences": sentences.SplitSentences,
    "encode_sentences": sentences.EncodeSentences,
    # Examples of documents, in every epoch.
    "documents": documents.Documents,
    "full_sentences": pretrain.FullSentences,
    "doc_sentences": pretrain.DocSentences,
    "segment_pair": pretrain.SegmentPair,
    "sentence_pair": pretrain.SentencePair,
    "text_pairs": text_pairs.TextPairs,
    "denoise": denoise.Denoise,
    # Batches.
    "mask": masking.Mask,
    "predict_next": masking.PredictNext,
    "prefix": masking.Prefix,
    "permute": permute.Permute,
    # Images, whenever they are read.
    "decode_image": decode.DecodeImage,
    "inception_crop": image.InceptionCrop,
    "pad_crop": image.PadCrop,
    "center_crop": image.CenterCrop,
    "resize": image.Resize,
    "flip": image.Flip,
    "caption": captions.Caption,
    "images": image_layout.Images,
    "randaugment": augment.RandAugment,
    "color_jitter": augment.ColorJitter,
    "three_augment": augment.ThreeAugment,
    "random_erasing": augment.RandomErasing,
    # Layouts of tokens.
    "pack": packing.Pack,
    "pad": packing.Pad,
}
