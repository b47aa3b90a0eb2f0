"""Claude Code by its SDK: says what its tools read, and what it answers in the form of a schema."""
import asyncio
import json
import sys

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, ToolResultBlock, UserMessage, query


async def main():
    options = ClaudeAgentOptions(allowed_tools=["Read"], output_format={"type": "json_schema", "schema": json.loads(sys.argv[1])})
    async for message in query(prompt="What does weather.txt say?", options=options):
        if isinstance(message, UserMessage):
            for block in message.content:
                if isinstance(block, ToolResultBlock):
                    print("reads", repr(block.content))
        if isinstance(message, ResultMessage):
            print("structured", json.dumps(message.structured_output))


asyncio.run(main())
