"""Words for people, in logs and on terminals."""


def count(number: int, noun: str) -> str:
    """'1 record', '2,000 records'."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
