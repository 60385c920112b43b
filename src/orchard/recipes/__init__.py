"""SWE, GUI and Claw: wiring and numbers, no mechanism."""
