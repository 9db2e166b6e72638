"""Sources of documents: what they read, which part of it, and how bad data is named."""

import inspect
import pickle
import textwrap
import zipfile

import pytest

from jtx.data.sources.documents import docstrings
from jtx.data.sources.parts import Part
from jtx.data.sources.registry import open_source
from jtx.errors import ConfigError, DataError

FILES = {
    "b/2.txt": b"\xef\xbb\xbftwo\r\n\r\nlines\r\n",  # a byte order mark and Windows line ends
    "b/1.md": b"# one\n",
    "a/deep/er.txt": "Grüße 😀".encode(),
    "c.txt": b"",
    "a/picture.png": b"\xff\xd8",
    "a/txt": b"no ending",
}
DOCUMENTS = [{"text": "Grüße 😀", "file": "a/deep/er.txt"},
             {"text": "# one\n", "file": "b/1.md"},
             {"text": "two\n\nlines\n", "file": "b/2.txt"}, {"text": "", "file": "c.txt"}]


def write(folder, files):
  for name, content in files.items():
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)


def zipped(path, files):
  with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
    for name, content in files.items():
      archive.writestr(name, content)


def all_of(source):
  return [source[i] for i in range(len(source))]


@pytest.fixture(params=["folder", "archive"])
def corpus(request, tmp_path):
  """A function that puts files into a folder or an archive, and gives its name."""
  def make(files):
    if request.param == "archive":
      zipped(tmp_path / "corpus.zip", files)
      return "corpus.zip"
    (tmp_path / "corpus").mkdir()
    write(tmp_path / "corpus", files)
    return "corpus"
  return make


def fails(error, spec, path):
  with pytest.raises(error) as e:
    all_of(open_source(spec, str(path)))
  return str(e.value)


# ------------------------------------------------------------------- a file a document


def test_a_file_is_a_document_and_files_are_sorted_by_name(corpus, tmp_path):
  spec = f"documents:{corpus(FILES)}"
  source = open_source(spec, str(tmp_path))
  assert source.name == spec
  assert all_of(source) == DOCUMENTS
  assert source[-1] == DOCUMENTS[-1]
  with pytest.raises(IndexError):
    source[4]
  assert all_of(pickle.loads(pickle.dumps(source))) == DOCUMENTS
  assert all_of(open_source(f"documents:{tmp_path}/{spec.partition(':')[2]}")) == DOCUMENTS


def test_hidden_files_are_no_documents(corpus, tmp_path):
  """Such as macOS writes beside files, into folders and archives."""
  hidden = {name: b"x" for name in ("b/._2.txt", ".git/a.txt", "__MACOSX/b/._2.txt")}
  source = open_source(f"documents:{corpus({**FILES, **hidden})}", str(tmp_path))
  assert all_of(source) == DOCUMENTS


@pytest.mark.parametrize("part, kept", [
    ("[:50%]", ["f0/0.txt", "f0/1.txt", "f1/0.txt", "f1/1.txt"]),
    ("[50%:]", ["f2/0.txt", "f2/1.txt", "f3/x/0.txt", "f3/x/1.txt"]),
    ("[:1]", ["f0/0.txt", "f0/1.txt"]),
    ("[3:]", ["f3/x/0.txt", "f3/x/1.txt"]),
    ("[1:3]", ["f1/0.txt", "f1/1.txt", "f2/0.txt", "f2/1.txt"]),
    ("[:]", [f"{d}/{n}.txt" for d in ("f0", "f1", "f2", "f3/x") for n in "01"]),
])
def test_a_part_is_of_whole_folders(corpus, tmp_path, part, kept):
  folders = ("f3/x", "f1", "f0", "f2")
  name = corpus({f"{d}/{n}.txt": b"t" for d in folders for n in "10"} | {"f2/y.png": b""})
  source = open_source(f"documents:{name}:folders{part}", str(tmp_path))
  assert [e["file"] for e in all_of(source)] == kept


def test_a_part_without_folders(corpus, tmp_path):
  name = corpus({"a.txt": b"t", "b.txt": b"t"})
  with pytest.raises(DataError, match=r"folders\[:95%\]: this part of the folders is empty, since"
                                      " one folder has all of the files of .*; put them into more"):
    open_source(f"documents:{name}:folders[:95%]", str(tmp_path))
  assert len(open_source(f"documents:{name}:folders[95%:]", str(tmp_path))) == 2


def test_bad_parts(corpus, tmp_path):
  name = corpus({"a/1.txt": b"x", "b/1.txt": b"x"})
  for part in ("folders", "folders[80%]", "folders[%:]", "folders[-1:]", "titles[:1]", "",
               "folders[:1] ", "train", "folders[:1.5]"):
    spec = f"documents:{name}:{part}"
    assert fails(ConfigError, spec, tmp_path) == (
        f"source: {spec!r} ends in {part!r}; a part of the folders is written folders[:80%],"
        " folders[80%:] or folders[3:5]")
  for part in ("[2:]", "[:0]", "[:49%]"):
    spec = f"documents:{name}:folders{part}"
    assert fails(DataError, spec, tmp_path).startswith(
        f"{spec}: this part of the folders is empty, since 2 folders have all of the files")


