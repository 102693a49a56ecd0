"""Typer's commands with our own help pages and usage errors: flags without a type, examples at the end."""

from typing import Any

from typer.core import TyperCommand, TyperGroup

from headrace.cli import output, usage


class Command(TyperCommand):
    """A command whose flags are shown without '<bool>', which looks like a value."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _with_plain_flags(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with usage.explained(ctx, args), output.writing():
            rest = super().parse_args(ctx, args)
        usage.check_texts(ctx)
        return rest


class Group(TyperGroup):
    """A command with subcommands; flags are shown in the same way."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _with_plain_flags(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with usage.explained(ctx, args), output.writing():
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            raise usage.unknown_command(ctx, args)
        return super().resolve_command(ctx, args)


def examples(*lines: str) -> str:
    """Format the examples at the end of a help page. `lines` alternate between purpose and command."""
    pairs = [f"[dim]# {purpose}[/]\n{_escaped(line)}" for purpose, line in zip(lines[::2], lines[1::2], strict=True)]
    return "[bold]Examples[/]\n" + "\n".join(pairs)


def _with_plain_flags(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_bool_flag", False):
            param.metavar = ""
    return params


def _escaped(command: str) -> str:
    """Escape square brackets, which are rich's markup."""
    return command.replace("[", "\\[")
