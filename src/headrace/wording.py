"""Words for people, in logs and on terminals."""


def count(number: int, noun: str, plural: str | None = None) -> str:
    """'1 record', '2,000 records'; `plural` is for nouns that do not just take an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def is_utf8(text: str) -> bool:
    """Return False for text with half a surrogate pair, as Python makes of arguments that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    r"""The text with \xff for a byte of an argument that is not UTF-8."""
    try:
        return text.encode(errors="surrogateescape").decode(errors="backslashreplace")
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
