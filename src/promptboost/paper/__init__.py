"""The paper, table by table: what it says it found, to set beside what is found here."""
