"""Index a tree incrementally with LlamaIndex: llama_index_pipeline.py TREE MODEL TARGET; prints how many it embedded.

The ingestion pipeline with document store and upserts skips documents whose text has not changed. It runs in its own
environment (``make peers``).
"""

from __future__ import annotations

import sys
from pathlib import Path

from llama_index.core import SimpleDirectoryReader
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import SimpleVectorStore
from model2vec import StaticModel
from pydantic import PrivateAttr


class StaticEmbedding(BaseEmbedding):  # type: ignore[misc]  # untyped here
    """A model2vec model behind LlamaIndex's interface."""

    _model: StaticModel = PrivateAttr()

    def __init__(self, path: str) -> None:
        super().__init__(model_name="static", embed_batch_size=1024)
        self._model = StaticModel.from_pretrained(path)

    def _get_text_embedding(self, text: str) -> list[float]:
        (vector,) = self._get_text_embeddings([text])
        return vector

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = self._model.encode(texts).tolist()
        return vectors

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


def main(tree: str, model: str, target: str) -> None:
    store = Path(target)
    vectors = store / "vectors.json"
    pipeline = IngestionPipeline(
        transformations=[SentenceSplitter(chunk_size=256, chunk_overlap=0), StaticEmbedding(model)],
        docstore=SimpleDocumentStore(),
        vector_store=SimpleVectorStore.from_persist_path(str(vectors)) if vectors.exists() else SimpleVectorStore(),
        docstore_strategy=DocstoreStrategy.UPSERTS_AND_DELETE,
        disable_cache=True,
    )
    if vectors.exists():
        pipeline.docstore = SimpleDocumentStore.from_persist_path(str(store / "documents.json"))
    documents = SimpleDirectoryReader(tree, recursive=True, filename_as_id=True, required_exts=[".py"]).load_data()
    nodes = pipeline.run(documents=documents)
    store.mkdir(parents=True, exist_ok=True)
    pipeline.docstore.persist(str(store / "documents.json"))
    pipeline.vector_store.persist(str(vectors))
    print(len({node.ref_doc_id for node in nodes}))


if __name__ == "__main__":
    main(*sys.argv[1:])
