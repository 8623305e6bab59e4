"""The one source of a file, and its sentences."""

from promptboost.pool.readers import read_sources


def read_source(path, kind=None, **options):
    (source,) = read_sources(path, kind, **options)
    return source


def read_sentences(path):
    return {name: list(texts) for name, texts in read_source(path, "plain").sentences.items()}
