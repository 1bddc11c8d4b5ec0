module setpoint.dev/setpoint/setpointtest

go 1.26.0
