"""The scripted platform as an unpackaged plugin."""

from cardcage_sdk import hookimpl
from cardcage_sdk.testing.platforms import ScriptedPlatform


@hookimpl
def register_platforms():
    return [ScriptedPlatform]
