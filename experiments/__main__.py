"""The command `jtx`: an entry point of this folder by its name, with its flags.

  jtx train --config=my_config.py --workdir=W      as   python -m experiments.train --config=...
  jtx launch local --processes=2 -- --config=...   as   python -m experiments.launch.local ...

`jtx COMMAND --help` shows the flags of one.
"""

import ast
import os
import re
import runpy
import sys

from jtx.errors import nearest

from .errors import output_closed

FOLDER = os.path.dirname(os.path.abspath(__file__))


def commands() -> dict[str, str]:
  """The first line of its docstring by the name of each entry point, such as "launch local"."""
  found = {}
  for folder in ("", "launch"):
    for name in sorted(os.listdir(os.path.join(FOLDER, folder))):
      path = os.path.join(FOLDER, folder, name)
      if name.startswith("_") or not name.endswith(".py"):
        continue
      with open(path, encoding="utf-8") as f:
        text = f.read()
      if re.search(r'^if __name__ == "__main__":', text, re.MULTILINE):
        doc = ast.get_docstring(ast.parse(text)) or ""
        found[f"{folder} {name[:-3]}".strip()] = doc.split("\n")[0]
  return found


def usage() -> str:
  rows = commands()
  width = max(map(len, rows))
  return "\n".join(["usage: jtx COMMAND [--flag=value ...]", "",
                    *(f"  {name:<{width}}  {text}" for name, text in rows.items()), "",
                    "jtx COMMAND --help shows the flags of a command."])


def main() -> int | None:
  """Runs the command that `sys.argv` names as `python -m` would; its exit status is ours."""
  words = sys.argv[1:]
  if not words or words[0] in ("help", "-h", "-help", "--help", "--helpshort", "--helpfull"):
    try:
      print(usage(), flush=True)
    except BrokenPipeError:
      return output_closed()
    return 0 if words else 2
  if words[0] == "--version":
    import jtx
    print(jtx.__version__)
    return 0
  known = commands()
  count = 2 if words[0] == "launch" else 1
  name = " ".join(words[:count])
  if name not in known:
    launchers = ", ".join(n.removeprefix("launch ") for n in known if n.startswith("launch "))
    hint = f"valid are: {launchers} behind it" if name == "launch" else nearest(name, known)
    print(f"error: unknown command {name!r}; {hint}", file=sys.stderr)
    return 2
  # So that worker processes find the same modules; last, so that a file here hides no package.
  if os.getcwd() not in sys.path:
    sys.path.append(os.getcwd())
  sys.argv[:] = [f"jtx {name}", *words[count:]]
  runpy.run_module(f"{__package__}.{name.replace(' ', '.')}", run_name="__main__", alter_sys=True)
  return None


if __name__ == "__main__":
  sys.exit(main())
