"""Access log lines for tests."""


def combined(
    path: str = "/",
    *,
    client: str = "192.0.2.1",
    time: str = "17/May/2015:10:05:03 +0000",
    method: str = "GET",
    status: int = 200,
    size: str = "512",
    user_agent: str = "Mozilla/5.0",
) -> str:
    """A line in the Combined Log Format."""
    return f'{client} - - [{time}] "{method} {path} HTTP/1.1" {status} {size} "-" "{user_agent}"'
