"""Words for people, in logs and on terminals."""


def count(number: int, noun: str, plural: str | None = None) -> str:
    """'1 record', '2,000 records'; `plural` is for nouns that do not just take an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
