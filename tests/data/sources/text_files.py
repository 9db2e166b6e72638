"""Writing files of sources, and reading them to the end."""


def write(folder, name, content):
  (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))


def all_of(source):
  return [source[i] for i in range(len(source))]