@pytest.mark.parametrize("part, texts", [
    ("", ["0123456789", "äöü"]), (":characters[:90%]", ["012345678", "äö"]),
    (":characters[90%:]", ["9", "ü"]), (":characters[1:3]", ["12", "öü"])])
def test_a_part_of_the_characters_of_each_file(corpus, tmp_path, part, texts):
  name = corpus({"a/1.txt": b"0123456789", "a/2.txt": "äöü".encode()})
  source = open_source(f"documents:{name}{part}", str(tmp_path))
  assert [e["text"] for e in all_of(source)] == texts


@pytest.mark.parametrize("file", ["one.txt", "one.md"])
def test_one_file_is_one_document(tmp_path, monkeypatch, file):
  (tmp_path / file).write_bytes(b"First\r\n\r\nsecond.")
  (tmp_path / "other.txt").write_bytes(b"x")
  whole = [{"text": "First\n\nsecond.", "file": file}]
  monkeypatch.chdir(tmp_path)
  for spec, path in ((f"documents:{tmp_path}/{file}", ""), (f"documents:{file}", str(tmp_path)),
                     (f"documents:{file}", "")):
    source = pickle.loads(pickle.dumps(open_source(spec, path)))
    assert all_of(source) == whole
  part = open_source(f"documents:{file}:characters[50%:]", str(tmp_path))
  assert part[0]["text"] == "second."
  assert fails(ConfigError, f"documents:{file}:characters[:x]", tmp_path) == (
      f"source: 'documents:{file}:characters[:x]' ends in 'characters[:x]'; a part of each file is"
      " written characters[:80%], characters[80%:] or characters[3:5]")
  with pytest.raises(DataError, match="gone.txt can't be read"):
    open_source("documents:gone.txt", str(tmp_path))[0]


def test_a_folder_or_archive_without_texts(corpus, tmp_path):
  name = corpus({"a/b.png": b"", "README": b"x", "a.txt.gz": b""})
  assert fails(DataError, f"documents:{name}", tmp_path) == (
      f"{tmp_path}/{name}: has no file that ends in .txt or .md")


def test_a_file_that_is_not_utf_8_is_named(corpus, tmp_path):
  name = corpus({"a/1.txt": b"fine", "a/2.txt": b"Gr\xfc\xdfe"})
  source = open_source(f"documents:{name}", str(tmp_path))
  assert source[0]["text"] == "fine"
  with pytest.raises(DataError) as e:
    source[1]
  assert str(e.value) == (
      f"{tmp_path}/{name}: a/2.txt is not valid UTF-8 (invalid start byte at byte 2)")


def test_what_is_no_folder_and_no_archive(tmp_path):
  (tmp_path / "a.rst").write_bytes(b"a file of another kind, not a folder of them")
  assert fails(DataError, "documents:a.rst", tmp_path) == (
      f"{tmp_path}/a.rst: neither a folder nor a zip archive (File is not a zip file)")
  assert fails(DataError, "documents:gone", tmp_path) == (
      f"{tmp_path}/gone: No such file or directory")


def test_a_damaged_archive_names_the_file(tmp_path):
  zipped(tmp_path / "c.zip", {"1.txt": b"a", "2.txt": b"the same " * 50})
  data = bytearray((tmp_path / "c.zip").read_bytes())
  at = data.index(b"2.txt") + len("2.txt")  # the compressed bytes
  data[at:at + 4] = b"\xff\xff\xff\xff"
  (tmp_path / "c.zip").write_bytes(data)
  source = open_source("documents:c.zip", str(tmp_path))
  assert source[0]["text"] == "a"
  with pytest.raises(DataError, match=r"c\.zip: 2\.txt can't be read \("):
    source[1]


def test_a_file_that_went_away_is_named(tmp_path):
  write(tmp_path, {"d/1.txt": b"a"})
  source = open_source("documents:d", str(tmp_path))
  (tmp_path / "d" / "1.txt").unlink()
  with pytest.raises(DataError) as e:
    source[0]
  assert str(e.value) == f"{tmp_path}/d: 1.txt can't be read (No such file or directory)"


# --------------------------------------------------------------------------- blank lines


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_blank_lines_part_documents(tmp_path, end, mark):
  lines = ["", "one.", " Two ", " \t", "Grüße\u2028 a\x0bb", "", "", "last", "\u00a0"]
  write(tmp_path, {"a.txt": mark + end.join(lines).encode()})
  source = open_source("blank_lines:a.txt", str(tmp_path))
  expected = [{"text": "one.\n Two"}, {"text": "Grüße\u2028 a\x0bb"}, {"text": "last"}]
  assert all_of(source) == expected and source.name == "blank_lines:a.txt"
  assert source[-1] == expected[-1]
  with pytest.raises(IndexError):
    source[3]
  assert all_of(pickle.loads(pickle.dumps(source))) == expected


