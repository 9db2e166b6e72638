"""Multi30k (Elliott et al. 2016), English to German captions: 29,000 pairs.

  python -m experiments.train --config=configs/nmt_multi30k.py \
    --config.data.path=FOLDER_OF_MULTI30K --workdir=runs/multi30k

The folder holds train, val and test2016, each as .en and .de. A small model and strong
dropout (Wu et al. 2021 report 41.0 BLEU, and that larger ones overfit). An hour on two
CPU cores reaches 40.3 on test2016 (RESULTS.md). Arguments: src, tgt, length and tiny as in
nmt_text.py, which takes any other pair of text files; form, the layers, positions and initial
values of T5 ("t5") or BART ("bart") in place of Vaswani's, at the same size.

With few pairs, captions that have no translation help: `pairs` is how many of the training pairs
are known, `denoise` restores all others, in both languages each by itself, from captions with noise
(Lewis et al. 2020), and `init`, the workdir of that, is where a translator of the pairs starts;
`vocab` takes the tokenizer of a workdir alone.

  python -m experiments.train --config=configs/nmt_multi30k.py:form=bart,pairs=2000,denoise \
    --config.data.path=FOLDER_OF_MULTI30K --workdir=runs/captions
  python -m experiments.train --workdir=runs/few_pairs --config.data.path=FOLDER_OF_MULTI30K \
    --config=configs/nmt_multi30k.py:form=bart,pairs=2000,init=runs/captions
"""

from . import arguments, common, nmt_base, nmt_text, published

# By argument the model of ENCDECS, its sizes in the words of a config.json, and other keys.
FORMS = {
    "t5": ("t5_small", dict(d_model=128, num_layers=4, num_heads=4, d_kv=32, d_ff=256),
           {"optim.lr": 2e-2, "optim.optimizer.scale_by_rms": True,
            "model.encoder.block.dropout": 0.2}),
    "bart": ("bart_base", dict(d_model=128, init_std=0.05) | {
        f"{stack}_{key}": number for stack in ("encoder", "decoder")
        for key, number in (("layers", 4), ("attention_heads", 4), ("ffn_dim", 256))},
             {"optim.lr": 2e-3, "model.encoder.block.dropout": 0.3}),
}
PRESETS = ("", "src=de,tgt=en,length=32", "form=t5", "form=bart,tiny", "tiny",
           "form=bart,pairs=2000,denoise", "pairs=500,vocab=vocab.txt", "pairs=2000,denoise,tiny")
# Updates of translators of some of the pairs, and of a model that restores the other captions.
FEW_STEPS, RESTORE_STEPS = 1000, 3000


def get_config(arg: str = ""):
  args = arguments.parse_args(arg, src="en", tgt="de", length=64, form="", pairs=0, denoise=False,
                              **nmt_text.START, tiny=False)
  arguments.check_range("pairs", args.pairs, 0)
  files = lambda split: nmt_text.parallel(split, args.src, args.tgt)
  c = nmt_text.translator(args.length, files)
  common.apply(c, {"model.encoder": dict(width=128, block=dict(ffn=dict(dim=256)))})
  c.optim.lr = 3e-3
  c.steps = 5000
  c.checkpoint.every = 250
  c.decode.method.beam = 5
  c.evals.test2016 = common.evaluator(
      "translation", source=files("test2016"), lowercase=True)
  if args.form:
    name, sizes, edits = arguments.choose(FORMS, args.form, "form")
    c.model = translator_like(name, **sizes)
    common.apply(c, edits)
  if args.tiny:
    nmt_base.shrink(c)
  elif args.pairs:
    c.data.train = (f"{files('train')[0]}:rows[:{args.pairs}]",)
    c.steps = RESTORE_STEPS if args.denoise else FEW_STEPS
  if args.denoise:
    texts = lambda split, rows: [f"text:{split}.{side}{rows}" for side in (args.src, args.tgt)]
    nmt_text.restore(c, args, texts("train", f":rows[{args.pairs}:]"), texts("val", ""))
  nmt_text.begin(c, args)
  return c


def translator_like(name: str, **sizes):
  """A published encoder-decoder of other sizes, whose decoder follows the encoder.

  Only the sums of a layer have dropout, and T5's outputs.
  """
  model = published.encoder_decoder(name, **sizes)
  common.apply(model.encoder, {"unroll": 4, "block": dict(
      attention=dict(dropout=0.0), ffn=dict(dropout=0.0))})
  nmt_base.follow(model.decoder, model.encoder)
  return model
