"""Lets each Python process that is started with this folder on its path know the kind."""

from tests.kinds.registered import register

register()