def test_a_last_document_needs_no_blank_line(tmp_path):
  for content in (b"a\n\nb", b"a\n\nb\n", b"\n\na\n\n\n\nb\n\n"):
    write(tmp_path, {"a.txt": content})
    source = open_source("blank_lines:a.txt", str(tmp_path))
    assert [e["text"] for e in all_of(source)] == ["a", "b"]


def test_bad_files_of_blank_lines(tmp_path):
  for content in (b"", b"\xef\xbb\xbf", b"\n \n\r\n"):
    write(tmp_path, {"a.txt": content})
    assert fails(DataError, "blank_lines:a.txt", tmp_path) == "blank_lines:a.txt: empty split"
  write(tmp_path, {"a.txt": b"a\n\n\xff\n"})
  assert fails(DataError, "blank_lines:a.txt", tmp_path) == (
      f"{tmp_path}/a.txt:3: not valid UTF-8 (invalid start byte)")
  assert fails(DataError, "blank_lines:gone", tmp_path) == (
      f"{tmp_path}/gone: No such file or directory")


# -------------------------------------------------------------------------------- pydocs


@pytest.mark.slow
def test_pydocs_are_the_documentation_of_the_library():
  from pydoc_data import topics
  train, val = (all_of(open_source(f"embedded:pydocs:{s}")) for s in ("train", "val"))
  documents = {e["file"]: e["text"] for e in train + val}
  assert len(documents) == len(train) + len(val)  # no document is in both
  assert documents["topics/lambda"] == topics.topics["lambda"]
  for thing in (textwrap, textwrap.TextWrapper, textwrap.wrap, textwrap.TextWrapper.fill):
    assert inspect.cleandoc(thing.__doc__) in documents["textwrap.py"]
  assert not any("site-packages" in file or file.startswith("test/") for file in documents)
  assert min(len(text) for text in documents.values()) > 0
  # A tenth, by a hash: three standard deviations.
  n = len(documents)
  assert abs(len(val) - n / 10) < 3 * (n * 0.1 * 0.9) ** 0.5
  assert [e["file"] for e in train] == sorted(e["file"] for e in train)
  assert all_of(open_source("embedded:pydocs")) == train  # train, where no split is named


def test_docstrings_are_in_the_order_of_the_file(tmp_path):
  (tmp_path / "m.py").write_text(textwrap.dedent('''
      """The module."""
      import gone_module

      class A:
        """A class.

        With
          indented lines.
        """
        def f(self):
          """A method."""
          def g():
            """Inside."""
          return "not documentation"

      async def h():
        """Asynchronous."""
      def i():
        pass
      '''), encoding="utf-8")
  assert list(docstrings(str(tmp_path / "m.py"))) == [
      "The module.", "A class.\n\nWith\n  indented lines.", "A method.", "Inside.", "Asynchronous."]


@pytest.mark.parametrize("content", [b"print 'Python 2'", b"'\xff'", b"a = '\0'"])
def test_files_that_are_not_python_have_no_docstrings(tmp_path, content):
  (tmp_path / "m.py").write_bytes(b'"""Documentation."""\n' + content)
  assert list(docstrings(str(tmp_path / "m.py"))) == []


def test_bad_splits_of_pydocs():
  assert fails(ConfigError, "embedded:pydocs:test", "") == (
      "embedded:pydocs:test: valid splits are train and val")
  assert fails(ConfigError, "embedded:pydocs/3:train", "") == (
      "embedded:pydocs/3: it has no subsets, so leave /3 away")


# --------------------------------------------------------------------------------- parts


@pytest.mark.parametrize("text, kept", [
    ("[:]", "abcdefg"), ("[2:]", "cdefg"), ("[:2]", "ab"), ("[2:4]", "cd"), ("[5:99]", "fg"),
    ("[:50%]", "abc"), ("[50%:]", "defg"), ("[10%:90%]", "abcdef"), ("[0%:100%]", "abcdefg"),
    ("[1:50%]", "bc"), ("[4:2]", ""), ("[:200%]", "abcdefg"),
])
def test_parts(text, kept):
  assert Part.parse("spec", f"letters{text}", "letters").of("abcdefg") == kept


def test_parts_that_meet_share_nothing_and_leave_nothing_out():
  for n in range(1, 40):
    items = list(range(n))
    for percent in (1, 33, 50, 90, 99):
      low, high = (Part.parse("", f"x[{t}]", "x").of(items)
                   for t in (f":{percent}%", f"{percent}%:"))
      assert low + high == items and len(low) == n * percent // 100
