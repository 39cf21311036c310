"""Reports: HTML pages and images about runs, galleries and vectors."""

from tammes.report.compare import compare_page
from tammes.report.contact_sheet import draw_retrievals
from tammes.report.run import look, run_page

__all__ = ["compare_page", "draw_retrievals", "look", "run_page"]
