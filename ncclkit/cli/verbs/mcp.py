"""`ncclkit mcp`: read-only tools for a coding agent; what they do stands in `mcp_server`."""

from __future__ import annotations

import argparse

from ncclkit.cli.runner import Verb, VerbAnswer
from ncclkit.core.model import NcclkitError


class McpVerb(Verb):
    """Serve read-only tools to a coding agent until its end of the pipe closes."""

    name = "mcp"
    group = "My job"
    what = "read-only tools for a coding agent, over standard input and output (MCP)"
    example = "mcp"
    needs_folder = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """It takes none: the agent names everything in its requests."""

    def answer(self, options: argparse.Namespace) -> VerbAnswer:
        """Serve; raises NcclkitError where the package of the protocol is missing."""
        try:
            from ncclkit.cli import mcp_server
        except ModuleNotFoundError as error:
            package = str(error.name).partition(".")[0]
            raise NcclkitError(
                f"`ncclkit mcp` needs the package {package}: pip install 'ncclkit[mcp]'."
            ) from error
        mcp_server.serve()
        return VerbAnswer(0)
