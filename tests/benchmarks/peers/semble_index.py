"""Index a tree with semble and save the index: semble_index.py TREE MODEL TARGET; prints the number of files."""

from __future__ import annotations

import sys

from semble.index import SembleIndex

if __name__ == "__main__":
    tree, model, target = sys.argv[1:]
    index = SembleIndex.from_path(tree, model_path=model)
    index.save(target)
    print(index.stats.indexed_files)
