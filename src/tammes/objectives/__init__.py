"""What is trained: modules (images, labels) -> {name: scalar}."""

from tammes.objectives.plain import Objective

__all__ = ["Objective"]
