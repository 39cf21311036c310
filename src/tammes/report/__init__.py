"""Pictures of what a model finds."""

from tammes.report.retrievals import draw_retrievals

__all__ = ["draw_retrievals"]
