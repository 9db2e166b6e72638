"""The other suites' workloads on one GPU or TPU, in bf16, at sizes that fill it, within minutes.

Each row has a share of the time, and what one leaves is the next ones'. A row that fails, or runs
out of time or of memory, is told in its place and the others go on; out of memory, it is tried
again with half the batch. After every row accelerator.md has the table and accelerator.json all
that was measured.
"""

import json
import os
import re
import time
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence

from benchmarks import bert, bert_data, finetune_steps, harness, nmt, vit

BF16 = "bfloat16"
PEERS = ("transformers", "transformers_compiled")
DEFAULT_PEERS = PEERS[1:]
MINUTES, STEPS = 9.0, 10
NOT_MEASURED = "not measured"
HEAD = ("", "peer", "jtx", "jtx is", "of the measured peak: peer, jtx", "peak memory: peer, jtx",
        "first updates: peer, jtx")

Result = dict[str, Any]


class Context(NamedTuple):
  """What all rows share: `workdir`, `data`, folder of multi30k and sst2 or "", and numbers."""
  workdir: str
  data: str
  tiny: bool
  rounds: int
  steps: int

  def folder(self, name: str) -> str:
    """The data's folder of this name, or "" where there is none."""
    path = os.path.join(self.data, name) if self.data else ""
    return path if os.path.isdir(path) else ""


class Row(NamedTuple):
  """A workload.

  Attributes:
    run: measures, given a Context, a size, the peers and a dict for the result.
    share: of the time, about the seconds that it needs on an H100.
    titles: of the parts of its result.
    size: of the model and of a batch, of `rows` rows.
    tiny: another, to try things out.
  """
  run: Callable[[Context, Any, Sequence[str], Result], Any]
  share: int
  titles: Mapping[str, str]
  size: Any
  tiny: Any


def run_bert(context: Context, size: Any, peers: Sequence[str], result: Result) -> None:
  bert.run("", size, ["full"], peers, context.rounds, context.steps, result)


def run_vit(context: Context, size: Any, peers: Sequence[str], result: Result) -> None:
  result |= vit.run(size, ["step"], peers, context.rounds, context.steps, 0)


def run_nmt(context: Context, size: Any, peers: Sequence[str], result: Result) -> None:
  data = context.folder("multi30k")
  if not data:
    data = os.path.join(context.workdir, "pairs")
    nmt.write_data(data, 900 if context.tiny else 20_000)
  pretrain_steps, sentences = (20, 30) if context.tiny else (200, 512)
  nmt.run(os.path.join(context.workdir, f"nmt_{size.rows}"), data, size, nmt.PARTS,
          context.rounds, pretrain_steps, context.steps, sentences, peers, result)


def run_finetune(context: Context, size: Any, peers: Sequence[str], result: Result) -> None:
  data = context.folder("sst2")
  if not data:
    data = os.path.join(context.workdir, "sentences")
    finetune_steps.write_data(data, size.sentences)
  result |= finetune_steps.run(data, size, peers, context.rounds, context.steps)


# The largest is the last, and has what time the others leave. Its layers are in a loop, and so are
# those of which there are several programs: a GPU's compiler would take too long to unroll them.
ROWS = {
    "bert_base": Row(
        run=run_bert, share=100, titles={"full": "BERT-Base, {rows} rows of {length}, tokens/s"},
        size=bert_data.Size("base", rows=64, length=512, vocab_size=30_522, dtype=BF16),
        tiny=bert_data.Size("tiny", rows=8, length=64, vocab_size=9_000, dtype=BF16)),
    "vit_b16": Row(
        run=run_vit, share=85,
        titles={"step": "ViT-B/16, {rows} images of {res} x {res}, images/s"},
        size=vit.Size("b", patch=16, res=224, rows=256, dtype=BF16),
        tiny=vit.Size("ti", patch=4, res=16, dtype=BF16, unroll=1)),
    "finetune": Row(
        run=run_finetune, share=75,
        titles={"train": "BERT-Base, fine-tuned on {rows} sentences at a time, sentences/s"},
        size=finetune_steps.Size("bert_base", dtype=BF16, unroll=1),
        tiny=finetune_steps.Size("bert_tiny", rows=8, max_length=24, sentences=400, dtype=BF16)),
    "nmt": Row(
        run=run_nmt, share=120,
        titles={"train": "Transformer base, {rows} rows of 64 + 64, target tokens/s",
                "translate": "its beam search, beam 4, {sentences} at a time, sentences/s"},
        size=nmt.SIZES["base"]._replace(rows=256, sentences=256, checkpoint_every=200, dtype=BF16,
                                        unroll=1),
        tiny=nmt.SIZES["tiny"]._replace(dtype=BF16, unroll=1)),
    "bert_large": Row(
        run=run_bert, share=160, titles={"full": "BERT-Large, {rows} rows of {length}, tokens/s"},
        size=bert_data.Size("large", rows=32, length=512, vocab_size=30_522, dtype=BF16,
                            unroll=1),
        tiny=bert_data.Size("tiny", rows=8, length=64, vocab_size=9_000, dtype=BF16)),
}


