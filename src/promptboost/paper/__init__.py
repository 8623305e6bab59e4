"""The paper, table by table: its numbers and those measured here."""
