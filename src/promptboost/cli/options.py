"""Options that several commands have."""

import click

__all__ = ["device_option", "no_cache_option"]

device_option = click.option(
    "--device", help="Where the encoder runs, such as cpu or cuda:1. Default: the fastest there is."
)

no_cache_option = click.option(
    "--no-cache", is_flag=True, help="Compute all embeddings, and keep none."
)