def run(context: Context, names: Sequence[str], peers: Sequence[str],
        minutes: float) -> dict[str, Any]:
  """Measures, and returns values for JSON.

  Args:
    context: of the rows.
    names: keys of ROWS.
    peers: of PEERS.
    minutes: after which all ends.
  """
  os.makedirs(context.workdir, exist_ok=True)
  # Attempts after a failure, and the translator's row, compile again what was compiled before.
  os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # also of this process
  os.environ.setdefault("JAX_COMPILATION_CACHE_DIR",
                        os.path.abspath(os.path.join(context.workdir, "compiled")))
  end, results = time.monotonic() + 60 * minutes, {}
  for i, name in enumerate(names):
    print(f"{name}, {end - time.monotonic():.0f} s before the end", flush=True)
    part = ROWS[name].share / sum(ROWS[n].share for n in names[i:])
    start = time.monotonic()
    with harness.limited(part * (end - start)):
      results[name] = measure(context, name, peers) | {"seconds": 0.0}
    results[name]["seconds"] = time.monotonic() - start
    print("\n".join(lines(name, results[name])), flush=True)
    for file, text in (("accelerator.md", table(names, results)),
                       ("accelerator.json", json.dumps(results))):
      with open(os.path.join(context.workdir, file), "w", encoding="utf-8") as f:
        f.write(text)
  return {"suite": "accelerator", "rounds": context.rounds, "rows": results}


def measure(context: Context, name: str, peers: Sequence[str]) -> Result:
  """The result of a row, with its `batch`, and `failed`, a sentence for each attempt that did."""
  row, failed = ROWS[name], []
  first = row.tiny if context.tiny else row.size
  attempts = [(first, list(peers))]
  while attempts:
    size, peers = attempts.pop()
    result: Result = {}
    try:
      row.run(context, size, peers, result)
    except Exception as e:  # whatever it is, the other rows go on
      print(f"{name}: {e!r}" if str(e) == "" else f"{name}: {e}", flush=True)
      told = sentence(str(e) or repr(e))
      failed.append(f"{size.rows} rows beside {' and '.join(peers)}: {told}")
      if harness.time_left() and not any(result.get(part) for part in row.titles):
        attempts = instead(first, size, peers, str(e))
  return {**result, "batch": size._asdict(), "failed": failed}


def instead(first: Any, size: Any, peers: Sequence[str],
            error: str) -> list[tuple[Any, Sequence[str]]]:
  """What to measure after a failure: half the batch, or else the peer that compiles nothing."""
  if size == first and re.search("RESOURCE_EXHAUSTED|out of memory", error, re.IGNORECASE):
    return [(size._replace(rows=max(size.rows // 2, 1)), peers)]
  return [(size, ["transformers"])] if "transformers_compiled" in peers else []


def sentence(error: str) -> str:
  """The line of an error, or of a traceback, that says what was wrong."""
  found = [line.strip() for line in error.splitlines() if line.strip()]
  told = [line for line in found if re.match(r"[\w.]+(Error|Exception)\b", line)] or found
  return " ".join(told[-1].replace("|", "/").split())[:200]


# ------------------------------------------------------------------------------ Markdown


def table(names: Sequence[str], results: Mapping[str, Result]) -> str:
  """The rows as Markdown, for RESULTS.md, and below them what they were measured on."""
  told = [f"| {' | '.join(HEAD)} |", "|" + " --- |" * len(HEAD)]
  told += [line for name in names for line in lines(name, results.get(name))]
  about, peaks = {}, []
  for result in results.values():
    about |= result.get("machine", {})
    peaks += [found["matmul_peak_flops"] for _, found in measured(result, "")]
  if peaks:
    told += ["", f"{about['device']}; JAX {about['jax']}, PyTorch {about['torch']}, transformers"
             f" {about['transformers']}, attention {about['attention']}. Measured peak of a large"
             f" product: {min(peaks) / 1e12:.4g} to {max(peaks) / 1e12:.4g} TFLOP/s."]
  return "\n".join(told) + "\n"


def measured(result: Result, part: str) -> Iterator[tuple[str, Result]]:
  """What `harness.measure` found, for a part, or for all with "", by the part's name."""
  for name, found in result.items():
    if isinstance(found, dict) and part in ("", name):
      if "matmul_peak_flops" in found:
        yield name, found
      else:
        yield from measured(found, "")


def lines(name: str, result: Result | None) -> Iterator[str]:
  """Lines of the table for a row; None is one that was not measured."""
  row = ROWS[name]
  size = row.size._asdict() if result is None else result["batch"]
  told = f"failed: {'; '.join(result['failed'])}" if result and result["failed"] else ""
  missing = []
  for part, title in row.titles.items():
    found = [line for _, found in measured(result or {}, part) for line in cells(found)]
    for texts in found:
      yield f"| {title.format(**size)} | {' | '.join(texts)} |"
    if not found:
      missing.append(title)
  for title in missing or ([*row.titles.values()][:1] if told else []):
    yield f"| {title.format(**size)} | {told or NOT_MEASURED} |" + " |" * (len(HEAD) - 2)


def cells(found: Result) -> Iterator[list[str]]:
  """The cells of each peer beside jtx."""
  share = lambda name: f"{100 * found['share_of_matmul_peak'][name]:.3g} %"
  # Several rates may be of one worker.
  memory = lambda name: found["peak_memory_bytes"].get(
      name, found["peak_memory_bytes"].get("transformers", 0)) / 1e9
  rates, warm = found[found["unit"]], found["warm_up_s"]
  rate = lambda name: f"{rates[name]:,.0f}" if rates[name] >= 100 else f"{rates[name]:.3g}"
  for peer, ratio in found["ratio"].items():
    told = {"transformers": "eager", "transformers_compiled": "`torch.compile`"}.get(peer, peer)
    yield [f"{told} {rate(peer)}", rate("jtx"),
           f"{ratio['median']:.3g} times as fast ({ratio['min']:.3g} to {ratio['max']:.3g})",
           f"{share(peer)}, {share('jtx')}", f"{memory(peer):.3g}, {memory('jtx'):.3g} GB",
           f"{warm[peer]:.3g}, {warm['jtx']:.3g} s"]
