"""What is measured of a capture: functions of arrays that know no model, with intervals."""
