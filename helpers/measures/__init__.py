"""What is measured of what was captured: functions of arrays that know no model, and their intervals over images."""
