"""One model examined for outlier tokens: what it has, what writes them, and what shifting them
changes.
"""

from helpers.own.diagnose import diagnose
from helpers.own.diagnosis import Diagnosis
from helpers.own.report import advice, page, pictures, to_json

__all__ = ["Diagnosis", "advice", "diagnose", "page", "pictures", "to_json"]
