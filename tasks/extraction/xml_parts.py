"""Parse the XML parts of documents that are zip archives, streamed within a budget.

XML that declares entities is rejected.
"""

from __future__ import annotations

import io
import posixpath
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import unquote
from xml.parsers import expat

from driftline.storage.documents import SkipReason
from driftline.tasks.extraction.extractor import OLE, SOFT_HYPHEN
from driftline.tasks.extraction.process import Refused

MAX_PARTS_BYTES = 512 * 2**20
"""Maximum total size of the unpacked parts."""
MAX_DEPTH = 200
_CHUNK_BYTES = 64 * 1024
_ENCRYPTED_FLAG = 1

Attributes = dict[str, str]


@dataclass(slots=True)
class Archive:
    """A document's parts, keyed by name. ``budget`` is the number of bytes that may still be unpacked."""

    zipped: zipfile.ZipFile
    budget: int = MAX_PARTS_BYTES
    names: frozenset[str] = frozenset()

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield a part's content. Raises Refused."""
        try:
            info = self.zipped.getinfo(name)
        except KeyError:
            raise Refused(SkipReason.DAMAGED) from None
        if info.flag_bits & _ENCRYPTED_FLAG:
            raise Refused(SkipReason.ENCRYPTED)
        with self.zipped.open(info) as part:
            while chunk := part.read(_CHUNK_BYTES):
                self.budget -= len(chunk)
                if self.budget < 0:
                    raise Refused(SkipReason.BOMB)
                yield chunk

    def parse(self, name: str, handler: Handler) -> None:
        """Parse an XML part with ``handler``. Raises Refused."""
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = _refuse_declarations
        parser.StartElementHandler = handler.started
        parser.EndElementHandler = handler.ended
        parser.CharacterDataHandler = lambda text: handler.data(text.replace(SOFT_HYPHEN, ""))
        for chunk in self.chunks(name):
            parser.Parse(chunk, False)
        parser.Parse(b"", True)

    def relations(self, name: str, kind: str = "") -> dict[str, str]:
        """Return an OOXML part's relation targets, keyed by id; "" is the whole document. ``kind`` filters by type."""
        folder, base = posixpath.split(name)
        of_part = posixpath.join(folder, f"_rels/{base}.rels")
        found = _Relations()
        if of_part in self.names:
            self.parse(of_part, found)
        paths = {
            key: posixpath.normpath(posixpath.join("/", folder, target)).lstrip("/")
            for key, (of_kind, target) in found.targets.items()
            if of_kind.endswith(kind)
        }
        if not self.names.issuperset(paths.values()):  # part names ignore case
            named = {each.lower(): each for each in self.names}
            paths = {key: named.get(path.lower(), path) for key, path in paths.items()}
        return paths

    def related(self, name: str, kind: str, default: str = "") -> list[str]:
        """Return the distinct parts of a part's relations whose type ends in ``kind``, or else the ``default`` part."""
        targets = dict.fromkeys((*self.relations(name, f"/{kind}").values(), default))
        found = [target for target in targets if target in self.names]
        return [part for part in found if part != default] or found


def _refuse_declarations(name: str, system_id: str | None, public_id: str | None, has_declarations: bool) -> None:
    if has_declarations:
        raise Refused(SkipReason.DAMAGED)


@contextmanager
def open_archive(data: bytes) -> Iterator[Archive]:
    if data.startswith(OLE):
        raise Refused(SkipReason.ENCRYPTED)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as zipped:
            yield Archive(zipped, names=frozenset(zipped.namelist()))
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError, OSError, expat.ExpatError):
        raise Refused(SkipReason.DAMAGED) from None
    except RecursionError:  # a document in a document in a document
        raise Refused(SkipReason.BOMB) from None
    except RuntimeError:  # zipfile raises it for an encrypted part
        raise Refused(SkipReason.ENCRYPTED) from None


class Handler:
    """A handler of elements by their local names."""

    def __init__(self) -> None:
        self._depth = 0

    def started(self, tag: str, attributes: Attributes) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Refused(SkipReason.BOMB)
        self.start(tag.rpartition(" ")[2], {name.rpartition(" ")[2]: value for name, value in attributes.items()})

    def ended(self, tag: str) -> None:
        self._depth -= 1
        self.end(tag.rpartition(" ")[2])

    def start(self, tag: str, attributes: Attributes) -> None: ...

    def end(self, tag: str) -> None: ...

    def data(self, text: str) -> None: ...


class _Relations(Handler):
    def __init__(self) -> None:
        super().__init__()
        self.targets: dict[str, tuple[str, str]] = {}

    def start(self, tag: str, attributes: Attributes) -> None:
        if tag == "Relationship" and attributes.get("TargetMode") != "External":
            self.targets[attributes.get("Id", "")] = attributes.get("Type", ""), unquote(attributes.get("Target", ""))
