"""Command lines: names, flags and what excludes one another."""

from benchmarks.bad_inputs.case import Case

TRAIN = "train --config=jtx.configs.classify:tiny --workdir=w"

CASES = [
    Case("no such command", "trian --workdir=w", "unknown command 'trian'; did you mean 'train'"),
    Case("no such launcher", "launch moon", "unknown command 'launch moon'"),
    Case("no config", "train --workdir=w", "--config must be given"),
    Case("no workdir", "train --config=jtx.configs.classify:tiny", "--workdir must be given"),
    Case("an empty workdir", "train --config=jtx.configs.classify:tiny --workdir=",
         "--workdir must be given"),
    Case("no such flag", f"{TRAIN} --max_second=3", "unknown flag --max_second; did you mean"),
    Case("a word without a flag", f"{TRAIN} fast", "unexpected argument 'fast'"),
    Case("seconds that are no number", f"{TRAIN} --max_seconds=nan", "--max_seconds=nan is not"),
    Case("seconds below 0", f"{TRAIN} --max_seconds=-1", "--max_seconds"),
    Case("seconds that are a word", f"{TRAIN} --max_seconds=soon", "--max_seconds: 'soon' is not"),
    Case("a process without the others", f"{TRAIN} --process_id=1", "--process_id"),
    Case("a coordinator without a port", f"{TRAIN} --coordinator=here --num_processes=2"
         " --process_id=0", "--coordinator"),
    Case("more processes than there can be", f"{TRAIN} --num_processes=-2", "--num_processes"),
    Case("a key before its config", "train --config.seed=1 --config=jtx.configs.classify:tiny"
         " --workdir=w", "--config"),
    Case("no input of predict", "predict --workdir={made}/classes --input=none.txt",
         "none.txt: no such file"),
    Case("a folder of texts to predict", "predict --workdir={made}/classes --input=d", "d",
         {"d/a.txt": "a"}),
    Case("an output in no folder", "predict --workdir={made}/classes --input={made}/dev.tsv"
         " --output=no/such/out.txt", "--output=no/such/out.txt: no file can be written there"),
    Case("an output that is a folder", "translate --workdir={made}/translator"
         " --input={made}/val.en --output=d", "--output=d: it is a folder", {"d/a": ""}),
    Case("a beam of 0", "translate --workdir={made}/translator --input={made}/val.en --beam=0",
         "--beam=0"),
    Case("a beam of a billion", "translate --workdir={made}/translator --input={made}/val.en"
         " --beam=1000000000", "beam=1000000000: must be 1 to 1024"),
    Case("more best than beams", "translate --workdir={made}/translator --input={made}/val.en"
         " --beam=2 --n_best=3", "n_best=3"),
    Case("a temperature of 0", "translate --workdir={made}/translator --input={made}/val.en"
         " --sample --temperature=0", "temperature=0.0: must be above 0"),
    Case("a temperature without sampling", "translate --workdir={made}/translator"
         " --input={made}/val.en --temperature=0.5", "--temperature"),
    Case("an exponent that is no number", "translate --workdir={made}/translator"
         " --input={made}/val.en --alpha=nan", "--alpha=nan is not a number"),
    Case("top_p above 1", "translate --workdir={made}/translator --input={made}/val.en --sample"
         " --top_p=1.5", "top_p=1.5: must be above 0 to 1"),
    Case("a language of a model that has one", "translate --workdir={made}/translator"
         " --input={made}/val.en --target_language=de_DE", "has no codes of languages"),
    Case("a seed below 0", "translate --workdir={made}/translator --input={made}/val.en --sample"
         " --seed=-3", "seed=-3: must be 0 to"),
    Case("a step that is no number", "predict --workdir={made}/classes --input={made}/dev.tsv"
         " --step=last", "--step"),
    Case("a step that is not there", "predict --workdir={made}/classes --input={made}/dev.tsv"
         " --step=77", "step 77"),
    Case("an average of none", "evaluate --workdir={made}/classes --average=0", "--average"),
    Case("an average of more than there are", "evaluate --workdir={made}/classes --average=9",
         "9"),
    Case("no such score", "evaluate --workdir={made}/classes --scores=f2", "f2"),
    Case("no such source", "evaluate --workdir={made}/classes --source=tets.tsv", "tets.tsv"),
    Case("a batch of none", "predict --workdir={made}/classes --input={made}/dev.tsv"
         " --batch_size=0", "--batch_size=0"),
    Case("a length of none", "predict --workdir={made}/classes --input={made}/dev.tsv"
         " --max_length=2", "--max_length=2"),
    Case("nothing to convert", "convert --workdir={made}/classes", "--to"),
    Case("a folder that is there already", "convert --workdir={made}/classes --to_hf=d", "d",
         {"d/a": ""}),
    Case("two ways to convert", "convert --workdir={made}/classes --to_hf=a --from_hf={made}/hf",
         "--from_hf"),
    Case("ONNX", "convert --workdir={made}/classes --to=onnx --output=o", "--to=onnx"),
    Case("a format that is none", "convert --workdir={made}/classes --to=gguf --output=o",
         "--to=gguf"),
    Case("a port that is none", "serve --workdir={made}/classes --port=70000", "--port=70000"),
    Case("an address of another machine", "serve --workdir={made}/classes --host=192.0.2.1"
         " --port=0", "--host=192.0.2.1 --port=0: cannot assign"),
    Case("a temperature for classes", "serve --workdir={made}/classes --port=0 --temperature=1",
         "--temperature: the model of .* answers at /predict"),
    Case("no text to draw", "attention --workdir={made}/classes", "--text must be given"),
    Case("a head that is not there", "attention --workdir={made}/classes --text=a --heads=9", "9"),
    Case("a layer that is a word", "attention --workdir={made}/classes --text=a --layers=top",
         "top"),
    Case("a picture of no format", "attention --workdir={made}/classes --text=a --output=a.bmpx",
         "a.bmpx"),
    Case("a chip that is none", "compile --config=jtx.configs.classify:tiny --topology=v99:2x2",
         "v99"),
    Case("devices that are none", "compile --config=jtx.configs.classify:tiny --topology=cpu:0",
         "cpu:0"),
    Case("shards of nothing", "prepare --config=jtx.configs.classify:tiny --output=o"
         " --shard_size=0", "--shard_size"),
    Case("a prepared folder of another config", "prepare --config=jtx.configs.bert:tiny"
         " --output={made}/prepared", "prepared"),
    Case("a report of no run", "report --workdir=none", "none"),
    Case("a report of no format", "report --workdir={made}/classes --output=a.docx", "a.docx"),
    Case("a window of no long text", "extend --init={made}/classes --window=8",
         "--window goes with --max_length"),
    Case("texts of no new tokens", "extend --init={made}/classes --text=a.txt --to_hf=new",
         "--text and --tokens go together"),
    Case("a longer text than the model's that is not", "extend --init={made}/classes --max_length=2"
         " --to_hf=new", "only an encoder with learned positions|max_length=2 must be more than"),
]
