"""``promptboost cache``."""

import click

from promptboost.cli.failure import UNUSABLE
from promptboost.cli.output import Output, speaks


@click.command(name="cache")
@click.argument("action", type=click.Choice(["show", "clear"]), default="show")
@click.option("--verify", is_flag=True, help="Check every byte; damaged files are set aside.")
@click.option("--fingerprint", help="Clear the vectors of one encoder only.")
@speaks
def command(out: Output, action: str, verify: bool, fingerprint: str | None) -> int:
    """Show, check or clear the embedding store.

    It only saves time: whatever is cleared is computed again when it is needed.
    """
    from promptboost.encoders.store import EmbeddingStore, human_bytes
    from promptboost.errors import SettingError

    store = EmbeddingStore()
    if action == "clear":
        if verify:
            raise SettingError("--verify goes with show, not with clear")
        known = {share.fingerprint: share.name for share in store.report().encoders}
        if fingerprint is not None and fingerprint not in known:
            there = ", ".join(f"{key} ({name})" if name else key for key, name in known.items())
            raise SettingError(
                f"nothing is stored for the fingerprint {fingerprint!r}; there is {there or 'none'}"
            )
        freed = store.clear(fingerprint)
        out.result({"freed_bytes": freed}, f"{human_bytes(freed)} freed")
        return 0
    checked = store.verify() if verify else None
    report = store.report()
    found = {**report.to_dict(), "verification": checked.to_dict() if checked else None}
    out.result(found, "\n".join(map(str, [report, checked] if checked else [report])))
    return UNUSABLE if checked is not None and not checked.ok else 0
