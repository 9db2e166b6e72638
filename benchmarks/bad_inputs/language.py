"""Language models: prompts, conversations, preferences, adapters, and files of theirs."""

import json
import shutil

from benchmarks.bad_inputs.case import Case

GENERATE = "generate --workdir={made}/chat --max_new_tokens=4"
INSTRUCT = "train --config=jtx.configs.instruct:max_length=128,epochs=1 --workdir=w"
DPO = "train --config=jtx.configs.dpo:max_length=128,epochs=1 --workdir=w"
TINY_DPO = "train --config=jtx.configs.dpo:tiny --workdir=w"
ADAPTED = "train --config=jtx.configs.instruct:tiny --workdir=w --config.init_from={made}/chat"

ASK = {"role": "user", "content": "a b"}
SAY = {"role": "assistant", "content": "b a"}
TALK = {"messages": [ASK, SAY]}
PAIR = {"prompt": "a b", "chosen": "b a", "rejected": "a"}


def lines(*objects):
  return "".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in objects)


def prompts(name, sentence, *objects, flags=""):
  return Case(f"a prompt: {name}", f"{GENERATE} --input=p.jsonl {flags}", sentence,
              {"p.jsonl": lines({"prompt": "a"}, *objects)})


def texts(name, flags, sentence, text="a\n"):
  return Case(f"a text: {name}", f"{GENERATE} --input=p.txt {flags}", sentence, {"p.txt": text})


def of_split(command, sound, name, sentence, *objects, split="train", arguments=""):
  command = command.replace(" --workdir", f"{arguments} --workdir")
  files = {f"{part}.jsonl": lines(*[sound] * 8, *(objects if part == split else ()))
           for part in ("train", "dev")}
  return Case(name, command, sentence, files)


def talks(name, sentence, *objects, **options):
  return of_split(INSTRUCT, TALK, f"a conversation: {name}", sentence, *objects, **options)


def pairs(name, sentence, *objects, **options):
  return of_split(DPO, PAIR, f"a preference: {name}", sentence, *objects, **options)


def template(name, text, sentence):
  return Case(f"a template: {name}", INSTRUCT.replace("epochs=1", "epochs=1,template=t.jinja"),
              sentence, {"t.jinja": text, **{f"{split}.jsonl": lines(TALK, TALK)
                                             for split in ("train", "dev")}})


def other_letters(path, made):
  """A copy of the sound folder, in whose vocabulary two letters have changed their places."""
  shutil.copytree(made / "chat_hf", path)
  found = json.loads((path / "tokenizer.json").read_text())
  vocabulary = found["model"]["vocab"]
  vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
  (path / "tokenizer.json").write_text(json.dumps(found))


def folder(name, sentence, command="convert --from_hf=m --workdir=w", file="config.json", **edits):
  """Edits a JSON file of the sound folder; ... takes a key away."""
  def write(path, made):
    shutil.copytree(made / "chat_hf", path)
    found = json.loads((path / file).read_text()) if (path / file).exists() else {}
    (path / file).write_text(json.dumps(
        {k: v for k, v in (found | edits).items() if v is not ...}))
  return Case(f"a folder: {name}", command, sentence, {"m": write, "p.txt": "a\n"})


