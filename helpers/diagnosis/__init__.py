"""One model examined for outlier tokens: what it has, what writes them, and what moving them changes."""

from helpers.diagnosis.examination import Diagnosis, diagnose
from helpers.diagnosis.report import advice, drawn, page, svg, to_json

__all__ = ["Diagnosis", "advice", "diagnose", "drawn", "page", "svg", "to_json"]