CASES = [
    prompts("no JSON", "p.jsonl:2: not JSON", '{"prompt": "a"'),
    prompts("no object", "p.jsonl:2: a prompt is", "3"),
    prompts("a blank line", "p.jsonl:2: not JSON", ""),
    prompts("another key", "p.jsonl:2: a prompt is", {"promt": "a"}),
    prompts("a number", "p.jsonl:2: a prompt is", {"prompt": 3}),
    prompts("two kinds", "p.jsonl:2: a prompt is", {"prompt": "a", **TALK}),
    prompts("empty", "p.jsonl:2 is empty", {"prompt": ""}),
    prompts("a lone surrogate", "p.jsonl:2", '{"prompt": "\\ud800"}'),
    prompts("depth of 100,000", "p.jsonl:2", "[" * 100_000 + "]" * 100_000),
    prompts("a role that is none", "p.jsonl:2 has the role 'robot' at message 1; valid are",
            {"messages": [{"role": "robot", "content": "a"}]}),
    prompts("no messages", "p.jsonl:2 has messages=", {"messages": []}),
    prompts("a message that is text", "p.jsonl:2 has the message 'a', number 1",
            {"messages": ["a"]}),
    prompts("a content of null", "p.jsonl:2 has the content None",
            {"messages": [{"role": "user", "content": None}]}),
    prompts("a role that is a list", "p.jsonl:2 has the role",
            {"messages": [{"role": ["user"], "content": "a"}]}),
    prompts("a seed that is a word", "p.jsonl:2: seed='x'", {"prompt": "a", "seed": "x"}),
    prompts("a seed below 0", "p.jsonl:2: seed=-1", {"prompt": "a", "seed": -1}),
    prompts("a seed of yes", "p.jsonl:2: seed=True", {"prompt": "a", "seed": True}),
    texts("empty", "", "p.txt:2 is empty", "a\n\nb\n"),
    texts("bytes that are no UTF-8", "", "p.txt.*UTF-8", b"a\n\xff\n"),
    texts("no new tokens", "--max_new_tokens=0", "--max_new_tokens=0"),
    texts("a stop that can't be made", "--stop=\u4e16", "stop='\u4e16': the model's tokenizer"),
    texts("an empty stop", "--stop=", "stop=''"),
    texts("a stop with a beam", "--stop=a --beam=2", "stop strings go with sampling"),
    texts("a temperature that is nan", "--temperature=nan", "--temperature=nan"),
    texts("a temperature below 0", "--temperature=-1", "temperature"),
    texts("a temperature with a beam", "--temperature=1 --beam=2",
          "method.temperature: unknown key; valid are: .*beam"),
    texts("top_p above 1", "--temperature=1 --top_p=1.5", "top_p=1.5: must be"),
    texts("min_p of 2", "--temperature=1 --min_p=2", "min_p=2.0: must be"),
    texts("top_k at temperature 0", "--top_k=3 --temperature=0", "top_k=3 does nothing"),
    texts("a penalty of 0", "--repetition_penalty=0", "repetition_penalty=0.0: must be"),
    texts("a penalty that is nan", "--repetition_penalty=nan", "repetition_penalty=nan"),
    texts("more best than beams", "--beam=2 --n_best=3", "n_best=3"),
    texts("two best of greedy search", "--n_best=2 --temperature=0", "n_best=2 does nothing"),
    texts("a billion samples", "--temperature=1 --n_best=1000000000", "n_best=1000000000: must be"),
    texts("a billion beams", "--beam=1000000000", "beam=1000000000: must be"),
    texts("a batch of none", "--batch_size=0", "--batch_size=0"),
    texts("a seed below 0", "--temperature=1 --seed=-1", "seed=-1"),
    texts("a seed above 2^32", "--temperature=1 --seed=4294967296", "seed=4294967296"),
    texts("a stream of a beam", "--stream --beam=2", "a stream has one continuation"),
    texts("a stream into a file", "--stream --output=o.txt", "--stream.*--output"),
    texts("an output in no folder", "--output=no/o.txt", "--output=no/o.txt: no file"),
    Case("generate: no input", f"{GENERATE} --input=none.txt", "none.txt"),
    Case("generate: a step that is not there", f"{GENERATE} --step=9 --input=p.txt", "step 9",
         {"p.txt": "a\n"}),
    *(Case(f"generate: of {name}", f"generate --workdir={{made}}/{name} --input=p.txt",
           f"{name}: its head is for .*, not for going on with texts", {"p.txt": "a\n"})
      for name in ("classes", "translator", "digits", "masked")),
    Case("translate: a language model", "translate --workdir={made}/chat --input=p.txt", "chat",
         {"p.txt": "a\n"}),
    Case("attention: a head that a language model has not", "attention --workdir={made}/chat"
         " --text=ab --heads=9", "heads: there is no 9; valid are 1 to 2"),
    talks("no JSON", "train.jsonl.*9", "{"),
    talks("another key", "messages", {"mesages": [ASK, SAY]}),
    talks("a role that is none", "8 has the role 'robot' at message 1",
          {"messages": [{"role": "robot", "content": "a"}, SAY]}),
    talks("nobody answers", "8 has no message of the role 'assistant'", {"messages": [ASK]}),
    talks("a content that is a number", "8 has the content 3 at message 1",
          {"messages": [{"role": "user", "content": 3}, SAY]}),
    talks("no list", "8 has messages='a'", {"messages": "a"}),
    talks("a role that is none in validation", "dev.jsonl: line 9: has the role 'robot'",
          {"messages": [{"role": "robot", "content": "a"}, SAY]}, split="dev"),
    Case("a template: no file", INSTRUCT.replace("epochs=1", "epochs=1,template=none.jinja"),
         "none.jinja", {"train.jsonl": lines(TALK), "dev.jsonl": lines(TALK)}),
    template("no Jinja", "{% for", "the chat template is not valid Jinja"),
    template("a refusal", "{{ raise_exception('no') }}", "the chat template refuses it \\(no\\)"),
    template("a name that is none", "{{ messages.nothing.at_all }}", "the chat template refuses"),
    template("nothing to learn", "hello", "the chat template writes no answer"),
    template("Python's insides", "{{ ''.__class__.__mro__ }}", "the chat template refuses"),
    pairs("no JSON", "train.jsonl.*9", "{"),
    pairs("one answer twice", "8 has one answer as 'chosen' and as 'rejected'",
          {**PAIR, "chosen": "a"}),
    pairs("no rejected one", "rejected", {"prompt": "a", "chosen": "b"}),
    pairs("an empty prompt", "8 has an empty 'prompt'", {**PAIR, "prompt": ""}),
    pairs("a number", "8 has chosen=3, which is neither", {**PAIR, "chosen": 3}),
    pairs("a prompt that is a number", "8 has prompt=3", {"prompt": 3, "chosen": 4, "rejected": 5}),
    pairs("null", "8 has .*prompt", {"prompt": None, "chosen": None, "rejected": "a"}),
    pairs("text and messages", "8 has a 'rejected' that is str",
          {"prompt": [ASK], "chosen": [SAY], "rejected": "a"}),
    pairs("a role that is none", "8 has the role 'robot'",
          {"prompt": [{"role": "robot", "content": "a"}], "chosen": [SAY],
           "rejected": [{**SAY, "content": "c"}]}),
    pairs("one answer twice in validation", "dev.jsonl: line 9: has one answer",
          {**PAIR, "chosen": "a"}, split="dev", arguments=",init={made}/chat"),
    Case("dpo: no reference", f"{TINY_DPO} --config.objective.reference=nowhere", "nowhere"),
    Case("dpo: a reference that is an encoder",
         f"{TINY_DPO} --config.objective.reference={{made}}/hf", "no language model"),
    Case("dpo: a reference of another vocabulary",
         DPO + " --config.objective.reference={made}/chat", "has a vocabulary of 50 tokens, and", {
             f"{split}.jsonl": lines(*[PAIR] * 8) for split in ("train", "dev")}),
    Case("dpo: a reference of other words", f"{TINY_DPO} --config.objective.reference=m",
         "reference=m has another tokenizer: token .* is '[ab]', and", {"m": other_letters}),
    Case("dpo: a reference that is a classifier",
         f"{TINY_DPO} --config.objective.reference={{made}}/classes", "no language model|'lm'"),
    Case("dpo: a loss that is none", f"{TINY_DPO} --config.objective.loss=ippo", "ippo"),
    Case("dpo: a beta of 0", f"{TINY_DPO} --config.objective.beta=0.", "beta=0.0: must be above 0"),
    Case("dpo: a beta that is nan", f"{TINY_DPO} --config.objective.beta=nan", "beta=nan"),
    Case("dpo: smoothing of 1", f"{TINY_DPO} --config.objective.label_smoothing=1.",
         "label_smoothing=1.0: must be"),
    Case("dpo: smoothing of ipo", f"{TINY_DPO} --config.objective.loss=ipo"
         " --config.objective.label_smoothing=0.1", "label_smoothing goes with"),
    *(Case(f"adapters: {name}", f"{ADAPTED} --config.model.lora.rank=2 {flags}", sentence)
      for name, flags, sentence in (
          ("names that match nothing", "--config.model.lora.names=nothing,",
           "model.lora.names: 'nothing' matches no linear layer"),
          ("a bad regular expression", "--config.model.lora.names=[,", "lora.names"),
          ("no names", "--config.model.lora.names=()", "lora.rank=2 needs lora.names"),
          ("a rank below 0", "--config.model.lora.rank=-1", "rank=-1: must be"),
          ("a rank of a billion", "--config.model.lora.rank=1000000000", "rank=1000000000: must"),
          ("an alpha that is nan", "--config.model.lora.alpha=nan", "alpha=nan"),
          ("dropout of 1", "--config.model.lora.dropout=1.", "dropout=1.0: must be"),
          ("further parameters that are none", "--config.model.lora.trained=nothing,",
           "model.lora.trained: 'nothing' matches no parameter"))),
    Case("adapters: no rank", f"{ADAPTED} --config.model.lora.alpha=4.",
         "lora.alpha=4.0 goes with"),
    Case("adapters: PEFT's files of a run without", "convert --workdir={made}/chat --to=peft"
         " --output=o", "adapters|lora"),
    Case("adapters: of nothing that is trained", "train --config=jtx.configs.classify:tiny,lora=4"
         " --workdir=w", "lora=4 adapts a trained model"),
    *(Case(f"a decoder: {name}", "train --config=jtx.configs.shakespeare:tiny --workdir=w"
           f" --config.model.{flags}", sentence)
      for name, flags, sentence in (
          ("keys' heads that do not divide", "stack.block.attention.num_kv_heads=3",
           "num_kv_heads"),
          ("an odd head for RoPE", "stack.block.attention.head_dim=7", "head_dim|rope"),
          ("local layers without a window", "stack.pattern=local,", "window"),
          ("a soft cap below 0", "stack.block.attention.soft_cap=-1.", "soft_cap=-1.0: must"),
          ("more active experts than there are", "stack.block.ffn.experts.number=2"
           " --config.model.stack.block.ffn.experts.active=3", "active=3"),
          ("no sight of the past alone", "stack.causal=False", "causal"),
          ("a RoPE fraction of 2", "stack.position.fraction=2.", "fraction=2.0: must"),
          ("a RoPE base of 0", "stack.position.base=0.", "base=0.0: must"),
          ("half an expert", "stack.block.ffn.experts.number=1", "experts"))),
    *(folder(name, sentence, rope_scaling=scaling, rope_parameters=..., rope_theta=1e4)
      for name, sentence, scaling in (
          ("RoPE of no kind", "spin", {"rope_type": "spin", "factor": 2.0}),
          ("a RoPE factor of 0", "factor=0.0", {"rope_type": "linear", "factor": 0.0}),
          ("a RoPE factor that is a word", "factor='much'",
           {"rope_type": "linear", "factor": "much"}))),
    folder("two spellings of RoPE", "are two spellings of one",
           rope_scaling={"rope_type": "linear", "factor": 2.0}),
    folder("a base of -1", "rope_theta|base", rope_theta=-1.0, rope_parameters=...),
    folder("keys' heads that do not divide", "num_key_value_heads|num_kv_heads",
           num_key_value_heads=3),
    folder("no keys' heads", "num_key_value_heads|num_kv_heads", num_key_value_heads=0),
    folder("positions of 0", "max_position_embeddings|longest|positions",
           max_position_embeddings=0),
    folder("a vocabulary of 10^12", "vocab_size", vocab_size=10 ** 12),
    folder("an activation that is none", "magic", hidden_act="magic"),
    folder("an end token that is a word", "eos_token_id='end' is not an id",
           "generate --workdir=m --input=p.txt", "generation_config.json", eos_token_id="end"),
]
